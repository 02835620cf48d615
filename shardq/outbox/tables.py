"""The outbox's table, and pushing into it within the caller's transaction. Nothing here talks to Redis."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, Unpack, cast, overload

import sqlalchemy as sa
from sqlalchemy.orm import Session, scoped_session
from sqlalchemy.schema import CreateIndex, CreateTable

from shardq.errors import BadInput
from shardq.model.checks import MAX_PAYLOAD, check_name
from shardq.model.record import Codec
from shardq.model.task import PushOptions, Task
from shardq.outbox.rows import NAME, Row, RowPacker
from shardq.outbox.triggers import make_trigger
from shardq.producer.packing import each_task

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession, async_scoped_session

    Target = sa.Connection | Session | scoped_session[Any]
    AsyncTarget = AsyncConnection | AsyncSession | async_scoped_session[Any]

R = TypeVar("R")

_BIG = sa.BigInteger().with_variant(sa.Integer, "sqlite")
"""SQLite numbers rows by itself in a column of type INTEGER only."""


class Outbox:
    """One outbox: a table, and the codec of its payloads. The functions of ``shardq.outbox`` belong to a default one.

    Give ``metadata`` to have the table among those of your own, as Alembic's autogenerate wants it.
    """

    def __init__(
        self,
        table: str = NAME,
        *,
        metadata: sa.MetaData | None = None,
        schema: str | None = None,
        codec: str | Codec = "json",
        max_payload: int = MAX_PAYLOAD,
    ) -> None:
        check_name(table, of="table")
        self.table = sa.Table(
            table,
            sa.MetaData() if metadata is None else metadata,
            sa.Column("seq", _BIG, sa.Identity(), primary_key=True, autoincrement=True),
            sa.Column("id", sa.String(330), nullable=False),
            sa.Column("due", sa.BigInteger, nullable=False),
            sa.Column("record", sa.LargeBinary(1 << 24), nullable=False),
            sa.Column("on_conflict", sa.String(8), nullable=False),
            sa.Column("dedup", sa.BigInteger, nullable=False),
            sa.Column("created", sa.BigInteger, nullable=False),
            sa.Column("moved", sa.BigInteger),
            schema=schema,
        )
        waiting = self.table.c.moved.is_(None)
        sa.Index(f"{table}_waiting", self.table.c.seq, postgresql_where=waiting, sqlite_where=waiting)
        self._packer = RowPacker(codec, max_payload=max_payload)

    def __repr__(self) -> str:
        return f"<Outbox {self.table.fullname!r}>"

    @property
    def channel(self) -> str:
        """The channel on which PostgreSQL tells relays of new rows."""
        return self.table.name

    # ---- the table

    @overload
    def create(self, database: sa.Engine | sa.Connection) -> None: ...

    @overload
    def create(self, database: AsyncEngine | AsyncConnection) -> Awaitable[None]: ...

    def create(self, database: sa.Engine | sa.Connection | AsyncEngine | AsyncConnection) -> Awaitable[None] | None:
        """Makes the table and its index, and on PostgreSQL the trigger that tells relays of rows, where missing."""
        if isinstance(database, sa.Connection):
            self._create(database)
        elif isinstance(database, sa.Engine):
            with database.begin() as connection:
                self._create(connection)
        elif _is_async(database, "AsyncEngine", "AsyncConnection"):
            return self._create_async(database)
        else:
            raise BadInput(
                f"the outbox can't be created in {type(database).__name__}; give a SQLAlchemy engine or connection"
            )
        return None

    async def _create_async(self, database: Any) -> None:
        if _is_async(database, "AsyncConnection"):
            await database.run_sync(self._create)
            return
        async with database.begin() as connection:
            await connection.run_sync(self._create)

    def _create(self, connection: sa.Connection) -> None:
        if connection.dialect.name == "postgresql":
            # Two processes that create it at once: "if not exists" is not atomic there.
            connection.execute(sa.text("SELECT pg_advisory_xact_lock(:key)"), {"key": _LOCK})
        for made in self._made(connection.dialect.name):
            connection.execute(made)
        for statement in self._trigger(connection.dialect.name):
            connection.exec_driver_sql(statement)

    def sql(self, dialect: str = "postgresql") -> str:
        """Returns the SQL of ``create``, to paste into a migration."""
        try:
            compiler = sa.create_mock_engine(f"{dialect}://", lambda *_, **__: None).dialect
        except sa.exc.NoSuchModuleError as exc:
            raise BadInput(f"there is no SQL dialect {dialect!r}; use postgresql, sqlite or mysql") from exc
        statements = [str(made.compile(dialect=compiler)).strip() for made in self._made(dialect)]
        return ";\n".join([*statements, *self._trigger(dialect)]) + ";\n"

    def _made(self, dialect: str) -> Sequence[CreateTable | CreateIndex]:
        table = CreateTable(self.table, if_not_exists=True)
        # MySQL has no partial index, and needs none: its rows lie in the order of their keys.
        indexes = self.table.indexes if dialect in ("postgresql", "sqlite") else ()
        return [table, *(CreateIndex(index, if_not_exists=True) for index in indexes)]

    def _trigger(self, dialect: str) -> Sequence[str]:
        return make_trigger(dialect, self.table.name, self.table.schema)

    # ---- pushing

    @overload
    def push(self, target: Target, payload: Any, **options: Unpack[PushOptions]) -> str: ...

    @overload
    def push(self, target: AsyncTarget, payload: Any, **options: Unpack[PushOptions]) -> Awaitable[str]: ...

    def push(self, target: Target | AsyncTarget, payload: Any, **options: Unpack[PushOptions]) -> str | Awaitable[str]:
        """Pushes a task in the transaction of a session or connection. Returns its id; to be awaited if they are async.

        It takes the options of ``Engine.push``, without ``durability``: the database keeps the task. The relay pushes
        it once the transaction is committed. ``delay`` counts from now.
        """
        row = self._packer.pack_one(payload, options)
        if _is_async(target, "AsyncConnection", "AsyncSession", "async_scoped_session"):
            return self._push_async(cast("AsyncTarget", target), [row], row["id"])
        self._executor(target).execute(self.table.insert(), [row])
        return row["id"]

    @overload
    def push_many(self, target: Target, tasks: Iterable[Task]) -> list[str]: ...

    @overload
    def push_many(self, target: AsyncTarget, tasks: Iterable[Task]) -> Awaitable[list[str]]: ...

    def push_many(self, target: Target | AsyncTarget, tasks: Iterable[Task]) -> list[str] | Awaitable[list[str]]:
        """Pushes many tasks in the transaction of a session or connection. Returns their ids, in order."""
        rows = self._packer.pack_all(each_task(tasks))
        ids = [row["id"] for row in rows]
        if _is_async(target, "AsyncConnection", "AsyncSession", "async_scoped_session"):
            return self._push_async(cast("AsyncTarget", target), rows, ids)
        if rows:
            self._executor(target).execute(self.table.insert(), rows)
        return ids

    async def _push_async(self, target: AsyncTarget, rows: list[Row], result: R) -> R:
        if rows:
            await target.execute(self.table.insert(), rows)
        return result

    def _executor(self, target: object) -> Any:
        if isinstance(target, sa.Connection | Session | scoped_session):
            return target
        raise BadInput(
            f"the outbox can't push into {type(target).__name__}; give the SQLAlchemy session or connection whose "
            "transaction the task belongs to"
        )


def _is_async(value: object, *names: str) -> bool:
    """True if it is of one of these classes of SQLAlchemy's asyncio part. That part needs greenlet, which programs of
    threads may lack, so it is not imported here: without it there is no such value.
    """
    found = sys.modules.get("sqlalchemy.ext.asyncio")
    return found is not None and isinstance(value, tuple(getattr(found, name) for name in names))


_LOCK = 0x7368617264  # "shard"
