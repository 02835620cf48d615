"""outbox: the transactional outbox of a database, and the relay that moves its rows to the engine."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from typing import TYPE_CHECKING

import click
import msgspec

from shardq.cli.logs import set_up_logging
from shardq.cli.options import Given, joined, shared, sharing
from shardq.cli.output import complain, say, tell
from shardq.cli.parsers import Decimal, Whole
from shardq.cli.serving import http, served
from shardq.cli.session import opened
from shardq.cli.signals import Ending
from shardq.engine import Engine
from shardq.engine.tables import counted
from shardq.errors import ShardqError
from shardq.outbox.rows import BATCH, DEDUP_S, MAX_BATCH, NAME

if TYPE_CHECKING:
    import sqlalchemy as sa

    from shardq.outbox import Outbox, OutboxRelay, RelayStats

STATUS_S = 10.0
"""Between two status lines of ``run``: they end up in a log."""

ONCE_S = 0.1
"""Between two steps of ``run --once`` while rows wait for something."""

DATABASE_ENVIRONMENT = "SHARDQ_DATABASE"

_quiet = sharing(url="Not used: the command talks to the database only.", name=None)

_named = sharing(
    url="The engine's server. It is not asked: only whether it is an embedded one is written.",
    name="The engine whose tasks the rows are; relays of another one are refused. Default: $SHARDQ_NAME, else that of "
    "the first relay.",
)


_of_table = joined(
    click.option("--table", default=NAME, metavar="NAME", help=f"The outbox's table. Default: {NAME}."),
    click.option("--schema", metavar="NAME", help="The table's schema. Default: the connection's own."),
)

_of_database = joined(
    click.option(
        "--database",
        required=True,
        envvar=DATABASE_ENVIRONMENT,
        metavar="URL",
        help=f"The database, as SQLAlchemy writes it. Default: ${DATABASE_ENVIRONMENT}.",
    ),
    _of_table,
)


@click.group(
    short_help="Move tasks from a database's outbox.",
    epilog="""\b
example:
  export SHARDQ_DATABASE=postgresql://app@127.0.0.1/shop
  shardq outbox create --name orders
  shardq outbox run --name orders
  shardq outbox status""",
)
def outbox() -> None:
    """Move tasks that were pushed in transactions of a database (`shardq.outbox.push`) to the engine, once committed.

    It needs SQLAlchemy and the database's driver: pip install 'shardq[sql]'.
    """


@outbox.command(
    short_help="Make the tables.",
    epilog="""\b
example:
  shardq outbox create --database postgresql://app@127.0.0.1/shop --name orders""",
)
@_of_database
@_named
def create(given: Given, database: str, table: str, schema: str | None) -> None:
    """Make the outbox's tables where they are not there yet, and write the engine's name into them if one is given.

    What is there already takes no lock, and no right to make tables. `shardq outbox sql` prints the same for a
    migration.
    """
    name = given.name or given.settings.get("name")
    with _opened_outbox(given, database, table, schema) as (source, chosen):
        chosen.create(source, engine=name and (_engine(given) if given.engine_url else name))
    given.answer({"table": str(chosen.table.fullname)}, f"the table {chosen.table.fullname} is there")


@outbox.command(short_help="Print the table's SQL.")
@click.option(
    "--dialect",
    type=click.Choice(["postgresql", "sqlite", "mysql"]),
    default="postgresql",
    help="Default: postgresql.",
)
@_of_table
def sql(dialect: str, table: str, schema: str | None) -> None:
    """Print the SQL that makes the outbox's table, to paste into a migration."""
    say(_outbox(table, schema).sql(dialect).rstrip())


@outbox.command(short_help="Count the rows that wait.")
@_of_database
@_quiet
def status(given: Given, database: str, table: str, schema: str | None) -> None:
    """Show how many committed rows wait to be moved, how long the oldest has waited, and how many were put aside."""
    from shardq.outbox.database import waiting

    with _opened_outbox(given, database, table, schema) as (source, chosen):
        seen = waiting(source, chosen)
    if given.json:
        fields = {"waiting": seen.rows, "oldest_s": seen.oldest_s, "failed": seen.failed}
        tell({"table": str(chosen.table.fullname), **fields})
        return
    waits = "none waits" if seen.oldest_s is None else f"{seen.rows:,} wait, the oldest for {seen.oldest_s:,.1f} s"
    say(waits + (f"; {seen.failed:,} were put aside" if seen.failed else ""))


@outbox.command(
    short_help="List what was put aside.",
    epilog="""\b
example:
  shardq outbox failed
  shardq outbox retry 17 18
  shardq outbox drop""",
)
@_of_database
@_quiet
def failed(given: Given, database: str, table: str, schema: str | None) -> None:
    """List the rows that were refused and put aside, each with its number, its id and the reason.

    They are kept until they are retried (`shardq outbox retry`) or dropped (`shardq outbox drop`).
    """
    from shardq.outbox.database import failed

    with _opened_outbox(given, database, table, schema) as (source, chosen):
        after = 0
        while page := failed(source, chosen, after):
            for row in page:
                after = row.seq
                when = dt.datetime.fromtimestamp(row.failed / 1000, dt.UTC).isoformat(timespec="seconds")
                if given.json:
                    fields = {"row": row.seq, "id": row.id, "kind": row.kind, "attempts": row.attempts}
                    tell(fields | {"refused": when, "reason": row.reason})
                else:
                    say(f"{when}  row {row.seq} {row.kind} {row.id}  {row.reason}")


_rows = click.argument("rows", type=Whole(1), nargs=-1, metavar="[ROW]...")


@outbox.command(short_help="Try again what was put aside.")
@_rows
@_of_database
@_quiet
def retry(given: Given, rows: tuple[int, ...], database: str, table: str, schema: str | None) -> None:
    """Let relays try the rows of these numbers again, or all that were put aside.

    Later rows of their ids have been moved meanwhile: a row that is put back comes after those.
    """
    from shardq.outbox.database import retry_failed

    with _opened_outbox(given, database, table, schema) as (source, chosen):
        count = retry_failed(source, chosen, rows)
    given.answer({"retried": count}, f"put back {counted(count, 'row')}, to be moved after later rows of the same ids")


@outbox.command(short_help="Remove what was put aside.")
@_rows
@_of_database
@_quiet
def drop(given: Given, rows: tuple[int, ...], database: str, table: str, schema: str | None) -> None:
    """Remove the rows of these numbers, or all that were put aside."""
    from shardq.outbox.database import drop_failed

    with _opened_outbox(given, database, table, schema) as (source, chosen):
        count = drop_failed(source, chosen, rows)
    given.answer({"dropped": count}, f"dropped {counted(count, 'row')}")


@outbox.command(
    short_help="Move rows until Ctrl-C.",
    epilog="""\b
example:
  shardq outbox run --database postgresql://app@127.0.0.1/shop --name orders
  shardq outbox run --http 0.0.0.0:9100           (metrics, and probes for Kubernetes)
  shardq outbox run --database sqlite:////srv/app.db --once""",
)
@_of_database
@click.option(
    "--batch", type=Whole(1, MAX_BATCH), default=BATCH, metavar="N", help=f"Rows of a step. Default: {BATCH}."
)
@click.option("--keep", is_flag=True, help="Keep moved rows, with the time of their move, instead of removing them.")
@click.option(
    "--dedup",
    type=Decimal(1),
    default=DEDUP_S,
    metavar="SECONDS",
    help="How long Redis remembers a moved task, against pushing it twice when a relay dies between the push and the "
    f"removal of the row. Default: {DEDUP_S:g}.",
)
@click.option("--once", is_flag=True, help="End when no row waits.")
@http
@shared
def run(
    given: Given,
    database: str,
    table: str,
    schema: str | None,
    batch: int,
    keep: bool,
    dedup: float,
    once: bool,
    http: str | None,
) -> int | None:
    """Move committed rows to the engine, until Ctrl-C or SIGTERM. Run as many as you like at once.

    The table knows its engine: the name of the first relay, or of `shardq outbox create --name`. A relay with another
    --name, or without the --url, is refused, and no row is moved.

    It neither polls nor handles tasks: that is the work of `shardq run` and of workers. Every ten seconds it prints its
    counters: rows moved, refused (the id was taken), tried again, put aside, and how far it is behind.
    """
    with _opened_outbox(given, database, table, schema) as (source, chosen):
        from shardq.outbox import OutboxRelay

        _check_engine(given, source, chosen)
        with opened(given, create=True) as engine, Ending() as ending:
            relay = OutboxRelay(engine, source, outbox=chosen, batch=batch, keep=keep, dedup=dedup)
            if once:
                _move_all(relay, ending)
            else:
                _move_until(relay, ending, given, http)
        _show(relay.stats(), given)
    return ending.code if once and ending.asked else None


def _check_engine(given: Given, source: sa.Engine, chosen: Outbox) -> None:
    """Refuses an engine that is not the table's, before one of a misspelt name is made."""
    import sqlalchemy as sa

    with suppress(sa.exc.DBAPIError), source.begin() as connection:  # the relay says it, and waits
        chosen.assign(connection, _engine(given))


def _engine(given: Given) -> Engine:
    return Engine(given.engine_url, name=given.engine_name)


def _move_all(relay: OutboxRelay, ending: Ending) -> None:
    with closing(relay):
        # Rows that another relay has, or whose next try is to come, wait on.
        while not ending.asked and (relay.step() or (relay.waiting().rows and not ending.wait(ONCE_S))):
            pass


def _move_until(relay: OutboxRelay, ending: Ending, given: Given, place: str | None) -> None:
    with relay, served(relay.engine, place, "relay"):
        while not ending.wait(STATUS_S):
            _show(relay.stats(), given)
    if not given.json:
        complain("stopped")


def _show(seen: RelayStats, given: Given) -> None:
    if given.json:
        tell(msgspec.structs.asdict(seen) | {"problem": seen.problem or None})
        return
    behind = f", {seen.oldest_s:,.1f} s behind" if seen.oldest_s else ""
    refused = f", refused {seen.refused:,}" if seen.refused else ""
    retried = f", tried again {seen.retried:,}" if seen.retried else ""
    failed = f", put aside {seen.failed:,}" if seen.failed else ""
    say(f"moved {seen.moved:,}{refused}{retried}{failed}{behind}" + (f"; {seen.problem}" if seen.problem else ""))


@contextmanager
def _opened_outbox(given: Given, database: str, table: str, schema: str | None) -> Iterator[tuple[sa.Engine, Outbox]]:
    """The database and its outbox. What goes wrong with the database is said in a line."""
    set_up_logging(verbose=given.verbose)
    chosen = _outbox(table, schema)
    import sqlalchemy as sa

    from shardq.outbox.database import open_database

    source = open_database(database)
    try:
        yield source, chosen
    except sa.exc.DBAPIError as exc:
        raise ShardqError(_said(exc, chosen)) from exc
    finally:
        source.dispose()


def _said(exc: sa.exc.DBAPIError, chosen: Outbox) -> str:
    from shardq.outbox.database import said

    text = said(exc)
    return f"{text}; `shardq outbox create` makes the table" if chosen.table.name in text else text


def _outbox(table: str, schema: str | None) -> Outbox:
    from shardq.outbox import Outbox  # here: it needs SQLAlchemy

    return Outbox(table, schema=schema)
