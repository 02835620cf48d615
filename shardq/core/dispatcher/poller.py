"""One poller: a thread that moves what is due in one shard, and sleeps exactly until more is. ``dispatcher`` starts and
stops its ``loop``, of which ``step`` is one round. ``BatchSizer`` decides how many tasks it moves at a time, ``sleep``
and ``Lead`` how long it sleeps.
"""

from __future__ import annotations

import logging
import random
import secrets
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

from shardq.core.calls import consume, dispatch, listing
from shardq.core.calls.dispatch import MAX_BATCH, Dispatched
from shardq.core.dispatcher.forwarding import MAX_TOPICS, Forwarding, Rouse, RouteFaults
from shardq.core.drivers.owned import DedicatedConnection
from shardq.core.drivers.sync import Driver
from shardq.core.fleet.lateness import Lateness, LatenessRecorder, TopicLateness
from shardq.core.layout.keys import ShardKeys
from shardq.core.layout.topology import Stamp, Topology
from shardq.core.model.printable import counted
from shardq.core.operation import run
from shardq.core.threads import Loop, LoopState
from shardq.core.topology_cache import TopologyCache
from shardq.core.topology_recovery import REFUSALS, Recovery

log: logging.Logger = logging.getLogger("shardq.dispatcher")

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

CALL_TIMEOUT_S = 2.0
"""Shorter than a producer's: ``stats()`` should soon show a poller that can't reach its shard; it tries for ever."""

STUCK_S = LONGEST_SLEEP_S + 2 * CALL_TIMEOUT_S
"""A poller that has completed no step for this long stands still."""

CUT_OFF_S = 3.0
"""Where a poller has failed for this long, a deputy serves its shard as well: as soon as if its process were dead."""

TRIM_S = 300.0
"""The time between two looks for dead tasks to remove."""


LOOKS = 14
"""Looks between two dispatches: with the longest sleep five minutes."""

FRESH_S = 5.0
"""A node's clock is read again after this time: it may be set."""


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


@dataclass(frozen=True, slots=True)
class PollerReport:
    """The state of one poller, for ``stats()``."""

    shard: int
    state: LoopState
    error: str | None
    """Why it is failing."""
    dispatched: int
    """Tasks, since the poller started."""
    late_ms: int | None
    """Lateness of the last task without a key that it dispatched."""
    lateness: Lateness
    """The lateness of all tasks without a key that it dispatched."""
    idle_s: float
    """Seconds since its last completed step."""


class NodeClock:
    """The clock of a node, which its pollers share: one that finds it old reads it."""

    def __init__(self) -> None:
        self._ahead_us = 0
        self._read_at: float | None = None

    def now_us(self, read: Callable[[], int]) -> int:
        now = time.monotonic()
        if self._read_at is None or now - self._read_at > FRESH_S:
            self._ahead_us, self._read_at = read() - int(now * 1e6), now
        return self._ahead_us + int(now * 1e6)


class QuietShard:
    """Looks if a shard is as its last dispatch left it, with two small commands in place of a dispatch's eight. For one
    thread.

    A poller that has nothing to do looks nevertheless, now and then, as a ring may have been lost. A command that makes
    something due earlier writes ``wake_at``, also if its ring is lost; leases and dedup windows may do without, so a
    shard that has one is dispatched. So is every shard now and then, which notes its steady clock (``lua/README.md``,
    *Time*).
    """

    def __init__(self, connection: DedicatedConnection, keys: ShardKeys, clock: Callable[[], NodeClock]) -> None:
        self._connection = connection
        self._keys = keys
        self._clock = clock
        self._left: Dispatched | None = None
        """The answer of the last dispatch, if that found nothing to do, and no instant that the poller sleeps to: no
        look may make it late for that.
        """
        self._epoch = Stamp("0")
        self._looks = 0
        """Looks that may be made before the next dispatch."""
        self._dispatches = 0
        """Dispatches to make before the next look, as the shard has leases or dedup windows."""

    def dispatched(self, result: Dispatched, epoch: Stamp) -> None:
        """Notes the answer of a dispatch."""
        done = result.moved or result.reaped or result.buried or result.lacking or result.routed
        self._left, self._epoch = None if done or _is_near(result.next_us, result.now_us) else result, epoch
        self._looks = LOOKS
        self._dispatches = max(0, self._dispatches - 1)

    def rung(self) -> None:
        """Notes that something may have changed: the next step is a dispatch."""
        self._left = None

    def look(self, epoch: Stamp, *, timeout: float) -> Dispatched | None:
        """Returns what a dispatch would answer now, if that is the same as before; else None."""
        left = self._left
        if left is None or epoch != self._epoch or not self._looks or self._dispatches:
            return None
        self._looks -= 1
        now_us = left.now_us
        if left.next_us is not None:
            read = partial(self._connection.call, dispatch.clock_us(self._keys), timeout=timeout)
            now_us = self._clock().now_us(read)
        if _is_near(left.next_us, now_us):
            return None
        if self._connection.call(dispatch.next_step(self._keys), timeout=timeout) != (epoch, left.next_us):
            return None
        if self._connection.call(dispatch.has_lengths(self._keys), timeout=timeout):
            self._dispatches = LOOKS
            return None
        return replace(left, now_us=now_us)


def _is_near(next_us: int | None, now_us: int) -> bool:
    """True if a sleep may end at that instant."""
    return next_us is not None and next_us - now_us < LONGEST_SLEEP_S * 1e6


class Poller:
    """Serves one shard. ``is_subscribed`` says if rings of the shard's bell reach this process."""

    def __init__(
        self,
        driver: Driver,
        cache: TopologyCache,
        keys: ShardKeys,
        *,
        is_subscribed: Callable[[], bool],
        rouse: Rouse,
        faults: RouteFaults,
        leads: defaultdict[str, Lead],
        clocks: defaultdict[str, NodeClock],
        topics_lateness: TopicLateness,
        key_waits: TopicLateness,
        logged: set[str],
    ) -> None:
        """``logged``: the causes that any poller of the process has logged."""
        self.keys: ShardKeys = keys
        self._driver = driver
        self._cache = cache
        self._connection = driver.dedicated(keys.slot, dispatches=True)
        self._forwarding = Forwarding(
            driver, self._connection, keys, rouse=rouse, faults=faults, timeout=CALL_TIMEOUT_S
        )
        self._trim_at = time.monotonic() + TRIM_S * random.uniform(0.1, 1.0)
        self._is_subscribed = is_subscribed
        self._topics: list[str] = []
        self._unheard: set[str] = set()
        """Topics with ready tasks for which a process has to be woken yet."""
        self._caller = secrets.token_hex(6)
        """Names this poller to the script; a new name after each dispatch whose answer may have been lost."""
        self._pace = BatchSizer()
        self._logged = logged
        self._leads = leads
        """Node → its lead; shared by the pollers of a process."""
        self._quiet = QuietShard(self._connection, keys, lambda: clocks[driver.node_of(keys.slot)])
        self._until_us: int | None = None
        """The server's time at which the present sleep ends, if it is exact and no wake-up ends it."""
        self._recovery = Recovery(cache)
        """The recovery from steps in a row that the shard refused."""
        self._dispatched = 0
        self._late_ms: int | None = None
        self._lateness = LatenessRecorder()
        self._topics_lateness = topics_lateness
        self._key_waits = key_waits
        self._stepped = time.monotonic()
        self.loop: Loop = Loop(
            f"shardq-poller-{keys.shard}",
            self._recovering_step,
            log,
            fails=f"shard {keys.shard} can't be dispatched, trying again",
            works=f"shard {keys.shard} is dispatched again",
            fields={"shard": keys.shard},
            woken=self._woken,
            failed=self._failed,
            healed=partial(driver.outages.over, keys.shard),
            ended=self._ended,
        )

    def stop(self) -> None:
        """Tells the thread to end, and interrupts a call under way."""
        self.loop.stop()
        self._connection.interrupt()

    def rung(self, _: str | None) -> None:
        """Wakes the poller: a task is due earlier than it knows, or a ring may have been lost. From any thread."""
        self.loop.wake()

    @property
    def is_cut_off(self) -> bool:
        """True if it has not reached its shard for some seconds, whatever the reason."""
        since = self.loop.failing_since
        return since is not None and time.monotonic() - since >= CUT_OFF_S

    def report(self) -> PollerReport:
        return PollerReport(
            shard=self.keys.shard,
            state=self.loop.state,
            error=self.loop.fault or None,
            dispatched=self._dispatched,
            late_ms=self._late_ms,
            lateness=self._lateness.snapshot(),
            idle_s=time.monotonic() - self._stepped,
        )

    def _woken(self) -> None:
        self._until_us = None
        self._quiet.rung()
        self._forwarding.rung()

    def _failed(self, exc: BaseException) -> bool:
        self._caller = secrets.token_hex(6)
        self._woken()
        self._recovery.over()
        return self._driver.outages.failed(self.keys.shard, exc)

    def _ended(self) -> None:
        self._driver.outages.left(self.keys.shard)
        self._connection.close()

    def _recovering_step(self) -> float:
        """Takes a step. A shard that refuses it for an old topology is asked again under the one that is read then."""
        while not self.loop.stopping.is_set():
            try:
                wait = self.step()
            except REFUSALS as refusal:
                run(self._driver, self._recovery.recover(self.keys, refusal), CALL_TIMEOUT_S)
                self.loop.stopping.wait(0.01)  # when it is the same topology, this keeps it from spinning
            else:
                self._recovery.over()
                return wait
        return 0.0

    def step(self) -> float:
        """Moves what is due. Returns for how many seconds there is nothing more to do."""
        topology = self._cache.topology
        if (keys := self._cache.keys(self.keys.shard)) is not self.keys:  # the engine has taken up keys
            self.keys = self._forwarding.keys = keys
        until_us, self._until_us = self._until_us, None
        routed = topology.open_routes if topology.routes else {}
        topics = self._forwarding.given(self._topics, topology) if routed else self._topics
        result = None if routed else self._quiet.look(topology.stamp, timeout=CALL_TIMEOUT_S)
        began = time.monotonic()
        if result is None:
            result = self._dispatch(topology, topics, routed)
        before, self._stepped = self._stepped, time.monotonic()
        lead = self._leads[self._driver.node_of(self.keys.slot)]
        if until_us is not None:
            lead.learn(result.now_us - until_us)
        self._note(result, self._stepped - began)
        self._wake()
        trimming = self._stepped >= self._trim_at and self._trim(topology)
        wait, self._until_us = sleep(result, lead, is_subscribed=self._is_subscribed())
        # where more is due already, it goes on at once
        if 0 < wait < (rest := self._pace.rest_s(result.moved, self._stepped - before)):
            wait, self._until_us = rest, None
        if routed:
            sooner = self._forwarding.serve(result.routed, topics, topology, limit=self._pace.limit)
            if sooner < wait:
                wait, self._until_us = sooner, None
        if trimming:
            wait, self._until_us = 0.0, None
        # counted from the answer: what came after it may have taken a while
        return wait - (time.monotonic() - self._stepped) if wait > 0 else 0.0

    def _dispatch(self, topology: Topology, topics: Sequence[str], routed: Collection[str]) -> Dispatched:
        call = dispatch.dispatch(
            self.keys,
            topology.stamp,
            topics,
            limit=self._pace.limit,
            max_attempts=topology.settings.max_attempts,
            paused=topology.paused,
            routed=routed,
            caller=self._caller,
        )
        result = self._connection.call(call, timeout=CALL_TIMEOUT_S)
        self._cache.heard_at = time.monotonic()
        self._quiet.dispatched(result, topology.stamp)
        return result

    def _note(self, result: Dispatched, took_s: float) -> None:
        """Notes what a dispatch has moved, for the next batch, for reports, and the topics that it lacked."""
        self._pace.moved(result.moved, took_s)
        if result.moved:
            self._dispatched += result.moved
            self._key_waits.add(result.waits)
        if moved := result.without_key:
            self._late_ms = result.newest_ms
            tasks = sum(count for _, count in moved)
            self._lateness.note(tasks, oldest_ms=result.oldest_ms, newest_ms=result.newest_ms)
            self._topics_lateness.note(moved, oldest_ms=result.oldest_ms, newest_ms=result.newest_ms)
        self._unheard.update(result.unheard)
        if result.lacking:
            # newest first, so that topics that were not met for long fall out
            self._topics = [*result.lacking, *self._topics][:MAX_TOPICS]

    def _wake(self) -> None:
        """Wakes processes for ready tasks, where all names that a dispatch drew were of processes that are gone."""
        while self._unheard and not self.loop.stopping.is_set():
            topic = next(iter(self._unheard))
            call = consume.wake(self.keys, self._cache.topology.stamp, topic)
            if not self._connection.call(call, timeout=CALL_TIMEOUT_S):
                self._unheard.discard(topic)

    def _trim(self, topology: Topology) -> bool:
        """Removes the oldest dead tasks that are not to be kept. Returns True if there may be more of them."""
        keep = topology.dead_in_a_shard
        call = listing.trim(self.keys, topology.stamp, age_ms=topology.dead_age_ms, keep=keep)
        trimmed = self._connection.call(call, timeout=CALL_TIMEOUT_S)
        if trimmed.early and "trimmed" not in self._logged:
            self._logged.add("trimmed")
            what = "shard %d removed %s for good, as more than dead_count were dead (said once a process)"
            log.warning(what, self.keys.shard, counted(trimmed.early, "dead task"), extra={"shard": self.keys.shard})
        if trimmed.removed == listing.CHUNK:
            return True
        self._trim_at = self._stepped + TRIM_S * random.uniform(0.5, 1.0)
        return False
