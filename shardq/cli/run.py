"""run: the command that runs pollers in the foreground, until SIGINT or SIGTERM, in this process or in several."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial

import click
import msgspec

from shardq import Engine, Health
from shardq.cli.options import MANY, Given, Whole, command, setting, shared
from shardq.cli.output import complain, going_on, say, tell
from shardq.cli.serving import MAX_PROCESSES, Ending, Shutdown, check_one_process, child, http, log_option, served
from shardq.cli.session import Ended, Looker, Told, opened
from shardq.cli.table import ShardView
from shardq.core.drivers import descriptors
from shardq.core.layout.slots import MAX_SHARDS
from shardq.engine.around import COUNTS, DISPATCHED, LATENESS, POLLER, EngineAccess, counted, forms
from shardq.worker.supervisor import ProcessSupervisor

LIVE_S = 1.0
"""Between two looks on a terminal; each asks every shard once."""

PLAIN_S = 10.0
"""Between two looks elsewhere: their lines end up in a log."""


@command("Run a dispatcher: make tasks ready when due.")
@click.option("--shards", type=Whole(1, MAX_SHARDS), help="Create a new engine with this many shards.")
@click.option(
    "--create", is_flag=True, help="Create a new engine, with 16 shards unless --shards gives another number."
)
@setting(
    "--processes",
    type=Whole(1, MAX_PROCESSES),
    default=1,
    help="Share the shards among N processes; one that dies is restarted. Default: 1, this one.",
)
@click.option(
    "--sinks",
    metavar="PATTERN",
    help="A server that topics may be forwarded to, such as 'https://*.example.org'; may be repeated. "
    "Default: $SHARDQ_SINKS, else any.",
    **MANY,
)
@click.option(
    "--secrets",
    metavar="DIR",
    help="A folder with a file for each ${NAME} in a route; $SHARDQ_SECRET_NAME works, too. Default: $SHARDQ_SECRETS.",
)
@http
@setting("--quiet", is_flag=True, help="Print nothing but warnings.")
@log_option
@shared
def run(
    given: Given,
    shards: int | None,
    create: bool,
    processes: int,
    sinks: tuple[str, ...] | None,
    secrets: str | None,
    http: str | None,
    quiet: bool,
    log: str,
) -> int:
    """Run a dispatcher until Ctrl-C or SIGTERM: it makes each task ready for a worker when the task is due.

    The process that creates an engine decides its settings. So if the name does not exist yet, this command waits for
    the program that creates it, and says so; with --create or --shards it creates the engine itself. It serves no
    probes while it waits.

    Each shard takes a connection. The limit of open files is raised as far as allowed (ulimit -Hn).

    example:
      shardq run
      shardq run --name orders --shards 32     (creates it; an existing engine keeps its number)
      shardq run --processes 2                 (if one core is not enough)
      shardq run --http 0.0.0.0:9100           (metrics, and probes for Kubernetes)
      shardq run --sinks 'https://*.example.org' --sinks redis://10.0.0.7
                                               (forward to these servers only)
      shardq run --quiet &
    """
    check_one_process(http, processes)
    descriptors.more()
    with ExitStack() as stack:
        create = create or bool(shards or given.settings.get("shards"))
        try:
            engine = stack.enter_context(
                opened(
                    given,
                    create=create,
                    dispatches=True,
                    wait=not create,
                    shards=shards,
                    log=log,
                    sinks=sinks,
                    secrets=secrets,
                )
            )
        except Ended:
            return _stopped(given, quiet=quiet)
        look = engine.health if processes == 1 else partial(_look_at_all, engine)

        def looking() -> Looker | None:
            """Says that it serves, and shows from now on what it does."""
            if quiet:
                return None
            looker = Looker(engine, look, *_reporter(given, engine, stack, processes))
            looker.start()
            return looker

        run_pollers = _poll if processes == 1 else partial(_supervise, given, processes)
        with served(engine, http, "pollers"):
            code = run_pollers(engine, looking)
    return _stopped(given, code, quiet=quiet)


def _stopped(given: Given, code: int = 0, *, quiet: bool) -> int:
    if not given.json and not quiet:
        complain("stopped")
    return code


def _poll(engine: Engine, looking: Callable[[], Looker | None]) -> int:
    with Ending() as ending:
        engine.start()
        looker = looking()
        ending.wait()
        if looker is not None:
            looker.stop()
    return 0


def _supervise(given: Given, processes: int, engine: Engine, looking: Callable[[], Looker | None]) -> int:
    """Runs the pollers in children, and none here; their heartbeats share the shards among them."""
    with Shutdown() as shutdown:

        def life() -> None:
            # The live table of the parent has put its own in their place.
            sys.stdout, sys.stderr = sys.__stdout__ or sys.stdout, sys.__stderr__ or sys.stderr
            engine.start()  # it is like one that was never opened: this is the child of a fork
            shutdown.stop.wait()
            engine.close()

        supervisor = ProcessSupervisor(processes, what="dispatcher")
        looker = looking()
        supervisor.run(child(given, life), shutdown.stop, shutdown.hurry, heard=shutdown.heard, grace=0)
        if looker is not None:
            looker.stop()
        return shutdown.code


def _look_at_all(engine: Engine) -> Health:
    """The verdict as it is seen from outside the dispatchers, with their names."""
    health = engine.health()
    names = tuple(each.name for each in health.fleet if each.kind == "dispatcher")
    return msgspec.structs.replace(health, stats=msgspec.structs.replace(health.stats, dispatchers=names))


def _reporter(given: Given, engine: Engine, stack: ExitStack, processes: int) -> tuple[Told[Health], float]:
    """Shows the newest verdict and its stats, or the error that kept them away; and the seconds between two looks."""
    if given.json:
        return lambda seen, trouble: tell(forms.serving(seen) if seen else {"error": trouble}), PLAIN_S
    with going_on():
        within = "" if processes == 1 else f" in {processes} processes"
        where = f"{counted(engine.topology.shards, 'shard')} at {EngineAccess(engine).options.safe_url}"
        say(f"serving {engine.name!r}{within}: {where}; Ctrl-C ends it")
    own = (*LATENESS, POLLER) if processes == 1 else ()  # what only a process knows that polls
    view = stack.enter_context(ShardView(*COUNTS, DISPATCHED, *own))

    def report(seen: Health | None, trouble: str) -> None:
        view.show(None if seen is None else seen.stats, trouble or _said(seen, processes))

    return report, LIVE_S if sys.stdout.isatty() else PLAIN_S


def _said(seen: Health | None, processes: int) -> str:
    """The reasons not to be well, or how many shards this process serves if there are none."""
    if seen is None:
        return ""
    if seen.reasons:
        return "; ".join(seen.reasons)
    stats = seen.stats
    dispatchers = counted(len(stats.dispatchers), "dispatcher")
    if processes > 1:
        return f"polling in {processes} processes, {dispatchers} in all"
    ours = sum(shard.poller != "elsewhere" for shard in stats.shards)
    return f"polling {ours} of {counted(len(stats.shards), 'shard')}, {dispatchers} in all"
