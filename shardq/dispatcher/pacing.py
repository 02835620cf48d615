"""How much a poller moves at a time and how long it sleeps. Pure decisions; the poller does the waiting."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import NamedTuple

from shardq.calls.dispatch import MAX_BATCH, Dispatched

FIRST_BATCH = 64
"""A small first batch: a shard that has just one task due pays nothing for a larger one, a backlog grows it at once."""

SLOW_S = 0.005
"""A round trip longer than this halves the batch: other callers of that server wait behind it."""

LONGEST_SLEEP_S = 20.0
"""While the bell is heard nothing can fall due unnoticed; this covers a ring lost on its way. Part of the contract: a
lease longer than this rings no bell (``rouse.lua``)."""

UNSUBSCRIBED_SLEEP_S = 0.25
"""While it is not heard: what a push can be late by."""

AWAKE_S = 0.002
"""After a shorter sleep all is still awake, and the lead would be too much."""

LATER_US = 10
EARLIER_US = 100
MOST_LEAD_US = 1000

FIRST_BACKOFF_S = 0.05
LONGEST_BACKOFF_S = 2.0


@dataclass(slots=True)
class BatchSizer:
    """The batch size of one poller, and its patience with errors."""

    limit: int = FIRST_BATCH
    backoff_s: float = 0.0

    def moved(self, done: int, took_s: float) -> None:
        """After a dispatch that was allowed ``limit``."""
        self.backoff_s = 0.0
        if took_s > SLOW_S:
            self.limit = max(1, self.limit // 2)
        elif done >= self.limit:
            self.limit = min(MAX_BATCH, self.limit * 2)

    def failed(self) -> float:
        """How long to wait after an error: doubling, with jitter so that pollers do not come back in step."""
        self.backoff_s = min(LONGEST_BACKOFF_S, max(FIRST_BACKOFF_S, self.backoff_s * 2))
        return self.backoff_s * random.uniform(0.5, 1.0)


@dataclass(slots=True)
class Lead:
    """How long before an instant to wake up, so that the call reaches the server's clock just then: what waking,
    sending and the server's own waking take. One for all pollers of a node.

    It is learnt from how late the calls of timed wakes came: a little more after each late one, ten times as much less
    after an early one. So one in some ten is early, which costs a second call; what is late now and then, because the
    machine had something else to do, changes it little.
    """

    us: float = 200.0

    def learn(self, late_us: int) -> None:
        """After a wake at the instant that ``NextStep.until_us`` named; below 0: the call came early."""
        self.us = min(MOST_LEAD_US, self.us + LATER_US) if late_us >= 0 else max(0.0, self.us - EARLIER_US)


class NextStep(NamedTuple):
    seconds: float
    until_us: int | None
    """The instant of the server's clock at which its end is aimed; None: at none so exactly."""


def sleep(result: Dispatched, lead: Lead, *, is_subscribed: bool) -> NextStep:
    """From the answer until the next instant of interest, exactly, by the server's clock."""
    # the longest sleep is drawn anew so that the pollers of a process spread out
    cap = LONGEST_SLEEP_S * random.uniform(0.9, 1.0) if is_subscribed else UNSUBSCRIBED_SLEEP_S
    if result.next_us is None:
        return NextStep(cap, None)
    wait = max(0.0, (result.next_us - result.now_us) / 1e6)
    if wait > cap:
        return NextStep(cap, None)
    if wait < AWAKE_S:
        return NextStep(wait, None)
    return NextStep(wait - lead.us / 1e6, result.next_us)
