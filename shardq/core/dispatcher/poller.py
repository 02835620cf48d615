"""One poller: a thread that moves what is due in one shard, and sleeps exactly until more is. ``dispatcher`` starts and
stops it. ``step`` is one round, ``run`` the loop around it; no error ends the loop.
"""

from __future__ import annotations

import logging
import random
import secrets
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from shardq.core.calls import dispatch, listing
from shardq.core.dispatcher.faults import RouteFaults
from shardq.core.dispatcher.forwarding import MAX_TOPICS, Forwarding, Relayed
from shardq.core.dispatcher.pacing import LONGEST_SLEEP_S, BatchSizer, Lead, sleep
from shardq.core.dispatcher.quiet import NodeClock, QuietShard
from shardq.core.drivers.sync import Driver
from shardq.core.fleet.lateness import Lateness, LatenessRecorder, TopicLateness
from shardq.core.layout.keys import ShardKeys
from shardq.core.layout.topology import Topology
from shardq.core.operation import run
from shardq.core.recovery import REFUSALS, Recovery, Refusal
from shardq.core.topology_cache import TopologyCache
from shardq.errors import ShardqError

log = logging.getLogger("shardq.dispatcher")

CALL_TIMEOUT_S = 2.0
"""Shorter than a producer's: ``stats()`` should soon show a poller that can't reach its shard; it tries for ever."""

STUCK_S = LONGEST_SLEEP_S + 2 * CALL_TIMEOUT_S
"""A poller that has completed no step for this long stands still."""

TRIM_S = 300.0
"""The time between two looks for dead tasks to remove."""

PollerState = Literal["starting", "running", "failing", "stopped"]


@dataclass(frozen=True, slots=True)
class PollerReport:
    """The state of one poller, for ``stats()``."""

    shard: int
    state: PollerState
    error: str | None
    """Why it is failing."""
    dispatched: int
    """Tasks, since the poller started."""
    late_ms: int | None
    """Lateness of the last task that it dispatched."""
    lateness: Lateness
    """The lateness of all tasks that it dispatched."""
    idle_s: float
    """Seconds since its last completed step."""


class Poller:
    """Serves one shard. ``is_subscribed`` says if rings of the shard's bell reach this process."""

    def __init__(
        self,
        driver: Driver,
        cache: TopologyCache,
        keys: ShardKeys,
        *,
        is_subscribed: Callable[[], bool],
        relay: Relayed,
        faults: RouteFaults,
        leads: defaultdict[str, Lead],
        clocks: defaultdict[str, NodeClock],
        topics_lateness: TopicLateness,
        logged: set[str],
    ) -> None:
        """``logged``: the causes that any poller of the process has logged."""
        self.keys = keys
        self.wakeup = threading.Event()
        self._driver = driver
        self._cache = cache
        self._connection = driver.dedicated(keys.slot)
        self._forwarding = Forwarding(
            driver, self._connection, keys, relay=relay, faults=faults, timeout=CALL_TIMEOUT_S
        )
        self._trim_at = time.monotonic() + TRIM_S * random.uniform(0.1, 1.0)
        self._is_subscribed = is_subscribed
        self._topics: list[str] = []
        self._caller = secrets.token_hex(6)
        """Names this poller to the script; a new name after each dispatch whose answer may have been lost."""
        self._pace = BatchSizer()
        self._logged = logged
        self._leads = leads
        """Node → its lead; shared by the pollers of a process."""
        self._quiet = QuietShard(self._connection, keys, lambda: clocks[driver.node_of(keys.slot)])
        self._until_us: int | None = None
        """The server's time at which the present sleep ends, if it is exact and no wake-up ends it."""
        self._stopping = False
        self._state: PollerState = "starting"
        self._error: str | None = None
        self._said = False
        """True if it was logged that this shard fails."""
        self._recovery = Recovery(cache)
        """The recovery from steps in a row that the shard refused."""
        self._dispatched = 0
        self._late_ms: int | None = None
        self._lateness = LatenessRecorder()
        self._topics_lateness = topics_lateness
        self._stepped = time.monotonic()
        self.thread = threading.Thread(target=self.run, name=f"shardq-poller-{keys.shard}", daemon=True)

    def __repr__(self) -> str:
        return f"<Poller of shard {self.keys.shard}: {self._state}, {self._dispatched} dispatched>"

    def start(self) -> None:
        self.thread.start()

    def stop(self) -> None:
        """Tells the thread to end, and interrupts a call under way."""
        self._stopping = True
        self.wakeup.set()
        self._connection.interrupt()

    def rung(self, _: str | None) -> None:
        """Wakes the poller: a task is due earlier than it knows, or a ring may have been lost. From any thread."""
        self.wakeup.set()

    def report(self) -> PollerReport:
        return PollerReport(
            shard=self.keys.shard,
            state=self._state,
            error=self._error,
            dispatched=self._dispatched,
            late_ms=self._late_ms,
            lateness=self._lateness.snapshot(),
            idle_s=time.monotonic() - self._stepped,
        )

    def run(self) -> None:
        try:
            while not self._stopping:
                # cleared before the step, so that a ring during the step is not lost
                if self.wakeup.is_set():
                    self.wakeup.clear()
                    self._quiet.rung()
                    self._forwarding.rung()
                wait = self._guarded_step()
                if wait > 0 and not self._stopping and self.wakeup.wait(wait):
                    self._until_us = None
        finally:
            self._state = "stopped"
            self._driver.outages.left(self.keys.shard)
            self._connection.close()

    def _guarded_step(self) -> float:
        """Takes a step. Returns how long to wait, also after a failure. The log has that once, by node or by shard."""
        try:
            wait = self.step()
        except REFUSALS as fault:
            return self._recover(fault)
        except Exception as exc:  # noqa: BLE001  no error ends a poller: what it was is logged, and shown in stats()
            return self._failed(exc)
        if self._state == "failing":
            self._driver.outages.over(self.keys.shard)
            if self._said:
                log.warning("shard %d is dispatched again", self.keys.shard, extra={"shard": self.keys.shard})
                self._said = False
        self._state, self._error = "running", None
        self._recovery.over()
        return wait

    def _failed(self, exc: Exception) -> float:
        if self._stopping:
            return 0.0
        self._caller = secrets.token_hex(6)
        self._quiet.rung()
        self._forwarding.rung()
        if not self._driver.outages.failed(self.keys.shard, exc) and not self._said:
            self._said = True
            known = isinstance(exc, ShardqError)
            log.error(
                "shard %d can't be dispatched, trying again: %s",
                self.keys.shard,
                exc,
                exc_info=None if known else exc,
                extra={"shard": self.keys.shard, "error": type(exc).__name__},
            )
        self._state, self._error = "failing", f"{type(exc).__name__}: {exc}"
        return self._pace.failed()

    def _recover(self, refusal: Refusal) -> float:
        try:
            run(self._driver, self._recovery.recover(self.keys, refusal), CALL_TIMEOUT_S)
        except Exception as exc:  # noqa: BLE001  as above
            self._recovery.over()
            return self._failed(exc)
        # nothing was done yet under the newer topology; a short pause when it is the same keeps this from spinning
        return 0.01

    def step(self) -> float:
        """Moves what is due. Returns for how many seconds there is nothing more to do."""
        topology = self._cache.topology
        until_us, self._until_us = self._until_us, None
        routed = topology.open_routes if topology.routes else {}
        topics = self._forwarding.given(self._topics, topology) if routed else self._topics
        result = None if routed else self._quiet.look(topology.epoch, timeout=CALL_TIMEOUT_S)
        began = time.monotonic()
        if result is None:
            result = self._connection.call(
                dispatch.dispatch(
                    self.keys,
                    topology.epoch,
                    topics,
                    limit=self._pace.limit,
                    max_attempts=topology.settings.max_attempts,
                    paused=topology.paused,
                    routed=routed,
                    caller=self._caller,
                ),
                timeout=CALL_TIMEOUT_S,
            )
            self._quiet.dispatched(result, topology.epoch)
        before, self._stepped = self._stepped, time.monotonic()
        lead = self._leads[self._driver.node_of(self.keys.slot)]
        if until_us is not None:
            lead.learn(result.now_us - until_us)
        self._pace.moved(result.moved, self._stepped - began)
        if result.moved:
            self._dispatched += result.moved
            self._late_ms = result.newest_ms
            self._lateness.note(result.moved, oldest_ms=result.oldest_ms, newest_ms=result.newest_ms)
            self._topics_lateness.note(result.by_topic, oldest_ms=result.oldest_ms, newest_ms=result.newest_ms)
        trimming = False
        if self._stepped >= self._trim_at:
            trimming = self._trim(topology)
        if result.lacking:
            # newest first, so that topics that were not met for long fall out
            self._topics = [*result.lacking, *self._topics][:MAX_TOPICS]
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

    def _trim(self, topology: Topology) -> bool:
        """Removes the oldest dead tasks that are not to be kept. Returns True if there may be more of them."""
        keep = topology.dead_in_a_shard
        call = listing.trim(self.keys, topology.epoch, age_ms=topology.dead_age_ms, keep=keep)
        trimmed = self._connection.call(call, timeout=CALL_TIMEOUT_S)
        if trimmed.early and "trimmed" not in self._logged:
            self._logged.add("trimmed")
            what = "shard %d removed %d dead tasks for good, as more than dead_count were dead (said once a process)"
            log.warning(what, self.keys.shard, trimmed.early, extra={"shard": self.keys.shard})
        if trimmed.removed == listing.CHUNK:
            return True
        self._trim_at = self._stepped + TRIM_S * random.uniform(0.5, 1.0)
        return False
