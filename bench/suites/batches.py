"""Handlers of batches beside handlers of single tasks, and how large batches get where a fleet lingers.

No-op handlers show what a worker spends for a task. In the other pair a call costs a millisecond for one task, and
20 ms for 500, as an insert of so many rows does.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any

from bench.children import Child
from bench.consuming import batches, function, running
from bench.figures import Figure, client_cost, rate
from bench.lingering import BATCH, LINGER_S
from bench.loads import PAYLOAD
from bench.stand import Stand, Suite
from bench.suites.consume import drained
from shardq import Batch, Delivery, Engine, Task, Worker

ROUNDS = 3
SINGLE_S, BATCH_S = 0.001, 0.02
PROCESSES = 20
PUSHES = 1_000
"""A second."""


def _measure(stand: Stand) -> Iterator[Figure]:
    count = stand.pick(5_000, 100_000)
    pairs: tuple[tuple[str, Callable[[Worker], None], Callable[[Worker], None], int], ...] = (
        ("no-op", function, batches, count),
        (f"{SINGLE_S * 1000:g} ms for one, {BATCH_S * 1000:g} ms for {BATCH}", _one_by_one, _together, count // 2),
    )
    for what, single, together, tasks in pairs:
        rates: dict[str, list[float]] = {"single": [], "batches": []}
        for number in range(ROUNDS):
            stand.say(f"{what}: {tasks:,} tasks, round {number + 1} of {ROUNDS}")
            for name, register in (("single", single), ("batches", together)):
                spent = drained(stand, tasks, running(stand, register))
                rates[name].append(tasks / spent.wall_s)
                if number == ROUNDS - 1:
                    yield rate(f"{what}, {name}", tasks, spent)
                    yield client_cost(f"{what}, {name}", tasks, spent)
        ratios = sorted(one / other for one, other in zip(rates["batches"], rates["single"], strict=True))
        ratio = ratios[len(ratios) // 2]
        yield Figure(f"{what}: batches of {BATCH} ÷ single", ratio, "", reference="median of three rounds", ratio=ratio)
    yield _lingering(stand, stand.pick(2.0, 10.0))


def _one_by_one(worker: Worker) -> None:
    @worker.on("")
    def handle(delivery: Delivery) -> None:
        time.sleep(SINGLE_S)


def _together(worker: Worker) -> None:
    @worker.on("", batch=BATCH, concurrency=2)
    def handle(batch: Batch[Any]) -> None:
        time.sleep(BATCH_S)


def _lingering(stand: Stand, seconds: float) -> Figure:
    """The batches of a fleet while tasks come at a steady rate."""
    with stand.engine() as engine, contextlib.ExitStack() as stack:
        engine.start()
        stand.say(f"{PROCESSES} processes linger for {LINGER_S:g} s, {PUSHES:,} tasks/s")
        fleet = [stack.enter_context(Child("bench.lingering", stand.url, engine.name)) for _ in range(PROCESSES)]
        for child in fleet:
            child.await_ready()
        for child in fleet:
            child.begin()
        pushed = _pushed(engine, seconds)
        stand.until_gone(engine, lambda keys: keys.task)
        sizes = sorted(size for child in fleet for size in child.end())
    if sum(sizes) != pushed:
        raise RuntimeError(f"{sum(sizes):,} of {pushed:,} tasks were handled")
    mean = pushed / len(sizes)
    return Figure(
        f"mean batch of {PROCESSES} processes, linger={LINGER_S:g}, {PUSHES:,} tasks/s",
        mean,
        "tasks",
        {"p50": sizes[len(sizes) // 2], "max": sizes[-1]},
        reference=f"of {BATCH} at most; aim: ≥ 100 on one server, ≥ 40 on three masters",
    )


def _pushed(engine: Engine, seconds: float) -> int:
    """Pushes at the rate. Returns how many."""
    began, pushed, most = time.monotonic(), 0, int(seconds * PUSHES)
    while pushed < most:
        due = min(most, int((time.monotonic() - began) * PUSHES))
        if due > pushed:
            engine.push_many([Task(PAYLOAD) for _ in range(due - pushed)])
            pushed = due
        time.sleep(0.005)
    return pushed


SUITE = Suite("batches", "handlers of batches beside single ones, and a fleet that lingers", _measure)
