"""Tasks to push, and engines filled with them. Used by the suites."""

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
"""Random due times within an hour: sorted sets are then written all over, as by real use."""

FAR_S = 3600.0
"""What is due later than this stays pending while it is measured."""


READY_S = 0.02
"""Before the instant of a burst: time to reset the servers' statistics."""


def payload_of(size: int) -> str:
    """A text that is so many bytes long as JSON."""
    return "x" * (size - 2)


def spread_tasks(count: int, *, at_least_s: float = 0.0, payload: str = PAYLOAD) -> list[Task]:
    """Tasks with random delays: the same ones in every run."""
    source = random.Random(count)
    return [Task(payload, delay=at_least_s + source.uniform(0, SPREAD_S)) for _ in range(count)]


def fill_ready(stand: Stand, engine: Engine, count: int, *, payload: str = PAYLOAD) -> None:
    """Puts so many tasks into the ready lists, and leaves the engine without pollers."""
    engine.push_many([Task(payload)] * count)
    engine.start()
    stand.until_gone(engine, lambda keys: keys.due)
    engine.stop()


def push_for_one_instant(
    stand: Stand, engine: Engine, count: int, *, payload: str = PAYLOAD, topic: str = "", per_s: int = 60_000
) -> float:
    """Pushes so many tasks that are all due at one instant, which is answered, and is still to come.

    How long pushing takes nobody knows before: when the instant has come meanwhile it is all done again, with twice
    the time.
    """
    lead_s = 1.0 + count / per_s
    while True:
        at = round(time.time() + lead_s, 3)
        task = Task(payload, at=at, topic=topic)
        for _ in engine.push_iter(task for _ in range(count)):
            pass
        if time.time() < at - 0.2:
            return at
        stand.say(f"pushing {count:,} took longer than {lead_s:.1f} s; again with twice the time")
        engine.purge(everything=True)
        lead_s *= 2


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
    """So many tasks due at one instant, for an engine with pollers: what it takes from then until the last is ready.

    Ready is judged at the server: the shards' sets of scheduled ids are gone. ``over`` waits for something else, and
    answers when it came, as ``time.time()`` tells.
    """
    due_s = push_for_one_instant(stand, engine, count, payload=payload, topic=topic, per_s=per_s)
    # asleep until just before: what is done while waiting does not count
    time.sleep(max(0.0, due_s - time.time() - READY_S))
    stand.reset_stats()
    with stand.metering() as spent:
        end_s = over() if over else stand.until_gone(engine, lambda keys: keys.due)
    spent.wall_s = end_s - due_s
    return spent
