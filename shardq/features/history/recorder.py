"""Writes the history: a thread of each dispatcher. The first of the living dispatchers writes a row each minute. The
second one checks a little later that it was done. The order only saves requests: the first that comes
writes the row (``history.lua``).
"""

from __future__ import annotations

import logging
from collections import Counter
from functools import partial

from shardq.core.calls import observe
from shardq.core.calls.observe import Total
from shardq.core.calls.request import Call, Epoch
from shardq.core.drivers.sync import Driver
from shardq.core.fleet.member import fleet
from shardq.core.layout.keys import ShardKeys
from shardq.core.operation import Operation, run
from shardq.core.threads import Loop, Peers, SideThread
from shardq.core.topology_cache import TopologyCache
from shardq.core.topology_recovery import call_shards
from shardq.errors import ShardqError, Unanswered, Unavailable
from shardq.features.history import (
    LENGTH,
    MINUTE_MS,
    ROW_BYTES,
    STATE_BYTES,
    Counted,
    Row,
    State,
    hour_at,
    merged,
    minute_at,
    noted,
    requests,
    rows_of,
)

log: logging.Logger = logging.getLogger("shardq.dispatcher")

AFTER_MS = 2000
"""The time from the end of a minute to its row. A dispatcher's first check comes so long after its start."""

AFTER_ANOTHER_MS = 8000
"""How much later the second dispatcher checks."""

WRITERS = 2
"""The dispatchers that check at all."""

CALL_TIMEOUT_S = 2.0

TOPICS = 500
"""The topics that one script adds up, in a third of a millisecond of the server."""

TRIES = 3
"""The times that a shard is added up whose topics change meanwhile."""


class Recorder(SideThread):
    """The writer of one process, started once and stopped once."""

    def __init__(self, driver: Driver, cache: TopologyCache, peers: Peers) -> None:
        self._driver = driver
        self._cache = cache
        self._peers = peers
        self.loop: Loop = Loop(
            "shardq-history",
            self._step_in_turn,
            log,
            fails="the history is not written, trying again",
            works="the history is written again",
            failed=lambda exc: isinstance(exc, Unavailable | Unanswered),  # pollers and the heartbeat log that
            first_s=AFTER_MS / 1000,
            longest_pause_s=MINUTE_MS / 1000,
        )

    def _step_in_turn(self) -> float:
        place = sum(other < self._peers.process for other in self._peers.members)
        if place < WRITERS:
            self.step()
        return (
            MINUTE_MS - self._peers.clock_ms() % MINUTE_MS + AFTER_MS + AFTER_ANOTHER_MS * min(place, WRITERS)
        ) / 1000

    def step(self) -> bool:
        """Writes the row of the last whole minute, if no other process has. Returns True if it was written."""
        keys = self._cache.control
        minute = int(self._peers.clock_ms() // MINUTE_MS) - 1
        stored = self._driver.call(requests.read(keys, 0, STATE_BYTES), CALL_TIMEOUT_S)
        before = State.of(stored)
        # A state ahead of the clock by more is of a clock that was set back since.
        if before is not None and minute <= before.minute <= minute + 1:
            return False
        members = run(self._driver, fleet(keys), CALL_TIMEOUT_S)
        state, row = noted(before, minute, run(self._driver, counted(self._cache), CALL_TIMEOUT_S), members)
        parts = [(0, state.packed())]
        if row.minutes:
            hour = minute // 60
            kept = self._driver.call(requests.read(keys, hour_at(hour), ROW_BYTES), CALL_TIMEOUT_S)
            hourly = merged(rows_of(kept).get(hour, Row(hour)), row)
            parts += (minute_at(minute), row.packed()), (hour_at(hour), hourly.packed())
        epoch = self._cache.topology.stamp
        return self._driver.call(requests.write(keys, epoch, stored[:4], parts, length=LENGTH), CALL_TIMEOUT_S)


def counted(cache: TopologyCache) -> Operation[dict[int, Counted | None]]:
    """Counts every shard, which adds up its topics itself: one script for so many of them. Shard → its counts; None: it
    could not be read.
    """
    pages: dict[ShardKeys, list[Total]] = {keys: [] for keys in cache.span()}
    counts: dict[int, Counted | None] = {keys.shard: None for keys in pages}
    ends = Counter[int]()
    while pages:
        asked = {keys: (keys, partial(_page, cursor=seen[-1].cursor if seen else 0)) for keys, seen in pages.items()}
        for keys, page in (yield from call_shards(cache, asked)).items():
            if isinstance(page, ShardqError):
                del pages[keys]
                continue
            seen = [*pages[keys], page]
            if page.cursor:
                pages[keys] = seen
                continue
            ends[keys.shard] += 1
            if sum(each.looked_at for each in seen) != page.topics and ends[keys.shard] < TRIES:
                pages[keys] = []  # topics came or went meanwhile: some may be counted twice, or not
                continue
            dispatched, died = sum(each.dispatched for each in seen), sum(each.died for each in seen)
            counts[keys.shard] = Counted(page.scheduled, page.ready, dispatched, died)
            del pages[keys]
    return counts


def _page(keys: ShardKeys, epoch: Epoch, *, cursor: int) -> Call[Total]:
    return observe.total(keys, epoch, cursor, count=TOPICS).briefly()
