"""run: the command that runs pollers in the foreground, until SIGINT or SIGTERM."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack, suppress

import click

from shardq.cli.numbers import Whole
from shardq.cli.options import Given, pass_given, shared
from shardq.cli.output import complain, counted, lateness_shown, say, tell
from shardq.cli.session import opened
from shardq.cli.shard_view import COUNTS, DISPATCHED, LATENESS, POLLER, ShardView
from shardq.cli.signals import Ending
from shardq.drivers import descriptors
from shardq.engine import Engine, Stats
from shardq.errors import ShardqError
from shardq.layout.slots import MAX_SHARDS

LIVE_S = 1.0
"""Between two looks on a terminal; each asks every shard once."""

PLAIN_S = 10.0
"""Between two looks elsewhere: their lines end up in a log."""


@click.command(
    short_help="Move tasks when they are due, until Ctrl-C.",
    epilog="""\b
example:
  shardq run
  shardq run --name orders --shards 32     (a new name; else the stored number counts)
  shardq run --quiet &""",
)
@click.option("--shards", type=Whole(1, MAX_SHARDS), metavar="N", help="The shards of a new name. Default: 16.")
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
"""Shows the newest stats, or the error that kept them away."""


def _reporter(given: Given, engine: Engine, stack: ExitStack) -> tuple[Report, float]:
    if given.json:
        return lambda seen, trouble: tell(_shown(seen) if seen else {"error": trouble}), PLAIN_S
    with suppress(OSError):  # the pollers run, even if nobody can read it
        say(f"serving {engine.name!r}: {engine.topology.shards} shards at {engine.options.safe_url}; Ctrl-C ends it")
    view = stack.enter_context(ShardView(*COUNTS, DISPATCHED, *LATENESS, POLLER))
    return lambda seen, trouble: view.show(seen, trouble or _said(seen)), LIVE_S if sys.stdout.isatty() else PLAIN_S


def _said(seen: Stats | None) -> str:
    """The problems, or how many shards this process serves if there are none."""
    if seen is None:
        return ""
    ours = sum(shard.poller != "elsewhere" for shard in seen.shards)
    return "; ".join(seen.problems) or (
        f"polling {ours} of {len(seen.shards)} shards, {counted(len(seen.dispatchers), 'dispatcher')} in all"
    )


def _shown(seen: Stats) -> dict[str, object]:
    return {
        "name": seen.name,
        "shards": len(seen.shards),
        "polling": [shard.shard for shard in seen.shards if shard.poller != "elsewhere"],
        "failing": [shard.shard for shard in seen.shards if shard.poller == "failing"],
        "dispatchers": len(seen.dispatchers),
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
    """Asks for stats in a thread of its own: the main one stays free for signals."""

    def __init__(self, engine: Engine, report: Report, every_s: float) -> None:
        self._engine = engine
        self._report = report
        self._every_s = every_s
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="shardq-looker", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread. Closes the engine first, which ends a look that waits for a silent server."""
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
                return  # the reader has gone; the pollers go on
            except OSError:
                pass  # the disk may be full for a while
            if self._ending.wait(self._every_s):
                return
