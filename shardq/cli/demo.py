"""demo: the command that sends many tasks through an engine, shows them live, and accounts for each of them. It brings
its own server and leaves nothing behind, however it ends.

A producer pushes numbered tasks, each with its due instant; the engine's pollers move them; consumers claim and
acknowledge them. Tasks that are early are counted twice. The dispatch scripts say how late they were, by their server's
clock. The trial does not rely on that: it chooses each due instant itself, puts it into the payload, and compares it
with the server's clock when it has claimed the task.

The flood takes all that the machine has, and its tasks are late by what the servers and the other processes lack. So a
second follows in which nothing else runs, with a few tasks: that is how late a task is while there is room.
"""

from __future__ import annotations

import platform
import random
import secrets
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent import futures
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from typing import Self

import click

import shardq
from shardq import Engine, Stats
from shardq.cli.demo_server import own_server
from shardq.cli.options import Decimal, Given, Whole, command, sharing
from shardq.cli.output import complain, say, set_up_logging, tell
from shardq.cli.serving import Ending
from shardq.cli.table import ShardView
from shardq.core.calls.request import Command
from shardq.core.drivers import descriptors
from shardq.core.drivers.sync import Driver
from shardq.core.fleet.lateness import Lateness
from shardq.core.layout.keys import control_keys, shard_keys
from shardq.core.layout.slots import MAX_SHARDS
from shardq.core.model.task import Delivery, Task
from shardq.core.threads import begun
from shardq.engine.around import (
    COUNTS,
    DEFAULT_SHARDS,
    DISPATCHED,
    LATENESS,
    EngineAccess,
    connected,
    counted,
    forms,
    milliseconds,
)

LOOK_S = 0.25
PLAIN_S = 1.0
"""Between two lines where no table can be drawn."""

TIMEOUT_S = 10.0
"""The engine's timeout with --url: the user should learn soon that its server is away."""

OWN_TIMEOUT_S = 60.0
"""The engine's timeout with a server of the demo's own: it is there, but may stand still for seconds on a slow disk."""


@command("Run 100,000 delayed tasks, and account for each.")
@click.option("--tasks", type=Whole(1, 10_000_000), default=100_000, show_default=True, help="The number of tasks.")
@click.option(
    "--seconds",
    type=Decimal(1, 3600),
    metavar="S",
    default=10.0,
    show_default=True,
    help="The longest delay of a task.",
)
@click.option(
    "--shards", type=Whole(1, MAX_SHARDS), default=DEFAULT_SHARDS, show_default=True, help="The number of shards."
)
@sharing(url="A server that runs. Default: an embedded one of the demo's own, whatever $SHARDQ_URL says.")
def demo(given: Given, tasks: int, seconds: float, shards: int) -> int:
    """Push tasks with random delays, dispatch them when they are due, claim them, and account for each.

    The demo starts a Valkey of its own in a temporary directory. With --url it runs on that server, under a new
    name. Either way it leaves nothing behind. Then it measures a second in which little is due. It ends with 0 if
    every task was dispatched once, none early, and none was lost.

    example:
      shardq demo
      shardq demo --tasks 20000 --seconds 5 --shards 4
      shardq demo --url redis://127.0.0.1:6379/0
    """
    if given.name is not None:
        raise click.UsageError("demo uses a name of its own; leave --name out")
    set_up_logging(verbose=given.verbose)
    descriptors.more()
    with Ending() as ending, ExitStack() as stack:
        url = given.url or stack.enter_context(own_server())
        name = f"demo-{secrets.token_hex(4)}"
        timeout = TIMEOUT_S if given.url else OWN_TIMEOUT_S
        engine = stack.enter_context(Engine(url, name=name, shards=shards, timeout=timeout))
        driver = stack.enter_context(connected(EngineAccess(engine).options))
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
        result, elapsed_s = trial.result(seen), time.monotonic() - began
        idle = _idle_second(engine, clocks[0], ending) if result.good and not ending.asked else None
        if ending.asked:
            complain("stopped before its end; everything it made is removed")
            return ending.code
        return _show_result(given, result, seen, idle, elapsed_s=elapsed_s)


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


def _idle_second(engine: Engine, clock: Clock, ending: Ending) -> Lateness:
    """The lateness of a few tasks, due one after the other within a second, while nothing else runs."""
    clock.compare()
    before = engine.stats().lateness
    first_ms = clock.latest_ms(time.monotonic()) + FIRST_DUE_S * 1000
    step_ms = IDLE_S * 1000 / IDLE_TASKS
    engine.push_many([Task(n, at=(first_ms + n * step_ms) / 1000) for n in range(IDLE_TASKS)])
    until = time.monotonic() + FIRST_DUE_S + IDLE_S
    ending.wait(FIRST_DUE_S + IDLE_S)  # each look would be work that makes them late
    while True:
        idle = engine.stats().lateness.since(before)
        if idle.count >= IDLE_TASKS or time.monotonic() > until + IDLE_PATIENCE_S or ending.wait(LOOK_S):
            return idle


def _show_result(given: Given, result: TrialResult, seen: Stats, idle: Lateness | None, *, elapsed_s: float) -> int:
    """Shows what became of the tasks; the exit code."""
    counts, lateness = asdict(result), seen.lateness
    versions = {"shardq": shardq.__version__, "server": seen.server, "python": platform.python_version()}
    if given.json:
        facts = {"ok": result.good, "elapsed_s": round(elapsed_s, 3), "lateness": forms.lateness(lateness)}
        shown_idle = None if idle is None else forms.lateness(idle)
        tell(counts | facts | {"idle": shown_idle, "shards": len(seen.shards), "versions": versions})
    else:
        notes = dict.fromkeys(("early", "lost", "duplicates"), "(must be 0)")
        say("")
        for field, count in counts.items():
            say(f"{field:<10} {count:>10,}  {notes.get(field, '')}".rstrip())
        say(f"{'elapsed':<10} {elapsed_s:>8.1f} s  {len(seen.shards)} shards, Python {versions['python']}")
        say(f"{'':<10} {'':>10}  shardq {versions['shardq']}, {versions['server']}")
        flood = f"{counted(lateness.count, 'task')} in {elapsed_s:.0f} s, all at once"
        rows = {"in this flood": (lateness, flood)}
        if idle is not None:
            rows["in an idle second"] = (idle, f"{counted(idle.count, 'task')}, and nothing else")
        say(f"\n{'how late (ms)':<18}{'p50':>8}{'p99':>8}{'most':>8}")
        for name, (late, what) in rows.items():
            figures = "".join(f"{milliseconds(ms):>8}" for ms in (late.p50_ms, late.p99_ms, late.max_ms))
            say(f"{name:<18}{figures}  {what}")
        if not result.good:
            complain("error: not every task was dispatched and claimed once, and none of them early")
    return 0 if result.good else 1


def _remove_keys(engine: Engine, driver: Driver, shards: int) -> None:
    """Closes the engine and removes every key of it, also when the demo was stopped midway."""
    engine.close()
    control = control_keys(engine.name)
    known = (control.topology, control.settings, control.edits, control.members, control.limits)
    stored = [(control.slot, [*known, control.reports, control.history, control.changes])]
    for keys in (shard_keys(engine.name, shard) for shard in range(shards)):
        tasks = (keys.due, keys.task, keys.leased, keys.lease, keys.dead, keys.why, keys.ready(""), keys.waiting(""))
        others = (keys.looks, keys.moved, keys.staged)
        stored.append((keys.slot, [keys.meta, *tasks, keys.ghost, keys.seen, keys.topics, *others]))
    for slot, names in stored:
        driver.call(Command(slot, ("UNLINK", *names), int))


IDLE_TASKS = 100
IDLE_S = 1.0
"""So many tasks are due in so long, one after the other."""

IDLE_PATIENCE_S = 5.0
"""They are shown as far as they came by then."""

CONSUMERS = 2
"""While one notes what it claimed, the other's claim is under way."""

CLAIM = 500
WAIT_S = 0.25
"""A consumer waits so long for tasks; it also notices so soon that it is to stop."""

FIRST_DUE_S = 0.5
"""The shortest delay. A task should have reached the server when it is due, or its way there would be measured."""

STALLED_S = 45.0
"""The rest counts as lost when nothing has moved for so long after the last task was due. Longer than a lease: tasks
come back then whose claim was not answered.
"""

COUNTED_S = 1.0
"""After the last claim, a poller whose answer is under way has so long to note how late its tasks were."""

CLOCK_TRIPS = 5
"""The quickest of a few trips bounds a server's clock best; on one machine that is to some ten microseconds."""


class Clock:
    """The clock of the master that serves a slot, read without the engine."""

    def __init__(self, driver: Driver, slot: int) -> None:
        self._driver = driver
        self._time = Command(slot, ("TIME",), lambda answer: int(answer[0]) + int(answer[1]) / 1e6)
        self.compare()

    def compare(self) -> None:
        """Compares it with ours. Called again when the clock may have been set."""
        # the server read its clock after we sent the question: its lead over ours is this or less
        self._lead_s = min(-time.monotonic() + self._driver.call(self._time) for _ in range(CLOCK_TRIPS))

    def latest_ms(self, now_s: float) -> float:
        """The server's clock at an instant of ``time.monotonic()``, or a little more; never less."""
        return (now_s + self._lead_s) * 1000


@dataclass(frozen=True, slots=True)
class TrialResult:
    """The number of tasks of each kind at the end."""

    pushed: int
    dispatched: int
    claimed: int
    early: int
    lost: int
    duplicates: int

    @property
    def good(self) -> bool:
        return self.pushed == self.dispatched == self.claimed and not (self.early or self.lost or self.duplicates)


class Trial:
    """A trial, which runs in threads within its ``with`` block. ``clocks`` are the clocks of the masters, by shard."""

    def __init__(self, engine: Engine, clocks: Mapping[int, Clock], *, tasks: int, seconds: float) -> None:
        self.tasks = tasks
        self.pushed: int = 0
        self._engine = engine
        self._clocks = clocks
        self._seconds = seconds
        self._claims = bytearray(tasks)
        """How often each number was claimed; 255 stands for more."""
        self._early = 0
        self._lock = threading.Lock()
        self._ending = threading.Event()
        self._threads: list[Future[None]] = []
        """The producer's is the first one."""
        self._progress = (0, 0)
        self._last_due = time.monotonic()
        self._progressed = self._last_due

    def __enter__(self) -> Self:
        consumers = ((self._consume, f"shardq-demo-consumer-{n}") for n in range(CONSUMERS))
        self._threads = [begun(*each) for each in ((self._produce, "shardq-demo-producer"), *consumers)]
        return self

    def __exit__(self, *exc: object) -> None:
        self._ending.set()
        futures.wait(self._threads)

    @property
    def failure(self) -> BaseException | None:
        """The error that ended one of the threads."""
        return next(filter(None, (each.exception() for each in self._threads if each.done())), None)

    @property
    def claimed(self) -> int:
        return self.tasks - self._claims.count(0)

    @property
    def pushing(self) -> bool:
        return not self._threads[0].done()

    def over(self, stats: Stats, *, pushing: bool) -> bool:
        """True if nothing can come any more: every shard is empty, or nothing has moved for long.

        ``pushing`` must be read before ``stats``: neither shows what is pushed in between.
        """
        now = time.monotonic()
        progress = (self.pushed, self.claimed)
        if progress != self._progress:
            self._progress, self._progressed = progress, now
        if self.failure is not None:
            return True
        if pushing:
            self._last_due = now + self._seconds
            return False
        stalled = now - max(self._progressed, self._last_due) > STALLED_S
        # a shard whose server did not answer in time has no counts
        empty = not (stats.scheduled or stats.ready or stats.leased or any(shard.error for shard in stats.shards))
        counted = stats.lateness.count >= stats.dispatched or now - self._progressed > COUNTED_S
        return stalled or (empty and counted)

    def result(self, stats: Stats) -> TrialResult:
        claimed = self.claimed
        return TrialResult(
            pushed=self.pushed,
            dispatched=stats.dispatched,
            claimed=claimed,
            early=max(self._early, stats.lateness.early),
            lost=self.pushed - claimed,
            duplicates=sum(self._claims) - claimed,
        )

    def _produce(self) -> None:
        for ids in self._engine.push_iter(self._numbered()):
            self.pushed += len(ids)

    def _numbered(self) -> Iterator[Task]:
        clock = self._clocks[0]
        for number in range(self.tasks):
            if self._ending.is_set():
                return
            due_ms = int(clock.latest_ms(time.monotonic()) + 1000 * random.uniform(FIRST_DUE_S, self._seconds)) + 1
            yield Task({"n": number, "due": due_ms}, at=due_ms / 1000)

    def _consume(self) -> None:
        consumer = self._engine.consumer()
        while not self._ending.is_set():
            deliveries = consumer.claim(CLAIM, wait=WAIT_S)
            self._note(deliveries)
            consumer.ack(deliveries)

    def _note(self, deliveries: list[Delivery]) -> None:
        now_s = time.monotonic()
        with self._lock:
            for delivery in deliveries:
                number, due_ms = delivery.payload["n"], delivery.payload["due"]
                self._claims[number] = min(255, self._claims[number] + 1)
                clock = self._clocks[delivery.shard]
                if clock.latest_ms(now_s) < due_ms:
                    clock.compare()
                    self._early += clock.latest_ms(now_s) < due_ms
