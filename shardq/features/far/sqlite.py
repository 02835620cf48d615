"""The table in a file of SQLite. One process writes at a time; readers do not wait."""

from __future__ import annotations

import json
import os
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import mmh3

from shardq.errors import AccessDenied, ReadOnly, ServerFault, Unavailable
from shardq.features.far import statements as sql
from shardq.features.far.rows import Row
from shardq.features.far.store import NONE, Lost, Session, Store, Values

CREATE = (
    f"""CREATE TABLE IF NOT EXISTS {sql.TABLE} (
        id TEXT PRIMARY KEY, due INTEGER NOT NULL, until INTEGER, known INTEGER, nonce INTEGER, tags TEXT,
        record BLOB NOT NULL, rule TEXT, gone INTEGER NOT NULL DEFAULT FALSE
    ) WITHOUT ROWID""",
    f"CREATE INDEX IF NOT EXISTS {sql.TABLE}_due ON {sql.TABLE} (due, id) WHERE NOT gone",
    f"CREATE INDEX IF NOT EXISTS {sql.TABLE}_gone ON {sql.TABLE} (known) WHERE gone",
    f"CREATE INDEX IF NOT EXISTS {sql.TABLE}_sent ON {sql.TABLE} (due, id) WHERE {sql.IS_SENT}",
    f"""CREATE TABLE IF NOT EXISTS {sql.OWNER} (
        number INTEGER PRIMARY KEY, engine TEXT NOT NULL, identity TEXT NOT NULL, ahead REAL NOT NULL,
        former REAL NOT NULL, changed INTEGER NOT NULL, beat INTEGER NOT NULL, halted TEXT NOT NULL
    )""",
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
            raise _fault_of(exc)(f"the far store {path} can't be opened: {exc}") from exc
        self._connection.create_function("hashtext", 1, _hashed, deterministic=True)
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
    return _fault_of(exc)(f"the far store says: {exc}")


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

    def whereabouts(self, session: Session) -> str:
        try:
            return str(Path(self.where).stat().st_ino)
        except OSError:  # it was removed, or is in memory
            return ""

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

    def forget_all(self, session: Session, rows: Sequence[Row]) -> None:
        assert isinstance(session, SqliteSession)
        session.change_all(_FORGET, [{"id": row.id, "due": row.due} for row in rows])

    def among(self, ids: Sequence[str]) -> tuple[str, Any]:
        return "IN (SELECT value FROM json_each(:among))", json.dumps(list(ids))

    def estimate(self, session: Session) -> int | None:
        """It has none."""
        return None


_FORGET = f"DELETE FROM {sql.TABLE} WHERE id = :id AND due = :due AND nonce IS NULL"


def _hashed(id: str) -> int:
    """As PostgreSQL has it: any number."""
    return mmh3.hash(id.encode())


class _NotAll(Exception):
    """Some rows were not added."""
