"""The types of the user's functions: arguments by their annotations, and payloads by ``type=``. They are compiled at
the registration, and applied where the handler runs: what does not fit is its failure.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any, ParamSpecArgs, ParamSpecKwargs, get_type_hints

import msgspec

from shardq.core.model.printable import quoted
from shardq.core.model.record import Builtin
from shardq.core.model.task import Delivery
from shardq.core.model.typed import Fields
from shardq.delivery.functions import called, name_of
from shardq.errors import InvalidOption, PayloadNotDecodable

POSSIBLE = (
    "give a type that msgspec decodes (builtins, datetimes, UUID, Decimal, Enum, dataclass, Struct, TypedDict; lists, "
    "dicts and X | None of them) or a pydantic model"
)

Parameter = inspect.Parameter

NO_FIELDS = Fields({})


def check_takes(function: Callable[..., Any], what: str) -> None:
    """Raises InvalidOption for a handler of a topic that can't be called with a ``delivery`` alone, or a ``batch``."""
    try:
        signature = inspect.signature(function, follow_wrapped=False)
    except (TypeError, ValueError):  # it does not tell
        return
    try:
        signature.bind(None)
    except TypeError as exc:
        raise InvalidOption(
            f"a handler can't be {quoted(function)}: {exc}; it is called with the {what} alone, as "
            f"def handle({what}). A function with arguments of its own is a task: @engine.task"
        ) from None


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
    read = reading(function, type)

    @functools.wraps(function)
    def handle(delivery: Delivery) -> Any:
        return function(read(delivery))

    return handle


def reading(function: Callable[..., Any], type: Any) -> Callable[[Delivery], Delivery]:
    """Returns a function that gives deliveries payloads of this type. It raises PayloadNotDecodable, and names the
    handler.
    """
    fields = payload_of(type)

    def read(delivery: Delivery) -> Delivery:
        try:
            payload = fields.converted({"": delivery.payload})[""]
        except PayloadNotDecodable as exc:
            raise PayloadNotDecodable(f"{name_of(function)} does not take this payload: {exc}") from None
        return msgspec.structs.replace(delivery, payload=payload)

    return read


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
