"""A worker's ``@worker.on_startup`` and ``@worker.on_shutdown``: called before its first task, and after its last.

A worker of threads and one of asyncio call them by the same steps, which yield what coroutine functions returned: it is
waited for on the event loop of the handlers. Both drive them with every error thrown in: the calls know what it means.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable, Generator
from typing import Any

from shardq.core.model.printable import quoted
from shardq.delivery.functions import check_function, name_of
from shardq.delivery.logs import tell
from shardq.errors import InvalidOption

Calls = Generator[Awaitable[object], None, None]


class Lifecycle:
    """The functions of one worker, and whether it has begun."""

    def __init__(self) -> None:
        self._startup: list[Callable[[], Any]] = []
        self._shutdown: list[Callable[[], Any]] = []
        self._has_begun = False

    def on_startup(self, function: Callable[[], Any]) -> None:
        _check(function, "on_startup")
        self._startup.append(function)

    def on_shutdown(self, function: Callable[[], Any]) -> None:
        _check(function, "on_shutdown")
        self._shutdown.append(function)

    def begin(self) -> Calls:
        """Calls those for the start, in their order. What one raises ends it, and nothing has begun."""
        for function in self._startup:
            if inspect.isawaitable(result := function()):
                yield result
        self._has_begun = True

    def end(self) -> Calls:
        """Calls those for the end, the last first, if all of the start were called. What one raises is logged."""
        if not self._has_begun:
            return
        self._has_begun = False
        for function in reversed(self._shutdown):
            try:
                if inspect.isawaitable(result := function()):
                    yield result
            except BaseException as exc:  # noqa: BLE001  the user's code, SystemExit too: the others are called
                tell(logging.ERROR, "the on_shutdown function %s failed", name_of(function), exc=exc)


def _check(function: object, of: str) -> None:
    check_function(function, f"@worker.{of}")
    try:
        signature = inspect.signature(function)  # type: ignore[arg-type]  # it is callable
    except (TypeError, ValueError):  # it does not tell
        return
    try:
        signature.bind()
    except TypeError as exc:
        raise InvalidOption(
            f"@worker.{of} can't be {quoted(function)}: {exc}; it is called without arguments"
        ) from None
