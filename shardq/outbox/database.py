"""The relay's and the command's side of the database: opening it, and counting what waits in it."""

from __future__ import annotations

import time
from dataclasses import dataclass

import sqlalchemy as sa

from shardq.errors import BadInput, MissingPackage
from shardq.outbox.tables import Outbox

_DRIVERS = {
    "postgresql": "postgresql+psycopg",
    "postgresql+asyncpg": "postgresql+psycopg",
    "sqlite+aiosqlite": "sqlite",
    "mysql+aiomysql": "mysql+pymysql",
    "mysql+asyncmy": "mysql+pymysql",
}
"""Names of drivers as applications have them in their settings → the one that a relay uses: it runs in a thread."""


def open_database(url: str | sa.URL) -> sa.Engine:
    """A database by the URL that an application has, also where that names an asyncio driver."""
    try:
        asked = sa.make_url(url)
    except sa.exc.ArgumentError as exc:
        raise BadInput(
            "that is no URL of a database; give one as SQLAlchemy takes it, such as "
            "postgresql://user@host/name or sqlite:////path/to/file"
        ) from exc
    chosen = asked.set(drivername=_DRIVERS.get(asked.drivername, asked.drivername))
    try:
        return sa.create_engine(chosen, pool_pre_ping=True)
    except sa.exc.NoSuchModuleError as exc:
        raise BadInput(f"SQLAlchemy knows no database {asked.drivername!r}; use postgresql, sqlite or mysql") from exc
    except ModuleNotFoundError as exc:
        raise MissingPackage(
            f"{chosen.drivername} needs the package {exc.name!r}: pip install {_PACKAGES.get(exc.name or '', exc.name)}"
        ) from exc


_PACKAGES = {"psycopg": "'psycopg[binary]'"}


def said(exc: BaseException) -> str:
    """The cause of an error, in a line. SQLAlchemy's own text has the statement and its parameters."""
    cause = exc.orig if isinstance(exc, sa.exc.DBAPIError) and exc.orig is not None else exc
    first = str(cause).strip().partition("\n")[0] or type(cause).__name__
    return f"the database says: {first}" if cause is not exc else first


@dataclass(frozen=True, slots=True)
class Waiting:
    """The rows of an outbox that wait to be moved."""

    rows: int
    oldest_s: float | None
    """The seconds that the oldest of them has waited, by this machine's clock; None if there is none."""


def waiting(database: sa.Engine, outbox: Outbox) -> Waiting:
    table = outbox.table
    select = sa.select(sa.func.count(), sa.func.min(table.c.created)).where(table.c.moved.is_(None))
    with database.connect() as connection:
        rows, oldest = connection.execute(select).one()
    return Waiting(rows, None if oldest is None else max(0.0, time.time() - oldest / 1000))
