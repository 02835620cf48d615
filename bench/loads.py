"""The suites push these tasks, and fill engines with them."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

from bench.figures import Spent
from bench.stand import Stand
from shardq import Engine, Task

PAYLOAD_BYTES = 100

PAYLOAD = "x" * (PAYLOAD_BYTES - 2)
"""JSON adds the two quotes."""

SPREAD_S = 3600.0
"""The range of random due times. Within an hour they write sorted sets in all places, as real use does."""

FAR_S = 3600.0
"""Tasks that are due later than this stay pending while they are measured."""

AHEAD_S = 0.2
"""Pushing ends so long before the instant."""

READY_S = 0.02
"""The time before the instant of a burst in which the servers' statistics are reset."""


def payload_of(size: int) -> str:
    """Returns a text that is so many bytes long as JSON."""
    return "x" * (size - 2)


def spread_tasks(count: int, *, at_least_s: float = 0.0, payload: str = PAYLOAD) -> list[Task]:
    """Returns tasks with random delays, the same ones in every run."""
    source = random.Random(count)
    return [Task(payload, delay=at_least_s + source.uniform(0, SPREAD_S)) for _ in range(count)]


def fill_ready(stand: Stand, engine: Engine, count: int, *, payload: str = PAYLOAD) -> None:
    """Fills the ready lists with so many tasks, and leaves the engine without pollers."""
    engine.push_many([Task(payload)] * count)
    engine.start()
    stand.until_gone(engine, lambda keys: keys.due)
    engine.stop()


def push_ahead(stand: Stand, engine: Engine, lead_s: float, push: Callable[[float], object]) -> float:
    """Pushes what falls due from an instant on that is to come, and returns that instant.

    The time that pushing takes is not known beforehand. If the instant passes meanwhile, everything is done again with
    twice the time.
    """
    while True:
        at = round(time.time() + lead_s, 3)
        push(at)
        if time.time() < at - AHEAD_S:
            return at
        stand.say(f"pushing took longer than {lead_s:.1f} s; again with twice the time")
        engine.purge(everything=True)
        lead_s *= 2


def push_for_one_instant(
    stand: Stand, engine: Engine, count: int, *, payload: str = PAYLOAD, topic: str = "", per_s: int = 60_000
) -> float:
    """Pushes so many tasks that are all due at one instant to come, and returns that instant."""

    def push(at: float) -> None:
        task = Task(payload, at=at, topic=topic)
        for _ in engine.push_iter(task for _ in range(count)):
            pass

    return push_ahead(stand, engine, 1.0 + count / per_s, push)


def burst(
    stand: Stand,
    engine: Engine,
    count: int,
    *,
    payload: str = PAYLOAD,
    topic: str = "",
    per_s: int = 60_000,
    over: Callable[[], float] | None = None,
) -> Spent:
    """Measures so many tasks that are due at one instant, from then until the last is ready. The engine has pollers.

    All are ready when the servers hold no set of scheduled ids any more. ``over`` waits for something else, and returns
    its end in the seconds of ``time.time()``.
    """
    due_s = push_for_one_instant(stand, engine, count, payload=payload, topic=topic, per_s=per_s)
    # it sleeps until just before, so that work while waiting does not count
    time.sleep(max(0.0, due_s - time.time() - READY_S))
    stand.reset_stats()
    with stand.metering() as spent:
        end_s = over() if over else stand.until_gone(engine, lambda keys: keys.due)
    spent.wall_s = end_s - due_s
    return spent
