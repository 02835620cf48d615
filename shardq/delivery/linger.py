"""The wait for a batch to fill, before anything is claimed: nothing is leased meanwhile, no key held and no permit
taken, so a worker that dies or stops then has nothing to give back, and a fleet shares the wait.

A list is ripe when it has enough for a batch, or when the task at its head has been seen there for ``linger``. So
whoever takes the head ends the wait of all, and the next head begins another. By a wait of its own each of twenty
processes would take the few tasks that have come since another took the rest.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from shardq.core.calls import consume
from shardq.core.calls.request import Command
from shardq.core.consumer.claim_state import Claims
from shardq.core.consumer.claiming import RETRY_FOR_S, look
from shardq.core.consumer.waiter_registry import Waiter
from shardq.core.consumer.wakeups import Wakeups
from shardq.core.drivers.retry import Spare
from shardq.core.drivers.sync import Driver
from shardq.core.layout.lanes import lane_of
from shardq.core.locks import SignalSafeEvent
from shardq.core.operation import Many, Operation, run
from shardq.errors import ShardqError, Unanswered, Unavailable

LOOKS = 8
"""So often a list is looked at while its first task waits for others."""

SHORTEST_S = 0.01
LONGEST_S = 0.25
"""The bounds of the time between two looks."""

UNHEARD_S = 0.25
"""The time between two looks at lists whose wake-ups don't reach this process."""

RECHECK_S = 10.0
"""Lists are looked at again this often, although nothing woke the process: whoever was woken may have died since."""


class Linger:
    """The wait of one handler of batches, whose claims are of one topic. For one thread at a time."""

    def __init__(
        self, driver: Driver, claims: Claims, wakeups: Callable[[float], Wakeups], *, size: int, linger_s: float
    ) -> None:
        self._driver = driver
        self._claims = claims
        self._wakeups = wakeups
        self._size = size
        self._linger_s = linger_s
        self._topic = claims.topics[0]
        self._closed = False
        self._event = SignalSafeEvent()
        self._seen: dict[int, tuple[str, float]] = {}
        """Shard → the id at the head of its list, and when that was seen first."""

    def close(self) -> None:
        """Ends the wait, for good. May be called from any thread."""
        self._closed = True
        self._event.set()

    def pause(self, seconds: float) -> None:
        """Waits for so long, or until it is closed."""
        self._event.clear()  # before the look: close() says so first, and then wakes
        if not self._closed:
            self._event.wait(seconds)

    def wait(self, wait_s: float) -> bool:
        """Waits until a batch is ripe. Returns False if nothing came for so long, or others took what there was."""
        if not self._wait_for_any(wait_s):
            return False
        pause_s = min(max(self._linger_s / LOOKS, SHORTEST_S), LONGEST_S)
        while not self._closed:
            left_s = run(self._driver, self._left_s(time.monotonic()), self._driver.settings.timeout)
            if left_s is None:
                return False
            if left_s <= 0:
                return True
            self._event.wait(min(pause_s, left_s))
            self._event.clear()
        return False

    def _left_s(self, now: float) -> Operation[float | None]:
        """Looks at the lists. Returns for how long the wait is still to go on; None: there is nothing any more."""
        claims, topic = self._claims, self._topic
        requests: dict[tuple[int, str], Command[Any]] = {}
        for shard in claims.unreachable.to_ask(claims.cache.topology.span()):
            keys = claims.cache.keys(shard)
            requests[shard, "length"] = consume.length(keys, topic, retry_for_s=RETRY_FOR_S)
            requests[shard, "head"] = consume.head(keys, topic, retry_for_s=RETRY_FOR_S)
        # A server that is silent is waited for as by a claim: what the others have waits meanwhile.
        began = time.monotonic()
        answers = dict((yield Many(requests, Spare(began + claims.patience_s))))
        took_s = time.monotonic() - began
        seen, total, left_s = self._seen, 0, self._linger_s
        self._seen = {}
        for shard in {shard for shard, _ in requests}:
            length, head = answers[shard, "length"], answers[shard, "head"]
            if failure := next((each for each in (length, head) if isinstance(each, ShardqError)), None):
                if isinstance(failure, (Unavailable, Unanswered)):
                    claims.note_unreachable(shard, [topic], failure, took_s)
                continue
            claims.ready_counts.learn(shard, {topic: length}, now)
            total += length
            if head is None:
                continue
            if lane_of(head) is not None:
                left_s = 0.0  # what is ready of a key keeps the others of it waiting
            known = seen.get(shard)
            since = known[1] if known is not None and known[0] == head else now
            self._seen[shard] = head, since
            left_s = min(left_s, since + self._linger_s - now)
        if not total:
            return None
        return 0.0 if total >= self._size else left_s

    def _wait_for_any(self, wait_s: float) -> bool:
        """Waits until a list is known to have something. Returns False if none has for so long."""
        claims, timeout_s = self._claims, self._driver.settings.timeout
        until = time.monotonic() + wait_s
        wakeups = self._wakeups(until + timeout_s)
        waiters = wakeups.waiters
        waiter = claims.waiter = Waiter(claims.wanted_topics(), self._event.set)
        looked_at = -RECHECK_S
        try:
            waiters.enter(waiter)
            while not self._closed:
                now = time.monotonic()
                claims.ready_counts.expect(waiters.ask(waiter))
                span, topics = claims.cache.topology.span(), claims.open_topics(claims.cache.topology)
                pause_s = RECHECK_S
                if topics:
                    shards = span if now >= looked_at + RECHECK_S else waiters.unregistered(span, topics)
                    if shards:
                        looked_at = now if shards is span else looked_at
                        run(self._driver, look(claims, shards, topics, wakeups), timeout_s)
                    if claims.planner.known(self._topic, span):
                        return True
                    if waiters.unregistered(span, topics):
                        pause_s = UNHEARD_S
                if now >= until or waiter.topics != claims.wanted_topics():
                    return False
                self._event.wait(min(pause_s, until - now))
                self._event.clear()
            return False
        finally:
            claims.waiter = None
            # Nothing of it is taken yet, and who lingers is who will take it: no other process is woken.
            wakeups.waiter_left(waiter, ())
