"""spool: the file in which engines keep commands while Redis is away. Look at it, replay it, see what was refused."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from shardq.cli.options import Given, command, sharing
from shardq.cli.output import complain, set_up_logging
from shardq.cli.serving import Ending
from shardq.core.layout.words import shown_id
from shardq.core.model.checks import shown_instant
from shardq.engine.around import EngineAccess, counted
from shardq.errors import ShardqError, SpoolFault
from shardq.features.embedded import locks

if TYPE_CHECKING:
    from shardq.relay.file import SpoolFile
    from shardq.relay.report import SpoolStats

LOCK_S = 30.0
"""The wait for another process that replays the file: each holds it for one pass."""

_path = click.argument("path", type=click.Path(path_type=Path, dir_okay=False))
_quiet = sharing(url="Not used: the command looks at the file only.")
_connecting = sharing(
    url="The server: redis://, rediss://, unix://, redis+cluster:// or redis+sentinel://. Default: $SHARDQ_URL."
)


@click.group(
    short_help="Look at what was spooled while Redis was away.",
    epilog="""\b
example:
  shardq spool status /var/lib/shop/orders.spool
  shardq spool replay /var/lib/shop/orders.spool --url redis://127.0.0.1:6379/0
  shardq spool failed /var/lib/shop/orders.spool
  shardq spool failed /var/lib/shop/orders.spool --retry""",
)
def spool() -> None:
    """Look at the file of an engine's spool=, which takes commands while Redis can't be reached.

    Engines replay it by themselves. The commands here are for a file whose engine does not run any more, and for
    commands that were refused.
    """


@command("Count the commands that wait.", of=spool)
@_path
@_quiet
def status(given: Given, path: Path) -> int:
    """Show how many commands wait in the file PATH, how long the first has waited, and how many were refused.

    exit codes:
      0  nothing waits, and nothing was refused
      1  something does, or was
    """
    set_up_logging(verbose=given.verbose)
    with opened_spool(path) as file:
        seen = file.stats()
    given.answer(msgspec.to_builtins(seen), shown(seen))
    return 1 if seen.waiting or seen.failed else 0


def shown(seen: SpoolStats) -> str:
    """A spool's gauge in a line; also for ``stats``."""
    if seen.waiting is None:
        return seen.fault or "it can't be read"
    waits = f"{counted(seen.waiting, 'command')} waiting"
    waits += f" ({seen.sent:,} sent, and not confirmed)" if seen.sent else ""
    oldest = f", the oldest for {seen.oldest:,.1f} s" if seen.oldest is not None else ""
    return (
        f"{waits}{oldest}; {seen.bytes:,} bytes; {seen.replayed:,} replayed, {seen.failed:,} refused; "
        f"of the engine {seen.engine}"
    )


@command("Send the commands to the engine now.", of=spool)
@_path
@_connecting
def replay(given: Given, path: Path) -> int:
    """Send the commands of the file PATH to the engine once, in their order and with their ids.

    The file knows its engine; --url, or $SHARDQ_URL, says on which server it is. Engines that use the file may run
    meanwhile: one process replays at a time.

    exit codes:
      0  nothing waits any more
      1  something does: the reason is printed
    """
    from shardq import Engine
    from shardq.engine.around import spool_mover
    from shardq.features.spool.spool import lock_of

    set_up_logging(verbose=given.verbose)
    with opened_spool(path) as file, Ending() as ending:
        engine, shards = file.owner()
        options = EngineAccess(Engine(given.engine_url, name=engine, shards=shards or None)).options
        if options.is_embedded:
            raise click.UsageError("give the server as --url, or as $SHARDQ_URL")
        lock = locks.alone(lock_of(path.absolute()), deadline=time.monotonic() + LOCK_S)
        with lock as held, closing(spool_mover(file, options)) as mover:
            if held is None:
                raise SpoolFault(f"the spool {path} is being replayed by another process, for more than {LOCK_S:g} s")
            while not mover.run(lambda: ending.asked) and not mover.problem and not ending.asked:
                mover.confirm(stopping=lambda: ending.asked)  # a chunk is full
            while mover.is_waiting and not mover.confirming.is_settled and not ending.asked:
                mover.confirm(stopping=lambda: ending.asked)
            problem = mover.problem or str(mover.confirming.late() or "")
            left = file.stats().waiting
        given.answer(
            {"replayed": mover.store.moved, "refused": mover.store.failed, "waiting": left, "problem": problem or None},
            f"replayed {mover.store.moved:,}, refused {mover.store.failed:,}, {left:,} left",
        )
        if problem and not given.json:
            complain(f"error: {problem}")
    return ending.code if ending.asked else 1 if left else 0


@command("List the commands that were refused.", of=spool)
@_path
@click.option(
    "--retry", is_flag=True, help="Put them at the end of what waits, for `shardq spool replay` or the next engine."
)
@click.option("--drop", is_flag=True, help="Remove them.")
@_quiet
def failed(given: Given, path: Path, retry: bool, drop: bool) -> None:
    """List the commands of the file PATH that the engine refused, with the reasons.

    They stay, and count for the size of the file, until you retry or drop them.
    """
    if retry and drop:
        raise click.UsageError("give --retry or --drop, not both")
    set_up_logging(verbose=given.verbose)
    with opened_spool(path) as file:
        if retry or drop:
            count = file.retry_failed() if retry else file.drop_failed()
            done = f"{'put back' if retry else 'dropped'} {counted(count, 'command')}"
            given.answer({"retried" if retry else "dropped": count}, done)
            return
        after = 0
        while page := file.failed(after):
            for spooled, reason, refused_ms in page:
                after, command = spooled.seq, spooled.command
                when = shown_instant(refused_ms).isoformat(timespec="seconds")
                id, kind, why = (shown_id(str(word)) for word in (command.id, command.kind, reason))
                given.answer({"id": id, "kind": kind, "refused": when, "reason": why}, f"{when}  {kind} {id}  {why}")


@contextmanager
def opened_spool(path: Path) -> Iterator[SpoolFile]:
    """The file of a spool that exists; also for ``stats``."""
    try:
        from shardq.relay.file import SpoolFile
    except ImportError as exc:
        raise ShardqError(f"this Python was built without SQLite: {exc}") from exc
    with closing(SpoolFile(path.absolute())) as file:
        yield file
