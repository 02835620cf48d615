"""The tables of a far store as a search has them: what is committed, and what statements have changed whose commit is
still to come. As in PostgreSQL at READ COMMITTED: a statement sees what was committed when it began, and its own
transaction's changes; it waits for who has changed one of its rows, and sees that then.

The statements are the product's own, carried out by SQLite in memory.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from typing import Any, NamedTuple

from shardq.features.far import statements as sql
from shardq.features.far.sqlite import CREATE

Key = tuple[str, tuple[Any, ...]]
Rows = Mapping[Key, tuple[Any, ...]]
Changes = Mapping[Key, "tuple[Any, ...] | None"]
"""What became of rows; None: they were removed."""

KEYS = {sql.TABLE: 1}
"""Table → how many of its first columns are its key."""


class Carried(NamedTuple):
    """What a statement came to."""

    answer: list[tuple[Any, ...]] | int
    changes: Changes
    """All of its transaction's."""
    met: frozenset[Key]
    """The rows that it returned, of those that have their names in it."""


class Tables:
    def __init__(self) -> None:
        self.now_ms = 0
        self._connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        self._connection.create_function("virtual_now", 0, lambda: self.now_ms)
        self._connection.create_function("hashtext", 1, len, deterministic=True)
        for statement in CREATE:
            self._connection.execute(statement)
        self._loaded: Rows = {}
        self._known: dict[Any, Carried] = {}

    def carry_out(
        self, committed: Rows, own: Changes, statement: str, values: Mapping[str, Any], *, counts: bool, now_ms: int
    ) -> Carried:
        """Carries a statement out. ``own``: what its transaction has changed so far. ``counts``: the number of rows is
        asked for.
        """
        key = frozenset(committed.items()), frozenset(own.items()), statement, tuple(values.items()), counts, now_ms
        if (known := self._known.get(key)) is not None:
            return known
        self.now_ms = now_ms
        before = _with(committed, own)
        self._load(before)
        cursor = self._connection.execute(statement, values)
        answer = cursor.rowcount if counts else cursor.fetchall()
        self._loaded = after = self._dump()
        changes: dict[Key, tuple[Any, ...] | None] = dict(own)
        for row in before.keys() | after.keys():
            if before.get(row) != after.get(row):
                changes[row] = after.get(row)
        texts = {value for row in answer for value in row} if isinstance(answer, list) else set()
        met = frozenset(row for row in before if row[1][0] in texts)
        carried = self._known[key] = Carried(answer, changes, met if answer else frozenset())
        return carried

    def _load(self, rows: Rows) -> None:
        if rows == self._loaded:
            return
        for table in KEYS:
            self._connection.execute(f"DELETE FROM {table}")
        for (table, _), row in rows.items():
            marks = ", ".join("?" * len(row))
            self._connection.execute(f"INSERT INTO {table} VALUES ({marks})", row)
        self._loaded = dict(rows)

    def _dump(self) -> Rows:
        return {
            (table, row[:keys]): row
            for table, keys in KEYS.items()
            for row in self._connection.execute(f"SELECT * FROM {table}").fetchall()
        }


def _with(rows: Rows, changes: Changes) -> Rows:
    """The rows after changes."""
    after = {**rows, **changes}
    return {key: row for key, row in after.items() if row is not None}


committed_with = _with
