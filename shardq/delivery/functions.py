"""The user's functions: their kinds, and their results: work done, or undone. A result is judged by its type alone: an
object of the user's own may answer anything else as it likes.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import functools
import inspect
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Awaitable, Coroutine, Generator
from typing import Any, Literal

from shardq.core.model.printable import quoted
from shardq.core.model.task import Delivery
from shardq.errors import InvalidOption

What = Literal["handler", "hook"]

UNDONE: tuple[tuple[type, str], ...] = (
    (Awaitable, "nobody awaits it; "),
    (concurrent.futures.Future, "nobody waits for it; ask for its result() in the {}"),
    (Generator, "nobody iterates over it; do that in the {}"),
    (AsyncGenerator, "nobody iterates over it; do that in the {}"),
)
"""The kinds of work that is undone when it is returned, and what to do with each. The first that fits counts: anext()
returns two kinds.
"""

INSTEAD: dict[What, str] = {
    "handler": "do that in the handler, as a coroutine function (async def)",
    "hook": "make the hook a plain function",
}


class ChoosingHandler(ABC):
    """A handler of a topic that chooses by the delivery which function is run, on a thread or on the event loop."""

    @abstractmethod
    def __call__(self, delivery: Delivery) -> Any:
        """Runs the function, or returns its coroutine."""

    @abstractmethod
    def is_coroutine(self, delivery: Delivery) -> bool:
        """True if a call with this delivery returns a coroutine. Never raises."""

    @abstractmethod
    def has_coroutines(self) -> bool:
        """True if it does so for some delivery."""

    @abstractmethod
    def title(self, delivery: Delivery) -> str:
        """The name of the function for this delivery, in logs and errors. Never raises."""


def is_coroutine_function(function: object) -> bool:
    """True also for an object whose ``__call__`` is one."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(called(function))


def check_function(function: object, what: str) -> None:
    if not callable(function):
        raise InvalidOption(f"{what} can't be {quoted(function)}; give a function or a coroutine function")
    plain = called(function)
    if inspect.isgeneratorfunction(plain) or inspect.isasyncgenfunction(plain):
        raise InvalidOption(
            f"{what} can't be {quoted(function)}: with a yield in it a call runs nothing; take that out"
        )


def check_result(result: Any, name: str, what: What) -> None:
    """Raises TypeError for a result that is undone work: a coroutine, another awaitable, a future or a generator.

    Coroutines are closed. Futures and tasks are left alone: they may be somebody else's.
    """
    kind = type(result)
    for undone, advice in UNDONE:
        if issubclass(kind, undone):
            # An object of the user's own is not asked for its name.
            function = getattr(result, "__name__", None) if kind.__module__ == "builtins" else None
            made_by = f" of {function}" if function else ""
            if issubclass(kind, Coroutine):
                # Python would warn of it. One that already runs elsewhere can't be closed.
                with contextlib.suppress(BaseException):
                    result.close()
            article = "an" if kind.__name__[0] in "aeiouAEIOU" else "a"
            instead = INSTEAD[what] if undone is Awaitable else ""
            raise TypeError(f"{name} returned {article} {kind.__name__}{made_by}: {advice.format(what)}{instead}")


def name_of(function: object) -> str:
    """The name of a function as its author knows it."""
    while isinstance(function, functools.partial):
        function = function.func
    if not inspect.isroutine(function) and not isinstance(function, type):
        function = type(function)
    module, own = getattr(function, "__module__", None), getattr(function, "__qualname__", None)
    return f"{module}.{own}" if module and own else repr(function)


def called(function: Any) -> Any:
    """The function that a call runs."""
    while isinstance(function, functools.partial):
        function = function.func
    if inspect.isroutine(function) or isinstance(function, type):
        return function
    return type(function).__call__
