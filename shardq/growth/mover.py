"""Moving, as a duty of every dispatcher process: one thread that sweeps the process's shards while there is something
to move, completes a change that was announced and left, and forgets what is done. Idle it costs nothing.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence

from shardq.atlas import Atlas
from shardq.calls.answers import Stale
from shardq.drivers.sync import Driver
from shardq.errors import ServerFault, ShardqError
from shardq.growth.moves import Numbers, Pace, swept
from shardq.growth.operations import forgotten, unswept
from shardq.layout.topology import Topology
from shardq.operation import come_in_force, refreshed, run

log = logging.getLogger("shardq.growth")

REST_S = 0.25
LONGEST_REST_S = 4.0
"""Between two looks at what has still to drain: from the one to the other while nothing moves."""

ORPHANED_S = 5.0
"""An announced change that is not in force by then was left by whoever began it."""

CALL_TIMEOUT_S = 5.0


class Mover:
    """``mine``: the shards this process serves; ``members``: how many processes share the work."""

    def __init__(
        self,
        driver: Driver,
        atlas: Atlas,
        *,
        process: str,
        mine: Callable[[], Sequence[int]],
        members: Callable[[], int],
    ) -> None:
        self._driver = driver
        self._atlas = atlas
        self._numbers = Numbers(process)
        self._mine = mine
        self._members = members
        self._news = threading.Event()
        self._stopping = threading.Event()
        self._said = False
        """The log says that moving is held up."""
        self._moving = False
        """In the present round."""
        self.thread: threading.Thread | None = None

    def topology_changed(self, topology: Topology) -> None:
        """There may be something to move; also called once at the start. The first such call starts the thread."""
        if (topology.priors or topology.pending) and self.thread is None and not self._stopping.is_set():
            self.thread = threading.Thread(target=self._run, name="shardq-mover", daemon=True)
            self.thread.start()
        self._news.set()

    def stop(self) -> None:
        """Tells the thread to end; a trip under way is finished."""
        self._stopping.set()
        self._news.set()

    def _run(self) -> None:
        rest = REST_S
        while not self._stopping.is_set():
            topology = self._atlas.topology
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
                # the topology changed under the sweep, as announced by the news
                self._guarded_refresh()
            except Exception as exc:
                if self._stopping.is_set():
                    return
                if not self._said and not self._covered(exc):
                    log.error("moving is held up, trying on: %s", exc, exc_info=not isinstance(exc, ShardqError))
                    self._said = True
                self._moving = False
                self._guarded_refresh()
            else:
                if self._said:
                    log.warning("moving goes on")
                self._said = False
            if self._atlas.topology != topology:
                rest = REST_S
            elif not self._moving and topology.pending is None:
                # what is left to drain can take hours: then looking for it should cost little
                self._stopping.wait(rest)
                rest = min(rest * 2, LONGEST_REST_S)

    def _covered(self, exc: Exception) -> bool:
        """The log says of the whole node that it fails."""
        return isinstance(exc, ServerFault) and self._driver.outages.covers(exc.node, exc)

    def _guarded_refresh(self) -> None:
        try:
            run(self._driver, refreshed(self._atlas), CALL_TIMEOUT_S)
        except ShardqError as exc:
            log.debug("no fresh topology: %s", exc)

    def _complete(self, topology: Topology) -> None:
        """Brings an announced change in force, if whoever began it does not in time."""
        orphaned = time.monotonic() + ORPHANED_S
        while self._atlas.topology == topology and not self._stopping.is_set():
            if (left := orphaned - time.monotonic()) > 0:
                self._news.wait(left)
                self._news.clear()
            else:
                log.warning("completing the change to %d shards, which was left announced", topology.pending)
                run(self._driver, come_in_force(self._atlas), CALL_TIMEOUT_S)

    def _sweep(self, topology: Topology) -> None:
        rate = topology.move_rate
        share = None if rate is None else rate / max(1, self._members())
        # a thread that is left behind in a pause must not go on at its end
        pace = Pace(share, self._something_moved, self._stopping.is_set)
        for keys in run(self._driver, unswept(self._atlas, self._mine()), CALL_TIMEOUT_S):
            if self._stopping.is_set() or self._atlas.topology.epoch != topology.epoch:
                return
            run(self._driver, swept(self._atlas, keys, self._numbers, pace), CALL_TIMEOUT_S)
        if run(self._driver, forgotten(self._atlas), CALL_TIMEOUT_S):
            log.info("all tasks are where they belong under %d shards", topology.shards)

    def _something_moved(self) -> None:
        self._moving = True
