"""The end of a task that is done or cancelled, as a shard keeps it for a while: no payload, no headers, no text.

    INSTANT ':' KIND ':' FAILURES ':' LAPSES ':' HOLDER ':' TOOK ':' PUSHED ':' FAILURE

in ms, d or c (done, cancelled), numbers, the consumer, ms, seconds, and the class of the last failure. The scripts
write what is before TOOK, the consumer that acks the rest. TOOK may be empty; PUSHED is empty where the id says it, and
- where nothing does.
"""

from __future__ import annotations

import datetime as dt
import re

import msgspec

from shardq.core.layout.keys import END_SLOTS
from shardq.core.layout.words import text_of
from shardq.core.model.attempts import parted
from shardq.core.model.checks import shown_instant
from shardq.core.model.ids import pushed_at
from shardq.core.model.task import EndedState

_END = re.compile(r"(\d{1,16}):([dc]):(\d{1,9}):(\d{1,9}):(.*):(\d{0,15}):(\d{0,10}|-):([\w.]*)", re.DOTALL)

_CLASS = re.compile(r"(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?=:|$)", re.ASCII)

_LONGEST = 64

UNKNOWN_S = -1
"""The time of a push that nothing says: of an id of the caller's own."""


class End(msgspec.Struct, frozen=True):
    """One of them."""

    id: str
    state: EndedState
    at_ms: int
    failures: int
    lapses: int
    holder: str | None
    took_ms: int | None
    pushed: dt.datetime | None
    failure: str | None

    @classmethod
    def read(cls, id: str, text: bytes) -> End | None:
        """Reads what is stored of an id; None for what another program has written."""
        found = _END.fullmatch(text_of(text))
        if found is None:
            return None
        at, kind, failures, lapses, holder, took, pushed, failure = found.groups()
        return cls(
            id=id,
            state="done" if kind == "d" else "cancelled",
            at_ms=int(at),
            failures=int(failures),
            lapses=int(lapses),
            holder=holder or None,
            took_ms=int(took) if took else None,
            pushed=instant_of_push(id, UNKNOWN_S if pushed == "-" else int(pushed or 0)),
            failure=failure or None,
        )


def instant_of_push(id: str, pushed_s: int) -> dt.datetime | None:
    """When a task was pushed. ``pushed_s``: 0 if its id says it, ``UNKNOWN_S`` if nothing does."""
    seconds = pushed_at(id) if pushed_s == 0 else pushed_s
    return None if seconds is None or seconds < 0 else shown_instant(seconds * 1000)


def end_word(past: str, pushed_s: int, took_s: float | None = None) -> str:
    """The part of an end that the consumer says. ``past``: the reason of its last failure, as stored with the task.

    >>> end_word("Traceback …\\nKeyError: 'order-42'", 0, 0.25)
    '250::KeyError'
    """
    took = "" if took_s is None else f"{took_s * 1000:.0f}"
    return f"{took}:{pushed_word(pushed_s)}:{failure_of(past)}" if past else f"{took}:{pushed_word(pushed_s)}:"


def pushed_word(pushed_s: int) -> str:
    """The time of a push as an end has it."""
    return "-" if pushed_s < 0 else str(pushed_s or "")


def failure_of(past: str) -> str:
    """The class of a failure: a reason's last line may tell more, which is not kept."""
    reason, attempts = parted(past)
    line = attempts[-1].reason if attempts else reason.rstrip().rpartition("\n")[2]
    found = _CLASS.match(line)
    return found[0][-_LONGEST:] if found else ""


class Ring(msgspec.Struct, frozen=True):
    """The slots of a shard, the newest first, and the instants in ms at which each was begun."""

    slots: tuple[tuple[int, int], ...] = ()

    @classmethod
    def read(cls, text: bytes | None) -> Ring:
        """Reads the field ``ends`` of a meta."""
        found = re.fullmatch(rb"([0-7])((?::\d{1,16}){1,8})", text or b"")
        if found is None:
            return cls()
        began = found[2][1:].split(b":")
        return cls(tuple(((int(found[1]) - back) % END_SLOTS, int(at)) for back, at in enumerate(began)))
