"""Retires topics: an unused topic leaves the lists after a day. ``Retirer`` is a thread of each dispatcher; the first
of the living dispatchers does it for all shards, each hour.

A topic is retired when no shard has a task of it, nothing of it was pushed or dispatched for a day, nothing is set for
it, and no consumer waits for it. Shards mark a topic that they were asked about (``retire.lua``), and each push takes
the mark off. So the process that has looked at every record since, and met no task of the topic, may retire it where it
is still marked. The totals go on counting what it had.
"""

from __future__ import annotations

import logging
import random
from collections import defaultdict
from collections.abc import Callable, Collection
from functools import partial

from shardq.core.calls import observe, resharding
from shardq.core.calls.request import FIRST_PAGE, next_page
from shardq.core.drivers.sync import Driver
from shardq.core.layout.keys import ShardKeys
from shardq.core.model.ids import topic_of
from shardq.core.operation import Operation, run
from shardq.core.threads import Loop, Peers, SideThread
from shardq.core.topology_cache import TopologyCache
from shardq.core.topology_recovery import call_shard
from shardq.errors import EngineClosed, Unanswered, Unavailable

log: logging.Logger = logging.getLogger("shardq.dispatcher")

IDLE_MS = 86_400_000
EVERY_S = 3600.0

TOPICS = 200
"""Topics of a call: a third of a millisecond of the server."""

RECORDS = 500
"""The most ids of a call that looks for tasks."""

REST_S = 0.01
"""The pause between two calls. Ten million records take some minutes, and nobody waits for that."""

CALL_TIMEOUT_S = 5.0


class Retirer(SideThread):
    """The thread of one process, started once and stopped once."""

    def __init__(self, driver: Driver, cache: TopologyCache, peers: Peers) -> None:
        self._driver = driver
        self._cache = cache
        self._peers = peers
        self.loop: Loop = Loop(
            "shardq-retirer",
            self._step,
            log,
            fails="unused topics can't be removed from the lists, trying again",
            works="unused topics are removed from the lists again",
            failed=lambda exc: isinstance(exc, Unavailable | Unanswered),  # pollers and the heartbeat log that
            first_s=EVERY_S * random.uniform(0.1, 1.0),
            longest_pause_s=EVERY_S,
        )

    def _step(self) -> float:
        if self._peers.process == min(self._peers.members, default=""):
            run(self._driver, retire(self._cache, rest=self._rest), CALL_TIMEOUT_S)
        return EVERY_S

    def _rest(self) -> None:
        if self.loop.stopping.wait(REST_S):
            raise EngineClosed("the engine stops, and leaves the topics for the next hour")


def retire(cache: TopologyCache, *, rest: Callable[[], object] = lambda: None) -> Operation[None]:
    """Retires topics in all shards. ``rest`` is called between two calls."""
    topology = cache.topology
    used = set(topology.topics)
    idle: defaultdict[str, set[ShardKeys]] = defaultdict(set)
    for keys in cache.span():
        cursor: int | None = None
        while cursor != 0:
            cursor, names = yield observe.topics(keys, cursor or 0, TOPICS)
            found = yield from _asked(cache, keys, names, rest)
            used.update(set(names) - found)
            for name in found:
                idle[name].add(keys)
    going = {name: shards for name, shards in idle.items() if name not in used}
    if not going:
        return
    met = yield from _with_tasks(cache, going, rest)
    retired = set[str]()
    for keys in cache.span():
        here = {name for name, shards in going.items() if keys in shards}
        if kept := sorted(here & met):
            yield observe.mark_used(keys, kept)
        retired |= yield from _asked(cache, keys, sorted(here - met), rest, have_none=True)
    if retired:
        log.info("unused topics removed from the lists after a day: %d", len(retired))


def _asked(
    cache: TopologyCache,
    keys: ShardKeys,
    names: list[str],
    rest: Callable[[], object],
    *,
    have_none: bool = False,
) -> Operation[set[str]]:
    """Those of some topics that a shard answers."""
    found = set[str]()
    for start in range(0, len(names), TOPICS):
        some = names[start : start + TOPICS]
        make = partial(observe.retire, topics=some, idle_ms=IDLE_MS, have_none=have_none)
        found |= yield from call_shard(cache, keys, make)
        rest()
    return found


def _with_tasks(cache: TopologyCache, topics: Collection[str], rest: Callable[[], object]) -> Operation[set[str]]:
    """Those of some topics that have a task in any shard."""
    met = set[str]()
    for keys in cache.span():
        place, size = "", FIRST_PAGE
        while place != "0":
            page = yield from call_shard(cache, keys, partial(resharding.stock, cursor=place or "0", count=size))
            met.update(topic for topic in map(topic_of, page.ids) if topic in topics)
            place, size = page.cursor, next_page(size, page.bytes, most=RECORDS)
            rest()
    return met
