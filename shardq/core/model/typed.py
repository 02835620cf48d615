"""Types of payloads and arguments: what a codec gave back becomes what an annotation says, or an error that names the
field. Models of pydantic are known by their methods: it is never imported here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, get_origin

import msgspec

from shardq.errors import PayloadNotDecodable

EXACT = (str, int, float, bool, bytes)  # types whose values need no look if they are exactly of them

SHOWN = 3  # errors of one model that are shown

_AT = re.compile(r"^(.*?)(?: - at (`key` in )?`\$(.*)`)?$", re.DOTALL)
_VALUE = "Invalid enum value"  # errors that begin so go on with the value
_MISSING = re.compile(r"^Object missing required field `(.*)`$")


def to_builtins(value: Any) -> Any:
    """The values that codecs know, of one that they do not. Raises TypeError where there are none."""
    kind = type(value)
    if _is_model(kind):
        return value.model_dump(mode="json", by_alias=True, round_trip=True)
    raise TypeError(f"Encoding objects of type {kind.__qualname__} is unsupported")


class Fields:
    """Named values of given types, checked and converted together. The types are compiled once: those that msgspec
    knows, and models of pydantic. Raises TypeError for others. "" is the name of a whole payload.
    """

    def __init__(self, types: Mapping[str, Any]) -> None:
        self._exact = {name: each for name, each in types.items() if each in EXACT}
        self._places = {name: f"f{place}" for place, name in enumerate(types)}
        self._struct = msgspec.defstruct(
            "Fields",
            [
                (place, types[name], msgspec.field(name=name, default=msgspec.UNSET))
                for name, place in self._places.items()
            ],
        )
        # Structs are compiled at their first use, and this is one.
        msgspec.msgpack.Decoder(self._struct)

    def are_exact(self, values: dict[str, Any]) -> bool:
        """True if all of them are exactly of types that codecs know: the usual case, and the quickest."""
        exact = self._exact
        return all(exact.get(name) is type(value) for name, value in values.items())

    def converted(self, values: dict[str, Any]) -> dict[str, Any]:
        """The values, of all fields or of some, as their types say. Raises PayloadNotDecodable."""
        if self.are_exact(values):
            return values
        try:
            struct = msgspec.convert(values, self._struct, str_keys=True, dec_hook=_from_builtins)
        except msgspec.ValidationError as exc:
            # Not from its cause, whose text has the value.
            raise PayloadNotDecodable(_misfit(exc)) from None
        return {name: getattr(struct, self._places[name]) for name in values}


def _from_builtins(type: Any, value: Any) -> Any:
    """A value of a type that msgspec does not know."""
    kind = get_origin(type) or type
    if isinstance(value, kind):
        return value
    if _is_model(kind):
        # As from JSON: a strict model takes text for its datetimes from there alone.
        return kind.model_validate_json(msgspec.json.encode(value))
    raise ValueError(f"Expected `{getattr(kind, '__name__', kind)}`, got `{value.__class__.__name__}`")


def _is_model(kind: Any) -> bool:
    """True for a model of pydantic."""
    return hasattr(kind, "__pydantic_validator__") and hasattr(kind, "model_validate_json")


def _misfit(exc: msgspec.ValidationError) -> str:
    """The error as FIELD: WHAT, as in ``to: expected str, got int``, without the value: it goes into logs."""
    found = _AT.match(str(exc))
    assert found is not None, "it matches every text"
    what, key, path = found[1], found[2], (found[3] or "").lstrip(".")
    of_model = getattr(exc.__cause__, "errors", None)
    if callable(of_model):
        errors = of_model()
        said = [_said(path + _path(each["loc"]), each["msg"]) for each in errors[:SHOWN]]
        return "; ".join(said) + (f" and {len(errors) - SHOWN} more" if len(errors) > SHOWN else "")
    if what.startswith(_VALUE):
        what = _VALUE
    if missing := _MISSING.match(what):
        return _said(f"{path}.{missing[1]}", "is missing")
    return ("a key of " if key else "") + _said(path, what.replace("`", ""))


def _said(path: str, what: str) -> str:
    return f"{path.lstrip('.') or 'the payload'}: {what[:1].lower()}{what[1:]}"


def _path(parts: tuple[str | int, ...]) -> str:
    """The path in a model, as msgspec writes paths."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in parts)
