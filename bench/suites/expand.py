"""Shards are added under load: what producers and consumers notice, and how fast tasks are moved.

One process pushes a task at a time, 1,000 a second, each due within a second; another consumes them. This one has the
pollers, which meanwhile move tasks that belong elsewhere. The engine alone tells the processes of the change.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from bench.children import Child
from bench.figures import Figure, lateness, median, percentiles
from bench.loads import FAR_S, spread_tasks
from bench.probing import CLAIMS, PUSHES
from bench.stand import Stand, Suite
from shardq import Engine
from shardq.core.layout.topology import Topology

CHANGES = ((4, 16), (16, 48))
TOPIC = "probe"
PER_S = 1_000
DELAY_S = 1.0

BEFORE_S = 2.0
AFTER_S = 1.5
"""The times before and after the change that a series shows."""

STEP_S = 0.1
"""The length of a step of the series, and the time between two looks at the progress."""

CHANGE_TIMEOUT_S = 120.0


@dataclass(slots=True)
class _Run:
    """Instants are in seconds since the epoch."""

    asked: float = 0.0
    in_force: float = 0.0
    done: float = 0.0
    moved: list[tuple[float, int]] = field(default_factory=list)
    pushes: list[list[float]] = field(default_factory=list)
    """Rows of the instant of a push, its ms, and the ms of a PING."""
    claims: list[tuple[float, float, str]] = field(default_factory=list)
    """Rows of the due time, the lateness in ms, and the id."""


def _measure(stand: Stand) -> Iterator[Figure]:
    pending = stand.pick(10_000, 200_000)
    for old, new in CHANGES:
        stand.say(f"{old} → {new} shards, {pending:,} pending, {PER_S:,} tasks/s")
        run = _run(stand, old, new, pending)
        name = f"{old} → {new} shards"
        moved = run.moved[-1][1]
        yield Figure(
            f"{name}, {pending:,} pending: in force after",
            run.in_force - run.asked,
            "s",
            reference=f"all moved after {run.done - run.asked:.1f} s",
            at={"curve": "expand", "shards": old, "to": new},
            series=_series(run),
        )
        # moving ended when the count stopped growing; making sure that nothing is left takes longer
        took_s = next(at for at, count in run.moved if count == moved) - run.in_force
        yield Figure(f"{name}: tasks moved", moved / took_s, "tasks/s", reference=f"{moved:,} moved; aim: ≥ 50,000")
        pauses = [took for at, took, _ in run.pushes if run.asked <= at <= run.done]
        took = percentiles(pauses)
        about = f"{len(pauses)} pushes, one at a time, no error; aim: p99 ≤ 100"
        yield Figure(f"{name}: a push meanwhile", took["p50"], "ms", took, about)
        during = [row for row in run.claims if run.asked <= row[0] <= run.done]
        expected = len(during) + len(run.pushes) - len({id for _, _, id in run.claims})
        yield lateness(
            f"{name}: due → claimed meanwhile",
            [late for _, late, _ in during],
            expected=expected,
            aim="aim: p99 ≤ 50",
        )
        shard_of = Topology(epoch=1, shards=new).shard_of
        young = [late for due, late, id in run.claims if due >= run.in_force and shard_of(id) >= old]
        yield lateness(f"{name}: the same on new shards", young, expected=len(young), aim="from the first task on")


SUITE = Suite("expand", "4 → 16 and 16 → 48 shards while tasks are pushed and dispatched", _measure)


def _run(stand: Stand, old: int, new: int, pending: int) -> _Run:
    run = _Run()
    with (
        stand.engine(shards=old) as engine,
        Child("bench.probing", CLAIMS, stand.url, engine.name, TOPIC) as claims,
        Child("bench.probing", PUSHES, stand.url, engine.name, TOPIC, str(PER_S), str(DELAY_S)) as pushes,
    ):
        engine.push_many(spread_tasks(pending, at_least_s=FAR_S))
        engine.start()
        for child in (claims, pushes):
            child.await_ready()
            child.begin()
        time.sleep(BEFORE_S)
        _change(engine, new, run)
        time.sleep(AFTER_S)
        run.pushes = pushes.end()
        time.sleep(DELAY_S + AFTER_S)
        run.claims = [(due, late, id) for due, late, id in claims.end()]
    return run


def _change(engine: Engine, new: int, run: _Run) -> None:
    run.asked = time.time()
    growth = engine.resize(new)
    run.in_force = time.time()
    deadline = run.asked + CHANGE_TIMEOUT_S
    while True:
        progress = growth.progress()
        now = time.time()
        run.moved.append((now, progress.moved))
        if progress.done:
            run.done = now
            return
        if now > deadline:
            raise TimeoutError(f"the tasks were not moved within {CHANGE_TIMEOUT_S:.0f} s: {progress}")
        time.sleep(STEP_S)


def _series(run: _Run) -> dict[str, list[float]]:
    """Returns a row for each 100 ms. 0 s is the call of ``expand``."""
    columns: dict[str, list[float]] = {name: [] for name in ("s", "push_p50_ms", "push_max_ms", "late_p50_ms")}
    columns |= {"late_max_ms": [], "moved": []}
    steps = int((run.done - run.asked + AFTER_S) / STEP_S)
    pushes = _binned([(at - run.asked, took) for at, took, _ in run.pushes])
    claims = _binned([(due - run.asked, late) for due, late, _ in run.claims])
    for step in range(-int(BEFORE_S / STEP_S), steps + 1):
        columns["s"].append(round(step * STEP_S, 1))
        for name, bins in (("push", pushes), ("late", claims)):
            values = bins.get(step, [])
            # a step in which nothing came was late for nobody
            columns[f"{name}_p50_ms"].append(round(median(values), 2) if values else 0.0)
            columns[f"{name}_max_ms"].append(round(max(values, default=0.0), 2))
        until = run.asked + (step + 1) * STEP_S
        columns["moved"].append(max((count for at, count in run.moved if at <= until), default=0))
    return columns


def _binned(rows: Sequence[tuple[float, float]]) -> dict[int, list[float]]:
    bins: dict[int, list[float]] = {}
    for at, value in rows:
        bins.setdefault(int(at // STEP_S), []).append(value)
    return bins
