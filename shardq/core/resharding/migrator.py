"""The ``Migrator``, the thread in every dispatcher that sweeps its shards while there is something to move."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Sequence

from shardq.core.drivers.sync import Driver
from shardq.core.layout.keys import ShardKeys
from shardq.core.layout.topology import Topology
from shardq.core.operation import run
from shardq.core.resharding.migration import MoveRate, MoveTokens, sweep
from shardq.core.resharding.resizing import forget_priors, remove_marks, unswept
from shardq.core.threads import Loop
from shardq.core.topology_cache import TopologyCache
from shardq.core.topology_recovery import REFUSALS, NotConfirmed, put_in_force
from shardq.core.topology_upkeep import bring_strays_home, find_strays, open_shards, refresh
from shardq.errors import EngineClosed, ShardqError, Unanswered, Unavailable

log: logging.Logger = logging.getLogger("shardq.resharding")

REST_S = 0.25
LONGEST_REST_S = 4.0
"""The pause between two sweeps while tasks have to drain: from the first to the second while nothing moves."""

ORPHANED_S = 5.0
"""An announced change that is not in force by then was abandoned."""

LOOK_S = 3600.0
"""The time between two looks at shards out of use: only a server that came back older has tasks there."""

CALL_TIMEOUT_S = 5.0


class Migrator:
    """A thread in every dispatcher process: sweeps the process's shards while there is something to move, completes a
    change that was announced and abandoned, forgets earlier numbers of shards, and removes what is left of a change.
    When idle, the process with shard 0 looks for tasks in shards out of use, now and then.

    ``mine``: the shards that this process serves; ``members``: the number of processes that share the work.
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
        self._mine, self._members = mine, members
        self._since = 0
        """The epoch in which the number of shards came in force after which shards out of use were looked at."""
        self._look_at = 0.0
        self._begin_at = time.monotonic() + ORPHANED_S
        self._moving = False
        """True if something was moved in the present round."""
        self._rest_s = REST_S
        self.ended: Sequence[ShardKeys] = ()
        """The shards of a change that this process has ended. Marks of moves that were never made are left in them."""
        self._announced: Topology | None = None
        """The topology whose change is not in force."""
        self._orphaned_at = 0.0
        """When that change counts as abandoned; minus infinity: the log has that."""
        self.loop: Loop = Loop(
            "shardq-migrator",
            self._step,
            log,
            fails="moving is held up, trying again",
            works="moving goes on",
            failed=self._failed,
        )

    def topology_changed(self, topology: Topology) -> None:
        """Looks for something to move. Also called once at the start. The first call that finds a change starts the
        thread.
        """
        if topology.priors or topology.pending:
            self.loop.start()
        self.loop.wake()

    def heartbeat_sent(self) -> None:
        """Starts the thread for its first look at shards out of use, a moment after the start."""
        if time.monotonic() >= self._begin_at:
            self.loop.start()

    def _step(self) -> float | None:
        topology = self._cache.topology
        if not topology.priors and topology.pending is None and not self.ended:
            return self._look_for_strays(topology)
        self._moving = False
        try:
            if topology.pending is not None:
                return self._complete(topology)
            if topology.priors:
                self._sweep(topology)
            elif run(self._driver, remove_marks(self._cache, self.ended), CALL_TIMEOUT_S):
                self.ended, self._rest_s = (), REST_S
                return 0.0
        except REFUSALS:
            # The topology changed during the sweep, and the news tells it. In another engine nothing is opened.
            run(self._driver, refresh(self._cache), CALL_TIMEOUT_S)
            run(self._driver, open_shards(self._cache, self._cache.span(), briefly=True), CALL_TIMEOUT_S)
        if self._cache.topology != topology or self._moving:
            self._rest_s = REST_S
            return 0.0
        # Draining can take hours, so looking for its end should cost little.
        rest_s, self._rest_s = self._rest_s, min(self._rest_s * 2, LONGEST_REST_S)
        return rest_s

    def _look_for_strays(self, topology: Topology) -> float:
        """Looks at shards out of use: a moment after the start, after each resize, and each hour. Returns how long to
        wait until the next look.
        """
        if topology.since == self._since and (left := self._look_at - time.monotonic()) > 0:
            return left
        if 0 not in self._mine():
            return ORPHANED_S
        strays = run(self._driver, find_strays(self._cache), CALL_TIMEOUT_S)
        run(self._driver, bring_strays_home(self._cache, strays), CALL_TIMEOUT_S)
        # a look that found something is not followed by another at once: what can't be moved would be found for ever
        self._since, self._look_at = self._cache.topology.since, time.monotonic() + LOOK_S
        return LOOK_S

    def _failed(self, exc: BaseException) -> bool:
        self._guarded_refresh()
        return self._driver.outages.covers(exc)

    def _guarded_refresh(self) -> None:
        try:
            run(self._driver, refresh(self._cache), CALL_TIMEOUT_S)
        except ShardqError as exc:
            log.debug("no fresh topology: %s", exc)

    def _complete(self, topology: Topology) -> float:
        """Brings an announced change in force, if the process that began it does not do so in time."""
        if topology != self._announced:
            self._announced, self._orphaned_at = topology, time.monotonic() + ORPHANED_S
        if (left := self._orphaned_at - time.monotonic()) > 0:
            return left
        if self._orphaned_at > -math.inf:
            self._orphaned_at = -math.inf
            log.warning("completing the change to %d shards, which was left announced", topology.pending)
        run(self._driver, refresh(self._cache), CALL_TIMEOUT_S)  # in another engine nothing is opened
        run(self._driver, put_in_force(self._cache), CALL_TIMEOUT_S)
        return 0.0

    def _sweep(self, topology: Topology) -> None:
        # A thread that is left behind in a pause must not go on at its end.
        pace = MoveRate(topology.share_of(self._members()), self._something_moved, self.loop.stopping.is_set)
        failure: ShardqError | None = None
        away: set[str] = set()  # nodes that do not answer: their other shards need not be tried
        for keys in run(self._driver, unswept(self._cache, self._mine()), CALL_TIMEOUT_S):
            if self.loop.stopping.is_set() or self._cache.topology.stamp != topology.stamp:
                return
            if (node := self._driver.node_of(keys.slot)) in away:
                continue
            try:
                run(self._driver, sweep(self._cache, keys, self._numbers, pace), CALL_TIMEOUT_S)
            except (*REFUSALS, EngineClosed):
                raise
            except ShardqError as exc:  # other shards do not wait for this one
                failure = failure or exc
                if isinstance(exc, Unavailable | Unanswered) and not isinstance(exc, NotConfirmed):
                    away.add(node)
        if failure is not None:
            raise failure
        self.ended = self._cache.span()  # before its end: of that the answer may be lost
        if run(self._driver, forget_priors(self._cache), CALL_TIMEOUT_S):
            log.info("all tasks are where they belong under %d shards", topology.shards)
        else:
            self.ended = ()

    def _something_moved(self) -> None:
        self._moving = True
