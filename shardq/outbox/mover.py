"""The mover: the steps of a relay, each of which says how long the relay may wait.

A step chooses rows, claims them, carries them out, and removes them, in this order: where a relay dies in between, the
next one carries them out again. Pushes are sent as after a lost answer, so a task that is stored, or was pushed lately,
counts as pushed; only such pushes are held against that memory. No row is lost and none is pushed twice.

Rows of one id are carried out in the order of their numbers. Relays claim rows by locks, and a row is left where an
earlier one of its id is still there: locked by another relay, being tried, or not visible to this step. A cancel or a
reschedule is not known by the servers like a push, so it is removed before any later row of its id is sent.

A row that a shard refuses goes alone from then on, ``TRIES`` times, and is put aside with the reason. A shard that
takes nothing costs its rows no tries: a step passes them over, and a probe, the first row of each such shard, tells
when it takes rows again.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Collection, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import sqlalchemy as sa

from shardq.core.layout.lanes import lane_of
from shardq.core.layout.topology import Stamp, Topology
from shardq.core.layout.words import number_of
from shardq.core.model.checks import now_ms
from shardq.core.producer.packing import BATCH, Packer
from shardq.engine.base import EngineBase
from shardq.engine.internals import Internals
from shardq.engine.parts import Target
from shardq.errors import Conflict, ShardqError
from shardq.features.cold.relaying import COLD
from shardq.features.embedded import locks
from shardq.features.spool.commands import Command, Spooled, layers
from shardq.features.spool.drain import KEYED, Drained, Failing, drain
from shardq.outbox.tables import Outbox

log: logging.Logger = logging.getLogger("shardq.outbox")

TRIES = 5  # a row that is refused so often, alone, is put aside

FIRST_RETRY_S = 0.5
"""After the first refusal of a row; each pause is twice as long as the one before: 7.5 s for all tries."""

MOVE_BYTES = 4 << 20  # the bytes of records that are read and sent together. A larger row goes alone
PAGES = 50  # pages of rows that one step looks through, if it finds none to move
TRIP_S = 5.0  # the bound of a trip: rows for other shards wait so long when a shard falls silent
PROBE_S = 0.5  # the same for probes, in whose time nothing else is moved
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 5.0  # between two probes; each pause is twice as long as the one before
LOOK_S = 5.0  # between two looks at the refused rows, which other relays and commands change, too

PASS_S, PASS_SHARE = 5.0, 10
"""While rows of silent shards are passed over, a step begins past them. So often all are gone through again, for rows
whose transactions were committed late: at most a tenth of the time.
"""

BLOCKED_S = 0.05  # the wait for rows that another relay has claimed
RETRIED = 100  # refused rows that are tried in one step, each in a call of its own
MOST_REASON = 2000  # characters of a reason that are stored

_READ = ("seq", "id", "kind", "due", "record", "on_conflict", "dedup", "created", "attempts")

LOCKING = frozenset({"postgresql", "mysql", "mariadb", "oracle"})
"""Databases that can skip locked rows. Elsewhere one relay works at a time."""


class Stuck(NamedTuple):
    """A shard that takes nothing: the first row for it, and why."""

    seq: int
    id: str
    created: int
    error: ShardqError


class Mover:
    """Moves rows of an outbox to the servers of an engine, for one thread."""

    def __init__(
        self, database: sa.Engine, outbox: Outbox, engine: EngineBase, *, batch: int, keep: bool, window_ms: int
    ) -> None:
        """``window_ms``: how long Redis remembers the push of a row."""
        self.moved: int = 0
        self.refused: int = 0
        self.retried: int = 0
        self.failed: int = 0  # rows in the table that were put aside
        self.oldest_s: float = 0.0
        self.stuck: dict[int, Stuck] = {}  # the shards that take nothing
        self._locks = database.dialect.name in LOCKING
        # Stricter ones fail where relays meet, and hide rows that were committed meanwhile.
        self._database = database.execution_options(isolation_level="READ COMMITTED") if self._locks else database
        self._table = outbox.table
        self._batch = batch
        self._keep = keep
        self._window_ms = window_ms
        options = Internals(engine).options
        self._engine = engine
        self._target: Target | None = None
        self._packer = Packer(options.codec, max_payload=options.max_payload)
        self._cold = Internals(engine).cold_relaying(self._packer, lambda: self._opened().opened())
        self._timeout_s = options.timeout
        self._lock = None if self._locks else _lock_of(database.url, self._table.fullname)
        self._epoch = Stamp("0")
        self._after = 0  # while shards take nothing: the rows up to this number are for them
        self._pass_began, self._pass_at = 0.0, math.inf
        """When the rows were last gone through from the first one on, and when they are next; infinity meanwhile."""
        self._pause_s = FIRST_PAUSE_S
        self._probe_at = 0.0
        self._look_at = 0.0  # the time of the next look at refused rows
        self._said: set[str] = set()  # the reasons of rows that were put aside, as the log has them

    def close(self) -> None:
        target, self._target = self._target, None
        if target is not None:
            target.close()

    def _opened(self) -> Target:
        if self._target is None:
            # no sooner: a test may put the engine on a server of its own
            self._target = Target(Internals(self._engine).options, Internals(self._engine).parts.driver)
        return self._target

    def probe_now(self) -> None:
        """The next step tries the shards that take nothing."""
        self._probe_at = 0.0

    def step(self) -> float:
        """Moves a batch of rows. Returns the seconds until there may be more to do: 0 for at once, infinity for when
        there are new rows. Raises what keeps it from looking for rows.
        """
        alone = nullcontext(0) if self._lock is None else locks.alone(self._lock)
        with alone as held, self._database.connect() as connection:
            if held is None:
                return BLOCKED_S  # another relay is at work, and this database can't share rows
            if self.stuck and time.monotonic() >= self._probe_at:
                self._probe(connection)
            if time.monotonic() >= self._look_at:
                self._look_at_refused(connection)
            wait = self._scan(connection)
        next_at = min(self._look_at, self._probe_at if self.stuck else math.inf)
        return min(wait, max(0.0, next_at - time.monotonic()))

    # ---- choosing rows

    def _scan(self, connection: sa.Connection) -> float:
        """Moves the first rows that can be moved."""
        if self.stuck and len(self.stuck.keys() - {COLD, KEYED}) >= len(self._topology().span()):
            return math.inf
        if not self.stuck or time.monotonic() >= self._pass_at:
            self._begin_pass()
        seen: Sequence[Any] = ()
        after, held, done = self._after, False, set[int]()
        for _ in range(PAGES):
            page = connection.execute(self._candidates(), {"after": after}).all()
            seen = seen or page[:1]
            self._note_age(seen)
            chosen, looked_at = self._chosen(page)
            done = self._move(connection, chosen, timeout=TRIP_S)
            for row in looked_at:
                # What is neither done nor passed over may come back from another relay: it is looked at again.
                held = held or not (row.seq in done or self._is_stuck(row.id))
                if not held:
                    self._after = row.seq
            after = looked_at[-1].seq if looked_at else after
            ended = len(looked_at) == len(page) < self._batch
            if done or ended:
                break
        if ended and self._pass_at == math.inf:
            self._pass_at = time.monotonic() + max(PASS_S, PASS_SHARE * (time.monotonic() - self._pass_began))
        if held:
            return 0.0 if done else BLOCKED_S
        if not ended:
            return 0.0
        return max(0.0, self._pass_at - time.monotonic()) if self.stuck else math.inf

    def _begin_pass(self) -> None:
        """Goes through the rows from the first one on."""
        self._after = 0
        self._pass_began = time.monotonic()
        self._pass_at = math.inf

    def _candidates(self) -> sa.Select[Any]:
        table = self._table
        size = sa.func.length(table.c.record).label("size")
        return (
            sa.select(table.c.seq, table.c.id, table.c.created, size)
            .where(table.c.moved.is_(None), table.c.reason.is_(None), table.c.seq > sa.bindparam("after"))
            .order_by(table.c.seq)
            .limit(self._batch)
        )

    def _topology(self) -> Topology:
        topology = self._opened().topology()
        if topology.stamp != self._epoch:
            # Ids may be elsewhere now.
            self._epoch = topology.stamp
            self.stuck.clear()
        return topology

    def _chosen(self, page: Sequence[Any]) -> tuple[list[int], list[Any]]:
        """The numbers of rows that are moved together, and the rows that were looked at for that."""
        chosen, looked_at, bytes = list[int](), list[Any](), 0
        for row in page:
            if self._is_stuck(row.id):
                self._note_first(row)
            elif chosen and bytes + row.size > MOVE_BYTES:
                break
            else:
                chosen.append(row.seq)
                bytes += row.size
            looked_at.append(row)
        return chosen, looked_at

    def _is_stuck(self, id: str) -> bool:
        return bool(self.stuck) and isinstance(id, str) and any(shard in self.stuck for shard in self._homes(id))

    def _homes(self, id: str) -> list[int]:
        """The shards that an id may be in, ``COLD`` if it may be in the cold store, and ``KEYED`` if its key may be the
        first.
        """
        topology = self._topology()
        keyed = not topology.is_keyed and lane_of(id) is not None
        return topology.homes(id) + [COLD] * self._cold.concerns(topology, id) + [KEYED] * keyed

    def _note_first(self, row: Any) -> None:
        for shard in self._homes(row.id):
            known = self.stuck.get(shard)
            if known is not None and row.seq < known.seq:
                self.stuck[shard] = Stuck(row.seq, row.id, row.created, known.error)

    def _note_age(self, rows: Sequence[Any]) -> None:
        oldest = min((number_of(row.created) for row in (*rows, *self.stuck.values())), default=None)
        self.oldest_s = 0.0 if oldest is None else max(0, now_ms() - oldest) / 1000

    # ---- shards that take nothing, and rows that are refused

    def _probe(self, connection: sa.Connection) -> None:
        """Tries the first row of each shard that takes nothing."""
        before, self.stuck, pause_s = self.stuck, {}, self._pause_s
        seqs = sorted({first.seq for first in before.values()})
        try:
            done = self._move(connection, seqs, timeout=PROBE_S)
            table = self._table
            present = connection.execute(sa.select(table.c.seq).where(table.c.seq.in_(seqs))).scalars().all()
        except BaseException:
            self.stuck = before
            raise
        for shard, first in before.items():
            if shard in self.stuck:
                error = self.stuck[shard].error
                # A probe has little time, and knows less of the cause than the push that failed first.
                self.stuck[shard] = first if type(error) is type(first.error) else first._replace(error=error)
            elif first.seq in present and first.seq not in done:  # another relay has it
                self.stuck[shard] = first
        if len(self.stuck) < len(before):
            self._pause_s = FIRST_PAUSE_S
            self._begin_pass()
        else:
            self._pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
        self._probe_at = time.monotonic() + self._pause_s

    def _look_at_refused(self, connection: sa.Connection) -> None:
        """Tries refused rows whose pause is over, and counts those that were put aside."""
        table = self._table
        refused = (table.c.reason.is_not(None), table.c.moved.is_(None))
        rows = connection.execute(
            sa.select(table.c.seq, table.c.retry_at)
            .where(*refused, table.c.failed.is_(None))
            .order_by(table.c.retry_at, table.c.seq)
            .limit(RETRIED)
        ).all()
        present_ms = now_ms()
        due = [row.seq for row in rows if number_of(row.retry_at) <= present_ms]
        if due:
            done = self._move(connection, due, timeout=TRIP_S, most=1)
            wait = 0.0 if done else FIRST_RETRY_S
        else:
            wait = min([LOOK_S, *((number_of(row.retry_at) - present_ms) / 1000 for row in rows[:1])])
        self._look_at = time.monotonic() + wait
        self.failed = connection.execute(
            sa.select(sa.func.count()).where(*refused, table.c.failed.is_not(None))
        ).scalar_one()

    # ---- moving rows

    def _move(self, connection: sa.Connection, seqs: Collection[int], *, timeout: float, most: int = BATCH) -> set[int]:
        """Moves those of some rows that can be claimed. Returns the numbers of those that are settled: carried out, or
        refused. ``most``: the tasks of one call.
        """
        if not seqs:
            return set()
        rows = self._claimed(connection, seqs)
        if not self._locks or not rows:
            connection.rollback()  # no transaction is open while the servers work, where it could hold up others
        if not rows:
            return set()
        result = self._carry_out(rows, most=most, timeout=min(timeout, self._timeout_s))
        done = self._note(connection, rows, result)
        connection.commit()
        self.moved += done
        self.retried += len(rows) - done
        return {*result.done, *(seq for seq, _ in result.failed)}

    def _claimed(self, connection: sa.Connection, seqs: Collection[int]) -> list[Any]:
        """Claims rows, and returns those of them that have no earlier row of their id beside them."""
        table = self._table
        waits = (table.c.moved.is_(None), table.c.failed.is_(None))
        rows = connection.execute(
            sa.select(*(table.c[name] for name in _READ))
            .where(table.c.seq.in_(seqs), *waits)
            .order_by(table.c.seq)
            .with_for_update(skip_locked=True)
        ).all()
        if not rows:
            return []
        untried = sa.func.min(sa.case((table.c.reason.is_(None), table.c.seq)))
        others = connection.execute(
            sa.select(table.c.id, sa.func.min(table.c.seq), untried)
            .where(
                *waits,
                table.c.id.in_({row.id for row in rows if isinstance(row.id, str)}),
                table.c.seq.not_in([row.seq for row in rows]),
            )
            .group_by(table.c.id)
        ).all()
        earlier = {id: seq for id, seq, _ in others}
        if any(seq is not None and seq <= self._after for _, _, seq in others):
            self._pass_at = 0.0  # it was committed after the rows beside it were passed over
        claimed, ended = list[Any](), set[str]()
        for row in rows:
            if row.id in ended or earlier.get(row.id, math.inf) < row.seq:
                continue
            claimed.append(row)
            if row.kind != "push":
                ended.add(row.id)
        return claimed

    def _carry_out(self, rows: Sequence[Any], *, most: int, timeout: float) -> Drained:
        failing = Failing({shard: stuck.error for shard, stuck in self.stuck.items()})
        result = Drained()
        commands = [Spooled(row.seq, self._command(row)) for row in rows]
        faults = {each.seq: fault for each in commands if (fault := each.command.fault) is not None}
        result.failed += faults.items()
        waiting = {each.command.id for each in commands if each.seq in faults}
        """Ids of which a row was not carried out."""
        for layer in layers(each for each in commands if each.seq not in faults):
            left = [each for each in layer if each.command.id not in waiting]
            near, cold, topology = list[Spooled](), list[Spooled](), self._topology()
            for each in left:
                (cold if self._cold.concerns(topology, each.command.id) else near).append(each)
            found = self._opened().run(
                lambda cache, near=near: drain(cache, self._packer, near, failing, most=most),  # type: ignore[misc]
                timeout=timeout,
            )
            if cold:
                found = found.with_more(self._cold.carry_out(cold, failing, timeout=timeout))
            done = {*found.done, *(seq for seq, error in found.failed if isinstance(error, Conflict))}
            waiting.update(each.command.id for each in left if each.seq not in done)
            result.done += found.done
            result.failed += found.failed
        self._note_stuck(rows, failing, result)
        return result

    def _command(self, row: Any) -> Command:
        dedup = f"{row.dedup}-{self._window_ms}"
        record = bytes(row.record) if isinstance(row.record, memoryview) else row.record
        return Command(row.kind, row.id, row.due, record, row.on_conflict, dedup)

    def _note_stuck(self, rows: Sequence[Any], failing: Failing, result: Drained) -> None:
        """Notes the first row of each shard that takes nothing from now on."""
        if not (new := failing.errors.keys() - self.stuck.keys()):
            return
        if not self.stuck:
            self._pause_s = FIRST_PAUSE_S
            self._probe_at = time.monotonic() + FIRST_PAUSE_S
            self._pass_began, self._pass_at = time.monotonic(), math.inf
        settled = {*result.done, *(seq for seq, _ in result.failed)}
        for row in rows:
            if row.seq not in settled:
                for shard in new.intersection(self._homes(row.id)):
                    self.stuck.setdefault(shard, Stuck(row.seq, row.id, row.created, failing.errors[shard]))

    def _note(self, connection: sa.Connection, rows: Sequence[Any], result: Drained) -> int:
        """Writes what became of rows. Returns the number of those that are done with."""
        table, by_seq = self._table, {row.seq: row for row in rows}
        done = list(result.done)
        for seq, error in result.failed:
            row = by_seq[seq]
            if isinstance(error, Conflict):
                done.append(seq)
                self.refused += 1
                log.warning("the task %s of the outbox was refused: %s", row.id, error, extra={"task_id": row.id})
            else:
                connection.execute(table.update().where(table.c.seq == seq).values(self._tried(row, error)))
                self._look_at = 0.0
        if done and self._keep:
            connection.execute(table.update().where(table.c.seq.in_(done)).values(moved=now_ms()))
        elif done:
            connection.execute(table.delete().where(table.c.seq.in_(done)))
        return len(done)

    def _tried(self, row: Any, error: ShardqError) -> dict[str, Any]:
        """The columns of a row that was refused, alone."""
        attempts, present_ms = min(TRIES, max(0, number_of(row.attempts)) + 1), now_ms()
        reason = f"{type(error).__name__}: {error}"[:MOST_REASON]
        failed = attempts >= TRIES
        if failed and reason not in self._said:
            self._said.add(reason)
            log.error(
                "row %d (id %s) of the outbox %s was refused %d times, and put aside: %s",
                row.seq, row.id, self._table.fullname, attempts, reason, extra={"task_id": row.id},
            )  # fmt: skip
        return {
            "attempts": attempts,
            "retry_at": present_ms + int(1000 * FIRST_RETRY_S * 2 ** (attempts - 1)),
            "failed": present_ms if failed else None,
            "reason": reason,
        }


def _lock_of(url: sa.URL, table: str) -> Path | None:
    """The file whose lock the relay that works on a database holds; None where the database is no file."""
    name = url.database
    if url.get_backend_name() != "sqlite" or not name or name == ":memory:" or name.startswith("file:"):
        return None
    path = Path(name)
    return path.with_name(f"{path.name}-{table}-lock")
