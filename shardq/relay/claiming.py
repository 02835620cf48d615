"""Claims rows and sends them, those of one id in their order, and writes what became of each into their store."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple

from shardq.core.calls.control import clock_ms
from shardq.core.layout.topology import Topology
from shardq.core.producer.packing import BATCH, Packer
from shardq.errors import BadInput, Conflict, ShardqError
from shardq.relay import sending
from shardq.relay.confirming import Sent
from shardq.relay.row import Numbered, layers
from shardq.relay.sending import Failing, Results, Servers
from shardq.relay.store import Store
from shardq.relay.stuck import StuckShards
from shardq.relay.witness import Witness

CLOCK_S = 1.0  # between two looks at the clock of the servers
CLOCK_TRIP_S = 0.5  # the bound of such a look


class Moved(NamedTuple):
    """What became of rows."""

    settled: set[int]
    """The numbers of those that were carried out, or refused."""
    sent: list[Sent]
    """Those that servers have carried out, and are to confirm."""


class Claiming:
    """Claims and sends the rows of one store, for one mover."""

    def __init__(
        self,
        store: Store,
        packer: Packer,
        servers: Callable[[], Servers],
        stuck: StuckShards,
        meet: Callable[[Collection[int], float | None], None],
        *,
        timeout: float,
        witness: Callable[[], Witness | None],
        is_timed: Callable[[], bool],
    ) -> None:
        """``meet`` is told of shards before rows are sent there. ``is_timed``: false under the clock of a test, which
        is not that of the server.
        """
        self.sent: int = 0
        self.retried: int = 0  # rows that were claimed, and wait again
        self.orders: dict[int, str] = {}
        """Cancels and reschedules that were sent elsewhere, where they are not known like in Redis, and their ids:
        later rows of these wait until the row is removed.
        """
        self._store = store
        self._packer = packer
        self._servers = servers
        self._stuck = stuck
        self._meet = meet
        self._timeout_s = timeout
        self._witness = witness
        self._is_timed = is_timed
        self._ahead_ms: float | None = None  # how far the servers' clock is before this machine's steady one
        self._clock_at = 0.0  # the time of the next look at it

    def move(self, seqs: Collection[int], *, timeout: float, most: int = BATCH, within_s: float | None = None) -> Moved:
        """Moves those of some rows that can be claimed. ``most``: the tasks of one call. ``within_s``: the bound of all
        trips of a layer.
        """
        memory, latest = self._memory(), self._latest_elsewhere()
        try:
            rows = self._store.claim(seqs, memory)
            rows = self._in_turn(rows)
            if not rows:
                return Moved(set(), [])
            faults = {row.seq: fault for row in rows if (fault := row.command.fault) is not None}
            sound = [row for row in rows if row.seq not in faults]
            topology = self._stuck.topology()
            shards = _homes(topology, sound)
            self._meet({shard for each in shards.values() for shard in each}, within_s)
            timeout = min(timeout, self._timeout_s)
            result = self._carry_out(rows, faults, most=most, timeout=timeout, within_s=within_s, latest=latest)
            settled = self._note(rows, result)
        except BaseException:
            self._store.abandon()
            raise
        done, after = set(result.done), self._stuck.topology()
        if after is not topology:  # either may have it
            now = _homes(after, sound)
            shards = {seq: (*{*each, *now[seq]},) for seq, each in shards.items()}
        self.sent += len(done)
        return Moved(settled, [Sent(row.seq, shards[row.seq], row.command.size) for row in rows if row.seq in done])

    def _memory(self) -> str:
        """What the servers are told of rows that are claimed now: how long they know them, and an instant after which
        they refuse them; without that where their clock could not be read yet, or no other mover may claim the rows.
        """
        known, send_s = f"-{self._store.memory_ms}", self._store.send_s
        if send_s is None or not self._is_timed():
            return known  # the clock of a test is not that of the server
        began = time.monotonic()
        if began >= self._clock_at:
            driver, cache = self._servers().opened()
            try:
                told = driver.call(clock_ms(cache.control), CLOCK_TRIP_S)
                self._ahead_ms, self._clock_at = told - 1000 * began, began + CLOCK_S
            except ShardqError:  # rows of other nodes go on, by the clock as it was
                self._clock_at = time.monotonic() + CLOCK_S
        return known if self._ahead_ms is None else f"{known}-{int(self._ahead_ms + 1000 * (began + send_s))}"

    def _latest_elsewhere(self) -> int:
        """The instant after which rows that are claimed now are not carried out elsewhere, by the clock there."""
        send_s = self._store.send_s
        if send_s is None or not self._is_timed():
            return 0
        elsewhere = self._stuck.elsewhere(self._stuck.topology())
        return 0 if elsewhere is None else elsewhere.after(send_s)

    def _in_turn(self, rows: list[Numbered]) -> list[Numbered]:
        """Those of the rows that follow no order which was sent elsewhere. The others wait again."""
        topology = self._stuck.topology()
        if (elsewhere := self._stuck.elsewhere(topology)) is None:
            return rows
        seqs = {row.seq for row in rows}
        ended = {id for seq, id in self.orders.items() if seq not in seqs}
        chosen, left = list[Numbered](), list[int]()
        for row in rows:
            id, kind = row.command.id, row.command.kind
            if id in ended:
                left.append(row.seq)
                continue
            chosen.append(row)
            if kind != "push" and isinstance(id, str) and elsewhere.concerns(topology, id):
                ended.add(id)
                self.orders[row.seq] = id
        if left:
            self._store.release(left)
        return chosen

    def _carry_out(
        self,
        rows: Sequence[Numbered],
        faults: Mapping[int, BadInput],
        *,
        most: int,
        timeout: float,
        within_s: float | None = None,
        latest: int,
    ) -> Results:
        failing = Failing({shard: stuck.error for shard, stuck in self._stuck.first.items()})
        if (witness := self._witness()) is not None:
            failing.errors |= witness.unread(self._stuck.topology().span())
        result = Results(failed=[*faults.items()])
        waiting = {row.command.id for row in rows if row.seq in faults}
        """Ids of which a row was not carried out."""
        for layer in layers(row for row in rows if row.seq not in faults):
            left = [row for row in layer if row.command.id not in waiting]
            near, far, topology = left, list[Numbered](), self._stuck.topology()
            if (elsewhere := self._stuck.elsewhere(topology)) is not None:
                near = []
                for row in left:
                    (far if elsewhere.concerns(topology, row.command.id) else near).append(row)
            found = self._servers().run(
                lambda cache, near=near: sending.send(cache, self._packer, near, failing, most=most),  # type: ignore[misc]
                timeout=timeout,
                deadline=None if within_s is None else time.monotonic() + within_s,
            )
            if elsewhere is not None and far:
                more = elsewhere.carry_out(far, failing, timeout=timeout, latest=latest)
                found = Results(found.done + more.done, found.failed + more.failed)
            if late := {seq for seq, error in found.failed if isinstance(error, Conflict) and error.state == "late"}:
                found.failed = [each for each in found.failed if each[0] not in late]
                self._clock_at = 0.0
            done = {*found.done, *(seq for seq, error in found.failed if isinstance(error, Conflict))}
            waiting.update(row.command.id for row in left if row.seq not in done)
            result.done += found.done
            result.failed += found.failed
            if within_s is not None and failing.errors:
                break
        new = self._stuck.note(rows, failing, result)
        if new and witness is not None:
            witness.away(new)
        return result

    def _note(self, rows: Sequence[Numbered], result: Results) -> set[int]:
        """Writes what became of rows. Returns the numbers of those that were sent or refused."""
        settled = set(result.done)
        if result.failed:
            by_seq = {row.seq: row for row in rows}
            settled |= self._store.refused([(by_seq[seq], error) for seq, error in result.failed])
        if left := [row.seq for row in rows if row.seq not in settled]:
            self.retried += len(left)
            self._store.release(left)
        for seq in self.orders.keys() & {*left, *(seq for seq, _ in result.failed)}:
            del self.orders[seq]
        return settled


def _homes(topology: Topology, rows: Sequence[Numbered]) -> dict[int, tuple[int, ...]]:
    """The number of each row → the shards that may have what it did."""
    return dict(zip([row.seq for row in rows], topology.homes_of([row.command.id for row in rows]), strict=True))
