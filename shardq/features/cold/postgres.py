"""The table in PostgreSQL, in partitions of a day, which are made when a task is pushed for them and dropped when they
are empty. What is due more than a year from now is found by its name instead, so that partitions stay few.

Transactions and what is local to them, nothing prepared, no LISTEN: so it works through a pooler as well.
"""

from __future__ import annotations

import re
import select
import struct
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from itertools import groupby
from operator import itemgetter
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from shardq.errors import AccessDenied, InvalidUrl, MissingPackage, ReadOnly, ServerFault, Unavailable
from shardq.features.cold import statements as sql
from shardq.features.cold.rows import Fate, Row
from shardq.features.cold.store import NONE, STRIPE_COUNT, Lost, Session, Store, Values

try:
    import psycopg
except ModuleNotFoundError as _exc:
    raise MissingPackage("cold= needs psycopg for PostgreSQL: pip install 'shardq[sql]'") from _exc

CREATE = (
    f"""CREATE TABLE IF NOT EXISTS {sql.COLD} (
        bucket int NOT NULL, seq bigint NOT NULL, due bigint NOT NULL, topic text NOT NULL, tags text,
        record bytea NOT NULL, PRIMARY KEY (bucket, seq)
    ) PARTITION BY RANGE (bucket)""",
    f"""CREATE TABLE IF NOT EXISTS {sql.NAMED} (
        id text PRIMARY KEY, bucket int NOT NULL, seq bigint NOT NULL, due bigint NOT NULL, topic text NOT NULL,
        tags text, record bytea NOT NULL, until bigint NOT NULL DEFAULT 0, known bigint NOT NULL DEFAULT 0,
        nonce bigint, rule text NOT NULL DEFAULT 'keep'
    )""",
    f"CREATE INDEX IF NOT EXISTS {sql.NAMED}_place ON {sql.NAMED} (bucket, seq)",
    f"CREATE TABLE IF NOT EXISTS {sql.OWNER} (number int PRIMARY KEY, engine text NOT NULL, identity text NOT NULL)",
    # half empty, as a row is changed by each push of an id of the caller's own: the next version stays on its page
    f"CREATE TABLE IF NOT EXISTS {sql.STRIPES} (stripe int PRIMARY KEY, version bigint NOT NULL) WITH (fillfactor=50)",
    f"""CREATE TABLE IF NOT EXISTS {sql.WINDOWS} (
        id text PRIMARY KEY, until bigint NOT NULL, known bigint NOT NULL, nonce bigint
    )""",
)

HOURS = 24
"""The buckets of a partition."""

ALONE = "SELECT pg_advisory_xact_lock(hashtext('shardq_cold'))"
"""One process changes the tables at a time."""

DROP_WAIT = "SET LOCAL lock_timeout = '200ms'"
"""The longest wait of a drop of a partition for its readers: everybody else would wait behind it."""

NEVER_SORT = "SET LOCAL enable_sort = off"
"""PostgreSQL expects a few rows of a partition without statistics: it would sort all near rows for each page."""

NO_PARTITION = "23514"  # without the name of a constraint
IN_DOUBT = ("57P01", "57P02", "57P03")
"""The server ends the connection, whatever became of its statement."""

OF_A_ROW = ("22", "23", "54", "P0")
"""States of a statement that is refused for its values: data, constraints, limits, triggers. Every other state is about
the database, and passes.
"""
FORBIDDEN = ("28", "42501")
NOT_WRITABLE = ("25006", "53100", "58030")
"""A standby, or a setting; a full disk; a broken one."""


@lru_cache(maxsize=256)
def _in_their_way(statement: str) -> str:
    return re.sub(r":(\w+)", r"%(\1)s", statement.replace("%", "%%"))


class _Connection(psycopg.Connection[tuple[Any, ...]]):
    deadline: float = 0.0

    def wait(self, gen: Any, *arguments: Any, **options: Any) -> Any:
        return super().wait(_until(gen, self), *arguments, **options)


def _until(gen: Generator[Any, Any, Any], connection: _Connection) -> Generator[Any, Any, Any]:
    """Wraps work on a connection: it ends with an error when its deadline has passed."""
    try:
        state = next(gen)
        while True:
            ready = yield state
            if not ready and time.monotonic() > connection.deadline:
                raise psycopg.OperationalError("no answer in time")
            state = gen.send(ready)
    except StopIteration as ended:
        return ended.value


class PostgresSession:
    """One connection."""

    def __init__(self, url: str, deadline: float) -> None:
        left = max(1, int(deadline - time.monotonic()))
        try:
            # None: nothing is prepared
            self.raw: _Connection = _Connection.connect(
                url, autocommit=True, prepare_threshold=None, connect_timeout=left
            )
        except psycopg.OperationalError as exc:
            raise Lost(said(exc), sent=False) from exc
        self.deadline = deadline

    @property
    def deadline(self) -> float:
        return self.raw.deadline

    @deadline.setter
    def deadline(self, value: float) -> None:
        self.raw.deadline = value

    def run(self, statement: str, values: Values = NONE) -> list[tuple[Any, ...]]:
        with self.faults():
            cursor = self.raw.execute(_in_their_way(statement), values)
            return cursor.fetchall() if cursor.description is not None else []

    def run_in_order(self, statement: str, values: Values = NONE) -> list[tuple[Any, ...]]:
        with self.transaction():
            self.run(NEVER_SORT)
            return self.run(statement, values)

    def change(self, statement: str, values: Values = NONE) -> int:
        with self.faults():
            return self.raw.execute(_in_their_way(statement), values).rowcount

    @contextmanager
    def transaction(self) -> Iterator[None]:
        with self.faults(), self.raw.transaction():
            yield

    @property
    def is_fresh(self) -> bool:
        if self.raw.closed:
            return False
        asked = select.poll()
        asked.register(self.raw.pgconn.socket, select.POLLIN)
        return not asked.poll(0)

    def close(self) -> None:
        self.raw.close()

    @contextmanager
    def faults(self) -> Iterator[None]:
        try:
            yield
        except psycopg.Error as exc:
            state = exc.sqlstate
            if state in IN_DOUBT or (
                state is None and isinstance(exc, psycopg.OperationalError | psycopg.InterfaceError)
            ):
                raise Lost(said(exc), sent=True) from exc
            if state == NO_PARTITION and exc.diag.constraint_name is None:
                raise NoPartition from exc
            if isinstance(exc, psycopg.errors.UniqueViolation):
                raise Taken from exc
            raise _fault_of(exc)(f"the cold store says: {said(exc)}") from exc


def _fault_of(exc: psycopg.Error) -> type[ServerFault]:
    state = exc.sqlstate
    if state is None or state.startswith(OF_A_ROW):
        return ServerFault
    if state.startswith(FORBIDDEN):
        return AccessDenied
    return ReadOnly if state.startswith(NOT_WRITABLE) else Unavailable


class NoPartition(ServerFault):
    """The partition of a row is missing."""


class Taken(ServerFault):
    """The place of a row is taken."""


def said(exc: BaseException) -> str:
    """An error in a line, without its statement."""
    return str(exc).strip().partition("\n")[0] or type(exc).__name__


class PostgresStore(Store):
    now = "CAST(extract(epoch FROM clock_timestamp()) * 1000 AS bigint)"
    lock = " FOR UPDATE"
    find_in = "strpos"

    def __init__(self, url: str) -> None:
        try:
            parts = urlsplit(url)
            port = f":{parts.port}" if parts.port else ""
            self._url = urlunsplit(parts._replace(scheme="postgresql"))
            psycopg.conninfo.conninfo_to_dict(self._url)
        except (psycopg.ProgrammingError, ValueError) as exc:
            raise InvalidUrl(
                f"cold= is no URL of PostgreSQL: {said(exc)}; write postgresql://user@host:port/database"
            ) from exc
        self._days = set[int]()
        """Days whose partitions are there."""
        super().__init__(f"postgresql://{parts.hostname or ''}{port}{parts.path}")

    def connect(self, deadline: float) -> PostgresSession:
        return PostgresSession(self._url, deadline)

    def create(self, session: Session) -> None:
        with session.transaction():
            session.run(ALONE)
            for statement in CREATE:
                session.run(statement)
            session.run(sql.MAKE_STRIPES, {"last": STRIPE_COUNT - 1})

    def prepare(self, session: Session, rows: Sequence[Row]) -> None:
        missing = {row.bucket // HOURS for row in rows if not row.name} - self._days
        if not missing:
            return
        with session.transaction():
            session.run(ALONE)
            there = {name for (name,) in session.run(_PARTITIONS)}
            for day in sorted(missing):
                name = f"{sql.COLD}_{day}"
                if name not in there:
                    # Attached, which blocks nobody; CREATE TABLE … PARTITION OF would wait for all who read.
                    session.run(f"CREATE TABLE {name} (LIKE {sql.COLD} INCLUDING ALL)")
                    span = f"FROM ({day * HOURS}) TO ({(day + 1) * HOURS})"
                    session.run(f"ALTER TABLE {sql.COLD} ATTACH PARTITION {name} FOR VALUES {span}")
        self._days |= missing

    def insert(self, rows: Sequence[Row], deadline: float) -> list[Fate]:
        try:
            return super().insert(rows, deadline)
        except NoPartition:  # it was dropped meanwhile
            self._days = set()
            return super().insert(rows, deadline)

    def insert_all(self, session: Session, rows: Sequence[Row]) -> bool:
        assert isinstance(session, PostgresSession)
        try:
            with session.transaction(), session.raw.cursor() as cursor:
                with cursor.copy(_COPY) as copy:
                    copy.write(_packed(rows))
                least = min(row.due for row in rows)
                [(far,)] = session.run(
                    f"SELECT :least > {self.now} + :far", {"least": least, "far": self.horizon.far_ms}
                )
                if not far:
                    raise Taken
        except Taken:
            return False
        return True

    def take_out(self, session: Session, values: Values) -> int:
        return session.change(self.text(_TAKE_OUT), values)

    def cancel_named(self, session: Session, name: str) -> int:
        [(count,)] = session.run(self.text(_CANCEL_NAMED), {"name": name, "far": self.horizon.far_ms})
        return int(count)

    def add_own(self, session: Session, values: Values) -> int:
        return session.change(_ADD_OWN, values)

    def among(self, values: Sequence[str] | Sequence[int]) -> tuple[str, Any]:
        kind = "text" if isinstance(values[0], str) else "int"
        return f"= ANY(CAST(:among AS {kind}[]))", list(values)

    def forget_all(self, session: Session, bucket: int, seqs: Sequence[int]) -> None:
        session.change(
            f"DELETE FROM {sql.COLD} WHERE bucket = :bucket AND seq = ANY(CAST(:seqs AS bigint[]))",
            {"bucket": bucket, "seqs": list(seqs)},
        )

    def take_out_all(self, session: Session, rows: Sequence[Row], to: Values) -> list[str]:
        done: list[str] = []
        for bucket, some in groupby(sorted(rows, key=itemgetter(0, 1)), key=itemgetter(0)):
            of_bucket = list(some)
            values = {"bucket": bucket, "seqs": [row.seq for row in of_bucket], "names": [row.id for row in of_bucket]}
            done += [id for (id,) in session.run(self.text(_TAKE_OUT_ALL), {**values, **to})]
        return done

    def estimate(self, session: Session, table: str) -> tuple[int, bool]:
        [(rows, is_whole)] = session.run(_ESTIMATE, {"table": table})
        return int(rows), is_whole

    def tidy(self, session: Session, before: int) -> None:
        for (name,) in session.run(_PARTITIONS):
            day = int(name.rpartition("_")[2])
            if (day + 1) * HOURS > before:
                continue
            self._days.discard(day)
            try:
                with session.transaction():
                    session.run(DROP_WAIT)
                    session.run(f"LOCK TABLE {name} IN ACCESS EXCLUSIVE MODE")
                    if not session.run(f"SELECT 1 FROM {name} LIMIT 1"):
                        session.run(f"DROP TABLE {name}")
            except ServerFault:  # somebody reads it; another time
                continue


_COPY = f"COPY {sql.COLD} ({sql.COLUMNS}) FROM STDIN (FORMAT BINARY)"
_BEGIN, _END = b"PGCOPY\n\xff\r\n\0" + bytes(8), b"\xff\xff"
_NUMBERS = struct.Struct(">hiiiqiqi")  # of six columns: int4, int8, int8, and the length of the first text
_LENGTH = struct.Struct(">i")
_NULL = _LENGTH.pack(-1)


def _packed(rows: Sequence[Row]) -> bytes:
    """The rows as COPY takes them: half the time of ``write_row``, which asks for the type of each value."""
    parts = [_BEGIN]
    for bucket, seq, due, topic, tags, record, *_ in rows:
        first = topic.encode()
        parts += (
            _NUMBERS.pack(6, 4, bucket, 8, seq, 8, due, len(first)),
            first,
            _NULL if tags is None else _LENGTH.pack(len(tags.encode())) + tags.encode(),
            _LENGTH.pack(len(record)),
            record,
        )
    parts.append(_END)
    return b"".join(parts)


_PARTITIONS = f"""
SELECT child.relname FROM pg_inherits JOIN pg_class AS child ON child.oid = inhrelid
WHERE inhparent = CAST('{sql.COLD}' AS regclass)"""

_ESTIMATE = """
SELECT coalesce(sum(greatest(reltuples, 0) * pages / greatest(relpages, 1)), 0),
  coalesce(bool_and(reltuples >= 0 OR pages = 0), true)
FROM (
  SELECT *, pg_relation_size(oid) / CAST(current_setting('block_size') AS int) AS pages FROM pg_class
  WHERE relkind = 'r' AND (oid = CAST(CAST(:table AS text) AS regclass)
    OR oid IN (SELECT inhrelid FROM pg_inherits WHERE inhparent = CAST(CAST(:table AS text) AS regclass)))
) AS parts"""
"""Estimates the rows of each part by its last ANALYZE and its size now. The parent's estimate is left out: it would
count them again. A part that was never analyzed has none.
"""

_CANCEL_NAMED = f"""
WITH gone AS ({sql.CANCEL_NAMED}),
remembered AS ({sql.REMEMBER.format(source="SELECT * FROM gone WHERE until > {now} OR known > {now}")})
SELECT count(*) FROM gone"""

_ADD_OWN = f"""
WITH bumped AS ({sql.BUMP_STRIPE} RETURNING stripe) {sql.ADD_OWN.format(source=" FROM bumped")}"""

_TAKE_OUT = f"""
WITH taken AS ({sql.TAKE_OUT})
{sql.PUT_BACK} SELECT :name, :to_bucket, :seq, :to, topic, tags, record FROM taken"""

_TAKE_OUT_ALL = f"""
WITH taken AS (
  DELETE FROM {sql.COLD} WHERE bucket = :bucket AND seq = ANY(CAST(:seqs AS bigint[])) AND {sql.FAR}
  RETURNING seq, topic, tags, record
)
{sql.PUT_BACK} SELECT name, :to_bucket, seq, :to, topic, tags, record
FROM taken JOIN unnest(CAST(:seqs AS bigint[]), CAST(:names AS text[])) AS named (seq, name) USING (seq) RETURNING id"""
