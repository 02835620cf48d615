"""The migrator, one thread in every dispatcher process: sweeps the process's shards while there is something to move,
completes a change that was announced and abandoned, and forgets earlier numbers of shards. It costs nothing when idle.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence

from shardq.core.calls.request import Stale
from shardq.core.drivers.sync import Driver
from shardq.core.layout.topology import Topology
from shardq.core.operation import run
from shardq.core.recovery import put_in_force, refresh
from shardq.core.resharding.migration import MoveRate, MoveTokens, sweep
from shardq.core.resharding.resizing import forget_priors, unswept
from shardq.core.topology_cache import TopologyCache
from shardq.errors import ServerFault, ShardqError

log = logging.getLogger("shardq.resharding")

REST_S = 0.25
LONGEST_REST_S = 4.0
"""The pause between two sweeps while tasks have to drain: from the first to the second while nothing moves."""

ORPHANED_S = 5.0
"""An announced change that is not in force by then was abandoned."""

CALL_TIMEOUT_S = 5.0


class Migrator:
    """Runs the migration. ``mine``: the shards that this process serves; ``members``: the number of processes that
    share the work.
    """

    def __init__(
        self,
        driver: Driver,
        cache: TopologyCache,
        *,
        process: str,
        mine: Callable[[], Sequence[int]],
        members: Callable[[], int],
    ) -> None:
        self._driver = driver
        self._cache = cache
        self._numbers = MoveTokens(process)
        self._mine = mine
        self._members = members
        self._lock = threading.Lock()
        """Held while the thread is started; a change and a stop may come at once."""
        self._news = threading.Event()
        self._stopping = threading.Event()
        self._said = False
        """True while the log says that moving is held up."""
        self._moving = False
        """True if something was moved in the present round."""
        self.thread: threading.Thread | None = None

    def topology_changed(self, topology: Topology) -> None:
        """Looks for something to move. Also called once at the start. The first call that finds a change starts the
        thread.
        """
        with self._lock:
            if (topology.priors or topology.pending) and self.thread is None and not self._stopping.is_set():
                self.thread = threading.Thread(target=self._run, name="shardq-migrator", daemon=True)
                self.thread.start()
        self._news.set()

    def stop(self) -> None:
        """Tells the thread to end. It finishes a trip that is under way. Behind it, the thread has started, or never
        does.
        """
        with self._lock:
            self._stopping.set()
        self._news.set()

    def _run(self) -> None:
        rest = REST_S
        while not self._stopping.is_set():
            topology = self._cache.topology
            if not topology.priors and topology.pending is None:
                self._news.wait()
                self._news.clear()
                continue
            self._moving = False
            try:
                if topology.pending is not None:
                    self._complete(topology)
                else:
                    self._sweep(topology)
            except Stale:
                # The topology changed during the sweep, and the news tells it.
                self._guarded_refresh()
            except Exception as exc:
                if self._stopping.is_set():
                    return
                if not self._said and not self._covered(exc):
                    fields, trace = {"error": type(exc).__name__}, not isinstance(exc, ShardqError)
                    log.error("moving is held up, trying again: %s", exc, exc_info=trace, extra=fields)
                    self._said = True
                self._moving = False
                self._guarded_refresh()
            else:
                if self._said:
                    log.warning("moving goes on")
                self._said = False
            if self._cache.topology != topology:
                rest = REST_S
            elif not self._moving and topology.pending is None:
                # Draining can take hours, so looking for its end should cost little.
                self._stopping.wait(rest)
                rest = min(rest * 2, LONGEST_REST_S)

    def _covered(self, exc: Exception) -> bool:
        """True if the log says already that the whole node fails."""
        return isinstance(exc, ServerFault) and self._driver.outages.covers(exc.node, exc)

    def _guarded_refresh(self) -> None:
        try:
            run(self._driver, refresh(self._cache), CALL_TIMEOUT_S)
        except ShardqError as exc:
            log.debug("no fresh topology: %s", exc)

    def _complete(self, topology: Topology) -> None:
        """Brings an announced change in force, if whoever began it does not do so in time."""
        orphaned = time.monotonic() + ORPHANED_S
        while self._cache.topology == topology and not self._stopping.is_set():
            if (left := orphaned - time.monotonic()) > 0:
                self._news.wait(left)
                self._news.clear()
            else:
                log.warning("completing the change to %d shards, which was left announced", topology.pending)
                run(self._driver, put_in_force(self._cache), CALL_TIMEOUT_S)

    def _sweep(self, topology: Topology) -> None:
        rate = topology.move_rate
        share = None if rate is None else rate / max(1, self._members())
        # A thread that is left behind in a pause must not go on at its end.
        pace = MoveRate(share, self._something_moved, self._stopping.is_set)
        for keys in run(self._driver, unswept(self._cache, self._mine()), CALL_TIMEOUT_S):
            if self._stopping.is_set() or self._cache.topology.epoch != topology.epoch:
                return
            run(self._driver, sweep(self._cache, keys, self._numbers, pace), CALL_TIMEOUT_S)
        if run(self._driver, forget_priors(self._cache), CALL_TIMEOUT_S):
            log.info("all tasks are where they belong under %d shards", topology.shards)

    def _something_moved(self) -> None:
        self._moving = True
