"""demo: the command. It brings its own server and leaves nothing behind, however it ends."""

from __future__ import annotations

import platform
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path

import click

from shardq import embedded
from shardq.calls.request import Command
from shardq.cli.demo import watchdog
from shardq.cli.demo.clock import Clock
from shardq.cli.demo.trial import Trial, TrialResult
from shardq.cli.numbers import Decimal, Whole
from shardq.cli.options import Given, pass_given, sharing
from shardq.cli.output import complain, lateness_shown, milliseconds, say, set_up_logging, tell
from shardq.cli.session import connected
from shardq.cli.signals import Ending
from shardq.drivers import descriptors
from shardq.drivers.sync import Driver
from shardq.engine import Engine, Stats
from shardq.engine.options import DEFAULT_SHARDS
from shardq.layout.keys import control_keys, shard_keys
from shardq.layout.slots import MAX_SHARDS

LOOK_S = 0.25
PLAIN_S = 1.0
"""Between two lines where no table can be drawn."""

TIMEOUT_S = 10.0
"""A demo is watched: who waits for it should learn soon that its server is away."""

OWN_TIMEOUT_S = 60.0
"""A server of its own is there; but where the disk is slow, it may stand still for seconds."""


@click.command(
    short_help="100,000 delayed tasks, live and accounted for.",
    epilog="""\b
example:
  shardq demo
  shardq demo --tasks 20000 --seconds 5 --shards 4
  shardq demo --url redis://127.0.0.1:6379/0""",
)
@click.option("--tasks", type=Whole(1, 10_000_000), default=100_000, show_default=True, help="How many.")
@click.option("--seconds", type=Decimal(1, 3600), default=10.0, show_default=True, help="The longest delay of a task.")
@click.option("--shards", type=Whole(1, MAX_SHARDS), default=DEFAULT_SHARDS, show_default=True, help="How many.")
@sharing(
    url="A server that runs. Default: one of the demo's own; $SHARDQ_URL does not count, no data of yours is near.",
    name=None,
)
@pass_given
def demo(given: Given, tasks: int, seconds: float, shards: int) -> int:
    """Push tasks with random delays, move them when they are due, take them, and account for each.

    It runs on a Valkey of its own in a temporary directory, or, given --url, under a new name on that server; either
    way nothing is left behind. It ends with 0 when every task was dispatched once, none early, and none was lost.
    """
    if given.name is not None:
        raise click.UsageError("demo uses a name of its own, that nobody else has; leave --name out")
    set_up_logging(verbose=given.verbose)
    descriptors.more()
    with Ending() as ending, ExitStack() as stack:
        url = given.url or stack.enter_context(_own_server())
        name = f"demo-{secrets.token_hex(4)}"
        timeout = TIMEOUT_S if given.url else OWN_TIMEOUT_S
        engine = stack.enter_context(Engine(url, name=name, shards=shards, timeout=timeout))
        driver = stack.enter_context(connected(engine))
        # entered last, so that it ends first: the pollers stop before their keys go
        stack.callback(_clear, engine, driver, shards)
        clocks = {shard: Clock(driver, shard_keys(name, shard).slot) for shard in range(shards)}
        engine.start()
        trial = Trial(engine, clocks, tasks=tasks, seconds=seconds)
        began = time.monotonic()
        trial.start()
        try:
            seen = _watch(given, engine, trial, ending, began)
        finally:
            ending.finish()
            trial.stop()
        if trial.failure is not None:
            raise trial.failure
        if ending.signal is not None:
            complain("stopped before its end; everything it made is removed")
            return ending.code
        return _judge(given, trial.verdict(seen), seen, elapsed_s=time.monotonic() - began)


def _watch(given: Given, engine: Engine, trial: Trial, ending: Ending, began: float) -> Stats:
    """Shows how it goes until it is over; the last numbers."""
    with ExitStack() as stack:
        show = _display(given, stack)
        while True:
            pushing = trial.pushing
            seen = engine.stats()
            over = trial.over(seen, pushing=pushing)
            show(seen, f"{time.monotonic() - began:5.1f} s  pushed {trial.pushed:,}  taken {trial.taken:,}")
            if over or ending.wait(LOOK_S):
                return seen


def _display(given: Given, stack: ExitStack) -> Callable[[Stats, str], None]:
    if given.json:
        return lambda seen, progress: None
    from shardq.cli import shard_table

    if sys.stdout.isatty():
        shards = shard_table.ShardTable(*shard_table.COUNTS, shard_table.DISPATCHED, *shard_table.LATENESS)
        live = stack.enter_context(shard_table.LiveShardTable(shards))

        def drawn(seen: Stats, progress: str) -> None:
            shards.look(seen, time.monotonic())
            live.show(seen, below=progress)

        return drawn
    line = shard_table.ShardTable()
    said = -PLAIN_S

    def plain(seen: Stats, progress: str) -> None:
        nonlocal said
        now = time.monotonic()
        line.look(seen, now)
        if now - said >= PLAIN_S:
            said = now
            say(f"{progress}  {line.line(seen)}")
            sys.stdout.flush()

    return plain


def _judge(given: Given, verdict: TrialResult, seen: Stats, *, elapsed_s: float) -> int:
    versions = {"shardq": version("shardq"), "server": seen.server, "python": platform.python_version()}
    lateness = seen.lateness
    if given.json:
        tell(
            asdict(verdict)
            | {
                "ok": verdict.good,
                "elapsed_s": round(elapsed_s, 3),
                "lateness": lateness_shown(lateness),
                "shards": len(seen.shards),
                "versions": versions,
            }
        )
        return 0 if verdict.good else 1
    notes = {
        "dispatched": f"late p50 {milliseconds(lateness.p50_ms)} ms, p99 {milliseconds(lateness.p99_ms)} ms, "
        f"most {milliseconds(lateness.max_ms)} ms",
        "early": "(must be 0)",
        "lost": "(must be 0)",
        "duplicates": "(must be 0)",
    }
    say("")
    for field, count in asdict(verdict).items():
        say(f"{field:<10} {count:>10,}  {notes.get(field, '')}".rstrip())
    say(
        f"{'elapsed':<10} {elapsed_s:>8.1f} s  {len(seen.shards)} shards, shardq {versions['shardq']}, "
        f"{versions['server']}, Python {versions['python']}"
    )
    if not verdict.good:
        complain("error: the books do not balance")
    return 0 if verdict.good else 1


@contextmanager
def _own_server() -> Iterator[str]:
    """An embedded server with its data in a temporary directory; both are gone at the end, even that of a kill -9."""
    folder = Path(tempfile.mkdtemp(prefix="shardq-demo-"))
    try:
        with _watched(folder), embedded.enter(folder) as server:
            yield server.url
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _watched(folder: Path) -> Iterator[None]:
    # in a session of its own: Ctrl-C is not for it
    dog = subprocess.Popen(
        [sys.executable, "-I", "-S", watchdog.__file__, folder],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd="/",
        start_new_session=True,
    )
    try:
        yield
    finally:
        dog.kill()
        dog.communicate()


def _clear(engine: Engine, driver: Driver, shards: int) -> None:
    """Removes every key of the demo, also when it is stopped midway."""
    engine.close()
    control = control_keys(engine.name)
    keys = [(control.slot, [control.topology, control.members, control.limits])]
    for number in range(shards):
        shard = shard_keys(engine.name, number)
        keys.append(
            (
                shard.slot,
                [
                    *(shard.meta, shard.due, shard.task, shard.leased, shard.lease, shard.dead, shard.why, shard.ghost),
                    *(shard.seen, shard.topics, shard.moved, shard.staged, shard.ready(""), shard.waiting("")),
                ],
            )
        )
    for slot, names in keys:
        driver.call(Command(slot, ("UNLINK", *names), int))
