"""permit, release and renew: the fleet-wide limits of a topic, in the control slot: a token bucket for its rate, and a
set of permits for its concurrency.

A permit goes with a lease: its name is the token of the lease. So whoever can settle or extend a delivery can give its
permit back, or renew it, in whatever process. What makes this exact is told in ``lua/README.md``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from shardq.calls.answers import body, nothing
from shardq.calls.request import Call
from shardq.layout.keys import ControlKeys
from shardq.layout.topology import Limit

MAX_PERMITS = 1000

MARGIN_MS = 2000
"""A permit lapses so much later than its lease: it is granted before the lease is, and renewed before that is extended.
"""

MARK = "#"
"""Only the token of a lease with a permit has it."""


def permit_name(token: str, number: int) -> str:
    """The name of a permit, and the token of its lease. ``token``: that of the claim."""
    return f"{token}{MARK}{number}"


@dataclass(frozen=True, slots=True)
class Permit:
    granted: int
    again_ms: int
    """The time after which to ask again, when none was granted."""


def permit(
    keys: ControlKeys,
    epoch: int,
    topic: str,
    limit: Limit,
    want: int,
    *,
    lease_ms: int,
    token: str,
    waiter: str = "",
    others_wait: bool = False,
    now_us: str = "",
) -> Call[Permit]:
    """``waiter`` is the process to wake when a permit goes back, if none is granted now; with ``others_wait`` also if
    some are. A lost answer costs the permits until they lapse.
    """
    return Call.of(
        "permit",
        keys,
        [
            *(epoch, now_us, topic, min(want, MAX_PERMITS)),
            *("" if limit.rate is None else limit.rate, "" if limit.concurrency is None else limit.concurrency),
            *(lease_ms + MARGIN_MS, token, keys.wake(""), waiter, int(others_wait)),
        ],
        lambda answer: Permit(*body(answer)),
        topics=(topic,),
    )


def release(keys: ControlKeys, topic: str, names: Sequence[str], *, unused: int, wakes: int = 0) -> Call[None]:
    """Each permit that was still there wakes a process that waits for one; ``wakes``: so many more."""
    return Call.of("release", keys, [topic, unused, keys.wake(""), wakes, *names], nothing, topics=(topic,))


def renew(
    keys: ControlKeys, topic: str, concurrency: int | None, names: Sequence[str], *, lease_ms: int, now_us: str = ""
) -> Call[set[str]]:
    """Returns those that had lapsed, and whose places are taken."""
    return Call.of(
        "renew",
        keys,
        [now_us, lease_ms + MARGIN_MS, "" if concurrency is None else concurrency, *names],
        lambda answer: {names[position - 1] for position in body(answer)},
        topics=(topic,),
    )
