"""demo: the command. It brings its own server and leaves nothing behind, however it ends."""

from __future__ import annotations

import platform
import secrets
import time
from contextlib import ExitStack
from dataclasses import asdict

import click

import shardq
from shardq.cli.demo.server import own_server
from shardq.cli.demo.trial import Clock, Trial, TrialResult
from shardq.cli.logs import set_up_logging
from shardq.cli.numbers import Decimal, Whole
from shardq.cli.options import Given, pass_given, sharing
from shardq.cli.output import complain, lateness_shown, say, tell
from shardq.cli.signals import Ending
from shardq.cli.table import ShardView
from shardq.core.calls.request import Command
from shardq.core.drivers import descriptors
from shardq.core.drivers.sync import Driver
from shardq.core.layout.keys import control_keys, shard_keys
from shardq.core.layout.slots import MAX_SHARDS
from shardq.engine import Engine, Stats
from shardq.engine.connections import connected
from shardq.engine.options import DEFAULT_SHARDS
from shardq.engine.tables import COUNTS, DISPATCHED, LATENESS, milliseconds

LOOK_S = 0.25
PLAIN_S = 1.0
"""Between two lines where no table can be drawn."""

TIMEOUT_S = 10.0
"""The engine's timeout with --url: whoever watches a demo should learn soon that its server is away."""

OWN_TIMEOUT_S = 60.0
"""The engine's timeout with a server of the demo's own: it is there, but may stand still for seconds on a slow disk."""


@click.command(
    short_help="100,000 delayed tasks, live and accounted for.",
    epilog="""\b
example:
  shardq demo
  shardq demo --tasks 20000 --seconds 5 --shards 4
  shardq demo --url redis://127.0.0.1:6379/0""",
)
@click.option(
    "--tasks", type=Whole(1, 10_000_000), metavar="N", default=100_000, show_default=True, help="The number of tasks."
)
@click.option(
    "--seconds",
    type=Decimal(1, 3600),
    metavar="S",
    default=10.0,
    show_default=True,
    help="The longest delay of a task.",
)
@click.option(
    "--shards",
    type=Whole(1, MAX_SHARDS),
    metavar="N",
    default=DEFAULT_SHARDS,
    show_default=True,
    help="The number of shards.",
)
@sharing(
    url="A server that runs. Default: an embedded one of the demo's own, whatever $SHARDQ_URL says.",
    name=None,
)
@pass_given
def demo(given: Given, tasks: int, seconds: float, shards: int) -> int:
    """Push tasks with random delays, move them when they are due, claim them, and account for each.

    It runs on a Valkey of its own in a temporary directory, or, given --url, under a new name on that server; either
    way nothing is left behind. It ends with 0 when every task was dispatched once, none early, and none was lost.
    """
    if given.name is not None:
        raise click.UsageError("demo uses a name of its own, that nobody else has; leave --name out")
    set_up_logging(verbose=given.verbose)
    descriptors.more()
    with Ending() as ending, ExitStack() as stack:
        url = given.url or stack.enter_context(own_server())
        name = f"demo-{secrets.token_hex(4)}"
        timeout = TIMEOUT_S if given.url else OWN_TIMEOUT_S
        engine = stack.enter_context(Engine(url, name=name, shards=shards, timeout=timeout))
        driver = stack.enter_context(connected(engine.options))
        # entered last, so that it ends first: the pollers stop before their keys go
        stack.callback(_remove_keys, engine, driver, shards)
        clocks = {shard: Clock(driver, shard_keys(name, shard).slot) for shard in range(shards)}
        engine.start()
        began = time.monotonic()
        with Trial(engine, clocks, tasks=tasks, seconds=seconds) as trial:
            try:
                seen = _watch(given, engine, trial, ending, began)
            finally:
                ending.finish()
        if trial.failure is not None:
            raise trial.failure
        if ending.asked:
            complain("stopped before its end; everything it made is removed")
            return ending.code
        return _show_result(given, trial.result(seen), seen, elapsed_s=time.monotonic() - began)


def _watch(given: Given, engine: Engine, trial: Trial, ending: Ending, began: float) -> Stats:
    """Shows the trial until it is over, and returns the last stats."""
    with ExitStack() as stack:
        columns = (*COUNTS, DISPATCHED, *LATENESS)
        view = None if given.json else stack.enter_context(ShardView(*columns, plain_s=PLAIN_S))
        while True:
            pushing = trial.pushing
            seen = engine.stats()
            over = trial.over(seen, pushing=pushing)
            if view is not None:
                elapsed_s = time.monotonic() - began
                view.show(seen, f"{elapsed_s:5.1f} s  pushed {trial.pushed:,}  claimed {trial.claimed:,}")
            if over or ending.wait(LOOK_S):
                return seen


def _show_result(given: Given, result: TrialResult, seen: Stats, *, elapsed_s: float) -> int:
    """Shows what became of the tasks; the exit code."""
    counts, lateness = asdict(result), seen.lateness
    versions = {"shardq": shardq.__version__, "server": seen.server, "python": platform.python_version()}
    if given.json:
        facts = {"ok": result.good, "elapsed_s": round(elapsed_s, 3), "lateness": lateness_shown(lateness)}
        tell(counts | facts | {"shards": len(seen.shards), "versions": versions})
    else:
        late = (milliseconds(each) for each in (lateness.p50_ms, lateness.p99_ms, lateness.max_ms))
        notes = dict.fromkeys(("early", "lost", "duplicates"), "(must be 0)")
        notes["dispatched"] = "late p50 {} ms, p99 {} ms, most {} ms".format(*late)
        say("")
        for field, count in counts.items():
            say(f"{field:<10} {count:>10,}  {notes.get(field, '')}".rstrip())
        say(
            f"{'elapsed':<10} {elapsed_s:>8.1f} s  {len(seen.shards)} shards, shardq {versions['shardq']}, "
            f"{versions['server']}, Python {versions['python']}"
        )
        if not result.good:
            complain("error: not every task was dispatched and claimed once, and none of them early")
    return 0 if result.good else 1


def _remove_keys(engine: Engine, driver: Driver, shards: int) -> None:
    """Closes the engine and removes every key of it, also when the demo was stopped midway."""
    engine.close()
    control = control_keys(engine.name)
    stored = [(control.slot, [control.topology, control.members, control.limits])]
    for keys in (shard_keys(engine.name, shard) for shard in range(shards)):
        tasks = (keys.due, keys.task, keys.leased, keys.lease, keys.dead, keys.why, keys.ready(""), keys.waiting(""))
        others = (keys.looks, keys.moved, keys.staged)
        stored.append((keys.slot, [keys.meta, *tasks, keys.ghost, keys.seen, keys.topics, *others]))
    for slot, names in stored:
        driver.call(Command(slot, ("UNLINK", *names), int))
