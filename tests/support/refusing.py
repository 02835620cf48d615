"""A far store whose database is there and takes no row."""

from __future__ import annotations

from typing import Literal

import psycopg
import pytest

from shardq import Engine
from shardq.features.far import sqlite
from shardq.features.far import statements as sql

Way = Literal["full", "forbidden", "read-only", "no table"]

SAID = {
    "full": "could not extend file: No space left on device' USING ERRCODE = '53100",
    "forbidden": "permission denied for table' USING ERRCODE = '42501",
}


def plain(url: str) -> str:
    """The URL as PostgreSQL has it."""
    return url.replace("+psycopg", "")


def refuse(engine: Engine, url: str, way: Way, monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on, the database of this engine's far store takes no row. SQLite's is full or read-only."""
    if url.endswith(".db"):
        _sqlite(way, monkeypatch)
    else:
        _postgres(url, way)
    assert engine._far is not None
    engine._far.store.close()  # a setting is met by the next connections


def _sqlite(way: Way, monkeypatch: pytest.MonkeyPatch) -> None:
    made = sqlite.SqliteSession.__init__

    def limited(session: sqlite.SqliteSession, path: str, deadline: float) -> None:
        made(session, path, deadline)
        if way == "full":
            [(pages,)] = session.run("PRAGMA page_count")
            session.run(f"PRAGMA max_page_count = {pages}")
        else:
            session.run("PRAGMA query_only = 1")

    monkeypatch.setattr(sqlite.SqliteSession, "__init__", limited)


def _postgres(url: str, way: Way) -> None:
    with psycopg.connect(plain(url), autocommit=True) as connection:
        if way == "read-only":
            connection.execute(f'ALTER DATABASE "{connection.info.dbname}" SET default_transaction_read_only = on')
        elif way == "no table":
            connection.execute(f"DROP TABLE {sql.TABLE}")
        else:
            connection.execute(
                f"CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION '{SAID[way]}'; "
                "END $$"
            )
            connection.execute(
                f"CREATE TRIGGER refuses BEFORE INSERT ON {sql.TABLE} FOR EACH STATEMENT EXECUTE FUNCTION refuse()"
            )
