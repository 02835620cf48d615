"""The lines of an export, and those of a file of tasks to push: how one is understood, and what is wrong with it.
Asks no server.

| a line with | is | |
| --- | --- | --- |
| ``shardq`` | the first of an export | the settings of the engine |
| ``settings`` | a topic's settings | |
| ``schedule`` | a schedule | as it is stored |
| ``state`` | a task as it was | what ``shardq list --json`` prints |
| ``seen`` | a dedup window | of an id, and until when |
| ``end`` | the last of an export | how many tasks came before it |
| none of these | a task to push | a payload, which is stored byte for byte, and options of a push |
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Literal, get_args

import msgspec
from msgspec import UNSET, UnsetType

from shardq.core.calls.request import Word
from shardq.core.calls.transfer import id_in
from shardq.core.layout.lanes import key_of, unique_of
from shardq.core.layout.words import UNDECODABLE
from shardq.core.model.attempts import joined
from shardq.core.model.checks import OnConflict, check_payload_size, check_whole_id, instant_ms
from shardq.core.model.ids import topic_of
from shardq.core.model.printable import quoted
from shardq.core.model.quantities import expiry, instant, seconds
from shardq.core.model.record import CODECS, JSON, MSGPACK, RAW, Codec, assembled
from shardq.core.model.task import Attempt, EndedState, State, Task
from shardq.core.model.task_options import OPTIONS, Content, Kind
from shardq.errors import BadInput

VERSION = 1

ROOM = 64 << 10
"""The bytes that a line may have beside its payload: headers take up to 8 KiB, and several times that escaped; a reason
2 KiB, and five attempts.
"""


def longest(max_payload: int) -> int:
    """The bytes that a line may have. Base64 takes four for three, and stands beside what it shows."""
    return max_payload * 3 + ROOM


# ---- tasks to push

_READ: Mapping[Kind, Any] = {
    "seconds": float | str,
    "instant": float | str,
    "expiry": float | str,
    "text": str,
    "choice": OnConflict,
    "count": int,
    "pairs": dict[str, str],
    "words": list[str],
}

PUSH_FIELDS: list[tuple[str, Any, None]] = [(option.name, _READ[option.kind] | None, None) for option in OPTIONS]
"""The options of a push as fields of JSON. An id with a slash is whole: it has the topic, and the key of a task that
has one.
"""

PushLine: Any = msgspec.defstruct(
    "PushLine", [("payload", msgspec.Raw), *PUSH_FIELDS], module=__name__, forbid_unknown_fields=True
)
"""A task to push."""

_TEXTS: dict[Kind, Callable[[str], Any]] = {"seconds": seconds, "instant": instant, "expiry": expiry}
"""Kind of an option that may be text → what reads it."""

_READERS = {option.name: _TEXTS[option.kind] for option in OPTIONS if option.kind in _TEXTS}

_decode_push = msgspec.json.Decoder(PushLine).decode


def payload_in(text: msgspec.Raw, codec: Codec) -> Any:
    """The payload that is stored of this JSON by an engine of this codec: by its own the text, byte for byte. Raises
    what ``reason_of`` tells if no worker in Python could read it, such as 1e999, and the text itself is JSON.
    """
    value = msgspec.json.decode(text)
    return text if codec is JSON else value


def task_of(text: str, defaults: Task, codec: Codec = JSON) -> Task:
    """The task of a line. ``defaults`` has the options that lines leave out."""
    line = _decode_push(text)
    line.payload = payload_in(line.payload, codec)
    fields = options_of({name: value for name, value in msgspec.structs.asdict(line).items() if value is not None})
    if "delay" in fields or "at" in fields:
        fields = {"delay": None, "at": None} | fields  # its own due time stands in place of that of the options
    return msgspec.structs.replace(defaults, **fields)


def options_of(fields: dict[str, Any]) -> dict[str, Any]:
    """The options of a push in these fields, in which times may be text, and the id whole. Raises ValueError."""
    for name, given in fields.items():
        if type(given) is str and name in _READERS:
            fields[name] = _READERS[name](given)
    if "/" in (id := fields.get("id", "")):
        check_whole_id(id)
        for name, value in (("topic", topic_of(id)), ("key", key_of(id))):
            if fields.setdefault(name, value) != value:
                raise BadInput(
                    f"the id {quoted(id)} has another {name} than {quoted(fields[name])}: leave out one of them"
                )
        fields["id"] = unique_of(id)
    return fields


# ---- tasks as they were


class RestoreLine(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A task as it was. Of what is not there, the usual counts."""

    id: str
    state: State
    due: dt.datetime | None = None
    died: dt.datetime | None = None
    failures: int = 0
    lapses: int = 0
    reason: str | None = None
    attempts: tuple[Attempt, ...] = ()
    payload: msgspec.Raw | UnsetType = UNSET
    payload_base64: bytes | UnsetType = UNSET
    codec: Literal["json", "msgpack", "raw", "own", ""] = "json"
    headers: dict[str, str] = {}
    max_attempts: int | None = None
    tags: tuple[str, ...] = ()
    url: str | None = None
    expires: dt.datetime | None = None
    # what the id and the state say, or what is not carried
    topic: msgspec.Raw | UnsetType = UNSET
    key: msgspec.Raw | UnsetType = UNSET
    deadline: msgspec.Raw | UnsetType = UNSET
    holder: msgspec.Raw | UnsetType = UNSET
    attempt: msgspec.Raw | UnsetType = UNSET
    pushed: msgspec.Raw | UnsetType = UNSET
    ended: msgspec.Raw | UnsetType = UNSET
    seconds: msgspec.Raw | UnsetType = UNSET
    failure: msgspec.Raw | UnsetType = UNSET


_decode_restore = msgspec.json.Decoder(RestoreLine).decode

_ORDINARY = re.compile(r"(?:[\w.-]{1,64}/)?[\w.@~:-]{1,200}", re.ASCII)
"""Ids that need no closer look."""

_PLAIN = assembled(b"", JSON.name, Content())

REASON_BYTES = 2048
"""A record keeps the end of a reason, as ``lua/common/reason.lua`` has it."""


def adopted(text: str, max_payload: int) -> list[Word]:
    """The words of ``adopt`` for a task as it was."""
    line = _decode_restore(text)
    if line.state in get_args(EndedState):
        raise BadInput(f"it is {line.state}, and its payload is not kept: there is nothing to restore")
    id = line.id
    if _ORDINARY.fullmatch(id) is None:
        check_whole_id(id)
    if line.failures < 0 or line.lapses < 0:
        raise BadInput(f"failures and lapses can't be {line.failures} and {line.lapses}; they are counts")
    payload = _payload_of(line)
    if len(payload) > max_payload:
        check_payload_size(payload, max_payload)
    past = joined(line.reason or "", line.attempts).encode() if line.reason or line.attempts else b""
    is_dead = line.state == "dead"
    if line.codec == JSON.name and not (
        line.headers or line.tags or line.url or past or line.max_attempts is not None or line.expires is not None
    ):
        record = _PLAIN + payload  # most have nothing else
    elif line.codec:
        record = assembled(
            payload,
            line.codec,
            _content_of(line),
            expires_ms=None if line.expires is None else instant_ms(line.expires, "expires"),
            reason=b"" if is_dead or not line.failures else _end_of(past),
        )
    else:
        record = payload
    due: Word = 0
    if is_dead:
        due = 0 if line.died is None else instant_ms(line.died, "died")
    elif line.state in ("scheduled", "held") and line.due is not None:
        due = instant_ms(line.due, "due")
    kind = "dead" if is_dead else "first" if line.state in ("ready", "leased") else "retry" if line.failures else "due"
    lease = f"{line.failures}:{line.lapses}::" if line.failures or line.lapses else ""
    return [id, due, record, kind, lease, past if is_dead else b""]


def _payload_of(line: RestoreLine) -> bytes:
    if not isinstance(line.payload_base64, UnsetType):
        return line.payload_base64
    if isinstance(line.payload, UnsetType):
        raise BadInput("it has no payload, and no payload_base64; was the list made without payloads?")
    shown = bytes(line.payload)
    if line.codec == RAW.name:
        value = msgspec.json.decode(shown)
        if not isinstance(value, str):
            raise BadInput('the payload of the codec "raw" is text, or in payload_base64')
        return value.encode()
    if line.codec == MSGPACK.name:
        return MSGPACK.encode(msgspec.json.decode(shown))
    if line.codec not in CODECS or line.codec == "own":
        raise BadInput(f"the payload of the codec {quoted(line.codec)} has to be in payload_base64")
    return shown


def _content_of(line: RestoreLine) -> Content:
    return Content(
        headers=line.headers or None, max_attempts=line.max_attempts, tags=line.tags or None, url=line.url or None
    )


def _end_of(reason: bytes) -> bytes:
    """The end of a reason. No letter is cut in two."""
    if len(reason) <= REASON_BYTES:
        return reason
    return re.sub(rb"^[\x80-\xbf]+", b"", reason[-REASON_BYTES:])


# ---- the others


class HeadLine(msgspec.Struct, kw_only=True):
    """The first line of an export."""

    shardq: int = VERSION
    engine: str = ""
    at: dt.datetime | None = None
    settings: dict[str, int | float] = {}
    """Those of ``configure``."""


class TopicLine(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The settings of a topic, as the engine stores them."""

    topic: str
    settings: dict[str, Any]
    without_secrets: str | None = None
    """The destination of a route that was left out, as its secrets were."""


class ScheduleLine(msgspec.Struct, kw_only=True):
    """A schedule, as the engine stores it: its declaration, and how far its pushing is."""

    schedule: str
    declaration: msgspec.Raw
    progress: msgspec.Raw


class SeenLine(msgspec.Struct, kw_only=True):
    """A dedup window."""

    seen: str
    until: dt.datetime


class EndLine(msgspec.Struct, kw_only=True):
    """The last line of an export."""

    end: bool = True
    tasks: int


# ---- any


class _Marks(msgspec.Struct):
    shardq: msgspec.Raw | UnsetType = UNSET
    settings: msgspec.Raw | UnsetType = UNSET
    schedule: msgspec.Raw | UnsetType = UNSET
    state: msgspec.Raw | UnsetType = UNSET
    seen: msgspec.Raw | UnsetType = UNSET
    end: msgspec.Raw | UnsetType = UNSET


_MARK = re.compile(r'"(?:shardq|settings|schedule|state|seen|end)"\s*:')
_decode_marks = msgspec.json.Decoder(_Marks).decode
_FORMS: Mapping[str, Any] = {
    "shardq": HeadLine,
    "settings": TopicLine,
    "schedule": ScheduleLine,
    "seen": SeenLine,
    "end": EndLine,
}


class AsItWas(msgspec.Struct, frozen=True, gc=False):
    """A task as it was, as words of ``adopt``."""

    words: list[Word]

    @property
    def id(self) -> str:
        return id_in(self.words)


class ToPush(msgspec.Struct, frozen=True):
    """A task to push."""

    task: Task


Line = AsItWas | ToPush | HeadLine | TopicLine | ScheduleLine | SeenLine | EndLine


def read(text: str, *, defaults: Task, max_payload: int, codec: Codec = JSON) -> Line:
    """Reads a line. Raises what ``reason_of`` tells."""
    # as an export has it: most lines are read by this alone
    if text.startswith('{"id":') and '"state":' in text:
        with suppress(msgspec.ValidationError):
            return AsItWas(adopted(text, max_payload))
    mark = ""
    if _MARK.search(text):
        marks = _decode_marks(text)
        mark = next((name for name in _Marks.__struct_fields__ if getattr(marks, name) is not UNSET), "")
    if mark == "state":
        return AsItWas(adopted(text, max_payload))
    if not mark:
        return ToPush(task_of(text, defaults, codec))
    line: Line = msgspec.json.decode(text, type=_FORMS[mark])
    if isinstance(line, HeadLine) and line.shardq != VERSION:
        raise BadInput(
            f"it is of an export in the form {line.shardq}, and this version of shardq reads {VERSION}: upgrade"
        )
    if isinstance(line, SeenLine):
        check_whole_id(line.seen)
    return line


UNREADABLE = UNDECODABLE
"""The errors of ``read``; BadInput is a ValueError, and so is broken UTF-8."""


def reason_of(exc: Exception) -> str:
    """What is wrong with a line."""
    if isinstance(exc, RecursionError):
        return "it is nested too deeply"
    if isinstance(exc, UnicodeDecodeError):
        return f"it is not UTF-8: {exc.reason} at byte {exc.start}"
    if isinstance(exc, BadInput) or not isinstance(exc, msgspec.MsgspecError):
        return str(exc)
    if isinstance(exc, msgspec.ValidationError):
        return f"it is not a task: {exc}"
    return f"it is not JSON: {exc}"
