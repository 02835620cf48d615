"""What leaks is told from what goes up and down."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from bench.chaos import Series
from cluster.server import Server
from shardq import Engine, Task
from tests.chaos.soaking.flat import MB, grown, judged
from tests.chaos.soaking.samples import Samples, kind_of, of_server

POINTS = [float(at_s) for at_s in range(0, 7200, 20)]


def rss(per_s: float, *, noise: float = 0.0, first: float = 0.0) -> Series:
    draw = random.Random(7)
    points = [(at_s, 50 * MB + per_s * at_s + noise * draw.random() + first * (at_s < 600)) for at_s in POINTS]
    return Series("rss", "server 1", points)


@pytest.mark.parametrize(
    ("series", "is_flat"),
    [
        (rss(0.0), True),
        (rss(0.0, noise=20 * MB), True),
        (rss(0.0, first=-40.0 * MB), True),
        (rss(-900.0), True),
        (rss(2000.0), False),
        (rss(2000.0, noise=8 * MB), False),
    ],
    ids=["flat", "noisy", "smaller at first", "less", "a leak", "a leak in noise"],
)
def test_a_leak_is_found_and_noise_is_not(series: Series, is_flat: bool) -> None:
    (flat,) = judged([series], 900.0)
    assert flat.is_flat == is_flat


def test_one_thread_too_many_is_allowed_and_two_are_not() -> None:
    for more in (0, 1, 2):
        points = [(at_s, 9.0 + more * at_s / POINTS[-1]) for at_s in POINTS]
        (flat,) = judged([Series("threads", "flow1", points)], 0.0)
        assert flat.is_flat == (more < 2)


def test_growth_is_that_of_the_whole_time() -> None:
    assert grown((at_s, 3.0 * at_s) for at_s in range(101)) == pytest.approx(300.0)


def test_too_few_samples_say_nothing() -> None:
    assert judged([Series("rss", "a", [(0.0, 1.0), (1.0, 9e9)])], 0.0) == []


def test_the_file_has_a_point_a_minute() -> None:
    series = Series("rss", "a", [(20.0 * number + 0.1, float(number)) for number in range(9)])
    assert series.thinned(60.0).points == [(0.1, 0.0), (60.1, 3.0), (120.1, 6.0)]


def test_keys_are_counted_by_kind(own_server: Server) -> None:
    with Engine(own_server.url, name="soaked", shards=4) as engine:
        engine.push_many([Task(number, delay=60.0, topic="mail") for number in range(100)])
    counts: Counter[str] = Counter()
    entries: Counter[str] = Counter()
    samples = Samples()
    samples.add(1.0, of_server("server 1", own_server, counts, entries))
    assert [each.kind for each in samples.series] == ["used memory", "script memory"]
    assert samples.series[0].points[0][1] > 1e5
    assert (counts["due"], entries["due"]) == (4, 100)
    assert (counts["task"], entries["task"]) == (4, 100)
    assert counts["topology"] == 1
    assert kind_of("arrived") == "arrived"
