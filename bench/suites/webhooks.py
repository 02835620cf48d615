"""Webhooks to many endpoints: how late those that answer get theirs while others hang and refuse, beside a run in which
all answer.
"""

from __future__ import annotations

import contextlib
import random
import socket
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from bench.children import Child
from bench.endpoints import HANGS_S
from bench.figures import Figure
from bench.stand import Stand, Suite
from shardq import Engine, Task

ROUTE, SINKS = "webhook://#http=yes&timeout=30", ["webhook://127.0.0.1"]
PUSHES = 200
"""A second, each to an endpoint drawn at random."""


def _measure(stand: Stand) -> Iterator[Figure]:
    count, seconds = stand.pick(200, 10_000), stand.pick(2.0, 30.0)
    well = _run(stand, count, 0, 0, seconds)
    yield _figure("all answer", well)
    each = count // 100
    found = _run(stand, count, each, each, seconds)
    yield _figure(f"1 % hang for {HANGS_S:g} s, 1 % refuse", found, than=well)


def _figure(what: str, late_s: list[float], than: list[float] | None = None) -> Figure:
    late_ms = [1000 * each for each in late_s]
    p99 = _share(late_ms, 0.99)
    ratio = None if than is None else p99 / (1000 * _share(than, 0.99))
    return Figure(
        f"webhooks at {PUSHES}/s, {what}: how late those come that are answered",
        _share(late_ms, 0.5),
        "ms",
        {"p99": p99, "max": max(late_ms)},
        reference="" if ratio is None else "p99 ÷ that of all answering; aim: ≤ 2",
        ratio=ratio,
    )


def _share(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def _run(stand: Stand, count: int, hanging: int, refusing: int, seconds: float) -> list[float]:
    stand.say(f"{count:,} endpoints, {hanging} hang, {refusing} refuse, {seconds:g} s")
    name = f"bench-hooks-{random.randrange(10**9)}"
    with (
        contextlib.ExitStack() as stack,
        tempfile.TemporaryDirectory() as folder,
        Child("bench.endpoints", count - refusing, hanging, file := Path(folder) / "ports") as child,
        Engine(stand.url, name=name, sinks=SINKS) as engine,
    ):
        child.await_ready()
        child.begin()
        ports = [int(word) for word in file.read_text().split()]
        refused = [_refusing(stack) for _ in range(refusing)]
        urls = [f"http://127.0.0.1:{port}/" for port in [*refused, *ports]]
        engine.forward("hooks", to=ROUTE)
        engine.start()
        of_others = _pushed(engine, urls, seconds, troubled=refusing + hanging)
        until = time.monotonic() + 60
        while (left := engine.stats().topics["hooks"].ready) and time.monotonic() < until:
            time.sleep(0.2)
        time.sleep(1.0)  # what was claimed is on its way
        found = child.end()
        if left or len(found["late_s"]) != of_others:
            raise RuntimeError(f"{len(found['late_s']):,} of {of_others:,} requests came to those that answer")
        if found["most_open"] > 1:
            raise RuntimeError(f"an endpoint had {found['most_open']} requests at a time")
    stand.clear()
    late_s: list[float] = found["late_s"]
    return late_s


def _refusing(stack: contextlib.ExitStack) -> int:
    """A port at which nobody listens, as long as the stack is open."""
    bound = stack.enter_context(socket.socket())
    bound.bind(("127.0.0.1", 0))
    port: int = bound.getsockname()[1]
    return port


def _pushed(engine: Engine, urls: list[str], seconds: float, troubled: int) -> int:
    """Pushes at the rate. Returns how many went to endpoints that answer."""
    draw, began, pushed, others = random.Random(1), time.monotonic(), 0, 0
    while pushed < seconds * PUSHES:
        due = min(int(seconds * PUSHES), int((time.monotonic() - began) * PUSHES))
        tasks = []
        for _ in range(due - pushed):
            number = draw.randrange(len(urls))
            others += number >= troubled
            tasks.append(Task(time.monotonic(), topic="hooks", url=urls[number]))
        if tasks:
            engine.push_many(tasks)
        pushed = due
        time.sleep(0.005)
    return others


SUITE = Suite("webhooks", "webhooks to many endpoints, of which some hang and refuse", _measure)
