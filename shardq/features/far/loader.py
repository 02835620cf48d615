"""Loads what falls due: a thread of each dispatcher, which moves the rows that are due within ``ahead``, and removes
them when the replicas of their shards, and the disks, have what it did (``relay.confirming``). So it does with the rows
that commands have moved.

A pass begins with what was due two hours ago, as what was removed before still costs a look; a full one, from the
first row on, at the start and every few minutes. A dispatcher takes its share of the rows, by their ids, and
whatever is overdue for its load: so a row whose own dispatcher is stuck is late for its load, and not late.

Rows of a shard that takes nothing are passed over until the next pass. A shard that does not confirm gets new rows all
the same, as they fall due; and those that it has once more, in time before it forgets them, or when another server took
its place. An outage of the database, or of the loaders, that is shorter than ``ahead`` makes nothing late.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

from shardq.core.collector import uncollected
from shardq.core.drivers.sync import Driver
from shardq.core.operation import run
from shardq.core.producer.packing import Packer
from shardq.core.threads import Loop, SideThread
from shardq.core.topology_cache import TopologyCache
from shardq.errors import ServerFault, ShardqError
from shardq.features.far.moving import Moved, move
from shardq.features.far.report import LoaderReport
from shardq.features.far.rows import LEAST_AHEAD_S, Horizon, Row
from shardq.features.far.store import Store
from shardq.features.far.witness import FarWitness
from shardq.relay.confirming import TOLD_S, Confirming, Sent
from shardq.relay.sending import Failing, cause_of
from shardq.relay.witness import ask_shards

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

CONFIRM_S = 5.0
"""How long a pass waits at its end for what it sent to be confirmed: else the next one would read all that again."""

REMOVED = 1000  # rows that are removed together

ASK_S = 2.0  # the time for the shards to tell their last beat

MEET_S = 1.0
"""The time for a question to shards before their first rows: one that does not answer gets these twice."""

LOOK_S = 0.05
"""Between two looks whether a question to the servers is answered."""

UNCONFIRMED = 200_000
"""So many rows are known as sent and not confirmed. More are sent, and read again by the next pass."""

LATE = "by the clock of Redis it was read too long ago: see that this clock and the database's are the same (NTP)"

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
        has_threads: bool = True,
    ) -> None:
        """``ready`` opens the store, or raises why it can't be used. ``has_threads``: false where one thread is all."""
        self._driver = driver
        self._store = store
        self._packer = packer
        self._cache = cache
        self._ready = ready
        self._process, self._members = process, members
        self._has_threads = has_threads
        self._witness = FarWitness(store, lambda name, beat: run(driver, ask_shards(cache, name, beat), timeout=ASK_S))
        self._numbers = itertools.count(1)
        self._sent: dict[int, Row] = {}
        """Number → a row that Redis has, and that is not confirmed."""
        self._ids: set[str] = set()
        """Their ids."""
        self._unconfirmed = ""
        """Why rows stay that Redis has."""
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
            ended=lambda: self._confirming.close(),
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
        if self._unconfirmed:
            problems.append(f"the far store keeps what was moved to Redis: {self._unconfirmed}")
        return LoaderReport(self._loaded, left_s, tuple(problems))

    def accept(self) -> None:
        """Has what is in the table loaded, although the database was restored."""
        self._ready()
        self._witness.accept(time.monotonic() + TRIP_S)

    def once(self) -> None:
        """Moves what is near, in the calling thread."""
        self._step()

    def _step(self) -> float:
        self._ready()
        if self._has_threads:  # else the clock is that of a test
            self._witness.check(time.monotonic() + TRIP_S)
        self._settle()
        began = time.monotonic()
        full = began >= self._full_at
        failing, refused = Failing(), dict[str, str]()
        self._pass(0, failing, refused, sent=True)
        moved = self._pass(0 if full else int(self._store.now_ms) - BACK_MS, failing, refused)
        self._passed_at = began
        took = time.monotonic() - began
        self._note(refused, failing)
        self._confirm()
        if full:
            self._full_at = began + FULL_S
            self._store.tidied(time.monotonic() + TRIP_S)
        return PASS_S if moved else max(PASS_S, min(SHARE * took, self._store.horizon.ahead_ms / 8000))

    def _pass(self, due_ms: int, failing: Failing, refused: dict[str, str], *, sent: bool = False) -> int:
        """Moves all rows that are near, and due from an instant on; or those again that commands have ``sent``. Returns
        how many.
        """
        moved = 0
        after: tuple[int, str] | None = (due_ms, "")
        while after is not None and not self.loop.stopping.is_set():
            # A page leaves no garbage, but so many objects that all of the process's would be gone through each second.
            with uncollected():
                after, count = self._page(after, failing, refused, sent=sent)
                self._settle()
            moved += count
        return moved

    def _page(
        self, after: tuple[int, str], failing: Failing, refused: dict[str, str], *, sent: bool
    ) -> tuple[tuple[int, str] | None, int]:
        """Moves a page of rows behind another. Returns where the next one begins, if any, and how many it moved."""
        while self._confirming.is_full and not self.loop.stopping.is_set():
            self._settle(LOOK_S)
        members = sorted({*self._members(), self._process})
        read_ms, deadline = self._store.now_ms, time.monotonic() + TRIP_S
        rows = self._store.near(
            after, sent=sent, members=len(members), member=members.index(self._process), most=ROWS, bytes=BYTES,
            deadline=deadline,
        )  # fmt: skip
        if not rows:
            return None, 0
        result = self._send([row for row in rows if row.id not in self._ids], read_ms, failing)
        self._loaded += 0 if sent else len(result.sent)
        refused.update((row.id, str(error)) for row, error in result.refused)
        refused.update((row.id, LATE) for row in result.late)
        return (rows[-1].due, rows[-1].id), len(result.sent)

    # ---- rows that Redis has

    @cached_property
    def _confirming(self) -> Confirming:
        """Made when the horizon is known. That may change: rows are sent again in time for the least one."""
        opened, least = (self._driver, self._cache), Horizon(round(1000 * LEAST_AHEAD_S))
        memory_ms = min(self._store.horizon.memory_ms, least.memory_ms)
        return Confirming(lambda: opened, log, memory_ms=memory_ms, has_threads=lambda: self._has_threads)

    def _send(self, rows: Sequence[Row], read_ms: float, failing: Failing) -> Moved:
        """Sends rows, and notes those that are to be confirmed."""
        topology = self._cache.topology
        ids = [row.id for row in rows]
        homes = dict(zip(ids, map(set, topology.homes_of(ids)), strict=True))
        rows = [row for row in rows if homes[row.id].isdisjoint(failing.errors)]
        if not rows:
            return Moved()
        self._confirming.meet(set().union(*(homes[row.id] for row in rows)), MEET_S)
        move_rows = move(self._cache, self._packer, self._store.horizon, rows, read_ms, failing)
        result = run(self._driver, move_rows, TRIP_S)
        after, numbered = self._cache.topology, list[Sent]()
        for row in result.sent if len(self._confirming) < UNCONFIRMED else ():
            shards = homes[row.id]
            if after is not topology:  # either may have it
                shards |= set(after.homes(row.id))
            numbered.append(Sent(next(self._numbers), tuple(shards), len(row.record)))
            self._sent[numbered[-1].seq] = row
            self._ids.add(row.id)
        self._confirming.sent(numbered)
        return result

    def _confirm(self) -> None:
        """Waits until what was sent is confirmed, or its shards have not confirmed it twice."""
        until = time.monotonic() + CONFIRM_S
        while not (self._confirming.is_settled or self.loop.stopping.is_set() or time.monotonic() >= until):
            self._settle(LOOK_S)
        self._unconfirmed = str(self._confirming.late(TOLD_S) or "")

    def _settle(self, wait_s: float = 0.0) -> None:
        """Removes rows that are confirmed, and sends those again that are not."""
        confirmed = [self._forgotten(each.seq) for each in self._confirming.advance(wait_s)]
        for begin in range(0, len(confirmed), REMOVED):
            self._store.forget(confirmed[begin : begin + REMOVED], time.monotonic() + TRIP_S)
        while again := self._confirming.again(ROWS, BYTES):
            dues = dict[str, int]()
            for seq in again:
                self._confirming.forget(seq)
                row = self._forgotten(seq)
                dues[row.id] = row.due
            read_ms = self._store.now_ms
            found = self._store.find(list(dues), time.monotonic() + TRIP_S)
            there = [each.row for each in found if each.row.record and each.row.due == dues[each.row.id]]
            self._send(there, read_ms, Failing())

    def _forgotten(self, number: int) -> Row:
        row = self._sent.pop(number)
        self._ids.discard(row.id)
        return row

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
