"""The table in a file of SQLite. One process writes at a time; readers do not wait."""

from __future__ import annotations

import json
import os
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from shardq.errors import AccessDenied, ReadOnly, ServerFault, Unavailable
from shardq.features.cold import statements as sql
from shardq.features.cold.rows import Row
from shardq.features.cold.store import NONE, STRIPE_COUNT, Lost, Session, Store, Values

CREATE = (
    f"""CREATE TABLE IF NOT EXISTS {sql.COLD} (
        bucket INTEGER NOT NULL, seq INTEGER NOT NULL, due INTEGER NOT NULL, topic TEXT NOT NULL, tags TEXT,
        record BLOB NOT NULL, PRIMARY KEY (bucket, seq)
    ) WITHOUT ROWID""",
    f"""CREATE TABLE IF NOT EXISTS {sql.NAMED} (
        id TEXT PRIMARY KEY, bucket INTEGER NOT NULL, seq INTEGER NOT NULL, due INTEGER NOT NULL,
        topic TEXT NOT NULL, tags TEXT, record BLOB NOT NULL, until INTEGER NOT NULL DEFAULT 0,
        known INTEGER NOT NULL DEFAULT 0, nonce INTEGER, rule TEXT NOT NULL DEFAULT 'keep'
    ) WITHOUT ROWID""",
    f"CREATE INDEX IF NOT EXISTS {sql.NAMED}_place ON {sql.NAMED} (bucket, seq)",
    f"""CREATE TABLE IF NOT EXISTS {sql.OWNER} (
        number INTEGER PRIMARY KEY, engine TEXT NOT NULL, identity TEXT NOT NULL
    )""",
    f"CREATE TABLE IF NOT EXISTS {sql.STRIPES} (stripe INTEGER PRIMARY KEY, version INTEGER NOT NULL)",
    f"""CREATE TABLE IF NOT EXISTS {sql.WINDOWS} (
        id TEXT PRIMARY KEY, until INTEGER NOT NULL, known INTEGER NOT NULL, nonce INTEGER
    ) WITHOUT ROWID""",
)

OF_A_ROW = (sqlite3.SQLITE_CONSTRAINT, sqlite3.SQLITE_TOOBIG, sqlite3.SQLITE_MISMATCH, sqlite3.SQLITE_MISUSE)
"""Codes by which a statement is refused for its values. Every other code is about the database, and passes."""
FORBIDDEN = (sqlite3.SQLITE_PERM, sqlite3.SQLITE_AUTH)
NOT_WRITABLE = (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN)


class SqliteSession:
    """One connection to the file."""

    is_fresh = True

    def __init__(self, path: str, deadline: float) -> None:
        self.deadline = deadline
        try:
            self._connection = sqlite3.connect(path, timeout=0, isolation_level=None, check_same_thread=False)
        except sqlite3.Error as exc:
            raise _fault_of(exc)(f"the cold store {path} can't be opened: {exc}") from exc
        self.run("PRAGMA journal_mode = WAL")
        self.run("PRAGMA synchronous = FULL")

    def run(self, statement: str, values: Values = NONE) -> list[tuple[Any, ...]]:
        return self._execute(statement, values).fetchall()

    def run_in_order(self, statement: str, values: Values = NONE) -> list[tuple[Any, ...]]:
        return self.run(statement, values)

    def change(self, statement: str, values: Values = NONE) -> int:
        return self._execute(statement, values).rowcount

    def change_all(self, statement: str, rows: Sequence[Values]) -> int:
        """The number of rows that it changed, for all of these values."""
        try:
            return self._connection.executemany(statement, rows).rowcount
        except sqlite3.Error as exc:
            raise _fault(exc) from exc

    def _execute(self, statement: str, values: Values) -> sqlite3.Cursor:
        # A process that waits for another, which writes, is told by SQLite to try again.
        left_ms = max(0, int((self.deadline - time.monotonic()) * 1000))
        try:
            self._connection.execute(f"PRAGMA busy_timeout = {left_ms}")
            return self._connection.execute(statement, values)
        except sqlite3.Error as exc:
            raise _fault(exc) from exc

    @contextmanager
    def transaction(self) -> Iterator[None]:
        if self._connection.in_transaction:
            yield  # a part of that
            return
        self.run("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._connection.rollback()
            raise
        self.run("COMMIT")

    def close(self) -> None:
        self._connection.close()


def _fault(exc: sqlite3.Error) -> Exception:
    if _code(exc) in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return Lost("another process writes it", sent=False)
    return _fault_of(exc)(f"the cold store says: {exc}")


def _fault_of(exc: sqlite3.Error) -> type[ServerFault]:
    code = _code(exc)
    if code in OF_A_ROW:
        return ServerFault
    if code in FORBIDDEN:
        return AccessDenied
    return ReadOnly if code in NOT_WRITABLE else Unavailable


def _code(exc: sqlite3.Error) -> int:
    """Returns SQLite's code, without its details. MISUSE for an error of Python's module, which is about a value."""
    return getattr(exc, "sqlite_errorcode", sqlite3.SQLITE_MISUSE) & 0xFF


class SqliteStore(Store):
    now = "CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)"
    lock = ""  # all of it is locked by BEGIN IMMEDIATE
    find_in = "instr"

    def __init__(self, path: str | os.PathLike[str]) -> None:
        super().__init__(os.fspath(path))

    def connect(self, deadline: float) -> SqliteSession:
        return SqliteSession(self.where, deadline)

    def create(self, session: Session) -> None:
        with session.transaction():
            for statement in CREATE:
                session.run(statement)
            session.run(sql.MAKE_STRIPES, {"last": STRIPE_COUNT - 1})

    def prepare(self, session: Session, rows: Sequence[Row]) -> None:
        """Its table has one part."""

    def insert_all(self, session: Session, rows: Sequence[Row]) -> bool:
        assert isinstance(session, SqliteSession)
        far = self.horizon.far_ms
        try:
            with session.transaction():
                values = [row._asdict() | {"far": far} for row in rows]
                if session.change_all(self.text(sql.INSERT), values) != len(rows):
                    raise _NotAll
        except _NotAll:
            return False
        return True

    def take_out(self, session: Session, values: Values) -> int:
        with session.transaction():
            taken = session.run(self.text(sql.TAKE_OUT), values)
            if not taken:
                return 0
            topic, tags, record = taken[0]
            put = {"record": record, "tags": tags, "topic": topic} | {name: values[name] for name in ("seq", "name")}
            return session.change(
                f"{sql.PUT_BACK} VALUES (:name, :bucket, :seq, :due, :topic, :tags, :record)",
                put | {"bucket": values["to_bucket"], "due": values["to"]},
            )

    def cancel_named(self, session: Session, name: str) -> int:
        with session.transaction():
            gone = session.run(self.text(sql.CANCEL_NAMED), {"name": name, "far": self.horizon.far_ms})
            for id, until, known, nonce in gone:
                if max(until, known) > self.now_ms:
                    values = {"name": id, "until": until, "known": known, "nonce": nonce}
                    session.change(_REMEMBER, values)
        return len(gone)

    def add_own(self, session: Session, values: Values) -> int:
        with session.transaction():
            return session.change(_ADD_OWN, values) if session.change(sql.BUMP_STRIPE, values) else 0

    def among(self, values: Sequence[str] | Sequence[int]) -> tuple[str, Any]:
        return "IN (SELECT value FROM json_each(:among))", json.dumps(list(values))

    def forget_all(self, session: Session, bucket: int, seqs: Sequence[int]) -> None:
        assert isinstance(session, SqliteSession)
        with session.transaction():
            session.change_all(
                f"DELETE FROM {sql.COLD} WHERE bucket = :bucket AND seq = :seq",
                [{"bucket": bucket, "seq": seq} for seq in seqs],
            )

    def tidy(self, session: Session, before: int) -> None:
        """Its table has one part."""

    def estimate(self, session: Session, table: str) -> tuple[int, bool]:
        """It has none."""
        return 0, False


_REMEMBER = sql.REMEMBER.format(source="VALUES (:name, :until, :known, :nonce)")
_ADD_OWN = sql.ADD_OWN.format(source=" WHERE true")  # as it has to tell a conflict from a join


class _NotAll(Exception):
    """Some rows were not added."""
