"""schedules and set_schedule: the schedules of an engine, in the control slot. Their values are in
``schedules.entry``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from shardq.calls.answers import body
from shardq.calls.request import Call, Command, Word
from shardq.layout.keys import ControlKeys

CHANGED = "schedules/"
"""The news that a schedule was declared, changed, paused or removed; its name follows."""

BATCH = 200
"""Schedules that are read or written by one call."""

_DECLARED = "/declared"


@dataclass(frozen=True, slots=True)
class Schedules:
    """Schedules as stored, and the clock of the control slot's master."""

    now_ms: int
    looked_for: int
    """How many of the names; the rest is to be asked for again."""
    stored: dict[str, tuple[bytes, bytes]]
    """Name → state, declaration; either is empty where it is missing."""


@dataclass(frozen=True, slots=True)
class Change:
    """One schedule to be written if its state is still the one that was seen."""

    name: str
    seen: bytes
    state: bytes
    """Empty: it is removed."""
    declaration: bytes = b""
    """Empty: it stays as it is."""


def schedule_names(keys: ControlKeys) -> Command[list[str]]:
    """The names of all schedules, in order."""

    def decode(fields: Iterable[bytes]) -> list[str]:
        return sorted({field.decode(errors="backslashreplace").removesuffix(_DECLARED) for field in fields})

    return Command(slot=keys.slot, words=("HKEYS", keys.schedules), decode=decode)


def schedules(keys: ControlKeys, names: Sequence[str], *, now_us: str = "") -> Call[Schedules]:
    """Reads the schedules of these names, ``BATCH`` at most."""
    return Call.of("schedules", keys, [now_us, *names], _schedules)


def set_schedule(keys: ControlKeys, changes: Sequence[Change], *, tell: bool) -> Call[list[bool]]:
    """Writes schedules, ``BATCH`` at most. Returns True for each that was written. A resend answers False where the
    first send was executed.
    """
    words: list[Word] = [keys.news if tell else ""]
    for change in changes:
        words += (change.name, change.seen, change.state, change.declaration)
    return Call.of("set_schedule", keys, words, lambda answer: [bool(written) for written in body(answer)])


def _schedules(answer: list[Any]) -> Schedules:
    now_us, looked_for, flat = body(answer)
    fields = iter(flat)
    return Schedules(
        now_ms=int(now_us) // 1000,
        looked_for=looked_for,
        stored={name.decode(): (state, declared) for name, state, declared in zip(fields, fields, fields, strict=True)},
    )
