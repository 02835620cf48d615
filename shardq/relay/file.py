"""The spool's file: a SQLite database that holds commands in their order. Threads and processes may share it.

A command is on the disk when ``add`` returns: every commit is forced there (``synchronous=FULL``). Numbers are given
once (AUTOINCREMENT), so that a process can tell by a number whether all that it spooled is gone. Only this module knows
SQL.

**A full disk never stops the draining.** The journal is a rollback journal that stays (``PERSIST``), and is filled up
to ``RESERVE_BYTES`` when the file is opened. To remove commands, SQLite writes the old pages into the journal and the
new ones over the old: both are there already, so no file grows. With a write-ahead log both would grow. Each
transaction of the draining is bounded, so that its journal is within the reserve.

A connection must not be used, nor closed, in the child of a fork: SQLite's locks belong to the process. So a child
forgets its parent's, and opens one of its own.
"""

from __future__ import annotations

import contextlib
import math
import os
import sqlite3
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from shardq.core import forks
from shardq.core.layout.words import id_of, is_foreign, number_of, raw
from shardq.core.model.printable import printable
from shardq.errors import SpoolFault, SpoolFull
from shardq.relay.report import SpoolStats
from shardq.relay.row import Command, Numbered, now_ms

SCHEMA = 3
APPLICATION = 0x53515350  # written into the file's head, so that another program's database is not taken for a spool

BUSY_S = 10.0
"""The wait for another process that writes. Each writes for some milliseconds, unless it was stopped (SIGSTOP)."""

PAGE_ROWS, PAGE_BYTES = 1000, 4 << 20  # commands that are read, replayed and removed together

RESERVE_BYTES = 8 << 20
"""The size of the journal. To remove PAGE_ROWS commands takes 4 MiB of it at most: a leaf of the tree for each."""

VACUUM_PAGES = 1000  # pages that are given back to the disk in one transaction. Their old content goes into the journal

_WORDS = "kind, id, due, record, on_conflict, dedup, made, nonce"  # those of a Command
_COLUMNS = f"seq, {_WORDS}"
_UNSENT = "seq > (SELECT sent FROM spool)"

_TYPES = (
    "kind TEXT NOT NULL, id TEXT NOT NULL, due INTEGER NOT NULL, record BLOB NOT NULL, on_conflict TEXT NOT NULL, "
    "dedup INTEGER NOT NULL, made INTEGER NOT NULL, nonce INTEGER NOT NULL, size INTEGER NOT NULL, "
    "spooled INTEGER NOT NULL"
)
_TABLES = (
    "CREATE TABLE spool (engine TEXT NOT NULL, shards INTEGER NOT NULL, bytes INTEGER NOT NULL DEFAULT 0, "
    "waiting INTEGER NOT NULL DEFAULT 0, failed INTEGER NOT NULL DEFAULT 0, replayed INTEGER NOT NULL DEFAULT 0, "
    "tries INTEGER NOT NULL DEFAULT 0, sent INTEGER NOT NULL DEFAULT 0)",
    f"CREATE TABLE command (seq INTEGER PRIMARY KEY AUTOINCREMENT, {_TYPES})",
    f"CREATE TABLE failed (seq INTEGER PRIMARY KEY, {_TYPES}, reason TEXT NOT NULL, refused INTEGER NOT NULL)",
)

_inherited: list[object] = []
"""Connections of parents. Kept, because the garbage collector would close them."""


class SpoolFile:
    """One file. Opens itself at its first use, and again after ``close()``."""

    def __init__(self, path: Path, *, engine: str | None = None, shards: int = 0, limit: int | None = None) -> None:
        """``engine`` and ``shards``: of the engine that it belongs to; None for any, of a file that exists."""
        self.path = path
        self._engine = engine
        self._shards = shards
        self._limit = limit
        self._connection: sqlite3.Connection | None = None
        self._opened: tuple[int, int] | None = None  # the device and the number of the file that is open
        self._lock = threading.Lock()
        forks.watch(self, SpoolFile._forked)

    def _forked(self) -> None:
        _inherited.append(self._connection)
        self._connection = None
        self._lock = threading.Lock()

    def close(self) -> None:
        with self._lock:
            connection, self._connection = self._connection, None
            if connection is not None:
                with contextlib.suppress(sqlite3.Error):  # all that counts was committed
                    connection.close()

    # ---- commands

    def add(self, groups: Sequence[Sequence[Command]]) -> tuple[int, list[SpoolFull | None]]:
        """Stores groups of commands in one transaction, each as a whole or not at all. Returns the last number that was
        given, and for each group why it was not stored.
        """
        errors: list[SpoolFull | None] = []
        with self._writing() as connection:
            [bytes] = _first(connection, "SELECT CAST(bytes AS INTEGER) FROM spool")
            stored: list[Command] = []
            for group in groups:
                size = sum(command.size for command in group)
                if self._limit is not None and bytes + size > self._limit:
                    errors.append(self._full(bytes))
                    continue
                errors.append(None)
                bytes += size
                stored += group
            now = now_ms()
            connection.executemany(
                f"INSERT INTO command ({_WORDS}, size, spooled) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                [(*msgspec.structs.astuple(command)[:-1], command.size, now) for command in stored],
            )
            connection.execute("UPDATE spool SET bytes = ?, waiting = waiting + ?", (bytes, len(stored)))
            [last] = connection.execute("SELECT coalesce(max(seq), 0) FROM command").fetchone()
        return last, errors

    def _full(self, bytes: int) -> SpoolFull:
        return SpoolFull(
            f"the spool {self.path} holds {bytes:,} bytes, and {self._limit:,} are allowed: nothing of this call was "
            f"spooled; bring Redis back, or allow more with spool_bytes= (`shardq spool status {self.path}` shows what "
            "it holds)"
        )

    def check(self, sent: int) -> None:
        """Raises SpoolFault if the file can't be written: what is carried out then could not be noted. Writes a page,
        as ``finish`` does. ``sent``: all commands up to this number were sent, for processes that wait for theirs.
        """
        with self._writing() as connection:
            connection.execute("UPDATE spool SET tries = tries + 1, sent = ?", (sent,))

    def holds(self, ids: Iterable[str]) -> bool:
        """True if a command on one of the ids waits. Reads the whole file, as there is no index."""
        with self._reading() as connection:
            return any(connection.execute("SELECT 1 FROM command WHERE id = ? LIMIT 1", (id,)).fetchone() for id in ids)

    def page(self, after: int) -> list[Numbered]:
        """The first commands after this number."""
        page: list[Numbered] = []
        bytes = 0
        with self._reading() as connection:
            rows = connection.execute(
                f"SELECT {_COLUMNS} FROM command WHERE seq > ? ORDER BY seq LIMIT ?", (after, PAGE_ROWS)
            )
            last = after
            for seq, *words in rows:
                if not last < seq:
                    raise SpoolFault(f"the spool {self.path} {_broken('its rows have lost their order')}")
                last = seq
                command = Command(*words)
                page.append(Numbered(seq, command))
                bytes += command.size
                if bytes >= PAGE_BYTES:
                    break
            rows.close()
        return page

    def read(self, seqs: Sequence[int]) -> list[Numbered]:
        """Those of the commands with these numbers that are still here, in their order."""
        with self._reading() as connection:
            rows = [
                row
                for seq in sorted(seqs)
                for row in connection.execute(f"SELECT {_COLUMNS} FROM command WHERE seq = ?", (seq,))
            ]
        return [Numbered(seq, Command(*words)) for seq, *words in rows]

    def finish(self, done: Sequence[int], failed: Sequence[tuple[int, str]]) -> None:
        """Removes commands that were carried out, and puts those that were refused aside, with their reasons.

        Rows are removed before any is inserted, which then needs no new page of a full disk.
        """
        with self._writing() as connection:
            now = now_ms()
            # One that another process has removed meanwhile must not count twice.
            found = [
                row
                for seq in done
                for row in connection.execute("SELECT seq, CAST(size AS INTEGER) FROM command WHERE seq = ?", (seq,))
            ]
            refused = [
                (*map(_storable, row), reason, now)
                for seq, reason in failed
                for row in connection.execute(f"SELECT {_COLUMNS}, size, spooled FROM command WHERE seq = ?", (seq,))
            ]
            connection.executemany("DELETE FROM command WHERE seq = ?", [(row[0],) for row in (*found, *refused)])
            connection.executemany(
                f"INSERT OR IGNORE INTO failed ({_COLUMNS}, size, spooled, reason, refused) "
                "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                refused,
            )
            connection.execute(
                "UPDATE spool SET waiting = waiting - ?, failed = failed + ?, replayed = replayed + ?, "
                "bytes = bytes - ?",
                (len(found) + len(refused), len(refused), len(found), sum(number_of(size) for _, size in found)),
            )

    def left(self, until: int) -> int:
        """How many commands up to this number were not sent yet, at most a page and one."""
        return self._number(
            f"SELECT count(*) FROM (SELECT 1 FROM command WHERE {_UNSENT} AND seq <= ? LIMIT ?)", until, PAGE_ROWS + 1
        )

    def holds_any(self, until: int) -> bool:
        """True if a command up to this number is here: it was not sent, or is not confirmed."""
        return bool(self._number("SELECT count(*) FROM (SELECT 1 FROM command WHERE seq <= ? LIMIT 1)", until))

    def first(self) -> int:
        """The number of the first command that was not sent; if all were, one more than the last that was given."""
        return self._number(
            f"SELECT coalesce((SELECT min(seq) FROM command WHERE {_UNSENT}), (SELECT seq + 1 FROM sqlite_sequence), 1)"
        )

    def last(self) -> int:
        """The number of the last command that waits; 0 if none does."""
        return self._number("SELECT coalesce(max(seq), 0) FROM command")

    def _number(self, query: str, *words: int) -> int:
        with self._reading() as connection:
            return int(connection.execute(query, words).fetchone()[0])

    def tidy(self) -> None:
        """Gives the disk back what removed commands took."""
        before = math.inf
        while True:
            with self._reading() as connection:
                connection.executescript(f"PRAGMA incremental_vacuum({VACUUM_PAGES})")  # execute() would free one page
                [free] = connection.execute("PRAGMA freelist_count").fetchone()
            if not 0 < free < before:  # of a broken file no page may become free
                return
            before = free

    # ---- for operators

    def owner(self) -> tuple[str, int]:
        """The engine that the file belongs to, and the number of shards that was asked for when it was made, or 0."""
        with self._reading() as connection:
            engine, shards = _first(connection, "SELECT engine, CAST(shards AS INTEGER) FROM spool")
        return str(engine), int(shards)

    def stats(self) -> SpoolStats:
        with self._reading() as connection:
            engine, *counts = _first(connection, "SELECT engine, bytes, waiting, failed, replayed FROM spool")
            first = connection.execute("SELECT spooled FROM command ORDER BY seq LIMIT 1").fetchone()
            [sent] = connection.execute(f"SELECT count(*) FROM command WHERE NOT {_UNSENT}").fetchone()
        bytes, waiting, failed, replayed = map(number_of, counts)
        return SpoolStats(
            path=str(self.path),
            engine=str(engine),
            waiting=waiting,
            sent=sent,
            bytes=bytes,
            limit=self._limit,
            oldest=None if first is None else max(0.0, (now_ms() - number_of(first[0])) / 1000),
            replayed=replayed,
            failed=failed,
        )

    def failed(self, after: int = 0) -> list[tuple[Numbered, str, int]]:
        """A page of the refused commands after this number, with their reasons and when they were refused."""
        with self._reading() as connection:
            rows = connection.execute(
                f"SELECT {_COLUMNS}, reason, refused FROM failed WHERE seq > ? ORDER BY seq LIMIT ?", (after, PAGE_ROWS)
            ).fetchall()
        return [(Numbered(seq, Command(*words)), str(reason), number_of(at)) for seq, *words, reason, at in rows]

    def retry_failed(self) -> int:
        """Puts the refused commands at the end of those that wait. Returns their number."""
        with self._writing() as connection:
            columns = f"{_WORDS}, size, spooled"
            count = connection.execute(
                f"INSERT INTO command ({columns}) SELECT {columns} FROM failed ORDER BY seq"
            ).rowcount
            connection.execute("DELETE FROM failed")
            connection.execute("UPDATE spool SET waiting = waiting + failed, failed = 0")
        return count

    def drop_failed(self) -> int:
        """Removes the refused commands. Returns their number."""
        with self._writing() as connection:
            [size] = connection.execute("SELECT coalesce(sum(size), 0) FROM failed").fetchone()
            count = connection.execute("DELETE FROM failed").rowcount
            connection.execute("UPDATE spool SET bytes = bytes - ?, failed = 0", (size,))
        return count

    # ---- the database

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        with self._lock, self._told():
            yield self._open()

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        with self._lock, self._told(), _transaction(connection := self._open()):
            yield connection

    def _open(self) -> sqlite3.Connection:
        """The lock is held."""
        connection = self._connection
        if connection is None:
            connection = self._connection = self._connect()
            self._opened = _identity(self.path)
        elif _identity(self.path) != self._opened:
            # What is written to a removed file is gone with the process.
            raise SpoolFault(
                f"the spool {self.path} was removed or replaced while it was in use: put it back, or close the engine "
                "and open it again to begin a new one"
            )
        return connection

    def _connect(self) -> sqlite3.Connection:
        if self._engine is not None:
            self._make()
        elif not self.path.exists():
            raise SpoolFault(f"there is no spool at {self.path}: give the path that the engine has as spool=")
        connection = sqlite3.connect(self.path, timeout=BUSY_S, isolation_level=None, check_same_thread=False)
        connection.text_factory = id_of  # a text that is none is the fault of its command alone
        try:
            connection.execute("PRAGMA auto_vacuum = INCREMENTAL")  # counts for a new file only
            self._check_kind(connection)
            connection.execute("PRAGMA journal_mode = PERSIST")
            connection.execute(f"PRAGMA journal_size_limit = {RESERVE_BYTES}")
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute("PRAGMA fullfsync = ON")  # macOS; other systems pass it over
            connection.execute("PRAGMA secure_delete = OFF")  # it would write every page of what is removed
            with _transaction(connection):
                if self._engine is not None:
                    self._reserve()
                self._claim(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _make(self) -> None:
        """Makes an empty file that only its owner can read, if there is none. Never opens one that is there: to close
        it again would drop the locks that SQLite has on it in this process.
        """
        try:
            os.close(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
        except FileExistsError:
            return
        except OSError as exc:
            raise SpoolFault(
                f"the spool {self.path} can't be made: {exc.strerror}; give the path of a file in a folder on a local "
                "disk that this process may write to"
            ) from exc
        folder = os.open(self.path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def _reserve(self) -> None:
        """Fills the journal up to its size, with bytes that the disk has for certain. The lock for writing is held, so
        that SQLite writes it in no process. Its own locks are on the file, and closing the journal drops none.
        """
        fd = os.open(f"{self.path}-journal", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            written = size = os.fstat(fd).st_size
            if size < RESERVE_BYTES:
                try:
                    while written < RESERVE_BYTES:
                        written += os.pwrite(fd, bytes(RESERVE_BYTES - written), written)
                    os.fsync(fd)
                except OSError as exc:
                    os.ftruncate(fd, size)
                    raise SpoolFault(
                        f"the spool {self.path} can't reserve the {RESERVE_BYTES:,} bytes without which a full disk "
                        f"would hold up its replay: {exc.strerror}; make room on its disk"
                    ) from exc
        finally:
            os.close(fd)

    def _check_kind(self, connection: sqlite3.Connection) -> None:
        """Raises SpoolFault for a database that is no spool, or not of this version. A new one is neither."""
        [application] = connection.execute("PRAGMA application_id").fetchone()
        [schema] = connection.execute("PRAGMA user_version").fetchone()
        [tables] = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
        if tables and application != APPLICATION:
            raise SpoolFault(f"{self.path} is a database of something else: give another path as spool=")
        if tables and schema != SCHEMA:
            raise SpoolFault(
                f"the spool {self.path} has the format {schema}, and this shardq knows the format {SCHEMA}: replay it "
                "with the version that made it (`shardq spool replay`), or give another path"
            )

    def _claim(self, connection: sqlite3.Connection) -> None:
        """Makes the tables of a new file, in the name of the engine. Raises SpoolFault if it belongs to another."""
        [tables] = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
        if not tables:
            if self._engine is None:
                raise SpoolFault(f"{self.path} is empty: give the path that the engine has as spool=")
            for table in _TABLES:
                connection.execute(table)
            connection.execute(f"PRAGMA application_id = {APPLICATION}")
            connection.execute(f"PRAGMA user_version = {SCHEMA}")
            connection.execute("INSERT INTO spool (engine, shards) VALUES (?, ?)", (self._engine, self._shards))
        [engine] = _first(connection, "SELECT engine FROM spool")
        if self._engine not in (None, engine):
            raise SpoolFault(
                f"the spool {self.path} belongs to the engine {engine!r}, not to {self._engine!r}: give each engine a "
                "file of its own"
            )

    @contextmanager
    def _told(self) -> Iterator[None]:
        """Raises SpoolFault in place of SQLite's errors."""
        try:
            yield
        except sqlite3.Error as exc:
            raise SpoolFault(f"the spool {self.path} {printable(_said(exc))}") from exc


def _storable(word: Any) -> Any:
    """The word as SQLite can store it: a text whose bytes are no UTF-8 as these bytes."""
    return raw(word) if isinstance(word, str) and is_foreign(word) else word


def _first(connection: sqlite3.Connection, query: str) -> tuple[Any, ...]:
    """The only row of the table ``spool``."""
    row: tuple[Any, ...] | None = connection.execute(query).fetchone()
    if row is None:
        raise SpoolFault(
            "the spool lacks the row that tells whose it is: move the file away, and the engine begins a new one"
        )
    return row


@contextmanager
def _transaction(connection: sqlite3.Connection) -> Iterator[None]:
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:  # a full disk may have ended it
            connection.execute("ROLLBACK")
        raise


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _broken(what: object) -> str:
    return (
        f"is broken ({what}): move it away, with the file -journal beside it, and the engine begins a new one; "
        "`sqlite3 FILE .recover` may save what it holds"
    )


def _said(exc: sqlite3.Error) -> str:
    """Says what is wrong with a file, and what to do."""
    code: Any = getattr(exc, "sqlite_errorcode", None)
    kind = code & 0xFF if isinstance(code, int) else None
    if kind in (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT):
        return _broken(exc)
    if kind in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR):
        return f"can't be written ({exc}): nothing of this call was spooled; make room on its disk, or mend the disk"
    if kind == sqlite3.SQLITE_BUSY:
        return f"was held by another process for {BUSY_S:g} s: see whether that was stopped (SIGSTOP), and end it"
    if kind in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM):
        return (
            f"can't be opened ({exc}): give the path of a file on a local disk, in a folder that this process may "
            "write to"
        )
    return f"can't be used: {exc}"
