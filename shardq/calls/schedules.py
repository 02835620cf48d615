"""schedules and set_schedule: the schedules of an engine, in the control slot. Their values are in
``schedules.entry``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from shardq.calls.answers import body
from shardq.calls.request import Call, Command
from shardq.layout.keys import ControlKeys
from shardq.scripts import script

CHANGED = "schedules"
"""The news that a schedule was declared, changed, paused or removed."""


@dataclass(frozen=True, slots=True)
class Schedules:
    """Schedules as stored, and the clock of the control slot's master."""

    now_ms: int
    stored: dict[str, tuple[bytes, bytes]]
    """Name → state, declaration."""


def schedules(keys: ControlKeys, names: Sequence[str] = (), *, now_us: str = "") -> Call[Schedules]:
    """Reads the schedules of these names, or all."""
    return Call(
        slot=keys.slot,
        words=[now_us, *names],
        decode=_schedules,
        script=script("schedules"),
        keys=(keys.schedules,),
    )


def set_schedule(
    keys: ControlKeys, name: str, *, seen: bytes, state: bytes, declaration: bytes = b"", tell: bool
) -> Call[bool]:
    """Returns True if it was written. A resend answers False when the first send was executed."""
    return Call(
        slot=keys.slot,
        words=[name, seen, state, declaration, keys.news if tell else ""],
        decode=lambda answer: bool(answer[0] == b"ok"),
        script=script("set_schedule"),
        keys=(keys.schedules,),
    )


def are_there_schedules(keys: ControlKeys) -> Command[bool]:
    return Command(slot=keys.slot, words=("HLEN", keys.schedules), decode=bool)


def _schedules(answer: list[Any]) -> Schedules:
    now_us, flat = body(answer)
    fields = iter(flat)
    return Schedules(
        now_ms=int(now_us) // 1000,
        stored={name.decode(): (state, declared) for name, state, declared in zip(fields, fields, fields, strict=True)},
    )
