"""Loads what falls due: a thread of each dispatcher, which moves the rows that are due within ``ahead``.

A pass begins with what was due two hours ago, as what was removed before still costs a look; a full one, from the
first row on, at the start and every few minutes. A dispatcher takes its share of the rows, by their ids, and
whatever is overdue for its load: so a row whose own dispatcher is stuck is late for its load, and not late.

Rows of a shard that takes nothing are passed over until the next pass. An outage of the database, or of the loaders,
that is shorter than ``ahead`` makes nothing late.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

from shardq.core.collector import uncollected
from shardq.core.drivers.sync import Driver
from shardq.core.operation import run
from shardq.core.producer.packing import Packer
from shardq.core.threads import Loop, SideThread
from shardq.core.topology_cache import TopologyCache
from shardq.errors import ServerFault, ShardqError
from shardq.features.far.moving import Mover
from shardq.features.far.report import LoaderReport
from shardq.features.far.store import Store
from shardq.relay.sending import Failing, cause_of

log: logging.Logger = logging.getLogger("shardq.far")

PASS_S = 1.0
"""The shortest pause between two passes."""

SHARE = 10
"""The pause after a pass is so many times as long as the pass, but for one that had all it could move."""

FULL_S = 300.0
"""Between two full passes."""

BACK_MS = 2 * 3_600_000
"""A pass begins with what was due so long ago."""

ROWS, BYTES = 200, 4 << 20
"""The most rows of a page, and bytes of their records. A page is one block of work for the database, this process and
each server, and what is due meanwhile waits for it: with 2,000 rows three times as long, for a third more rows/s.
"""

TRIP_S = 5.0
"""The time for a page: rows of other shards wait as long when a shard falls silent."""

WHO = "the loader of the far store"


class Loader(SideThread):
    """The loader of one process, started once and stopped once."""

    def __init__(
        self,
        driver: Driver,
        cache: TopologyCache,
        *,
        store: Store,
        packer: Packer,
        ready: Callable[[], object],
        process: str,
        members: Callable[[], tuple[str, ...]],
    ) -> None:
        """``ready`` opens the store, or raises why it can't be used."""
        self._driver = driver
        self._store = store
        self._packer = packer
        self._cache = cache
        self._ready = ready
        self._process, self._members = process, members
        self._mover: Mover | None = None
        self._full_at = 0.0
        self._passed_at = time.monotonic()
        """When the last pass began that came to its end."""
        self._loaded = 0
        self._refused: dict[str, str] = {}
        self._said = set[str]()
        self._causes = set[str]()
        """Why shards take nothing, as far as the log has said it since the last pass without a problem."""
        self._failing = Failing()
        self.loop: Loop = Loop(
            "shardq-loader",
            self._step,
            log,
            fails="what waits in the far store can't be loaded, trying again",
            works="what waits in the far store is loaded again",
            failed=lambda exc: driver.outages.failed(WHO, exc),
            longest_pause_s=5.0,
        )

    def facts(self) -> Mapping[str, Any]:
        return {"loads": True, "loads_from": self._store.place, "problems": self.report().problems}

    def report(self) -> LoaderReport:
        ahead_s = self._store.horizon.ahead_ms / 1000
        left_s = ahead_s - (time.monotonic() - self._passed_at)
        problems = []
        if self.loop.fault:
            until = f"what it holds is late in {left_s:,.0f} s" if left_s > 0 else "what it holds is late"
            problems.append(f"the far store can't be loaded: {self.loop.fault}; {until}")
        for id, why in list(self._refused.items())[:3]:
            problems.append(f"the task {id} of the far store can't be moved to Redis: {why}")
        if self._failing.errors:
            why = str(next(iter(self._failing.errors.values())))
            problems.append(f"{len(self._failing.errors)} shards take nothing from the far store: {why}")
        return LoaderReport(self._loaded, left_s, tuple(problems))

    def once(self) -> None:
        """Moves what is near, in the calling thread."""
        self._step()

    def _step(self) -> float:
        self._ready()
        began = time.monotonic()
        full = began >= self._full_at
        failing, refused = Failing(), dict[str, str]()
        moved = self._pass(0 if full else int(self._store.now_ms) - BACK_MS, failing, refused)
        self._passed_at = began
        self._note(refused, failing)
        took = time.monotonic() - began
        if full:
            self._full_at = began + FULL_S
            self._store.tidied(time.monotonic() + TRIP_S)
        return PASS_S if moved else max(PASS_S, min(SHARE * took, self._store.horizon.ahead_ms / 8000))

    def _pass(self, due_ms: int, failing: Failing, refused: dict[str, str]) -> int:
        """Moves all rows that are near, and due from an instant on. Returns how many."""
        moved = 0
        after: tuple[int, str] | None = (due_ms, "")
        while after is not None and not self.loop.stopping.is_set():
            # A page leaves no garbage, but so many objects that all of the process's would be gone through each second.
            with uncollected():
                after, count = self._page(after, failing, refused)
            moved += count
            self._loaded += count
        return moved

    def _page(
        self, after: tuple[int, str], failing: Failing, refused: dict[str, str]
    ) -> tuple[tuple[int, str] | None, int]:
        """Moves a page of rows behind another. Returns where the next one begins, if any, and how many it moved."""
        if self._mover is None:
            self._mover = Mover(self._cache, self._packer, self._store.horizon)
        members = sorted({*self._members(), self._process})
        read_ms, deadline = self._store.now_ms, time.monotonic() + TRIP_S
        rows = self._store.near(
            after, members=len(members), member=members.index(self._process), most=ROWS, bytes=BYTES,
            deadline=deadline,
        )  # fmt: skip
        if not rows:
            return None, 0
        result = run(self._driver, self._mover.move(rows, read_ms, failing), TRIP_S)
        if result.done:
            self._store.forget(result.done, time.monotonic() + TRIP_S)
        refused.update((row.id, str(error)) for row, error in result.refused)
        return (rows[-1].due, rows[-1].id), len(result.done)

    def _note(self, refused: dict[str, str], failing: Failing) -> None:
        for id in refused.keys() - self._said:
            log.error(
                "the task %s of the far store can't be moved to Redis: %s", id, refused[id], extra={"task_id": id}
            )
        self._said = set(refused)
        self._refused, self._failing = refused, failing
        causes: dict[str, ShardqError] = {}
        for error in failing.errors.values():
            if not isinstance(error, ServerFault) or not self._driver.outages.failed(WHO, error):
                causes.setdefault(cause_of(error), error)
        for cause in causes.keys() - self._causes:  # once, and not for each pass and shard
            log.warning("a shard takes nothing from the far store, trying again: %s", causes[cause])
        if not failing.errors:
            self._driver.outages.over(WHO)
            if self._causes:
                log.warning("all shards take what is in the far store again")
        self._causes = causes.keys() | (self._causes if failing.errors else set())
