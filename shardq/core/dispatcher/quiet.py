"""Looks if a shard is as its last dispatch left it, with two small commands in place of a dispatch's eight.

A poller that has nothing to do looks nevertheless, now and then, as a ring may have been lost. Whatever makes something
due earlier writes ``wake_at``, whether or not its ring arrives; leases and dedup windows may do without, so a shard
that has one is dispatched. So is every shard now and then, which notes its steady clock (``lua/README.md``, *Time*).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from shardq.core.calls import dispatch
from shardq.core.calls.dispatch import Dispatched
from shardq.core.dispatcher.pacing import LONGEST_SLEEP_S
from shardq.core.drivers.owned import DedicatedConnection
from shardq.core.layout.keys import ShardKeys

LOOKS = 14
"""Looks between two dispatches: with the longest sleep five minutes."""

FRESH_S = 5.0
"""A node's clock is read again after this time: it may be set."""


class NodeClock:
    """The clock of a node, read by whichever of its pollers comes when it was not read for long."""

    def __init__(self) -> None:
        self._ahead_us = 0
        self._read_at: float | None = None

    def now_us(self, read: Callable[[], int]) -> int:
        now = time.monotonic()
        if self._read_at is None or now - self._read_at > FRESH_S:
            self._ahead_us, self._read_at = read() - int(now * 1e6), now
        return self._ahead_us + int(now * 1e6)


class QuietShard:
    """One poller's view of its shard. Not for two threads at once."""

    def __init__(self, connection: DedicatedConnection, keys: ShardKeys, clock: Callable[[], NodeClock]) -> None:
        self._connection = connection
        self._keys = keys
        self._clock = clock
        self._left: Dispatched | None = None
        """The answer of the last dispatch, if that found nothing to do, and no instant that the poller sleeps to: no
        look may make it late for that.
        """
        self._epoch = 0
        self._looks = 0
        """Looks that may be made before the next dispatch."""
        self._dispatches = 0
        """Dispatches to make before the next look, as the shard has leases or dedup windows."""

    def dispatched(self, result: Dispatched, epoch: int) -> None:
        """Notes the answer of a dispatch."""
        done = result.moved or result.reaped or result.buried or result.lacking or result.routed
        self._left, self._epoch = None if done or _is_near(result.next_us, result.now_us) else result, epoch
        self._looks = LOOKS
        self._dispatches = max(0, self._dispatches - 1)

    def rung(self) -> None:
        """Notes that something may have changed: the next step is a dispatch."""
        self._left = None

    def look(self, epoch: int, *, timeout: float) -> Dispatched | None:
        """Returns what a dispatch would answer now, if that is the same as before; else None."""
        left = self._left
        if left is None or epoch != self._epoch or not self._looks or self._dispatches:
            return None
        self._looks -= 1
        now_us = left.now_us if left.next_us is None else self._clock().now_us(lambda: self._read_clock(timeout))
        if _is_near(left.next_us, now_us):
            return None
        if self._connection.call(dispatch.next_step(self._keys), timeout=timeout) != (epoch, left.next_us):
            return None
        if self._connection.call(dispatch.has_lengths(self._keys), timeout=timeout):
            self._dispatches = LOOKS
            return None
        return replace(left, now_us=now_us)

    def _read_clock(self, timeout: float) -> int:
        return self._connection.call(dispatch.clock_us(self._keys), timeout=timeout)


def _is_near(next_us: int | None, now_us: int) -> bool:
    """True if a sleep may end at that instant."""
    return next_us is not None and next_us - now_us < LONGEST_SLEEP_S * 1e6
