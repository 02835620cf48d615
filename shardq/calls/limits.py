"""permit, release and renew: the fleet-wide limits of a topic, in the control slot: a token bucket for its rate, and a
set of permits for its concurrency.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from shardq.calls.answers import body, nothing
from shardq.calls.request import Call
from shardq.layout.keys import ControlKeys
from shardq.layout.topology import Limit
from shardq.scripts import script

MAX_PERMITS = 1000


@dataclass(frozen=True, slots=True)
class Permit:
    granted: int
    again_ms: int
    """The time after which to ask again, when none was granted."""


def permit(
    keys: ControlKeys, epoch: int, topic: str, limit: Limit, want: int, *, lease_ms: int, prefix: str, now_us: str = ""
) -> Call[Permit]:
    """A lost answer costs the permits until they lapse."""
    return Call(
        slot=keys.slot,
        words=[
            *(epoch, now_us, min(want, MAX_PERMITS)),
            *("" if limit.rate is None else limit.rate, "" if limit.concurrency is None else limit.concurrency),
            *(lease_ms, prefix),
        ],
        decode=lambda answer: Permit(*body(answer)),
        script=script("permit"),
        keys=(keys.topology, keys.bucket(topic), keys.permits(topic)),
    )


def release(keys: ControlKeys, topic: str, names: Sequence[str], *, unused: int) -> Call[None]:
    return Call(
        slot=keys.slot,
        words=[unused, *names],
        decode=nothing,
        script=script("release"),
        keys=(keys.bucket(topic), keys.permits(topic)),
    )


def renew(keys: ControlKeys, topic: str, names: Sequence[str], *, lease_ms: int, now_us: str = "") -> Call[None]:
    return Call(
        slot=keys.slot,
        words=[now_us, lease_ms, *names],
        decode=nothing,
        script=script("renew"),
        keys=(keys.bucket(topic), keys.permits(topic)),
    )
