"""Writes the history: a thread of each dispatcher. The first of the living dispatchers writes a row each minute. The
second one checks a little later that it was done. The order only saves requests: the first that comes
writes the row (``history.lua``).
"""

from __future__ import annotations

import logging
from typing import Any

from shardq.core.calls import control, observe
from shardq.core.calls.request import Command
from shardq.core.drivers.sync import Driver
from shardq.core.fleet.member import fleet
from shardq.core.operation import Many, Operation, run
from shardq.core.threads import Beside, Loop, Peers
from shardq.core.topology_cache import TopologyCache
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


class Recorder(Beside):
    """The writer of one process, started once and stopped once."""

    def __init__(self, driver: Driver, cache: TopologyCache, peers: Peers) -> None:
        self._driver = driver
        self._cache = cache
        self._peers = peers
        self.loop = Loop(
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
        stored = self._driver.call(control.read_history(keys, 0, STATE_BYTES), CALL_TIMEOUT_S)
        before = State.of(stored)
        # A state ahead of the clock by more is of a clock that was set back since.
        if before is not None and minute <= before.minute <= minute + 1:
            return False
        members = run(self._driver, fleet(keys), CALL_TIMEOUT_S)
        state, row = noted(before, minute, run(self._driver, counted(self._cache), CALL_TIMEOUT_S), members)
        parts = [(0, state.packed())]
        if row.minutes:
            hour = minute // 60
            kept = self._driver.call(control.read_history(keys, hour_at(hour), ROW_BYTES), CALL_TIMEOUT_S)
            hourly = merged(rows_of(kept).get(hour, Row(hour)), row)
            parts += (minute_at(minute), row.packed()), (hour_at(hour), hourly.packed())
        epoch = self._cache.topology.stamp
        return self._driver.call(control.write_history(keys, epoch, stored[:4], parts, length=LENGTH), CALL_TIMEOUT_S)


def counted(cache: TopologyCache) -> Operation[dict[int, Counted | None]]:
    """Counts every shard by plain commands, of which an idle shard needs two: ``stats`` costs ten times as
    many. Shard → its counts; None: it could not be read.
    """
    span = cache.span()
    first: dict[tuple[int, str], Command[Any]] = {}
    for keys in span:
        first[keys.shard, "dispatched"] = observe.dispatched(keys).briefly()
        first[keys.shard, "scheduled"] = observe.scheduled(keys).briefly()
    known = dict((yield Many(first)))
    then: dict[tuple[int, str], Command[Any]] = {}
    for keys in span:
        topics = known[keys.shard, "dispatched"]
        if topics and not isinstance(topics, ShardqError):
            then[keys.shard, "died"] = observe.died(keys, [*topics]).briefly()
            then[keys.shard, "ghosts"] = observe.ghosts_of(keys, [*topics]).briefly()
            then |= {(keys.shard, f"ready/{topic}"): observe.ready(keys, topic).briefly() for topic in topics}
    if then:
        known |= dict((yield Many(then)))
    of_shard: dict[int, dict[str, Any]] = {keys.shard: {} for keys in span}
    for (shard, what), answer in known.items():
        of_shard[shard][what] = answer
    return {shard: _counted(answers) for shard, answers in of_shard.items()}


def _counted(answers: dict[str, Any]) -> Counted | None:
    if any(isinstance(answer, ShardqError) for answer in answers.values()):
        return None
    ghosts = dict(zip(answers["dispatched"], answers.get("ghosts", ()), strict=False))
    ready = sum(max(0, answers[f"ready/{topic}"] - count) for topic, count in ghosts.items())
    return Counted(answers["scheduled"], ready, sum(answers["dispatched"].values()), answers.get("died", 0))
