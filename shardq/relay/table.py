"""The outbox's table, and pushing into it within the caller's transaction. Nothing here talks to Redis."""

from __future__ import annotations

import datetime as dt
import sys
from collections.abc import Awaitable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar, Unpack, cast, overload

import sqlalchemy as sa
from sqlalchemy.dialects import mysql
from sqlalchemy.orm import Session, scoped_session
from sqlalchemy.schema import CreateIndex, CreateTable

from shardq.core.drivers.conversations import adrive, drive
from shardq.core.model.checks import MAX_PAYLOAD, check_name
from shardq.core.model.printable import quoted
from shardq.core.model.record import Codec
from shardq.core.model.task import Task
from shardq.core.model.task_options import PushOptions
from shardq.core.producer.packing import each_task
from shardq.engine.around import EngineAccess, checked_id, moved_due
from shardq.errors import BadInput, InvalidName, InvalidOption
from shardq.outbox.rows import (
    LONGEST_ID,
    LONGEST_NAME,
    NAME,
    Row,
    RowPacker,
    derived_name,
    has_trigger,
    make_owner,
    make_trigger,
)

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession, async_scoped_session

    Target = sa.Connection | Session | scoped_session[Any]
    AsyncTarget = AsyncConnection | AsyncSession | async_scoped_session[Any]

    from shardq.engine.around import EngineBase

    Owner: TypeAlias = EngineBase | str  # a name alone: of an engine that is not embedded

R = TypeVar("R")

Statements: TypeAlias = Generator[tuple[Any, ...], Any, R]
"""Yields each statement, with the rows of an insert beside it, and is resumed with its result."""

_BIG = sa.BigInteger().with_variant(sa.Integer, "sqlite")
"""SQLite numbers rows by itself in a column of type INTEGER only."""

_ID = sa.String(LONGEST_ID).with_variant(
    mysql.VARCHAR(LONGEST_ID, charset="utf8mb4", collation="utf8mb4_bin"), "mysql", "mariadb"
)
"""MySQL takes "a" and "A" for the same otherwise."""


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
        if len(table) > LONGEST_NAME:
            raise InvalidName(
                f"the table can't be {quoted(table)}: PostgreSQL would cut the name; use at most {LONGEST_NAME} "
                "characters"
            )
        metadata = sa.MetaData() if metadata is None else metadata
        self.table: sa.Table = sa.Table(
            table,
            metadata,
            sa.Column("seq", _BIG, sa.Identity(), primary_key=True, autoincrement=True),
            sa.Column("id", _ID, nullable=False),
            sa.Column("kind", sa.String(10), nullable=False, server_default="push"),
            sa.Column("due", sa.BigInteger, nullable=False),
            sa.Column("record", sa.LargeBinary(1 << 24), nullable=False),
            sa.Column("on_conflict", sa.String(8), nullable=False),
            sa.Column("dedup", sa.BigInteger, nullable=False),
            sa.Column("nonce", sa.BigInteger, nullable=False, server_default="0"),
            sa.Column("created", sa.BigInteger, nullable=False),
            # The relay that moves it, from its claim to its removal. None: it waits.
            sa.Column("claimed", sa.BigInteger),
            sa.Column("moved", sa.BigInteger),
            # Given in each insert, too: a table that Django made has no default.
            sa.Column("attempts", sa.Integer, nullable=False, default=0, server_default="0"),
            sa.Column("retry_at", sa.BigInteger),
            sa.Column("failed", sa.BigInteger),
            sa.Column("reason", sa.Text),
            # MySQL has no partial index, which the others have below. Rows there lie in the order of their keys.
            sa.UniqueConstraint("id", "seq").ddl_if(dialect="mysql"),
            sa.UniqueConstraint("moved", "seq").ddl_if(dialect="mysql"),
            schema=schema,
            sqlite_autoincrement=True,  # it would give the numbers of removed rows again
        )
        self.owner: sa.Table = sa.Table(
            derived_name(table, "engine"),
            metadata,
            sa.Column("one", sa.Integer, primary_key=True, autoincrement=False),
            sa.Column("name", sa.String(64), nullable=False),
            sa.Column("embedded", sa.Boolean, nullable=False),
            sa.Column("outbox", sa.String(32), nullable=False),
            sa.Column("beat", sa.BigInteger, nullable=False),
            sa.Column("shards", sa.Text),
            sa.Column("older", sa.Text),
            schema=schema,
        )
        """One row: the engine that the tasks belong to, its name empty before the first relay; and the beats."""
        column = self.table.c
        waiting = column.moved.is_(None) & column.reason.is_(None) & column.claimed.is_(None)
        self._index("waiting", [column.seq], waiting)
        self._index("claims", [column.claimed], column.moved.is_(None) & column.claimed.is_not(None))
        self._index("ids", [column.id, column.seq], column.moved.is_(None) & column.failed.is_(None))
        self._index("moved", [column.moved], column.moved.is_not(None))
        self._index("refused", [column.seq], column.moved.is_(None) & column.reason.is_not(None))
        self._packer = RowPacker(codec, max_payload=max_payload)

    def _index(self, name: str, columns: Sequence[sa.Column[Any]], where: sa.ColumnElement[bool]) -> None:
        sa.Index(derived_name(self.table.name, name), *columns, postgresql_where=where, sqlite_where=where)

    def __repr__(self) -> str:
        return f"<Outbox {self.table.fullname!r}>"

    @property
    def channel(self) -> str:
        """The channel on which PostgreSQL tells relays of new rows."""
        return self.table.name

    # ---- the table

    @overload
    def create(self, database: sa.Engine | sa.Connection, *, engine: Owner | None = None) -> None: ...

    @overload
    def create(self, database: AsyncEngine | AsyncConnection, *, engine: Owner | None = None) -> Awaitable[None]: ...

    def create(
        self, database: sa.Engine | sa.Connection | AsyncEngine | AsyncConnection, *, engine: Owner | None = None
    ) -> Awaitable[None] | None:
        """Makes the tables and the index, and on PostgreSQL the trigger that tells relays of rows, where missing. If
        all are there it only reads: it takes no lock, and needs no right to make tables.

        ``engine``: the engine whose tasks the rows are, or its name. Relays of another one are refused. Without it, the
        first relay writes its own.

        >>> shardq.outbox.create(database, engine="orders")
        """
        if isinstance(database, sa.Connection):
            self._create(database, engine)
        elif isinstance(database, sa.Engine):
            with database.begin() as connection:
                self._create(connection, engine)
        elif _is_async(database, "AsyncEngine", "AsyncConnection"):
            return self._create_async(database, engine)
        else:
            raise BadInput(
                f"the outbox can't be created in {type(database).__name__}; give a SQLAlchemy engine or connection"
            )
        return None

    async def _create_async(self, database: Any, engine: Owner | None) -> None:
        if _is_async(database, "AsyncConnection"):
            await database.run_sync(self._create, engine)
            return
        async with database.begin() as connection:
            await connection.run_sync(self._create, engine)

    def _create(self, connection: sa.Connection, engine: Owner | None) -> None:
        if not self._is_complete(connection):
            dialect = connection.dialect.name
            if dialect == "postgresql":
                # Two processes that create it at once: "if not exists" is not atomic there.
                connection.execute(sa.text("SELECT pg_advisory_xact_lock(:key)"), {"key": _LOCK})
            for made in self._made(dialect):
                connection.execute(made)
            for statement in self._others(dialect):
                connection.exec_driver_sql(statement)
        if engine is not None:
            self.assign(connection, engine)

    def _is_complete(self, connection: sa.Connection) -> bool:
        """True if nothing is to be made. It reads the catalog."""
        seen, dialect = sa.inspect(connection), connection.dialect.name
        name, schema = self.table.name, self.table.schema
        if not all(seen.has_table(each.name, schema) for each in (self.table, self.owner)):
            return False
        if not all(seen.has_index(name, str(index.name), schema) for index in self._indexes(dialect)):
            return False
        if connection.execute(sa.select(self.owner.c.one)).first() is None:
            return False
        found = has_trigger(dialect, name, schema)
        return found is None or connection.exec_driver_sql(found).first() is not None

    def assign(self, connection: sa.Connection, engine: Owner) -> None:
        """Writes whose tasks the rows are, unless that is written. Raises InvalidOption if they are another engine's.

        >>> with database.begin() as connection:
        ...     shardq.outbox.default_outbox.assign(connection, "orders")
        """
        name = engine if isinstance(engine, str) else engine.name
        embedded = not isinstance(engine, str) and EngineAccess(engine).options.is_embedded
        check_name(name)
        written = sa.select(self.owner.c.name, self.owner.c.embedded)
        found = connection.execute(written).first()
        if found is None:  # it was deleted: the rows are to have another engine
            connection.exec_driver_sql(make_owner(connection.dialect.name, self.owner.name, self.owner.schema))
        if found is None or not found.name:
            nobody = self.owner.c.name == ""  # still: another may write it at this moment
            connection.execute(self.owner.update().where(nobody).values(name=name, embedded=embedded))
            found = connection.execute(written).one()
        if found.name == name and found.embedded == embedded:
            return
        is_of = f"the outbox {self.table.fullname} belongs to the engine {found.name!r}"
        if found.name != name:
            wrong = f"{is_of}, and can't be moved to {name!r}: give that name (--name {found.name})"
        elif embedded:
            wrong = f"{is_of} of a server with a URL, and no URL is given: give it (--url or $SHARDQ_URL)"
        else:
            wrong = f"{is_of} of an embedded server, and can't be moved to one with a URL: give none, or embedded://"
        raise InvalidOption(
            f"{wrong}; if the table is to have another engine, delete the row of {self.owner.fullname} first"
        )

    def sql(self, dialect: str = "postgresql") -> str:
        """Returns the SQL of ``create``, to paste into a migration."""
        try:
            compiler = sa.create_mock_engine(f"{dialect}://", lambda *_, **__: None).dialect
        except sa.exc.NoSuchModuleError as exc:
            raise BadInput(f"there is no SQL dialect {dialect!r}; use postgresql, sqlite or mysql") from exc
        statements = [str(made.compile(dialect=compiler)).strip() for made in self._made(dialect)]
        return ";\n".join([*statements, *self._others(dialect)]) + ";\n"

    def _made(self, dialect: str) -> Sequence[CreateTable | CreateIndex]:
        tables = [CreateTable(each, if_not_exists=True) for each in (self.table, self.owner)]
        return [*tables, *(CreateIndex(index, if_not_exists=True) for index in self._indexes(dialect))]

    def _indexes(self, dialect: str) -> Iterable[sa.Index]:
        return self.table.indexes if dialect in ("postgresql", "sqlite") else ()

    def _others(self, dialect: str) -> Sequence[str]:
        table, schema = self.table.name, self.table.schema
        return make_owner(dialect, self.owner.name, schema), *make_trigger(dialect, table, schema)

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
        return self._executed(target, self._inserting([row], row["id"]))

    @overload
    def push_many(self, target: Target, tasks: Iterable[Task]) -> list[str]: ...

    @overload
    def push_many(self, target: AsyncTarget, tasks: Iterable[Task]) -> Awaitable[list[str]]: ...

    def push_many(self, target: Target | AsyncTarget, tasks: Iterable[Task]) -> list[str] | Awaitable[list[str]]:
        """Pushes many tasks in the transaction of a session or connection. Returns their ids, in order."""
        rows = self._packer.pack_all(each_task(tasks))
        return self._executed(target, self._inserting(rows, [row["id"] for row in rows]))

    def _inserting(self, rows: list[Row], result: R) -> Statements[R]:
        if rows:
            yield self.table.insert(), rows
        return result

    # ---- by id

    @overload
    def cancel(self, target: Target, id: str) -> bool: ...

    @overload
    def cancel(self, target: AsyncTarget, id: str) -> Awaitable[bool]: ...

    def cancel(self, target: Target | AsyncTarget, id: str) -> bool | Awaitable[bool]:
        """Cancels a task in the transaction of a session or connection; to be awaited if they are async. Returns True
        if a push of the id was still here: it is taken back.

        A row of its own has the relay cancel what the engine may hold under the id, after the earlier rows of the id.
        Its outcome is not told. With a rollback nothing was cancelled.

        >>> id = shardq.outbox.push(session, {"order": 42}, delay=1800)
        >>> shardq.outbox.cancel(session, id)
        """
        row = self._packer.order("cancel", checked_id(id))
        return self._executed(target, self._order(row))

    @overload
    def reschedule(
        self,
        target: Target,
        id: str,
        *,
        delay: float | dt.timedelta | None = None,
        at: float | dt.datetime | None = None,
    ) -> bool: ...

    @overload
    def reschedule(
        self,
        target: AsyncTarget,
        id: str,
        *,
        delay: float | dt.timedelta | None = None,
        at: float | dt.datetime | None = None,
    ) -> Awaitable[bool]: ...

    def reschedule(
        self,
        target: Target | AsyncTarget,
        id: str,
        *,
        delay: float | dt.timedelta | None = None,
        at: float | dt.datetime | None = None,
    ) -> bool | Awaitable[bool]:
        """Gives a task another due time, as ``cancel`` cancels one. Returns True if a push of the id was still here: it
        has the new time. ``delay`` counts from now.

        >>> shardq.outbox.reschedule(session, id, delay=60)
        """
        row = self._packer.order("reschedule", checked_id(id), moved_due(delay, at))
        return self._executed(target, self._order(row))

    def _order(self, row: Row) -> Statements[bool]:
        """The statements of a cancel or a reschedule."""
        column = self.table.c
        waits = (
            column.id == row["id"],
            column.kind == "push",
            column.moved.is_(None),
            column.failed.is_(None),
            column.claimed.is_(None),
        )
        # What a relay is just moving is claimed, or locked for the moment of its claim. It is left to the row.
        found = yield (sa.select(column.seq, column.id).where(*waits).with_for_update(skip_locked=True),)
        # A database's collation may take two ids for one.
        chosen = column.seq.in_(seqs := [each.seq for each in found.all() if each.id == row["id"]])
        if seqs and row["kind"] == "cancel":
            yield (self.table.delete().where(chosen),)
        elif seqs:
            yield (self.table.update().where(chosen).values(due=row["due"]),)
        # A push that is here may be in the engine, too, if a relay has died before it removed the row.
        yield (self.table.insert().values(row),)
        return bool(seqs)

    def _executed(self, target: Target | AsyncTarget, statements: Statements[R]) -> R | Awaitable[R]:
        """Executes them in the transaction of a session or connection; to be awaited if that is async."""
        if _is_async(target, "AsyncConnection", "AsyncSession", "async_scoped_session"):
            return self._executed_async(cast("AsyncTarget", target), statements)
        if not isinstance(target, sa.Connection | Session | scoped_session):
            raise BadInput(
                f"the outbox can't push into {type(target).__name__}; give the SQLAlchemy session or connection whose "
                "transaction the task belongs to"
            )
        with self._bound():
            return drive(statements, lambda step: target.execute(*step))

    async def _executed_async(self, target: AsyncTarget, statements: Statements[R]) -> R:
        with self._bound():
            return await adrive(statements, lambda step: target.execute(*step))

    @contextmanager
    def _bound(self) -> Iterator[None]:
        try:
            yield
        except sa.exc.UnboundExecutionError as exc:
            name = "shardq.outbox.table" if self.table.name == NAME else "that of your Outbox, its .table,"
            raise BadInput(
                f"the session has no bind for the table {self.table.fullname}; add {name} to binds=, with the database "
                "of the rows that are written together with the task"
            ) from exc


def _is_async(value: object, *names: str) -> bool:
    """True if it is of one of these classes of SQLAlchemy's asyncio part. That part needs greenlet, which programs of
    threads may lack, so it is not imported here: without it there is no such value.
    """
    found = sys.modules.get("sqlalchemy.ext.asyncio")
    return found is not None and isinstance(value, tuple(getattr(found, name) for name in names))


_LOCK = 0x7368617264  # "shard"

default_outbox: Outbox = Outbox()
"""The table ``shardq_outbox``, payloads as JSON. ``shardq.outbox`` has its functions."""

table: sa.Table = default_outbox.table
create: Final = default_outbox.create
sql: Final = default_outbox.sql
push: Final = default_outbox.push
cancel: Final = default_outbox.cancel
reschedule: Final = default_outbox.reschedule
push_many: Final = default_outbox.push_many
