"""The I/O of waiting, for all consumers of one engine: hears the wake channels of this process, and wakes another
process when no consumer here has time for a task.
"""

from __future__ import annotations

import heapq
import logging
import secrets
import socket
import time
from collections import deque
from collections.abc import Callable, Collection

from shardq.core.calls import consume
from shardq.core.calls.control import OF_A_FEATURE, opened_by
from shardq.core.calls.request import Command
from shardq.core.consumer.waiter_registry import PERMITS, ReadyList, Waiter, WaiterRegistry
from shardq.core.drivers.sync import Driver
from shardq.core.layout.keys import ShardKeys
from shardq.core.layout.topology import Topology
from shardq.core.operation import Many, Operation, run
from shardq.core.subscriber import Subscriber
from shardq.core.threads import Loop, ended
from shardq.core.topology_cache import TopologyCache
from shardq.core.topology_recovery import call_shard
from shardq.core.topology_upkeep import refresh
from shardq.errors import ShardqError

log: logging.Logger = logging.getLogger("shardq.consumer")

GRACE_S = 0.005
"""The time that a consumer of this process has to come back for a task, before another process is woken."""

WAKE_RETRY_S = 1.0
"""The pause before waking another process is tried again: in a large fleet it is long until one asks without being
woken.
"""

CALL_TIMEOUT_S = 2.0

LEAVE_TIMEOUT_S = 0.25
"""Short, because a silent server must not hold up the end of a process."""

MOST_NAMES = 20_000
"""The most names that a process takes along: some tenths of a second."""


class Wakeups:
    """Made for the first consumer that waits. Its thread wakes other processes and reads a changed topology."""

    def __init__(
        self, driver: Driver, cache: TopologyCache, subscriber: Subscriber, waiters: WaiterRegistry | None = None
    ) -> None:
        self.process: str = f"{socket.gethostname()[:32]}-{secrets.token_hex(6)}"
        self.waiters: WaiterRegistry = waiters or WaiterRegistry()
        self._driver = driver
        self._cache = cache
        self._subscriber = subscriber
        self._callbacks: dict[int, Callable[[str | None], None]] = {}
        self._due: list[tuple[float, ReadyList, bool]] = []
        """A heap, the loop's own: when to wake another process, for which list, and True if even when a consumer here
        has taken the task since.
        """
        self._noted: deque[tuple[float, ReadyList, bool]] = deque()
        """Entries that the loop is to put into the heap."""
        self._news = False
        self._loop = Loop(
            "shardq-waiting",
            self._step,
            log,
            fails="waking another consumer or reading news failed, trying again",
            works="waking other consumers and reading news works again",
        )
        self._stop_following = cache.on_change(self._topology_changed)
        self._loop.start()
        subscriber.subscribe(cache.control.news, cache.control.slot, self._on_news)
        self._on_permit = self._on_wakeup(PERMITS)
        subscriber.subscribe(cache.control.wake(self.process), cache.control.slot, self._on_permit)
        self._subscribe(cache.topology)

    def is_subscribed(self, keys: ShardKeys) -> bool:
        """True if a wake-up from this shard would reach the process: only then it may be registered there."""
        return self._subscriber.is_subscribed(keys.wake(self.process))

    @property
    def hears_permits(self) -> bool:
        """True if a permit that goes back would wake this process."""
        return self._subscriber.is_subscribed(self._cache.control.wake(self.process))

    def waiting_for_permits(self, waiter: Waiter, topic: str) -> tuple[str, bool]:
        """Returns the process to wake when a permit goes back, empty if that would not reach it; and True if others
        here wait for one, too.
        """
        if hears := self.hears_permits:
            self.waiters.waits_for_permits(topic)
        return self.process if hears else "", hears and self.waiters.others_wait(waiter, [topic])

    def waiters_end(self) -> None:
        """Takes the names of this process along, unless a consumer waits here still: called when a worker ends, as its
        program may end without closing the engine. A consumer that waits later registers anew. What servers do not take
        in time stays: the first task that draws such a name finds that nobody hears, and draws another.
        """
        if self.waiters.is_idle:
            self.waiters.forget_all()
            self._try(self._unregister(), LEAVE_TIMEOUT_S)

    def close(self) -> None:
        self._stop_following()
        self.waiters.close()
        self._loop.stop()
        ended([self._loop])
        self.waiters_end()
        self._subscriber.unsubscribe(self._cache.control.news, self._on_news)
        self._subscriber.unsubscribe(self._cache.control.wake(self.process), self._on_permit)
        for shard, on_wakeup in self._callbacks.items():
            self._subscriber.unsubscribe(self._cache.keys(shard).wake(self.process), on_wakeup)

    def waiter_left(self, waiter: Waiter, more: Collection[ReadyList]) -> None:
        """Ends a waiter, perhaps with tasks: passes on what it was woken for and did not take, and ``more`` that it has
        seen.
        """
        for entry in self.waiters.leave(waiter, more):
            self.wake_another_soon(entry)
        self.waiters.wake_for(more)

    def wake_another_soon(self, entry: ReadyList) -> None:
        """Wakes another process for the list, unless a consumer here takes its task in a moment."""
        self._wake_another_at(entry, GRACE_S, surely=False)

    def _wake_another_at(self, entry: ReadyList, after_s: float, *, surely: bool) -> None:
        self._noted.append((time.monotonic() + after_s, entry, surely))
        self._loop.wake()

    def _subscribe(self, topology: Topology) -> None:
        """Subscribes to the wake channels of every shard that may hold tasks. Two topologies may be learnt at once."""
        for shard in topology.span():
            keys = self._cache.keys(shard)
            if shard not in self._callbacks:
                on_wakeup = self._on_wakeup(shard)
                if self._callbacks.setdefault(shard, on_wakeup) is on_wakeup:
                    self._subscriber.subscribe(keys.wake(self.process), keys.slot, on_wakeup)

    def _on_wakeup(self, shard: int) -> Callable[[str | None], None]:
        def on_wakeup(topic: str | None) -> None:
            if topic is None:
                self.waiters.messages_missed(shard)
            elif not self.waiters.wakeup_received((shard, topic)):
                self.wake_another_soon((shard, topic))

        return on_wakeup

    def _topology_changed(self, topology: Topology) -> None:
        self._subscribe(topology)
        # Tasks that came while a topic was paused have woken nobody.
        self.waiters.forget_all()
        self.waiters.wake_all()

    def _on_news(self, message: str | None) -> None:
        if message == "members" or OF_A_FEATURE in (message or ""):
            return
        if shards := opened_by(message):
            for shard in shards:
                self.waiters.messages_missed(shard)
            return
        self._news = True
        self._loop.wake()

    def _step(self) -> float | None:
        """Reads news, or wakes one process that is due. Returns the seconds until the next one is."""
        if self._news:
            self._news = False
            self._try(refresh(self._cache))
        while self._noted:
            heapq.heappush(self._due, self._noted.popleft())
        if not self._due:
            return None
        if (wait_s := self._due[0][0] - time.monotonic()) > 0:
            return wait_s
        _, entry, surely = heapq.heappop(self._due)
        if (surely or self.waiters.take_back(entry)) and not self._try(self._wake_another(entry)):
            self._wake_another_at(entry, WAKE_RETRY_S, surely=True)
        return 0.0

    def _unregister(self) -> Operation[None]:
        cache, requests = self._cache, dict[ReadyList, Command[int]]()
        for shard, topic in self.waiters.names(MOST_NAMES):
            keys = cache.control if shard == PERMITS else cache.keys(shard)
            requests[shard, topic] = consume.unregister(keys, topic, self.process)
        yield Many(requests)

    def _try(self, chore: Operation[None], timeout: float = CALL_TIMEOUT_S) -> bool:
        """Runs an operation. Returns False if the servers could not do it now."""
        try:
            run(self._driver, chore, timeout)
        except ShardqError as exc:
            log.debug("waking another consumer or reading news failed: %s", exc)
            return False
        return True

    def _wake_another(self, entry: ReadyList) -> Operation[None]:
        shard, topic = entry
        if shard == PERMITS:
            yield consume.release(self._cache.control, self._cache.topology.stamp, topic, (), unused=0, wakes=1)
            return
        keys = self._cache.keys(shard)
        while (yield from call_shard(self._cache, keys, lambda keys, epoch: consume.wake(keys, epoch, topic))):
            pass
