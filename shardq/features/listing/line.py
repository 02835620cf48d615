"""A task as a line of JSON: what ``list`` and ``get`` print with ``--json``, a line of an export, and what
``import`` reads. No I/O.

**A line has the payload exactly.** Of a payload in JSON it is ``payload``, byte for byte; of text that was pushed
with the codec ``raw``, ``payload`` is that text. Of everything else ``payload_base64`` has the bytes, and ``payload``
shows what JSON can say of them.
"""

from __future__ import annotations

from base64 import b64encode
from operator import attrgetter
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from shardq.core.layout.words import UNENCODABLE
from shardq.core.model.record import JSON, MSGPACK, RAW
from shardq.core.model.task import TaskInfo

Fields = dict[str, Any]
"""Name → type."""


def fields_of(source: type[msgspec.Struct], *without: str) -> Fields:
    """The fields of a value, but some."""
    return {each.name: each.type for each in msgspec.structs.fields(source) if each.name not in without}


def form(name: str, fields: Fields, optional: Fields | None = None, *, module: str) -> Any:
    """A form with these fields. ``optional``: fields that come last, and may be missing."""
    found: list[Any] = [*fields.items(), *((each, type | UnsetType, UNSET) for each, type in (optional or {}).items())]
    return msgspec.defstruct(name, found, module=module, kw_only=True, forbid_unknown_fields=True)


_SHOWN = fields_of(TaskInfo, "payload")

TaskForm: Any = form("TaskForm", _SHOWN, {"payload": Any, "payload_base64": str}, module=__name__)
"""A task with the payload as it is stored."""

_values = attrgetter(*_SHOWN)


def task(info: TaskInfo, *, is_private: bool = False) -> Any:
    """The form of a task that was read with ``decode=False``. ``is_private``: without the payload."""
    # of a task that has ended, no payload is kept
    shown = {} if is_private or info.payload is None else payload(info.payload, info.codec)
    return TaskForm(**dict(zip(_SHOWN, _values(info), strict=True)), **shown)


def payload(data: bytes, codec: str) -> dict[str, Any]:
    """The fields of a payload as it is stored."""
    try:
        if codec == JSON.name:
            # a line is one line, characters that steer a terminal are printed as escapes, and blanks around a value go
            if data.decode().isprintable() and _decode_raw(data) == data:
                return {"payload": msgspec.Raw(data)}
            return {"payload": msgspec.json.decode(data)} | _in_base64(data)
        if codec == RAW.name:
            return {"payload": data.decode()}
        if codec == MSGPACK.name:
            value = msgspec.msgpack.decode(data)
            msgspec.json.encode(value)
            return {"payload": value} | _in_base64(data)
    except UNENCODABLE:
        pass
    return _in_base64(data)


def _decode_raw(data: bytes) -> bytes:
    return bytes(msgspec.json.decode(data, type=msgspec.Raw))


def _in_base64(data: bytes) -> dict[str, Any]:
    return {"payload_base64": b64encode(data).decode()}
