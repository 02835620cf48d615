"""The forecast: as many as a count of all tasks one by one, in every bucket, also while tasks are moved."""

from __future__ import annotations

import datetime as dt
import random
import time

import pytest

from shardq import Engine, Forecast, Task
from shardq.features.listing.forecast import Horizon
from tests.support.engines import Engines
from tests.support.listed import listed
from tests.support.states import FAR_S
from tests.support.waiting import wait_until

LENGTHS: dict[Horizon, tuple[int, int]] = {"hour": (60, 60), "day": (3600, 24), "month": (86_400, 30)}


def by_brute_force(engine: Engine, forecast: Forecast) -> tuple[int, list[int], int]:
    """Counts every task by its own due time."""
    overdue, later, counts = 0, 0, [0] * len(forecast.buckets)
    begin = forecast.buckets[0][0]
    for task in listed(engine, state="scheduled", limit=1000):
        assert task.due is not None
        number = (task.due - begin) // forecast.step
        if task.due <= forecast.now:
            overdue += 1
        elif number >= len(counts):
            later += 1
        else:
            counts[number] += 1
    return overdue, counts, later


@pytest.mark.parametrize("horizon", LENGTHS)
def test_it_is_a_count_of_all(engine: Engine, horizon: Horizon) -> None:
    """None is due within a minute, so that none changes its bucket between the two counts."""
    step_s, steps = LENGTHS[horizon]
    some = random.Random(horizon)
    length = step_s * steps
    delays = [some.choice([some.uniform(60, length), some.uniform(60, 2 * length), 120]) for _ in range(2000)]
    engine.push_many([Task(n, delay=delay, topic=f"t{n % 3}") for n, delay in enumerate(delays)])
    # well past: a task that is due now is due in the next millisecond, and shards are asked one after the other
    engine.push_many([Task(n, at=time.time() - 60) for n in range(100)])
    forecast = engine.forecast(horizon)
    assert (forecast.overdue, [count for _, count in forecast.buckets], forecast.later) == by_brute_force(
        engine, forecast
    )
    assert forecast.total == 2100
    assert forecast.overdue == 100
    starts = [start for start, _ in forecast.buckets]
    assert [starts[0] + n * dt.timedelta(seconds=step_s) for n in range(steps)] == starts
    assert starts[0].timestamp() % step_s == 0
    assert starts[0] <= forecast.now < starts[1]


def test_nothing(engine: Engine) -> None:
    forecast = engine.forecast()
    assert (forecast.overdue, forecast.later, forecast.total, len(forecast.buckets)) == (0, 0, 0, 60)
    assert abs(forecast.now - dt.datetime.now(dt.UTC)) < dt.timedelta(seconds=60)


def test_after_a_resize(engines: Engines, engine: Engine) -> None:
    """While two numbers hold, every task is in one shard."""
    engine.push_many([Task(n, delay=FAR_S) for n in range(1500)])
    engine.resize(8)
    assert engine.forecast("day").total == 1500
    engine.resize(3)
    assert engine.forecast("day").total == 1500
    engine.start()
    wait_until(lambda: engines.done(engine.resize(dry_run=True).progress()).done, "all are moved")
    assert engine.forecast("day").total == 1500
