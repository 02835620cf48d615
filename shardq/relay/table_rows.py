"""The rows of an outbox's table, as a mover takes them.

A claim is a number in the row, so no lock is held while the servers work, and a cancel in somebody's transaction waits
for none. Relays see by its number that a claim stays, and take it from a relay that has died, or stands still. They
compare no clocks: each counts the seconds for which it has seen the number.

A row is left where an earlier one of its id is still there, unless this relay has sent that one: claimed by another
relay, being tried, or not visible to this step. A row that is refused goes alone from then on, ``TRIES`` times, and is
put aside with the reason.
"""

from __future__ import annotations

import logging
import math
import secrets
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from shardq.core.layout.words import number_of
from shardq.core.model.checks import now_ms
from shardq.errors import Conflict, ShardqError
from shardq.features.embedded import locks
from shardq.relay.beats import TableBeats, clock_of
from shardq.relay.row import Command, Numbered
from shardq.relay.store import Head, Store
from shardq.relay.table import Outbox
from shardq.relay.witness import older_database

log: logging.Logger = logging.getLogger("shardq.outbox")

TRIES = 5  # a row that is refused so often, alone, is put aside

FIRST_RETRY_S = 0.5
"""After the first refusal of a row; each pause is twice as long as the one before: 7.5 s for all tries."""

LOOK_S = 5.0  # between two looks at refused rows and claims, which other relays and commands change, too

FORGET_S = 60.0  # between two looks at moved rows that were kept long enough

CLAIM_S = 12.0
"""The claim of a relay that has died, or stands still, is over when others have seen it for so long."""

SEND_S = 10.0
"""What was claimed so long ago is refused by the servers, unless they know it. By then nobody else can have claimed it:
the difference is for clocks of nodes that differ, and of one that is set.
"""

CLAIMS = 1 << 20  # the claims that a relay makes until it begins anew: each has a number of its own
RETRIED = 100  # refused rows that are tried in one step, each in a call of its own
MOST_REASON = 2000  # characters of a reason that are stored

_READ = ("seq", "id", "kind", "due", "record", "on_conflict", "dedup", "nonce", "created", "attempts")

LOCKING = frozenset({"postgresql", "mysql", "mariadb", "oracle"})
"""Databases that can skip locked rows. Elsewhere one relay works at a time."""


class TableRows(Store):
    """The rows of one outbox, for one relay."""

    def __init__(self, database: sa.Engine, outbox: Outbox, *, batch: int, keep_ms: int, memory_ms: int) -> None:
        """``memory_ms``: how long Redis remembers a row. ``keep_ms``: how long moved rows stay, with the time of their
        move.
        """
        self.memory_ms: int = memory_ms
        self.send_s: float | None = SEND_S
        self._batch = batch
        self.refusals: int = 0  # moved rows whose id was taken
        self.tried: int = 0  # rows that were refused, and kept
        self._locks = database.dialect.name in LOCKING
        # Stricter ones fail where relays meet, and hide rows that were committed meanwhile.
        self._database = database.execution_options(isolation_level="READ COMMITTED") if self._locks else database
        self._table = outbox.table
        self._keep_ms = keep_ms
        self._forget_at = 0.0
        self.beats: TableBeats = TableBeats(lambda: self._connection, outbox)
        # of all rows as one: a database that goes back later may not give out rows that were moved
        self._reading = (*(outbox.table.c[name] for name in _READ), sa.select(outbox.owner.c.beat).scalar_subquery())
        self._connected: sa.Connection | None = None
        self._claims = _first_claim()
        self._claim = 0  # the number of the last claim, from there on
        self._others: dict[int, float] = {}
        """Claims of others, and when each was seen first."""
        self._lock = None if self._locks else _lock_of(database.url, self._table.fullname)
        self._said: set[str] = set()  # the reasons of rows that were put aside, as the log has them

    @property
    def batch(self) -> int:
        return self._batch

    @contextmanager
    def turn(self, deadline: float = 0.0) -> Iterator[bool]:
        if self._lock is None:
            with self._using():
                yield True
            return
        with locks.alone(self._lock, deadline=deadline) as held:
            if held is None:
                yield False  # another relay is at work, and this database can't share rows
                return
            with self._using():
                yield True

    @contextmanager
    def _using(self) -> Iterator[None]:
        with self._database.connect() as connection:
            self._connected = connection
            try:
                yield
            finally:
                self._connected = None

    @property
    def _connection(self) -> sa.Connection:
        assert self._connected is not None, "within a turn"
        return self._connected

    def page(self, after: int) -> Sequence[Head]:
        column = self._table.c
        waits = (column.moved.is_(None), column.reason.is_(None), column.claimed.is_(None))
        rows = self._connection.execute(
            sa.select(column.seq, column.id, column.created, sa.func.length(column.record))
            .where(*waits, column.seq > sa.bindparam("after"))
            .order_by(column.seq)
            .limit(self._batch),
            {"after": after},
        )
        return [Head(*row) for row in rows.all()]

    def claim(self, seqs: Collection[int], memory: str) -> list[Numbered]:
        connection, table = self._connection, self._table
        self.least_left: float = math.inf
        found = connection.execute(
            sa.select(*self._reading)
            .where(
                self._among(seqs),
                _are_none(table.c.moved, table.c.failed),
                sa.or_(table.c.claimed.is_(None), self._mine()),
            )
            .order_by(table.c.seq)
            .with_for_update(of=table, skip_locked=True)
        ).all()
        if not found or (found[0][-1] or 0) < self.beats.last:
            connection.rollback()
            if found:
                raise older_database(found[0][-1] or 0, self.beats.last)
            return []
        rows = [
            Numbered(seq, Command(kind, id, due, record, rule, dedup, False, nonce, memory), created, attempts)
            for seq, id, kind, due, record, rule, dedup, nonce, created, attempts, _ in found
        ]
        self._claim = (self._claim + 1) % CLAIMS
        self._give([row.seq for row in rows], self._claims + self._claim)
        ids = {row.command.id for row in rows if isinstance(row.command.id, str)}
        untried = sa.func.min(sa.case((table.c.reason.is_(None), table.c.seq)))
        others = connection.execute(
            sa.select(table.c.id, sa.func.min(table.c.seq), untried)
            .where(
                table.c.moved.is_(None),
                table.c.failed.is_(None),
                self._any_of(table.c.id, ids),
                # what this relay has claimed is sent, or among these
                sa.or_(table.c.claimed.is_(None), sa.not_(self._mine())),
            )
            .group_by(table.c.id)
        ).all()
        earlier = {id: seq for id, seq, _ in others}
        self.least_left = min((seq for _, _, seq in others if seq is not None), default=math.inf)
        left = {row.seq for row in rows if earlier.get(row.command.id, math.inf) < row.seq} if earlier else set()
        self._give(left, None)
        connection.commit()  # no transaction is open while the servers work, where it could hold up others
        return [row for row in rows if row.seq not in left]

    def release(self, seqs: Collection[int]) -> None:
        mine = self._table.update().where(self._among(seqs), self._mine())  # another relay may have them meanwhile
        self._connection.execute(mine.values(claimed=None))
        self._connection.commit()

    def remove(self, seqs: Collection[int]) -> None:
        table, among = self._table, self._among(seqs)
        kept = table.update().values(moved=clock_of(self._connection), claimed=None)
        removed = kept if self._keep_ms else table.delete()
        self._connection.execute(removed.where(among))
        self._connection.commit()
        self.moved += len(seqs)

    def refused(self, rows: Sequence[tuple[Numbered, ShardqError]]) -> set[int]:
        conflicts = []
        for row, error in rows:
            if isinstance(error, Conflict):
                conflicts.append(row.seq)
                id = row.command.id
                log.warning("the task %s of the outbox was refused: %s", id, error, extra={"task_id": id})
            else:
                tried = self._table.update().where(self._table.c.seq == row.seq)
                self._connection.execute(tried.values(self._tried(row, error)))
                self.tried += 1
        self._connection.commit()
        if conflicts:
            self.refusals += len(conflicts)
            self.remove(conflicts)
        return {row.seq for row, _ in rows}

    def _tried(self, row: Numbered, error: ShardqError) -> dict[str, Any]:
        """The columns of a row that was refused, alone."""
        attempts, present_ms = min(TRIES, max(0, number_of(row.attempts)) + 1), now_ms()
        reason = f"{type(error).__name__}: {error}"[:MOST_REASON]
        failed = attempts >= TRIES
        if failed and reason not in self._said:
            self._said.add(reason)
            log.error(
                "row %d (id %s) of the outbox %s was refused %d times, and put aside: %s", row.seq, row.command.id,
                self._table.fullname, attempts, reason, extra={"task_id": row.command.id},
            )  # fmt: skip
        return {
            "attempts": attempts,
            "claimed": None,
            "retry_at": present_ms + int(1000 * FIRST_RETRY_S * 2 ** (attempts - 1)),
            "failed": present_ms if failed else None,
            "reason": reason,
        }

    def present(self, seqs: Collection[int]) -> Collection[int]:
        column = self._table.c
        return self._connection.execute(sa.select(column.seq).where(column.seq.in_(seqs))).scalars().all()

    def look(self) -> tuple[list[int], float]:
        self._end_claims()
        if time.monotonic() >= self._forget_at:
            self._forget_at = time.monotonic() + FORGET_S
            self.beats.forget(self._keep_ms)
        column = self._table.c
        refused = (column.reason.is_not(None), column.moved.is_(None))
        rows = self._connection.execute(
            sa.select(column.seq, column.retry_at)
            .where(*refused, _are_none(column.failed, column.claimed))
            .order_by(column.retry_at, column.seq)
            .limit(RETRIED)
        ).all()
        self.failed = self._connection.execute(
            sa.select(sa.func.count()).where(*refused, column.failed.is_not(None))
        ).scalar_one()
        present_ms = now_ms()
        if due := [row.seq for row in rows if number_of(row.retry_at) <= present_ms]:
            return due, FIRST_RETRY_S
        return [], min([LOOK_S, *((number_of(row.retry_at) - present_ms) / 1000 for row in rows[:1])])

    def _end_claims(self) -> None:
        """Ends claims of relays that have died, or stand still."""
        connection, table, now = self._connection, self._table, time.monotonic()
        claimed = (table.c.moved.is_(None), table.c.claimed.is_not(None))
        seen = connection.execute(
            sa.select(table.c.claimed).where(*claimed, sa.not_(self._mine())).distinct()
        ).scalars()
        self._others = {claim: self._others.get(claim, now) for claim in seen}
        if lapsed := [claim for claim, since in self._others.items() if now - since >= CLAIM_S]:
            connection.execute(table.update().where(*claimed, table.c.claimed.in_(lapsed)).values(claimed=None))
        connection.commit()

    def abandon(self) -> None:
        self._claims = _first_claim()

    def end(self) -> None:
        """Gives up its claims: others may have these rows at once."""
        with self._database.begin() as connection:
            connection.execute(self._table.update().where(self._mine()).values(claimed=None))

    def _among(self, seqs: Collection[int]) -> sa.ColumnElement[bool]:
        """True for rows with these numbers."""
        return self._any_of(self._table.c.seq, seqs)

    def _any_of(self, column: sa.Column[Any], values: Collection[Any]) -> sa.ColumnElement[bool]:
        # A thousand parameters would take most of a statement's time; PostgreSQL takes them as one. That is text made
        # here, as psycopg is slow with lists, and without a type, so that the planner knows how many they are.
        if self._database.dialect.name == "postgresql":
            listed = "{" + ",".join(map(_in_array, values)) + "}"
            return column == sa.any_(sa.cast(sa.literal(listed, sa.types.NullType()), sa.ARRAY(column.type)))
        return column.in_(values)

    def _mine(self) -> sa.ColumnElement[bool]:
        """True for rows that this relay has claimed."""
        return self._table.c.claimed.between(self._claims, self._claims + CLAIMS - 1)

    def _give(self, seqs: Collection[int], claim: int | None) -> None:
        """Writes the claim of rows; None: they wait again."""
        if seqs:
            self._connection.execute(self._table.update().where(self._among(seqs)).values(claimed=claim))


def _in_array(value: int | str) -> str:
    """An element of an array of PostgreSQL."""
    if isinstance(value, int):
        return str(value)
    escaped = value.replace("\\", r"\\").replace('"', r"\"")
    return f'"{escaped}"'


def _are_none(*columns: sa.Column[Any]) -> sa.ColumnElement[bool]:
    """True for rows that have none of these, by no index of those that wait: where most rows were moved, PostgreSQL
    takes it for short, and goes through all of it after an outage.
    """
    return sa.func.coalesce(*columns).is_(None)


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
