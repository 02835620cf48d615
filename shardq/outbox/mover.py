"""The mover: the steps of a relay, each of which says how long the relay may wait.

A step chooses rows, claims them, and sends them. It removes those that are confirmed by then: a row leaves the table
only when the servers' replicas, and their disks, have what it did (``confirming``). Where a relay dies in between, the
next one sends its rows again. The servers carry out each row at most once: they know it by its nonce for a while after
its last send, and refuse it before its claim can lapse. No row is lost, and none is carried out twice.

A claim is a number in the row, so no lock is held while the servers work, and a cancel in somebody's transaction waits
for none. Relays see by its number that a claim stays, and take it from a relay that has died, or stands still. They
compare no clocks: each counts the seconds for which it has seen the number.

Rows of one id are carried out in the order of their numbers. A row is left where an earlier one of its id is still
there, unless this relay has sent that one: claimed by another relay, being tried, or not visible to this step.

A row that a shard refuses goes alone from then on, ``TRIES`` times, and is put aside with the reason. A shard that
takes nothing costs its rows no tries: a step passes them over, and a probe, the first row of each such shard, tells
when it takes rows again.
"""

from __future__ import annotations

import logging
import math
import secrets
import time
from collections.abc import Collection, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import sqlalchemy as sa

from shardq.core.calls.control import clock_ms
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
from shardq.relay.confirming import Confirming, Sent
from shardq.relay.row import Command, Numbered, layers
from shardq.relay.sending import KEYED, Failing, Results, send
from shardq.relay.table import Outbox

log: logging.Logger = logging.getLogger("shardq.outbox")

TRIES = 5  # a row that is refused so often, alone, is put aside

FIRST_RETRY_S = 0.5
"""After the first refusal of a row; each pause is twice as long as the one before: 7.5 s for all tries."""

MOVE_BYTES = 4 << 20  # the bytes of records that are read and sent together. A larger row goes alone
PAGES = 50  # pages of rows that one step looks through, if it finds none to move
TRIP_S = 5.0  # the bound of a trip: rows for other shards wait so long when a shard falls silent
PROBE_S = 0.5  # the same for probes, in whose time nothing else is moved
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 5.0  # between two probes; each pause is twice as long as the one before
LOOK_S = 5.0  # between two looks at refused rows and claims, which other relays and commands change, too

CLAIM_S = 12.0
"""The claim of a relay that has died, or stands still, is over when others have seen it for so long."""

SEND_S = 10.0
"""What was claimed so long ago is refused by the servers, unless they know it. By then nobody else can have claimed it:
the difference is for clocks of nodes that differ, and of one that is set.
"""

CLOCK_S = 1.0  # between two looks at the clock of the servers
CLAIMS = 1 << 20  # the claims that a relay makes until it begins anew: each has a number of its own
CONFIRM_LOOK_S = 0.05  # between two looks whether a question to the servers is answered
ANSWER_S = 0.005  # a server without replicas and append-only file answers at once: the step waits for that
STEP_S = 15.0  # how long ``confirm`` waits for the servers
CLOSE_S = 3.0  # the same when the relay is closed

PASS_S, PASS_SHARE = 5.0, 10
"""While rows of silent shards are passed over, a step begins past them. So often all are gone through again, for rows
whose transactions were committed late: at most a tenth of the time.
"""

BLOCKED_S = 0.05  # the wait for rows that another relay has claimed
RETRIED = 100  # refused rows that are tried in one step, each in a call of its own
MOST_REASON = 2000  # characters of a reason that are stored

_READ = ("seq", "id", "kind", "due", "record", "on_conflict", "dedup", "nonce", "created", "attempts")

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
        self.confirming: Confirming = self._new_confirming()
        self._ahead_ms: float | None = None  # how far the servers' clock is before this machine's steady one
        self._clock_at = 0.0  # the time of the next look at it
        self._claims = _first_claim()
        self._claim = 0  # the number of the last claim, from there on
        self._others: dict[int, float] = {}
        """Claims of others, and when each was seen first."""
        self._confirmed: list[int] = []
        """Rows that may leave the table. A database that is away takes them later."""
        self._cold_orders: dict[int, str] = {}
        """Cancels and reschedules that were sent to the cold store, which does not know them like Redis, and their ids:
        later rows of these wait until the row is removed.
        """
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
        """Gives the servers a moment to confirm what was sent, and gives up its claims."""
        if self._target is None:
            return
        try:
            if len(self.confirming) or self._confirmed:
                self.confirm(CLOSE_S)
                with self._database.begin() as connection:
                    connection.execute(self._table.update().where(self._mine()).values(claimed=None))
        except (sa.exc.SQLAlchemyError, ShardqError) as exc:
            log.info("the rows that were sent and are not confirmed keep their claims for %g s: %s", CLAIM_S, exc)
        finally:
            self.confirming.close()
            self.confirming = self._new_confirming()
            target, self._target = self._target, None
            target.close()

    def _new_confirming(self) -> Confirming:
        return Confirming(
            lambda: self._opened().opened(),
            log,
            memory_ms=self._window_ms,
            has_threads=lambda: Internals(self._engine).parts.has_threads,
        )

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
            self._settle(connection)
            if self.stuck and time.monotonic() >= self._probe_at:
                self._probe(connection)
            if time.monotonic() >= self._look_at:
                self._look_at_claims(connection)
                self._look_at_refused(connection)
            wait = CONFIRM_LOOK_S if self.confirming.is_full else self._scan(connection)
            if len(self.confirming):
                self._settle(connection, 0.0 if self.confirming.is_asking else ANSWER_S)
        if len(self.confirming):
            wait = min(wait, CONFIRM_LOOK_S)
        next_at = min(self._look_at, self._probe_at if self.stuck else math.inf)
        return min(wait, max(0.0, next_at - time.monotonic()))

    def confirm(self, within_s: float = STEP_S) -> None:
        """Waits until all that was sent is confirmed and removed, or its shards have not confirmed it twice."""
        if self.confirming.is_settled and not self._confirmed:
            return
        until = time.monotonic() + within_s
        alone = nullcontext(0) if self._lock is None else locks.alone(self._lock, deadline=until)
        with alone as held, self._database.connect() as connection:
            while held is not None and time.monotonic() < until:
                self._settle(connection, CONFIRM_LOOK_S)
                if self.confirming.is_settled:
                    return

    @property
    def behind(self) -> ShardqError | None:
        """The reason why rows that were sent stay in the table."""
        return self.confirming.error

    def _settle(self, connection: sa.Connection, wait_s: float = 0.0) -> None:
        """Removes rows that are confirmed, and sends those again that are not."""
        was_blocked = self.confirming.blocked
        self._confirmed += [row.seq for row in self.confirming.advance(wait_s)]
        while some := self._confirmed[: self._batch]:
            self._remove(connection, some)
            del self._confirmed[: len(some)]
        while again := self.confirming.again(self._batch, MOVE_BYTES):
            self._move(connection, again, timeout=TRIP_S)
            for seq in again:
                if self.confirming.is_again(seq):
                    self.confirming.forget(seq)  # it is gone, or another relay has it, or it waits like others
        if was_blocked - self.confirming.blocked:
            self._begin_pass()

    def _remove(self, connection: sa.Connection, seqs: Sequence[int]) -> None:
        table = self._table
        if self._keep:
            connection.execute(table.update().where(self._among(seqs)).values(moved=now_ms(), claimed=None))
        else:
            connection.execute(table.delete().where(self._among(seqs)))
        connection.commit()
        self.moved += len(seqs)
        for seq in self._cold_orders.keys() & seqs:
            del self._cold_orders[seq]

    # ---- choosing rows

    def _scan(self, connection: sa.Connection) -> float:
        """Moves the first rows that can be moved."""
        closed = self.stuck.keys() | self.confirming.blocked
        if closed and len(closed - {COLD, KEYED}) >= len(self._topology().span()):
            return math.inf
        if not closed or time.monotonic() >= self._pass_at:
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
        return max(0.0, self._pass_at - time.monotonic()) if closed else math.inf

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
            .where(
                table.c.moved.is_(None),
                table.c.reason.is_(None),
                table.c.claimed.is_(None),
                table.c.seq > sa.bindparam("after"),
            )
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
        if not isinstance(id, str) or not (self.stuck or self.confirming.blocked):
            return False
        homes = self._homes(id)
        return any(shard in self.stuck for shard in homes) or self.confirming.blocks(homes)

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
            .where(*refused, table.c.failed.is_(None), table.c.claimed.is_(None))
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
        until_ms = self._until_ms()
        try:
            rows = self._claimed(connection, seqs)
            if not rows:
                return set()
            shards = {row.seq: self._shards(row.id) for row in rows}
            self.confirming.meet({shard for each in shards.values() for shard in each})
            result = self._carry_out(rows, until_ms, most=most, timeout=min(timeout, self._timeout_s))
            settled = self._note(connection, rows, result)
        except BaseException:
            self._claims = _first_claim()  # what it has claimed lapses, like a claim of others
            raise
        done = set(result.done)
        self.confirming.sent(
            # where the topology has changed meanwhile, either may have it
            Sent(row.seq, tuple({*shards[row.seq], *self._shards(row.id)}), len(row.record))
            for row in rows
            if row.seq in done
        )
        return settled

    def _shards(self, id: str) -> tuple[int, ...]:
        """The shards that may have what a row did."""
        return tuple(self._topology().homes(id)) if isinstance(id, str) else ()

    def _until_ms(self) -> int | None:
        """The instant by the servers' clock until which rows may be carried out that are claimed now; None where that
        clock could not be read yet.
        """
        if not Internals(self._engine).parts.has_threads:
            return None  # the clock of a test is not that of the server
        began = time.monotonic()
        if began >= self._clock_at:
            driver, cache = self._opened().opened()
            try:
                told = driver.call(clock_ms(cache.control), PROBE_S)
                self._ahead_ms, self._clock_at = told - 1000 * began, began + CLOCK_S
            except ShardqError:  # rows of other nodes go on, by the clock as it was
                self._clock_at = time.monotonic() + CLOCK_S
        return None if self._ahead_ms is None else int(self._ahead_ms + 1000 * (began + SEND_S))

    def _among(self, seqs: Collection[int]) -> sa.TextClause:
        """True for rows with these numbers. In the text: a thousand parameters take most of a statement's time."""
        return sa.text(f"seq IN ({', '.join(str(int(seq)) for seq in seqs)})")

    def _mine(self) -> sa.ColumnElement[bool]:
        """True for rows that this relay has claimed."""
        return self._table.c.claimed.between(self._claims, self._claims + CLAIMS - 1)

    def _claimed(self, connection: sa.Connection, seqs: Collection[int]) -> list[Any]:
        """Claims rows, and returns those of them that have no earlier row of their id beside them."""
        table = self._table
        waits = (table.c.moved.is_(None), table.c.failed.is_(None))
        rows = connection.execute(
            sa.select(*(table.c[name] for name in _READ))
            .where(self._among(seqs), *waits, sa.or_(table.c.claimed.is_(None), self._mine()))
            .order_by(table.c.seq)
            .with_for_update(skip_locked=True)
        ).all()
        if not rows:
            connection.rollback()
            return []
        self._claim = (self._claim + 1) % CLAIMS
        self._give(connection, [row.seq for row in rows], self._claims + self._claim)
        untried = sa.func.min(sa.case((table.c.reason.is_(None), table.c.seq)))
        others = connection.execute(
            sa.select(table.c.id, sa.func.min(table.c.seq), untried)
            .where(
                *waits,
                table.c.id.in_({row.id for row in rows if isinstance(row.id, str)}),
                # what this relay has claimed is sent, or among these
                sa.or_(table.c.claimed.is_(None), sa.not_(self._mine())),
            )
            .group_by(table.c.id)
        ).all()
        earlier = {id: seq for id, seq, _ in others}
        if any(seq is not None and seq <= self._after for _, _, seq in others):
            self._pass_at = 0.0  # it was committed after the rows beside it were passed over
        chosen, left = list[Any](), list[Any]()
        ended = {id for seq, id in self._cold_orders.items() if seq not in seqs}
        for row in rows:
            if row.id in ended or earlier.get(row.id, math.inf) < row.seq:
                left.append(row)
                continue
            chosen.append(row)
            if row.kind != "push" and isinstance(row.id, str) and self._cold.concerns(self._topology(), row.id):
                ended.add(row.id)
                self._cold_orders[row.seq] = row.id
        self._give(connection, [row.seq for row in left], None)
        connection.commit()  # no transaction is open while the servers work, where it could hold up others
        return chosen

    def _give(self, connection: sa.Connection, seqs: Collection[int], claim: int | None) -> None:
        """Writes the claim of rows; None: they wait again."""
        if seqs:
            table = self._table
            connection.execute(table.update().where(self._among(seqs)).values(claimed=claim))

    def _look_at_claims(self, connection: sa.Connection) -> None:
        """Ends claims of relays that have died, or stand still."""
        table, now = self._table, time.monotonic()
        claimed = (table.c.moved.is_(None), table.c.claimed.is_not(None))
        seen = connection.execute(
            sa.select(table.c.claimed).where(*claimed, sa.not_(self._mine())).distinct()
        ).scalars()
        self._others = {claim: self._others.get(claim, now) for claim in seen}
        lapsed = [claim for claim, since in self._others.items() if now - since >= CLAIM_S]
        if lapsed:
            connection.execute(table.update().where(*claimed, table.c.claimed.in_(lapsed)).values(claimed=None))
        connection.commit()

    def _carry_out(self, rows: Sequence[Any], until_ms: int | None, *, most: int, timeout: float) -> Results:
        failing = Failing({shard: stuck.error for shard, stuck in self.stuck.items()})
        result = Results()
        memory = f"-{self._window_ms}" if until_ms is None else f"-{self._window_ms}-{until_ms}"
        commands = [Numbered(row.seq, self._command(row, memory)) for row in rows]
        faults = {each.seq: fault for each in commands if (fault := each.command.fault) is not None}
        result.failed += faults.items()
        waiting = {each.command.id for each in commands if each.seq in faults}
        """Ids of which a row was not carried out."""
        for layer in layers(each for each in commands if each.seq not in faults):
            left = [each for each in layer if each.command.id not in waiting]
            near, cold, topology = list[Numbered](), list[Numbered](), self._topology()
            for each in left:
                (cold if self._cold.concerns(topology, each.command.id) else near).append(each)
            found = self._opened().run(
                lambda cache, near=near: send(cache, self._packer, near, failing, most=most),  # type: ignore[misc]
                timeout=timeout,
            )
            if cold:
                found = found.with_more(self._cold.carry_out(cold, failing, timeout=timeout))
            if late := {seq for seq, error in found.failed if isinstance(error, Conflict) and error.state == "late"}:
                found.failed = [each for each in found.failed if each[0] not in late]
                self._clock_at = 0.0
            done = {*found.done, *(seq for seq, error in found.failed if isinstance(error, Conflict))}
            waiting.update(each.command.id for each in left if each.seq not in done)
            result.done += found.done
            result.failed += found.failed
        self._note_stuck(rows, failing, result)
        return result

    @staticmethod
    def _command(row: Any, memory: str) -> Command:
        record = bytes(row.record) if isinstance(row.record, memoryview) else row.record
        return Command(row.kind, row.id, row.due, record, row.on_conflict, row.dedup, nonce=row.nonce, memory=memory)

    def _note_stuck(self, rows: Sequence[Any], failing: Failing, result: Results) -> None:
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

    def _note(self, connection: sa.Connection, rows: Sequence[Any], result: Results) -> set[int]:
        """Writes what became of rows. Returns the numbers of those that were sent or refused."""
        table, by_seq = self._table, {row.seq: row for row in rows}
        settled, conflicts = {*result.done, *(seq for seq, _ in result.failed)}, list[int]()
        for seq, error in result.failed:
            row = by_seq[seq]
            if isinstance(error, Conflict):
                conflicts.append(seq)
                self.refused += 1
                log.warning("the task %s of the outbox was refused: %s", row.id, error, extra={"task_id": row.id})
            else:
                connection.execute(table.update().where(table.c.seq == seq).values(self._tried(row, error)))
                self._look_at = 0.0
        left = [seq for seq in by_seq if seq not in settled]
        self.retried += len(rows) - len(result.done) - len(conflicts)
        self._give(connection, left, None)
        connection.commit()
        for seq in self._cold_orders.keys() & {*left, *(seq for seq, _ in result.failed)}:
            del self._cold_orders[seq]
        if conflicts:
            self._remove(connection, conflicts)
        return settled

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
            "claimed": None,
            "retry_at": present_ms + int(1000 * FIRST_RETRY_S * 2 ** (attempts - 1)),
            "failed": present_ms if failed else None,
            "reason": reason,
        }


def _first_claim() -> int:
    """The first of the claims of a relay, which no other has."""
    return secrets.randbelow(1 << 42) * CLAIMS


def _lock_of(url: sa.URL, table: str) -> Path | None:
    """The file whose lock the relay that works on a database holds; None where the database is no file."""
    name = url.database
    if url.get_backend_name() != "sqlite" or not name or name == ":memory:" or name.startswith("file:"):
        return None
    path = Path(name)
    return path.with_name(f"{path.name}-{table}-lock")
