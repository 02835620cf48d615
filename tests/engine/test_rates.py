"""The rates of an engine are differences of its shards' counters, over a second or longer."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from shardq.core.calls.observe import ShardCounts
from shardq.core.layout.keys import shard_keys
from shardq.engine.engine_wide import CountsByShard, RateMeter
from shardq.errors import Unavailable

EMPTY = ShardCounts(
    now_us=0,
    scheduled=0,
    held=0,
    leased=0,
    dead=0,
    head_ms=None,
    late_ms=None,
    reaped=0,
    buried=0,
    forwarded=0,
    dispatched_retired=0,
    died_retired=0,
    dispatched={},
    ready={},
    waited_ms={},
    died={},
    died_lately=0,
    trimmed=0,
    trimmed_ms=None,
    drawn={"scheduled": {}, "leased": {}, "dead": {}},
    retrying={},
    entries=0,
)


def seen(**counts: Any) -> ShardCounts:
    return dataclasses.replace(EMPTY, **counts)


def look(*shards: ShardCounts | None) -> CountsByShard:
    """None: a shard that can't be seen."""
    return [(shard_keys("orders", n), each or Unavailable("it is away")) for n, each in enumerate(shards)]


def test_rates_of_all_shards_and_topics() -> None:
    meter = RateMeter()
    before = seen(scheduled=100, dispatched={"a": 10, "b": 0}, ready={"a": 4, "b": 0})
    assert meter.note(look(before, seen()), 50.0) is None
    after = seen(scheduled=96, dispatched={"a": 20, "b": 8}, ready={"a": 0, "b": 8}, forwarded=2)
    interval = meter.note(look(after, seen(scheduled=2)), 52.0)
    assert interval is not None
    total = interval.total
    assert (total.seconds, total.dispatched, total.taken, total.forwarded) == (2.0, 9.0, 7.0, 1.0)
    assert total.scheduled == 8.0, "16 were pushed: 18 left, and 2 more are there"
    assert (interval.dispatched, interval.taken) == ({"a": 5.0, "b": 4.0}, {"a": 7.0, "b": 0.0})
    assert interval.dispatched_of_shard == {0: 9.0, 1: 0.0}


def test_they_are_over_a_second_or_longer() -> None:
    meter = RateMeter()
    rates = []
    for tenth in range(40):
        interval = meter.note(look(seen(dispatched={"": tenth})), tenth / 10)
        rates.append(interval and interval.total.seconds)
    assert rates[:3] == [None, 0.1, 0.2]
    assert rates[-1] == pytest.approx(1.0, abs=0.11)
    interval = meter.note(look(seen(dispatched={"": 139})), 13.9)
    assert interval is not None
    assert (interval.total.seconds, interval.total.dispatched) == (10.0, 10.0)


def test_a_lease_that_ran_out_is_no_negative_rate() -> None:
    meter = RateMeter()
    meter.note(look(seen(dispatched={"": 5}, ready={"": 0})), 1.0)
    interval = meter.note(look(seen(dispatched={"": 5}, ready={"": 3}, reaped=3)), 2.0)
    assert interval is not None
    assert (interval.total.taken, interval.taken) == (0.0, {"": 0.0})


def test_shards_that_were_not_seen_twice_do_not_count() -> None:
    meter = RateMeter()
    meter.note(look(None, seen(dispatched={"": 5})), 1.0)
    interval = meter.note(look(seen(dispatched={"": 500}), seen(dispatched={"": 6})), 2.0)
    assert interval is not None
    assert interval.total.dispatched == 1.0
    assert interval.dispatched_of_shard == {0: 0.0, 1: 1.0}
