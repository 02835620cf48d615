"""Ends pauses at their time (``pause(topic, until=…)``). ``Resumer`` is a thread of each dispatcher, which sleeps while
no pause has an end. The first of the living dispatchers ends a pause; each of the others waits a little longer than
the one before it, in case that one can't.
"""

from __future__ import annotations

import logging
from functools import partial

from shardq.core.drivers.sync import Driver
from shardq.core.operation import run
from shardq.core.threads import Loop, Peers, SideThread
from shardq.core.topology_cache import TopologyCache
from shardq.core.topology_edits import edit_topology, without_ended_pauses
from shardq.errors import Unanswered, Unavailable

log: logging.Logger = logging.getLogger("shardq.dispatcher")

CALL_TIMEOUT_S = 5.0

NAP_S = 20.0
"""The longest sleep while a pause has an end: the server's clock may be set meanwhile."""

TURN_MS = 2000.0
"""The time that each dispatcher gives the one before it."""


class Resumer(SideThread):
    """The thread of one process, started once and stopped once."""

    def __init__(self, driver: Driver, cache: TopologyCache, peers: Peers) -> None:
        self._driver = driver
        self._cache = cache
        self._peers = peers
        self.loop: Loop = Loop(
            "shardq-resumer",
            self._step,
            log,
            fails="pauses that are over can't be ended, trying again",
            works="pauses are ended in time again",
            failed=lambda exc: isinstance(exc, Unavailable | Unanswered),  # pollers and the heartbeat log that
            ended=lambda: self._unlearn(),
        )
        self._unlearn = cache.on_change(lambda _: self.loop.wake())

    def _step(self) -> float | None:
        """Ends the pauses whose time it is. Returns how long to sleep; None: until a topology is learnt."""
        if not self._cache.topology.pauses:
            return None
        if self._peers.process not in self._peers.members:
            return NAP_S
        now_ms = self._peers.clock_ms() - TURN_MS * self._peers.members.index(self._peers.process)
        if min(self._cache.topology.pauses.values()) <= now_ms:
            edit = partial(without_ended_pauses, now_ms=now_ms)
            run(self._driver, edit_topology(self._cache, edit), CALL_TIMEOUT_S)
        left_ms = min(self._cache.topology.pauses.values(), default=None)
        return None if left_ms is None else min(NAP_S, max(0.0, left_ms - now_ms) / 1000)
