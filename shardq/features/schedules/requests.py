"""Schedules as they are stored on the control slot: reading and writing them, each request as a value. No I/O.

``entry`` has the form of the values.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from shardq.core.calls.request import NOW, Call, Command, Epoch, Word, body
from shardq.core.layout.keys import ControlKeys
from shardq.core.layout.words import text_of

CHANGED = "schedules/"  # the news that a schedule was declared, changed, paused or removed; its name follows

BATCH = 200  # schedules that are read or written by one call

_DECLARED = "/declared"


@dataclass(frozen=True, slots=True)
class Schedules:
    """Schedules as stored, and the clock of the control slot's master."""

    now_ms: int
    looked_for: int  # how many of the names; the rest is to be asked for again
    stored: dict[str, tuple[bytes, bytes]]  # name → state, declaration; either is empty where it is missing


@dataclass(frozen=True, slots=True)
class Change:
    """One schedule to be written if its state is still the one that was seen."""

    name: str
    seen: bytes
    state: bytes  # empty: it is removed
    declaration: bytes = b""  # empty: it stays as it is


def schedule_names(keys: ControlKeys) -> Command[list[str]]:
    """The names of all schedules, in order."""

    def decode(fields: Iterable[bytes]) -> list[str]:
        return sorted({text_of(field).removesuffix(_DECLARED) for field in fields})

    return Command(keys.slot, ("HKEYS", keys.schedules), decode)


def schedules(keys: ControlKeys, epoch: Epoch, names: Sequence[str]) -> Call[Schedules]:
    """Reads the schedules of these names, ``BATCH`` at most. Raises Stale in another engine."""
    return Call.of("schedules", keys, [epoch, NOW, *names], _schedules)


def set_schedule(keys: ControlKeys, epoch: Epoch, changes: Sequence[Change], *, tell: bool) -> Call[list[bool]]:
    """Writes schedules, ``BATCH`` at most. Returns True for each that was written: none is in another engine. A resend
    answers False where the first send was executed.
    """
    words: list[Word] = [epoch, keys.news if tell else ""]
    for change in changes:
        words += (change.name, change.seen, change.state, change.declaration)
    return Call.of("set_schedule", keys, words, lambda answer: [bool(written) for written in body(answer)])


def _schedules(answer: list[Any]) -> Schedules:
    now_us, looked_for, flat = body(answer)
    fields = iter(flat)
    return Schedules(
        now_ms=int(now_us) // 1000,
        looked_for=looked_for,
        stored={text_of(name): (state, declared) for name, state, declared in zip(fields, fields, fields, strict=True)},
    )
