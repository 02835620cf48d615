"""Decides how many tasks a poller moves at a time, and how long it sleeps. Pure; called by ``poller``, which waits."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import NamedTuple

from shardq.core.calls.dispatch import MAX_BATCH, Dispatched

LEAST_BATCH = 250
"""The first batch, and the smallest: it holds a server for a quarter of a millisecond. A backlog doubles the batch with
every call. Smaller ones help nobody: where trips are slow because the server is far away or the machine is busy, they
would shrink to one task, and a backlog would only grow.
"""

SLOW_S = 0.005
"""A trip longer than this halves the batch, because other callers of the server wait behind it."""

HOT_PER_S = 10_000
"""A shard of which more tasks fall due in a second is hot. A dispatch costs the server as much as some 45 of its tasks.
So the pollers of hot shards, which always find a few, would keep a server busy all the time, and consumers waiting.
"""

REST_S = 0.006
"""The longest rest of a poller after it has moved all that was due in a hot shard."""

WORTH_A_TRIP = 200
"""A rest ends when about so many tasks are due: less than the least batch, so that what comes unevenly fits too."""

LONGEST_SLEEP_S = 20.0
"""The longest sleep while the poller is subscribed to its bell. It only matters when a ring was lost. Part of the
contract: a lease longer than this rings no bell (``rouse.lua``)."""

UNSUBSCRIBED_SLEEP_S = 0.25
"""The longest sleep without a subscription: a pushed task can be late by this."""

AWAKE_S = 0.002
"""A sleep shorter than this gets no lead: neither the process nor the server has gone to sleep."""

LATER_US = 10
EARLIER_US = 100
MOST_LEAD_US = 1000


@dataclass(slots=True)
class BatchSizer:
    """The batch size of one poller."""

    limit: int = LEAST_BATCH

    def moved(self, done: int, took_s: float) -> None:
        """Notes a dispatch that moved ``done`` tasks of at most ``limit``."""
        if took_s > SLOW_S:
            self.limit = max(LEAST_BATCH, self.limit // 2)
        elif done >= self.limit:
            self.limit = min(MAX_BATCH, self.limit * 2)

    @staticmethod
    def rest_s(done: int, since_s: float) -> float:
        """Returns how long to rest after ``done`` tasks were moved that fell due within ``since_s``."""
        per_s = done / max(since_s, 0.001)
        return min(REST_S, WORTH_A_TRIP / per_s) if per_s >= HOT_PER_S else 0.0


@dataclass(slots=True)
class Lead:
    """How long before an instant a poller must wake up, so that its call reaches the server at that instant. All
    pollers of a node share one.

    It covers waking up, sending, and the server's own waking up. It is learnt from the calls of timed wakes: it grows a
    little after a late one, and shrinks ten times as much after an early one. So about one call in ten is early, and
    needs a second one. A call that is very late, because the machine was busy, changes it no more than any other.
    """

    us: float = 200.0

    def learn(self, late_us: int) -> None:
        """Notes how late the call was after a sleep until ``NextStep.until_us``. Below 0: it was early."""
        self.us = min(MOST_LEAD_US, self.us + LATER_US) if late_us >= 0 else max(0.0, self.us - EARLIER_US)


class NextStep(NamedTuple):
    seconds: float
    until_us: int | None
    """The instant of the server's clock at which the sleep should end; None if it need not be exact."""


def sleep(result: Dispatched, lead: Lead, *, is_subscribed: bool) -> NextStep:
    """Returns the sleep from a dispatch's answer until the next instant of interest, by the server's clock."""
    # random, so that the pollers of a process spread out
    cap = LONGEST_SLEEP_S * random.uniform(0.9, 1.0) if is_subscribed else UNSUBSCRIBED_SLEEP_S
    if result.next_us is None:
        return NextStep(cap, None)
    wait = max(0.0, (result.next_us - result.now_us) / 1e6)
    if wait > cap:
        return NextStep(cap, None)
    if wait < AWAKE_S:
        return NextStep(wait, None)
    return NextStep(wait - lead.us / 1e6, result.next_us)
