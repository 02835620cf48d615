"""outbox: the transactional outbox of a database, and the relay that moves its rows to the engine."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click
import msgspec

from shardq import Engine
from shardq.cli.options import INSTANT, Decimal, Given, Whole, command, joined, packed, shared, sharing
from shardq.cli.output import complain, say, set_up_logging
from shardq.cli.serving import Ending, http, served
from shardq.cli.session import opened
from shardq.core.layout.words import number_of
from shardq.core.model.checks import instant_ms, shown_instant
from shardq.engine.around import EngineAccess, Target, counted
from shardq.errors import ShardqError
from shardq.outbox.rows import BATCH, DEDUP_S, KEEP_S, MAX_BATCH, NAME

if TYPE_CHECKING:
    import sqlalchemy as sa

    from shardq.outbox import Outbox, RelayStats

STATUS_S = 10.0
"""Between two status lines of ``run``: they end up in a log."""

ONCE_S = 0.1
"""Between two steps of ``run --once`` while rows wait for something."""


@dataclass(frozen=True)
class Place:
    """The outbox that the options name."""

    table: str
    schema: str | None
    database: str = ""

    @property
    def outbox(self) -> Outbox:
        from shardq.outbox import Outbox  # here: it needs SQLAlchemy

        return Outbox(self.table, schema=self.schema)

    @contextmanager
    def opened(self, given: Given) -> Iterator[tuple[sa.Engine, Outbox]]:
        """Opens the database. What goes wrong with it is said in a line."""
        set_up_logging(verbose=given.verbose)
        chosen = self.outbox
        import sqlalchemy as sa

        from shardq.relay.database import open_database, said

        source = open_database(self.database)
        try:
            yield source, chosen
        except sa.exc.DBAPIError as exc:
            hint = "; `shardq outbox create` makes the table" if self.table in said(exc) else ""
            raise ShardqError(said(exc) + hint) from exc
        finally:
            source.dispose()


_table = joined(
    click.option("--table", default=NAME, metavar="NAME", help=f"The outbox's table. Default: {NAME}."),
    click.option("--schema", metavar="NAME", help="The table's schema. Default: the connection's own."),
)

_database = click.option(
    "--database",
    required=True,
    envvar="SHARDQ_DATABASE",
    metavar="URL",
    help="The database, as SQLAlchemy writes it. Default: $SHARDQ_DATABASE.",
)

_placed = packed("place", Place, _database, _table)

_quiet = sharing(url="Not used: the command talks to the database only.")

_named = sharing(
    url="The engine's server. It is not asked: only whether it is an embedded one is written.",
    name="The engine whose tasks the rows are; relays of another one are refused. Default: $SHARDQ_NAME, else that of "
    "the first relay.",
)

_rows = click.argument("rows", type=Whole(1), nargs=-1, metavar="[ROW]...")


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


@command("Make the tables.", of=outbox)
@_placed
@_named
def create(given: Given, place: Place) -> None:
    """Make the outbox's tables if they do not exist, and store the engine's name in them if you give one.

    If the tables exist, this takes no lock and needs no right to make tables. `shardq outbox sql` prints the same
    for a migration.

    example:
      shardq outbox create --database postgresql://app@127.0.0.1/shop --name orders
    """
    name = given.name or given.settings.get("name")
    with place.opened(given) as (source, chosen):
        chosen.create(source, engine=name and (_engine(given) if given.engine_url else name))
    given.answer({"table": str(chosen.table.fullname)}, f"the table {chosen.table.fullname} is there")


@command("Print the table's SQL.", of=outbox)
@click.option(
    "--dialect", type=click.Choice(["postgresql", "sqlite", "mysql"]), default="postgresql", show_default=True
)
@packed("place", Place, _table)
def sql(dialect: str, place: Place) -> None:
    """Print the SQL that makes the outbox's table, to paste into a migration."""
    say(place.outbox.sql(dialect).rstrip())


@command("Count the rows that wait.", of=outbox)
@_placed
@_quiet
def status(given: Given, place: Place) -> None:
    """Show how many committed rows wait, how long the oldest has waited, how many were put aside, and whether Redis
    came back older than the outbox.

    Of those that wait, some may have been sent: they leave when the servers' replicas and disks have their tasks.
    """
    from shardq.relay.beats import TableBeats
    from shardq.relay.database import waiting

    with place.opened(given) as (source, chosen):
        seen = waiting(source, chosen)
        with source.connect() as connection:
            missing = TableBeats(lambda: connection, chosen).missing()
    waits = "none waits" if seen.oldest_s is None else f"{seen.rows:,} wait, the oldest for {seen.oldest_s:,.1f} s"
    waits += f"; {seen.sent:,} of them were sent, and are not confirmed" if seen.sent else ""
    fields = {"waiting": seen.rows, "sent": seen.sent, "oldest_s": seen.oldest_s, "failed": seen.failed}
    aside = f"; {seen.failed:,} were put aside" if seen.failed else ""
    told = {"table": str(chosen.table.fullname), **fields, "missing": missing or None}
    given.answer(told, waits + aside + (f"; {missing}" if missing else ""))


@command("List the rows that were put aside.", of=outbox)
@_placed
@_quiet
def failed(given: Given, place: Place) -> None:
    """List the rows that were refused and put aside, with number, id and reason.

    They stay until you retry them (`shardq outbox retry`) or drop them (`shardq outbox drop`).

    example:
      shardq outbox failed
      shardq outbox retry 17 18
      shardq outbox drop
    """
    from shardq.relay.database import failed

    with place.opened(given) as (source, chosen):
        after = 0
        while page := failed(source, chosen, after):
            for row in page:
                after = row.seq
                when = shown_instant(number_of(row.failed)).isoformat(timespec="seconds")
                fields = {"row": row.seq, "id": row.id, "kind": row.kind, "attempts": row.attempts}
                text = f"{when}  row {row.seq} {row.kind} {row.id}  {row.reason}"
                given.answer(fields | {"refused": when, "reason": row.reason}, text)


@command("Try rows again that were put aside.", of=outbox)
@_rows
@_placed
@_quiet
def retry(given: Given, rows: tuple[int, ...], place: Place) -> None:
    """Let relays try the rows with these numbers again, or all that were put aside.

    Later rows with the same ids have been moved meanwhile: a row that is tried again comes after them.
    """
    from shardq.relay.database import retry_failed

    with place.opened(given) as (source, chosen):
        count = retry_failed(source, chosen, rows)
    given.answer({"retried": count}, f"put back {counted(count, 'row')}, to be moved after later rows of the same ids")


@command("Remove rows that were put aside.", of=outbox)
@_rows
@_placed
@_quiet
def drop(given: Given, rows: tuple[int, ...], place: Place) -> None:
    """Remove the rows with these numbers, or all that were put aside."""
    from shardq.relay.database import drop_failed

    with place.opened(given) as (source, chosen):
        count = drop_failed(source, chosen, rows)
    given.answer({"dropped": count}, f"dropped {counted(count, 'row')}")


@command("Move kept rows again, after Redis was restored.", of=outbox)
@click.option("--since", type=INSTANT, required=True, help="2030-01-31T12:00:00Z, or seconds since 1970.")
@_placed
@shared
def again(given: Given, place: Place, since: float | dt.datetime) -> None:
    """Let relays move rows once more that were moved since an instant, and are still kept (`--keep` of the relays).

    Use it if Redis was restored from an older snapshot: relays, `shardq outbox status` and `shardq health` tell the
    instant. Only rows of shards that came back older are moved, or all if no relay has seen one. Each is carried out
    once, as long as Redis has its task, or remembers its number. A task that was handled before the snapshot, and after
    the instant, runs again.

    example:
      shardq outbox again --since 2030-01-31T12:00:00Z --name orders
    """
    from shardq.relay.beats import TableBeats

    with place.opened(given) as (source, chosen), _servers(given) as servers, source.connect() as connection:
        count = TableBeats(lambda: connection, chosen).again(instant_ms(since), servers.topology())
    given.answer({"again": count}, f"{counted(count, 'row')} to be moved again")


@command("Go on after the database was restored.", of=outbox)
@click.option(
    "--drop-before",
    type=INSTANT,
    help="Rows that wait and were stored before this instant count as moved: 2030-01-31T12:00:00Z, or seconds since "
    "1970.",
)
@click.option("--move-again", is_flag=True, help="Move all rows that wait, also those that were moved already.")
@_placed
@shared
def accept(given: Given, place: Place, drop_before: float | dt.datetime | None, move_again: bool) -> None:
    """Let relays go on that stopped as the database came back older than Redis. They tell the instant until which
    rows were moved.

    Of rows that were moved, Redis still knows those whose tasks wait, and all of the last ten minutes (`--dedup` of the
    relays). The others run twice with --move-again. With --drop-before, what relays that were behind had not moved by
    then is dropped, too; it stays in the table as long as moved rows do.

    example:
      shardq outbox accept --drop-before 2030-01-31T12:00:00Z --name orders
      shardq outbox accept --move-again --name orders
    """
    if (drop_before is not None) is move_again:
        raise click.UsageError("give either --drop-before INSTANT or --move-again")
    from shardq.relay.beats import TableBeats
    from shardq.relay.witness import asked_beats

    with place.opened(given) as (source, chosen), _servers(given) as servers, source.connect() as connection:
        beats = TableBeats(lambda: connection, chosen)
        found = asked_beats(servers, beats.beats().outbox)
        before_ms = None if drop_before is None else instant_ms(drop_before)
        count = beats.accept(max(found.values(), default=0), before_ms)
    given.answer({"dropped": count}, f"relays go on; {counted(count, 'row')} dropped")


@command("Move rows until Ctrl-C.", of=outbox)
@_placed
@click.option("--batch", type=Whole(1, MAX_BATCH), default=BATCH, help=f"Rows of a step. Default: {BATCH}.")
@click.option(
    "--keep",
    type=Decimal(0),
    default=KEEP_S,
    metavar="SECONDS",
    help="How long moved rows stay in the table, so that `shardq outbox again` can have them moved again if Redis is "
    f"restored from an older snapshot. 0 removes them at once. Default: {KEEP_S:g}.",
)
@click.option(
    "--dedup",
    type=Decimal(1),
    default=DEDUP_S,
    metavar="SECONDS",
    help="How long Redis remembers a moved task, so that it is not pushed twice if a relay dies between the push and "
    f"the removal of the row. Default: {DEDUP_S:g}.",
)
@click.option("--once", is_flag=True, help="End when no row waits.")
@http
@shared
def run(given: Given, place: Place, batch: int, keep: float, dedup: float, once: bool, http: str | None) -> int | None:
    """Move committed rows to the engine, until Ctrl-C or SIGTERM. Run as many relays as you like at once.

    The table knows its engine: it stores the name from the first relay, or from `shardq outbox create --name`. A
    relay with another --name, or without the --url, is refused, and moves no row.

    A relay does not dispatch or handle tasks: `shardq run` and workers do. Every ten seconds it prints its
    counters: rows moved, refused (the id was taken), tried again, put aside, and how far it is behind.

    example:
      shardq outbox run --database postgresql://app@127.0.0.1/shop --name orders
      shardq outbox run --http 0.0.0.0:9100           (metrics, and probes for Kubernetes)
      shardq outbox run --database sqlite:////srv/app.db --once
    """
    with place.opened(given) as (source, chosen):
        import sqlalchemy as sa

        from shardq.outbox import OutboxRelay

        # before an engine of a misspelt name is made; what is wrong with the database the relay says, and waits
        with suppress(sa.exc.DBAPIError), source.begin() as connection:
            chosen.assign(connection, _engine(given))
        with opened(given, create=True) as engine, Ending() as ending:
            relay = OutboxRelay(engine, source, outbox=chosen, batch=batch, keep=keep, dedup=dedup)
            if once:
                with closing(relay):
                    # rows that another relay has, or whose next try is to come, wait on
                    while not ending.asked and (relay.step() or (relay.waiting().rows and not ending.wait(ONCE_S))):
                        pass
            else:
                with relay, served(engine, http, "relay"):
                    while not ending.wait(STATUS_S):
                        _show(relay.stats(), given)
                if not given.json:
                    complain("stopped")
        _show(relay.stats(), given)
    return ending.code if once and ending.asked else None


@contextmanager
def _servers(given: Given) -> Iterator[Target]:
    with opened(given) as engine, closing(Target(EngineAccess(engine).options)) as servers:
        yield servers


def _engine(given: Given) -> Engine:
    return Engine(given.engine_url, name=given.engine_name)


def _show(seen: RelayStats, given: Given) -> None:
    counts = {
        "sent and not confirmed": seen.sent,
        "refused": seen.refused,
        "tried again": seen.retried,
        "put aside": seen.failed,
    }
    parts = [f"moved {seen.moved:,}", *(f"{what} {count:,}" for what, count in counts.items() if count)]
    if seen.oldest_s:
        parts.append(f"{seen.oldest_s:,.1f} s behind")
    fields = msgspec.structs.asdict(seen) | {"problem": seen.problem or None, "unconfirmed": seen.unconfirmed or None}
    fields |= {"missing": seen.missing or None}
    why = "; ".join(filter(None, (seen.problem, seen.unconfirmed, seen.missing)))
    given.answer(fields, ", ".join(parts) + (f"; {why}" if why else ""))
