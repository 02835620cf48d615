"""Which database a URL means."""

from __future__ import annotations

from urllib.parse import unquote

from shardq.core.model.printable import quoted
from shardq.errors import InvalidUrl
from shardq.features.cold.store import Store


def open_store(url: str) -> Store:
    """The store of a URL: ``postgresql://…``, ``sqlite:///path``, or a file's path. It connects when it is used."""
    scheme = url.partition("://")[0].partition("+")[0] if "://" in url else ""
    if scheme in ("postgresql", "postgres"):
        from shardq.features.cold.postgres import PostgresStore  # here: it needs psycopg

        return PostgresStore(url)
    from shardq.features.cold.sqlite import SqliteStore  # here: it brings sqlite3

    if scheme == "sqlite":
        path = unquote(url.partition(":///")[2])
        if not path:
            raise InvalidUrl(f"cold={quoted(url)} names no file; write sqlite:////absolute/path, or the path alone")
        return SqliteStore(path)
    if scheme:
        raise InvalidUrl(
            f"cold= can't be a URL of the kind {quoted(scheme)}; give postgresql://user@host/database, or the path of "
            "an SQLite file"
        )
    return SqliteStore(url)
