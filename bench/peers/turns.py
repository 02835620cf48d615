"""One turn of a peer measures everything about it, on a store of its own.

1. A pusher alone: the rate of scheduling tasks that are due in the hour after the next, and the memory of one.
2. A worker and a pusher on the emptied store: the lateness of single tasks, the rate of tasks that are all due at one
   instant, and the commands of the store when both have nothing to do.

A stage that fails is named, and the next one is tried all the same.
"""

from __future__ import annotations

import contextlib
import math
import random
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from bench.cores import Cores
from bench.figures import percentiles
from bench.peers import stores
from bench.peers.adapter import Adapter
from bench.peers.child import Child, Failed, Notes
from bench.peers.homes import Home
from bench.peers.outcome import Rows
from bench.peers.stores import Store
from cluster import warden

WARM_UP = 100
"""Tasks that are pushed before any measurement: scripts are then loaded, and connections made."""

FAR_S = 3600.0
"""Tasks that are due later than this stay pending while they are measured."""

SCHEDULE_S = 4.0
"""A slow peer schedules for this long, not until all are pushed."""

LATE_PER_S = 20
"""Tasks at random instants come some 50 ms apart, so that the next finds the machine idle."""

LEAD_S = 1.5
"""The time from the order to push until the first task is due: pushing is over, and everything sleeps."""

READY_S = 30.0
"""The time from the start of a worker until it has handled a first task."""

GRACE_S = 10.0
"""The wait after the last was due, longer than any peer's interval between two looks."""

DRAIN_S = 60.0
"""The wait after the instant at which all were due."""

DRAIN_TRIES = 4

SETTLE_S = 2.0
"""The pause after the last was handled, before the peer counts as idle."""


@dataclass(frozen=True, slots=True)
class Sizes:
    schedule: int
    drain: int
    """The most tasks; a slow peer's own number may be lower."""
    late: int
    idle_s: float
    """Longer than any peer's interval between two looks; ours are up to 20 s apart."""


USUAL = Sizes(schedule=20_000, drain=20_000, late=200, idle_s=20.0)


@dataclass(slots=True)
class Turn:
    """One peer's turn in one round. ``whole`` adds lateness and idling, which a second round would not tell better."""

    adapter: Adapter
    home: Home
    kind: str
    """The kind of server."""
    cores: Cores
    sizes: Sizes
    whole: bool
    say: Callable[[str], None]
    rows: Rows = field(default_factory=Rows)

    def take(self) -> Rows:
        with self._store() as store, _folder() as folder:
            with self._remembering("schedule"):
                self._schedule(store, folder)
            store.clear()
            with self._remembering("work"):
                self._work(store, folder)
        return self.rows

    @contextlib.contextmanager
    def _store(self) -> Iterator[Store]:
        if self.adapter.store == "beanstalkd":
            with stores.beanstalkd(self.home.binary, cores=self.cores) as beanstalkd:
                yield beanstalkd
        else:
            with stores.redis(self.kind, cores=self.cores) as redis:
                yield redis

    @contextlib.contextmanager
    def _remembering(self, stage: str) -> Iterator[None]:
        try:
            yield
        except Failed as exc:
            self.rows.problems.append(f"{stage}: {exc}")

    # ---- alone

    def _schedule(self, store: Store, folder: Path) -> None:
        self.say("scheduling")
        with Child(self.home, "push", url=store.url, folder=folder) as pusher:
            pusher.answer()
            pusher.push(_within_an_hour(WARM_UP), timeout=READY_S)
            before = store.memory()
            told = pusher.push(_within_an_hour(self.sizes.schedule), seconds=SCHEDULE_S, timeout=READY_S)
            self.rows.schedule_per_s = told["pushed"] / told["seconds"]
            self.say("weighing")
            self.rows.bytes_per_task = (store.memory() - before) / told["pushed"]

    # ---- with a worker

    def _work(self, store: Store, folder: Path) -> None:
        self.say("starting a worker")
        notes = Notes(folder)
        with (
            Child(self.home, "work", url=store.url, folder=folder) as worker,
            Child(self.home, "push", url=store.url, folder=folder) as pusher,
        ):
            pusher.answer()
            pusher.push([time.time()], timeout=READY_S)
            if not notes.wait(1, until=time.time() + READY_S, worker=worker):
                raise Failed(f"its worker handled nothing within {READY_S:.0f} s")
            if self.whole:
                with self._remembering("lateness"):
                    self._lateness(notes, worker, pusher)
            with self._remembering("drain"):
                self._drain(notes, worker, pusher)
            if self.whole:
                with self._remembering("idle"):
                    self._idle(store)

    def _lateness(self, notes: Notes, worker: Child, pusher: Child) -> None:
        count = self.sizes.late
        self.say(f"lateness of {count} tasks")
        seconds = count / LATE_PER_S
        first = time.time() + LEAD_S
        # whole milliseconds, so that rounding makes no task late or early
        dues = sorted(round(first + random.uniform(0, seconds), 3) for _ in range(count))
        pusher.push(dues, timeout=seconds + READY_S)
        late = notes.wait(count, until=dues[-1] + GRACE_S, worker=worker)
        if len(late) < count:
            raise Failed(f"{len(late)} of {count} tasks came within {GRACE_S:.0f} s")
        found = percentiles([1000 * each for each in late])
        self.rows.lateness_p50_ms, self.rows.lateness_p99_ms = found["p50"], found["p99"]
        if early := sum(each < 0 for each in late):
            self.rows.remarks.append(f"{early} of {count} came early, by up to {-1000 * min(late):.0f} ms")

    def _drain(self, notes: Notes, worker: Child, pusher: Child) -> None:
        count = min(self.sizes.drain, self.adapter.drain_tasks)
        rate = self.rows.schedule_per_s or 1000.0
        lead = LEAD_S + 1.5 * count / rate
        for _ in range(DRAIN_TRIES):
            # whole seconds, because some peers have no finer instants
            due = math.ceil(time.time() + lead)
            self.say(f"drain of {count:,} tasks due in {lead:.0f} s")
            pusher.push([due] * count, timeout=3 * lead + READY_S)
            in_time = time.time() < due
            late = notes.wait(count, until=max(due, time.time()) + DRAIN_S, worker=worker)
            if len(late) < count:
                raise Failed(f"{len(late):,} of {count:,} tasks came within {DRAIN_S:.0f} s")
            if in_time:
                self.rows.drain_per_s = count / max(late)
                self.rows.drain_tasks = count
                return
            # the worker takes its part of the core, so pushing is slower than alone
            lead *= 2
        raise Failed(f"{count:,} tasks were not pushed before they were due, not even within {lead / 2:.0f} s")

    def _idle(self, store: Store) -> None:
        self.say("idle")
        time.sleep(SETTLE_S)
        before, began = store.commands(), time.monotonic()
        time.sleep(self.sizes.idle_s)
        self.rows.idle_commands_per_s = (store.commands() - before) / (time.monotonic() - began)


@contextlib.contextmanager
def _folder() -> Iterator[Path]:
    """A folder for logs and notes. It is removed even if this process is killed."""
    key = warden.new_key()
    with tempfile.TemporaryDirectory(prefix="shardq-peers-") as name:
        warden.note(key, pid=None, folder=Path(name))
        yield Path(name)
    warden.note(key, pid=None, folder=None)


def _within_an_hour(count: int) -> list[float]:
    """Returns random instants in the hour after the next, at the same distances from now in every run."""
    source, now = random.Random(count), time.time()
    return [round(now + FAR_S + source.uniform(0, FAR_S), 3) for _ in range(count)]
