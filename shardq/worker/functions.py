"""The user's functions: their kinds, their results (work done, or undone), and the types of arguments and payloads.
Types are compiled at the registration, and applied where the handler runs: what does not fit is its failure. A result
is judged by its type alone: an object of the user's own may answer anything else as it likes.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import functools
import inspect
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Generator, Mapping
from types import SimpleNamespace
from typing import Any, Literal, ParamSpecArgs, ParamSpecKwargs, get_type_hints

import msgspec

from shardq.core.model.printable import quoted
from shardq.core.model.record import Builtin
from shardq.core.model.task import Delivery
from shardq.core.model.typed import Fields
from shardq.errors import InvalidOption, PayloadNotDecodable

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

POSSIBLE = (
    "give a type that msgspec decodes (builtins, datetimes, UUID, Decimal, Enum, dataclass, Struct, TypedDict; lists, "
    "dicts and X | None of them) or a pydantic model"
)

Parameter = inspect.Parameter

NO_FIELDS = Fields({})


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


def check_takes_delivery(function: Callable[..., Any]) -> None:
    """Raises InvalidOption for a handler of a topic that can't be called with a delivery alone."""
    try:
        signature = inspect.signature(function, follow_wrapped=False)
    except (TypeError, ValueError):  # it does not tell
        return
    try:
        signature.bind(None)
    except TypeError as exc:
        raise InvalidOption(
            f"a handler can't be {quoted(function)}: {exc}; it is called with the delivery alone, as "
            "def handle(delivery). A function with arguments of its own is a task: @engine.task"
        ) from None


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


class _Unread(Exception):
    """An annotation can't be read, or not yet."""


class Arguments:
    """The arguments of the calls of one function, by its annotations. Those without one are as the codec gives them.

    Annotations with names that are not defined yet are read again by ``check``.
    """

    def __init__(self, function: Callable[..., Any], name: str) -> None:
        self._function = function
        self._name = name
        parameters, self._bind = _parameters(function)
        self._parameters = parameters
        either = Parameter.POSITIONAL_OR_KEYWORD
        self._positional = [each.name for each in parameters if each.kind in (Parameter.POSITIONAL_ONLY, either)]
        self._by_name = {each.name for each in parameters if each.kind in (Parameter.KEYWORD_ONLY, either)}
        names = {each.kind: each.name for each in parameters}
        self._rest, self._more = names.get(Parameter.VAR_POSITIONAL, ""), names.get(Parameter.VAR_KEYWORD, "")
        self._typed: frozenset[str] | None = None
        """The parameters with a type; None: not read yet."""
        self._fields = NO_FIELDS
        with contextlib.suppress(_Unread):
            self._read()

    def check(self) -> None:
        """Raises InvalidOption for annotations that can't be read."""
        if self._typed is None:
            try:
                self._read()
            except _Unread as exc:
                raise InvalidOption(
                    f"the annotations of {self._name} can't be read: {exc}; define or import the name in its module, "
                    "and not for type checkers alone"
                ) from exc.__cause__

    def _read(self) -> None:
        hints = _hints(self._function)
        types: dict[str, Any] = {}
        for each in self._parameters:
            hint = hints.get(each.name, Any)
            if hint is Any or hint is object or isinstance(hint, ParamSpecArgs | ParamSpecKwargs):
                continue
            try:
                _compiled({each.name: hint})
            except TypeError as exc:
                raise InvalidOption(
                    f"the parameter {quoted(each.name)} of {self._name} can't be annotated with {quoted(hint)}: "
                    f"{exc}; {POSSIBLE}, "
                    "or leave the annotation out"
                ) from exc
            if each.kind is Parameter.VAR_POSITIONAL:
                hint = list[hint]  # type: ignore[valid-type]  # mypy takes it for a type of its own
            elif each.kind is Parameter.VAR_KEYWORD:
                hint = dict[str, hint]  # type: ignore[valid-type]  # likewise
            types[each.name] = hint
        self._fields = _compiled(types)
        self._typed = frozenset(types)

    def converted(self, args: list[Any], kwargs: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        """The arguments as their annotations say. Raises PayloadNotDecodable for those that do not fit; a wrong number
        of them is left to the call.
        """
        values = self._values(args, kwargs)
        found = self._fields.converted(values)
        if found is values:
            return args, kwargs
        first = [found.get(name, value) for name, value in zip(self._positional, args, strict=False)]
        named = {name: found.get(name, value) if name in self._by_name else value for name, value in kwargs.items()}
        return [*first, *found.get(self._rest, args[len(self._positional) :])], named | found.get(self._more, {})

    def check_pushed(self, args: list[Any], kwargs: dict[str, Any], codec: Builtin) -> None:
        """Raises PayloadNotDecodable for arguments that ``converted`` would refuse in a worker, behind this codec. What
        the codec can't encode is for the push to tell.
        """
        values = self._values(args, kwargs)
        if self._fields.are_exact(values):
            return
        try:
            encoded = codec.encode(values)
        except Exception:  # noqa: BLE001  as said above
            return
        self._fields.converted(codec.decode(encoded))

    def _values(self, args: list[Any], kwargs: dict[str, Any]) -> dict[str, Any]:
        """The arguments with a type, by name. None where they do not bind."""
        typed = self._typed
        if not typed:
            return {}
        if self._bind is not None:
            try:
                self._bind.bind(*args, **kwargs)
            except TypeError:
                return {}
        count = len(self._positional)
        values = {name: value for name, value in zip(self._positional, args, strict=False) if name in typed}
        if self._rest in typed and len(args) > count:
            values[self._rest] = args[count:]
        for name, value in kwargs.items():
            if name in typed and name in self._by_name:
                values[name] = value
        if self._more in typed and (more := {name: kwargs[name] for name in kwargs if name not in self._by_name}):
            values[self._more] = more
        return values


def calling(function: Callable[..., Any], arguments: Arguments, name: str) -> Callable[[Delivery], Any]:
    """The function as the handler of its calls."""

    def call(delivery: Delivery) -> Any:
        payload = delivery.payload
        args, kwargs = payload.get("args", ()), payload.get("kwargs", {})
        try:
            args, kwargs = arguments.converted(args, kwargs)
        except PayloadNotDecodable as exc:
            raise PayloadNotDecodable(f"{name} does not take this payload: {exc}") from None
        return function(*args, **kwargs)

    return call


def typed(function: Callable[[Delivery], Any], type: Any) -> Callable[[Delivery], Any]:
    """The handler, given payloads of this type."""
    fields = payload_of(type)

    @functools.wraps(function)
    def handle(delivery: Delivery) -> Any:
        try:
            payload = fields.converted({"": delivery.payload})[""]
        except PayloadNotDecodable as exc:
            raise PayloadNotDecodable(f"{name_of(function)} does not take this payload: {exc}") from None
        return function(msgspec.structs.replace(delivery, payload=payload))

    return handle


def payload_of(type: Any) -> Fields:
    """A payload of this type. Raises InvalidOption."""
    try:
        return _compiled({"": type})
    except (TypeError, _Unread) as exc:
        raise InvalidOption(f"type={quoted(type)} is not possible: {exc}; {POSSIBLE}") from exc


def _compiled(types: Mapping[str, Any]) -> Fields:
    try:
        return Fields(types)
    except NameError as exc:  # in the annotations of a dataclass, say
        raise _Unread(exc) from exc


def _parameters(function: Callable[..., Any]) -> tuple[list[Parameter], inspect.Signature | None]:
    """The parameters of a call. Those of a decorated function, if the decorator's own takes whatever comes; then also
    its signature: calls that do not bind to it are for the decorator, which may add arguments of its own.
    """
    try:
        found = inspect.signature(function, follow_wrapped=False)
        parameters = list(found.parameters.values())
        anything = [each.kind for each in parameters] == [Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD]
        if not anything or not hasattr(function, "__wrapped__"):
            return parameters, None
        found = inspect.signature(function)
    except (TypeError, ValueError):
        return [], None
    return list(found.parameters.values()), found


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    """The annotations of the parameters, read."""
    plain = called(function)
    if isinstance(plain, type):
        plain = plain.__init__  # type: ignore[misc]  # that of this class is asked for
    try:
        annotations = {name: each for name, each in getattr(plain, "__annotations__", {}).items() if name != "return"}
        names = getattr(inspect.unwrap(plain), "__globals__", {})
        return get_type_hints(SimpleNamespace(__annotations__=annotations), names, include_extras=True)
    except Exception as exc:  # annotations are expressions, which may raise anything
        raise _Unread(exc) from exc
