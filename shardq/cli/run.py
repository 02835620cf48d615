"""run: pollers in the foreground, until SIGINT or SIGTERM."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress

import click

from shardq.cli.numbers import Whole
from shardq.cli.options import Given, pass_given, shared
from shardq.cli.output import complain, lateness_shown, say, tell
from shardq.cli.session import opened
from shardq.cli.signals import Ending
from shardq.drivers import descriptors
from shardq.engine import Engine, Stats
from shardq.errors import ShardqError
from shardq.layout.slots import MAX_SHARDS

LIVE_S = 1.0
"""Between two pictures on a terminal; each asks every shard once."""

PLAIN_S = 10.0
"""Between two status lines elsewhere: they end up in a log."""


@click.command(
    short_help="Move tasks when they are due, until Ctrl-C.",
    epilog="""\b
example:
  shardq run
  shardq run --name orders --shards 32     (a new name; else the stored number counts)
  shardq run --quiet &""",
)
@click.option("--shards", type=Whole(1, MAX_SHARDS), metavar="N", help="Of a new name. Default: 16.")
@click.option("--quiet", is_flag=True, help="Print nothing but warnings.")
@shared
@pass_given
def run(given: Given, shards: int | None, quiet: bool) -> None:
    """Run the pollers, which move every task when it is due, until Ctrl-C or SIGTERM.

    Each shard takes a connection: the limit of open files is raised as far as it may be (ulimit -Hn).
    """
    descriptors.more()
    with ExitStack() as stack:
        engine = stack.enter_context(opened(given, create=True, shards=shards))
        ending = stack.enter_context(Ending())
        engine.start()
        if quiet:
            ending.wait()
            return
        looker = _Looker(engine, *_reporter(given, engine, stack))
        looker.start()
        ending.wait()
        looker.stop()
    if not given.json:
        complain("stopped")


Report = Callable[[Stats | None, str], None]
"""Shows the newest numbers, or what kept them from being had."""


def _reporter(given: Given, engine: Engine, stack: ExitStack) -> tuple[Report, float]:
    if given.json:

        def as_json(seen: Stats | None, trouble: str) -> None:
            tell(_shown(seen) if seen else {"error": trouble})

        return as_json, PLAIN_S
    topology = engine.topology
    with suppress(OSError):  # as in the looker
        say(f"serving {engine.name!r}: {topology.shards} shards at {_where(engine)}; Ctrl-C ends it")
    from shardq.cli import shard_table

    if sys.stdout.isatty():
        shards = shard_table.ShardTable(
            *shard_table.COUNTS, shard_table.DISPATCHED, *shard_table.LATENESS, shard_table.POLLER
        )
        live = stack.enter_context(shard_table.LiveShardTable(shards))

        def drawn(seen: Stats | None, trouble: str) -> None:
            if seen is not None:
                shards.look(seen, time.monotonic())
            live.show(seen, below=trouble or _said(seen))

        return drawn, LIVE_S
    line = shard_table.ShardTable()

    def plain(seen: Stats | None, trouble: str) -> None:
        if seen is None:
            complain(trouble)
            return
        line.look(seen, time.monotonic())
        say(f"{line.line(seen)}  {_said(seen)}")
        sys.stdout.flush()

    return plain, PLAIN_S


def _where(engine: Engine) -> str:
    return engine.options.safe_url


def _said(seen: Stats | None) -> str:
    """A line that says what is wrong, else who polls."""
    if seen is None:
        return ""
    if seen.problems:
        return "; ".join(seen.problems)
    ours = sum(shard.poller != "elsewhere" for shard in seen.shards)
    return f"polling {ours} of {len(seen.shards)} shards, {len(seen.dispatchers)} processes"


def _shown(seen: Stats) -> dict[str, object]:
    return {
        "name": seen.name,
        "shards": len(seen.shards),
        "polling": [shard.shard for shard in seen.shards if shard.poller != "elsewhere"],
        "failing": [shard.shard for shard in seen.shards if shard.poller == "failing"],
        "processes": len(seen.dispatchers),
        "healthy": seen.healthy,
        "problems": seen.problems,
        "scheduled": seen.scheduled,
        "ready": seen.ready,
        "leased": seen.leased,
        "dead": seen.dead,
        "dispatched": seen.dispatched,
        "lateness": lateness_shown(seen.lateness),
    }


class _Looker:
    """Asks for the numbers in a thread of its own: the main one stays free for signals."""

    def __init__(self, engine: Engine, report: Report, every_s: float) -> None:
        self._engine = engine
        self._report = report
        self._every_s = every_s
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="shardq-looker", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Closes the engine: a look that waits for a server which is away ends with that."""
        self._ending.set()
        self._engine.close()
        self._thread.join()

    def _run(self) -> None:
        while True:
            try:
                seen, trouble = self._engine.stats(), ""
            except ShardqError as exc:
                seen, trouble = None, str(exc)
            if self._ending.is_set():
                return
            try:
                self._report(seen, trouble)
            except BrokenPipeError:
                return  # nobody reads it any more: the pollers go on
            except OSError:
                pass  # a disk that is full may be so for a while
            if self._ending.wait(self._every_s):
                return
