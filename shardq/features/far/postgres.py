"""The table in PostgreSQL. Transactions and what is local to them, nothing prepared, no LISTEN: so it works through a
pooler as well.
"""

from __future__ import annotations

import re
import select
import struct
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from shardq.errors import AccessDenied, InvalidUrl, MissingPackage, ReadOnly, ServerFault, Unavailable
from shardq.features.far import statements as sql
from shardq.features.far.rows import Row
from shardq.features.far.store import NONE, Lost, Session, Store, Values

try:
    import psycopg
except ModuleNotFoundError as _exc:
    raise MissingPackage("far= needs psycopg for PostgreSQL: pip install 'shardq[sql]'") from _exc

CREATE = (
    f"""CREATE TABLE IF NOT EXISTS {sql.TABLE} (
        due bigint NOT NULL, until bigint, known bigint, nonce bigint, id text COLLATE "C" PRIMARY KEY, tags text,
        record bytea NOT NULL, rule text, gone boolean NOT NULL DEFAULT FALSE
    ) WITH (autovacuum_vacuum_scale_factor = 0.02)""",
    f"CREATE INDEX IF NOT EXISTS {sql.TABLE}_due ON {sql.TABLE} (due, id) WHERE NOT gone",
    f"CREATE INDEX IF NOT EXISTS {sql.TABLE}_gone ON {sql.TABLE} (known) WHERE gone",
    f"CREATE INDEX IF NOT EXISTS {sql.TABLE}_sent ON {sql.TABLE} (due, id) WHERE {sql.IS_SENT}",
    f"""CREATE TABLE IF NOT EXISTS {sql.OWNER} (
        number int PRIMARY KEY, engine text NOT NULL, identity text NOT NULL, ahead double precision NOT NULL,
        former double precision NOT NULL, changed bigint NOT NULL, beat bigint NOT NULL, halted text NOT NULL
    )""",
)

ALONE = "SELECT pg_advisory_xact_lock(hashtext('shardq_far'))"
"""One process changes the tables at a time."""

NEVER_SORT = "SET LOCAL enable_sort = off"
"""PostgreSQL expects a few rows of a table without statistics: it would sort all near rows for each page."""

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
            if isinstance(exc, psycopg.errors.UniqueViolation):
                raise Taken from exc
            raise _fault_of(exc)(f"the far store says: {said(exc)}") from exc


def _fault_of(exc: psycopg.Error) -> type[ServerFault]:
    state = exc.sqlstate
    if state is None or state.startswith(OF_A_ROW):
        return ServerFault
    if state.startswith(FORBIDDEN):
        return AccessDenied
    return ReadOnly if state.startswith(NOT_WRITABLE) else Unavailable


class Taken(ServerFault):
    """The id of a row is taken."""


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
                f"far= is no URL of PostgreSQL: {said(exc)}; write postgresql://user@host:port/database"
            ) from exc
        super().__init__(f"postgresql://{parts.hostname or ''}{port}{parts.path}")

    def connect(self, deadline: float) -> PostgresSession:
        return PostgresSession(self._url, deadline)

    def create(self, session: Session) -> None:
        with session.transaction():
            session.run(ALONE)
            for statement in CREATE:
                session.run(statement)

    def whereabouts(self, session: Session) -> str:
        try:
            [words] = session.run(_PLACE)
        except ServerFault:  # it may not ask, or this is no PostgreSQL
            return ""
        return "/".join(map(str, words))

    def insert_all(self, session: Session, rows: Sequence[Row]) -> bool:
        assert isinstance(session, PostgresSession)
        try:
            with session.transaction(), session.raw.cursor() as cursor:
                with cursor.copy(_COPY) as copy:
                    copy.write(packed(rows))
                least = min(row.due for row in rows)
                [(far,)] = session.run(
                    f"SELECT :least > {self.now} + :far", {"least": least, "far": self.horizon.far_ms}
                )
                if not far:
                    raise Taken
        except Taken:
            return False
        return True

    def forget_all(self, session: Session, rows: Sequence[Row]) -> None:
        session.change(_FORGET, {"ids": [row.id for row in rows], "dues": [row.due for row in rows]})

    def among(self, ids: Sequence[str]) -> tuple[str, Any]:
        return "= ANY(CAST(:among AS text[]))", list(ids)

    def estimate(self, session: Session) -> int | None:
        [(rows,)] = session.run(_ESTIMATE)
        return None if rows is None else int(rows)


_COPY = f"COPY {sql.TABLE} (due, id, tags, record) FROM STDIN (FORMAT BINARY)"
_BEGIN, _END = b"PGCOPY\n\xff\r\n\0" + bytes(8), b"\xff\xff"
_NUMBERS = struct.Struct(">hiqi")  # of four columns: int8, and the length of the id
_LENGTH = struct.Struct(">i")
_NULL = _LENGTH.pack(-1)


def packed(rows: Sequence[Row]) -> bytes:
    """The rows as COPY takes them: half the time of ``write_row``, which asks for the type of each value."""
    parts = [_BEGIN]
    for id, due, tags, record, *_ in rows:
        first = id.encode()
        parts += (
            _NUMBERS.pack(4, 8, due, len(first)),
            first,
            _NULL if tags is None else _LENGTH.pack(len(tags.encode())) + tags.encode(),
            _LENGTH.pack(len(record)),
            record,
        )
    parts.append(_END)
    return b"".join(parts)


_PLACE = f"""
SELECT system_identifier, current_database(), CAST(relnamespace AS regnamespace) FROM pg_control_system(), pg_class
WHERE oid = CAST('{sql.TABLE}' AS regclass)"""
"""A standby has the identifier of its master."""

_FORGET = f"""
DELETE FROM {sql.TABLE} AS far USING unnest(CAST(:ids AS text[]), CAST(:dues AS bigint[])) AS moved (id, due)
WHERE far.id = moved.id AND far.due = moved.due AND far.nonce IS NULL"""

_ESTIMATE = f"""
SELECT CASE WHEN reltuples >= 0 THEN reltuples * pg_relation_size(oid)
  / CAST(current_setting('block_size') AS int) / greatest(relpages, 1) END
FROM pg_class WHERE oid = CAST('{sql.TABLE}' AS regclass)"""
"""Estimates the rows by the last ANALYZE and the size now; NULL for a table that was never analyzed."""
