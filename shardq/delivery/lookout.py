"""Looks for ready tasks of many topics that are idle: those that this process forwards to URLs. One thread, however
many topics there are.

The process is registered in the empty lists of its topics, as one with a waiting consumer is: the first task that
arrives in one wakes it (``core/consumer/waiter_registry``). Registering takes a claim of nothing from each shard, for
up to 64 topics together. From then on an idle topic costs its share of the rechecks. These ask only which lists are
empty, and so many in a second that a process with 10,000 idle topics has as little to do as one with ten.
"""

from __future__ import annotations

import logging
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from shardq.core.consumer.claim_planner import ReadyCounts
from shardq.core.consumer.claim_state import CONTENDED_S, UNSUBSCRIBED_S, Claims
from shardq.core.consumer.claiming import MOST_TOPICS, RETRY_FOR_S, look
from shardq.core.consumer.ready_lists import not_empty
from shardq.core.consumer.waiter_registry import RECHECK_S, ReadyList, Waiter, WaiterRegistry
from shardq.core.consumer.wakeups import Wakeups
from shardq.core.drivers.sync import Driver
from shardq.core.layout.topology import Route
from shardq.core.model.record import as_stored
from shardq.core.operation import run
from shardq.core.subscriber import Subscriber
from shardq.core.threads import Loop, ended
from shardq.core.topology_cache import TopologyCache
from shardq.errors import ShardqError

log: logging.Logger = logging.getLogger("shardq.sinks")

CALL_TIMEOUT_S = 5.0

LISTS_PER_S = 500
"""Lists that are asked in a second if they are empty, at most, where nothing says that they are not. It only matters
when a message was lost that nobody missed.
"""

REGISTER_AGAIN_S = 1500.0
"""Servers forget a process that has not registered for an hour."""

MANY = 256
"""So many topics more, of which some shards can't be reached, are looked at a quarter of a second later."""


class WatchedLists(WaiterRegistry):
    """The lists in which this process is registered, of topics that nobody serves at the moment."""

    def __init__(self, wake: Callable[[], None]) -> None:
        super().__init__()
        self._wake = wake
        self._topics: set[str] = set()
        self._woken: set[ReadyList] = set()
        self._is_lost = False

    def watch(self, topic: str, shards: Sequence[int]) -> list[int] | None:
        """Reports each message for the topic from now on. Returns the shards in which the process is not registered for
        it. None: there is a message already, so it is to be claimed.
        """
        with self.lock:
            untaken = {entry for entry in self._untaken if entry[1] == topic}
            self._untaken -= untaken
            if untaken:
                return None
            self._topics.add(topic)
            return [shard for shard in shards if topic not in self._registered[shard]]

    def watch_permits(self, topic: str) -> None:
        """Reports messages for the topic, of whose lists some are not empty."""
        with self.lock:
            self._topics.add(topic)

    def unwatch(self, topic: str) -> None:
        """Reports no more messages for the topic: it is claimed."""
        with self.lock:
            self._topics.discard(topic)

    def watched(self) -> list[str]:
        with self.lock:
            return list(self._topics)

    def take(self) -> tuple[set[ReadyList], bool]:
        """The lists for which messages have come, and True if others may have been missed."""
        with self.lock:
            taken = self._woken, self._is_lost
            self._woken, self._is_lost = set(), False
            return taken

    def messages_missed(self, shard: int) -> None:
        super().messages_missed(shard)
        with self.lock:
            self._is_lost = True
        self._wake()

    def forget_all(self) -> None:
        """Another topology: ``Routes`` tells of which topics it changes anything."""

    def wake_all(self) -> None:
        self._wake()

    def _offer(self, entry: ReadyList) -> bool:
        if entry[1] not in self._topics:
            self._untaken.add(entry)
            return False
        self._woken.add(entry)
        self._wake()
        return True


class Lookout:
    """Rouses topics that have ready tasks."""

    def __init__(
        self,
        driver: Driver,
        cache: TopologyCache,
        subscriber: Subscriber,
        *,
        lease_ms: int,
        follow: Callable[[], object],
        served: Callable[[], list[str]],
        rouse: Callable[[str], None],
    ) -> None:
        """``follow``: called first in each step. ``served``: all topics here. ``rouse``: has a topic claimed."""
        self._driver = driver
        self._cache = cache
        self._subscriber = subscriber
        self._follow = follow
        self._served = served
        self._rouse = rouse
        self._lease_ms = lease_ms
        self.claims: Claims = self._claims()
        self.waiter: Waiter = Waiter((), lambda: None)
        """Stands for this process where it waits for permits."""
        self._lists = WatchedLists(lambda: self.loop.wake())
        self.wakeups: Wakeups | None = None
        self._lock = threading.Lock()
        self._unsure: dict[str, float] = {}
        """Topics of which some lists may have something, and this process may not be registered → when to look."""
        self._to_ask: list[str] = []
        """Topics whose lists are still to be asked in this round of rechecks."""
        self._ask_at = 0.0
        self._register_at = time.monotonic() + REGISTER_AGAIN_S
        self.loop: Loop = Loop(
            "shardq-sinks",
            self._step,
            log,
            fails="ready tasks of forwarded topics can't be looked for, trying again",
            works="ready tasks of forwarded topics are looked for again",
        )

    def _claims(self, ready_counts: ReadyCounts | None = None, **how: Any) -> Claims:
        name = f"{socket.gethostname()[:32]}-{secrets.token_hex(6)}"
        counts = ReadyCounts() if ready_counts is None else ready_counts
        return Claims(self._cache, [], name=name, lease_ms=self._lease_ms, ready_counts=counts, **how)

    def claims_for(self, routes: Mapping[str, Route], topic_attempts: Mapping[str, int]) -> Claims:
        """The claims of a loop that is roused. They know what is learnt here."""
        return self._claims(self.claims.ready_counts, routes=routes, topic_attempts=topic_attempts, decode=as_stored)

    def wait_for_permits(self, claims: Claims) -> None:
        """Has this process woken when a permit goes back that these claims were denied."""
        claims.waiter, claims.limiter.wakeups = self.waiter, self.wakeups

    def start(self) -> None:
        """Begins with the first topic."""
        if self.wakeups is None and not self.loop.stopping.is_set():
            self.wakeups = Wakeups(self._driver, self._cache, self._subscriber, self._lists)
        self.loop.start()

    def stop(self) -> None:
        self.loop.stop()

    def close(self) -> None:
        ended([self.loop])
        if self.wakeups is not None:
            self.wakeups.close()

    # ---- for others

    def look_at(self, topics: Iterable[str], after_s: float = 0.0) -> None:
        """Has it looked for tasks of these topics, and rouses those that have some."""
        with self._lock:
            self._unsure.update(dict.fromkeys(topics, time.monotonic() + after_s))
        self.loop.wake()

    def await_permits(self, topic: str) -> None:
        """Rouses the topic when a permit goes back."""
        self._lists.watch_permits(topic)

    def leave(self, topic: str) -> None:
        """Looks for tasks of the topic no more: it is claimed."""
        self._lists.unwatch(topic)
        with self._lock:
            self._unsure.pop(topic, None)

    # ---- the loop

    def _step(self) -> float | None:
        self._follow()
        now = time.monotonic()
        woken, lost = self._lists.take()
        self.claims.ready_counts.expect(woken)
        for topic in {topic for _, topic in woken}:
            self._rouse(topic)
        if lost or now >= self._register_at:
            self._register_at = now + REGISTER_AGAIN_S
            self.look_at(self._lists.watched())
        with self._lock:
            due = [topic for topic, at in self._unsure.items() if at <= now][:MOST_TOPICS]
            for topic in due:
                del self._unsure[topic]
        if due:
            self._look(due)
            return 0.0
        if now >= self._ask_at:
            self._ask()
        with self._lock:
            at = min([*self._unsure.values(), self._ask_at, self._register_at])
        return max(0.0, at - time.monotonic())

    def _look(self, topics: list[str]) -> None:
        """Registers the process in the lists of these topics that are empty; rouses the others."""
        wakeups = self.wakeups
        assert wakeups is not None, "it was started"
        shards, left = self._cache.topology.span(), self.claims.ready_counts.left
        try:
            run(self._driver, look(self.claims, shards, topics, wakeups), CALL_TIMEOUT_S)
        except ShardqError as exc:
            log.debug("lists of forwarded topics could not be looked at: %s", exc)
        away = self.claims.unreachable.again_at
        reached = {s for s in shards if s not in away and wakeups.is_subscribed(self._cache.keys(s))}
        for topic in topics:
            lacking = self._lists.watch(topic, shards)
            if lacking is None or any(left[topic].get(shard) for shard in shards):
                self._rouse(topic)
            elif lacking:
                # a message has come meanwhile; or the shard can't be reached, and many topics wait for that together
                soon = not reached.isdisjoint(lacking)
                self.look_at([topic], CONTENDED_S if soon else UNSUBSCRIBED_S * (1 + len(self._unsure) / MANY))

    def _ask(self) -> None:
        """Asks some lists if they are empty, in turns."""
        if not self._to_ask:
            self._to_ask = self._served()
        some, self._to_ask = self._to_ask[-MOST_TOPICS:], self._to_ask[:-MOST_TOPICS]
        lists = [(keys, topic) for keys in self._cache.span() for topic in some]
        self._ask_at = time.monotonic() + max(RECHECK_S if not self._to_ask else 0.0, len(lists) / LISTS_PER_S)
        found = run(self._driver, not_empty(lists, retry_for_s=RETRY_FOR_S), CALL_TIMEOUT_S)
        self.look_at({topic for _, topic in found})
