"""resize, expand and shrink: the commands."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any, TypeVar

import click

from shardq.cli.fleet import NOBODY
from shardq.cli.grow.forecast import Forecast
from shardq.cli.grow.watch import ProgressSample, ProgressWatcher, watched
from shardq.cli.numbers import Decimal, Whole
from shardq.cli.options import Given, pass_given, shared
from shardq.cli.output import complain, say, tell
from shardq.cli.session import connected, opened
from shardq.engine.arguments import ResizeVerb, check_resize
from shardq.layout.slots import MAX_SHARDS

F = TypeVar("F", bound=Callable[..., Any])


def resizing(command: F) -> F:
    """Adds what all three commands take."""
    for add in reversed(
        (
            click.argument("shards", metavar="N", type=Whole(1, MAX_SHARDS)),
            click.option(
                "--rate",
                type=Decimal(0, min_open=True),
                metavar="R",
                help="Tasks a second to move at most. Default: as many as can be.",
            ),
            click.option("--wait", is_flag=True, help="Until every task is where it belongs."),
            click.option("--dry-run", is_flag=True, help="Only say what would be moved, and where to."),
            shared,
            pass_given,
        )
    ):
        command = add(command)
    return command


@click.command(
    short_help="Another number of shards, while all runs.",
    epilog="""\b
example:
  shardq resize 32 --dry-run
  shardq resize 32 --wait
  shardq resize 32 --rate 5000""",
)
@resizing
def resize(given: Given, shards: int, rate: float | None, wait: bool, dry_run: bool) -> None:
    """Use N shards from now on, be it more or fewer than there are; dispatchers move the tasks that belong elsewhere
    then, and shards that fall away are served until they are empty.

    Returns when N shards are in force. The same again goes on with a change that was interrupted.
    """
    _resize(given, shards, rate=rate, wait=wait, dry_run=dry_run, verb="resize")


@click.command(
    short_help="More shards, and never fewer.",
    epilog="""\b
example:
  shardq expand 32 --dry-run
  shardq expand 32 --wait""",
)
@resizing
def expand(given: Given, shards: int, rate: float | None, wait: bool, dry_run: bool) -> None:
    """Use N shards from now on, as `shardq resize N` does. Refused when N is fewer than there are."""
    _resize(given, shards, rate=rate, wait=wait, dry_run=dry_run, verb="expand")


@click.command(
    short_help="Fewer shards, and never more.",
    epilog="""\b
example:
  shardq shrink 8 --dry-run
  shardq shrink 8 --wait""",
)
@resizing
def shrink(given: Given, shards: int, rate: float | None, wait: bool, dry_run: bool) -> None:
    """Use N shards from now on, as `shardq resize N` does. Refused when N is more than there are."""
    _resize(given, shards, rate=rate, wait=wait, dry_run=dry_run, verb="shrink")


def _resize(given: Given, shards: int, *, rate: float | None, wait: bool, dry_run: bool, verb: ResizeVerb) -> None:
    if dry_run and wait:
        raise click.UsageError("--dry-run moves nothing, so there is nothing to --wait for")
    with opened(given) as engine, connected(engine) as driver:
        if dry_run:
            check_resize(engine.topology, shards, rate, verb)
            Forecast.of(engine, driver, shards).show(given, rate=rate)
            return
        looker = ProgressWatcher(engine, driver, shards)
        change = {"resize": engine.resize, "expand": engine.expand, "shrink": engine.shrink}[verb]
        try:
            growth = change(shards, rate=rate)
            look = watched(given, looker, growth) if wait else looker.look(growth)
        except KeyboardInterrupt:
            complain(
                f"\nthe change to {shards} shards goes on without this command: `shardq shards` shows how far it is, "
                "the same command with --wait waits for it again"
            )
            raise
    _tell(given, look)


def _tell(given: Given, look: ProgressSample) -> None:
    progress = look.progress
    if given.json:
        tell(asdict(progress) | {"moved": look.moved, "dispatchers": look.dispatchers})
    elif progress.done:
        say(f"{progress.shards} shards are in force, and every task is where it belongs: {look.moved:,} moved")
    else:
        say(f"{progress.shards} shards are in force; `shardq shards` shows how far the moving of tasks is")
    if not progress.done and not look.dispatchers:
        complain(NOBODY)
