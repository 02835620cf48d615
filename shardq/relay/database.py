"""The relay's and the command's side of the database: opening it, and counting what waits in it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from shardq.core.layout.words import number_of
from shardq.core.model.checks import now_ms
from shardq.errors import BadInput, MissingPackage
from shardq.relay.table import Outbox

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


PAGE_ROWS = 1000  # rows that are listed together

_PACKAGES = {"psycopg": "'psycopg[binary]'"}


def said(exc: BaseException) -> str:
    """The cause of an error, in a line. SQLAlchemy's own text has the statement and its parameters."""
    cause = exc.orig if isinstance(exc, sa.exc.DBAPIError) and exc.orig is not None else exc
    first = str(cause).strip().partition("\n")[0] or type(cause).__name__
    return f"the database says: {first}" if cause is not exc else first


@dataclass(frozen=True, slots=True)
class Waiting:
    """The rows of an outbox that wait to be moved, and those that were put aside."""

    rows: int
    sent: int
    """Those of them that a relay has claimed: it moves them, or has sent them and waits for the confirmation."""
    oldest_s: float | None
    """The seconds that the oldest of them has waited, by this machine's clock; None if there is none."""
    failed: int
    """Rows that were refused, and are kept until they are retried or dropped."""


def waiting(database: sa.Engine, outbox: Outbox) -> Waiting:
    table = outbox.table
    waits = (table.c.moved.is_(None), table.c.failed.is_(None))
    with database.connect() as connection:
        rows, sent, oldest = connection.execute(
            sa.select(sa.func.count(), sa.func.count(table.c.claimed), sa.func.min(table.c.created)).where(*waits)
        ).one()
        failed = connection.execute(sa.select(sa.func.count()).where(*_put_aside(table))).scalar_one()
    return Waiting(rows, sent, None if oldest is None else max(0, now_ms() - number_of(oldest)) / 1000, failed)


def failed(database: sa.Engine, outbox: Outbox, after: int = 0) -> Sequence[sa.Row[Any]]:
    """A page of the rows that were put aside, after this number: seq, kind, id, attempts, failed (ms), reason."""
    table = outbox.table
    columns = (table.c[name] for name in ("seq", "kind", "id", "attempts", "failed", "reason"))
    select = sa.select(*columns).where(*_put_aside(table), table.c.seq > after).order_by(table.c.seq).limit(PAGE_ROWS)
    with database.connect() as connection:
        return connection.execute(select).all()


def retry_failed(database: sa.Engine, outbox: Outbox, seqs: Collection[int] = ()) -> int:
    """Lets relays try rows again that were put aside: these, or all. Returns their number."""
    values = {"attempts": 0, "retry_at": None, "failed": None, "reason": None}
    return _change(database, outbox.table.update().values(values), outbox, seqs)


def drop_failed(database: sa.Engine, outbox: Outbox, seqs: Collection[int] = ()) -> int:
    """Removes rows that were put aside: these, or all. Returns their number."""
    return _change(database, outbox.table.delete(), outbox, seqs)


def _change(database: sa.Engine, statement: Any, outbox: Outbox, seqs: Collection[int]) -> int:
    statement = statement.where(*_put_aside(outbox.table))
    if seqs:
        statement = statement.where(outbox.table.c.seq.in_(seqs))
    with database.begin() as connection:
        return int(connection.execute(statement).rowcount)


def _put_aside(table: sa.Table) -> tuple[sa.ColumnElement[bool], ...]:
    return table.c.moved.is_(None), table.c.reason.is_not(None), table.c.failed.is_not(None)
