"""dispatch answers how long the tasks with a key that it moves have waited, and no word more where there is none."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from shardq.core.calls import dispatch as calls
from shardq.core.calls.dispatch import Dispatched
from shardq.core.calls.lane_control import FAR_MS
from shardq.core.calls.request import Call
from shardq.core.fleet.lateness import BINS, Lateness, LatenessRecorder, TopicLateness
from shardq.core.layout.keys import ShardKeys, shard_keys
from tests.lua.shard import EPOCH, NOW, Shard, State, T, meta, record

FAR = int(FAR_MS)

LONGEST = (1 << 36) - 1
"""The last value of a histogram."""


@pytest.fixture
def keys(name: str) -> ShardKeys:
    return shard_keys(name, 1, keyed=True)


def dispatch(keys: ShardKeys, *topics: str) -> Call[Dispatched]:
    return calls.dispatch(keys, EPOCH, topics, limit=1000, max_attempts=9).at(NOW)


def raw(keys: ShardKeys, *topics: str) -> Call[Any]:
    return replace(dispatch(keys, *topics), decode=lambda answer: answer)


def waiting(*tasks: tuple[str, int], number: int | None = None) -> State:
    """Lanes of one task each, whose alarms are past. ``tasks``: the lane, and for how long it has been due; with a
    number it is at the front.
    """
    ids = {f"{lane}x": T - ms for lane, ms in tasks}
    places = {id: f"{at:015}" if number is None else f"-{number:014}" for id, at in ids.items()}
    return {
        "meta": meta(),
        "task": dict.fromkeys(ids, record("x")),
        "due": {id: FAR + at for id, at in ids.items()},
        "keys": {f"{id[:-1]}{place}/x": 0 for id, place in places.items()},
        "alarms": {id[:-1]: T for id in ids},
    }


def noted(*values: int) -> Lateness:
    recorder = LatenessRecorder()
    for ms in values:
        recorder.note(1, oldest_ms=ms, newest_ms=ms)
    return recorder.snapshot()


def added(found: Dispatched) -> dict[str, Lateness]:
    histograms = TopicLateness()
    histograms.add(found.waits)
    return dict(histograms.snapshot())


EDGES = [0, 1, 15, *(edge for bits in range(4, 37) for edge in (2**bits, 2**bits * 9 // 8 - 1, 2**bits * 2 - 1))]


def test_a_wait_is_in_the_bin_of_a_lateness(shard: Shard, keys: ShardKeys) -> None:
    """The bins of the script are those of the reports, at each edge."""
    waits = [ms for ms in EDGES if ms < T]
    shard.seed(waiting(*((f"w/{ms}/", ms) for ms in waits)))
    result = shard.run(dispatch(keys, "w"))
    assert result.moved == len(waits)
    assert added(result) == {"w": noted(*waits)}


@pytest.mark.parametrize("ms", [LONGEST + 1, T])
def test_beyond_the_longest_is_the_longest(shard: Shard, keys: ShardKeys, ms: int) -> None:
    """As of a task that was due in 1970."""
    shard.seed(waiting(("w/k/", ms)))
    result = shard.run(dispatch(keys, "w"))
    assert result.waits == (("w", BINS - 1, 1),)
    assert added(result) == {"w": noted(LONGEST)}


def test_tasks_of_a_bin_and_topic_are_counted_together(shard: Shard, keys: ShardKeys) -> None:
    shard.seed(waiting(("a/1/", 5), ("map/1/", 5), ("a/2/", 5), ("/1/", 2000), ("a/3/", 2047)))
    result = shard.run(dispatch(keys, "a", "map", ""))
    assert sorted(result.waits) == [("", 71, 1), ("a", 5, 2), ("a", 71, 1), ("map", 5, 1)]
    assert (result.oldest_ms, result.newest_ms, result.without_key) == (-1, -1, [])


def test_at_the_front_a_wait_begins_when_the_task_is_due_again(shard: Shard, keys: ShardKeys) -> None:
    shard.seed(waiting(("w/k/", 300), number=7))
    assert added(shard.run(dispatch(keys, "w"))) == {"w": noted(300)}


def test_what_has_no_key_is_as_late_as_before_beside_it(shard: Shard, keys: ShardKeys) -> None:
    state = waiting(("w/k/", 5000), ("w/l/", 1))
    state["due"] |= {"w/a": T - 30, "b": T - 3}
    shard.seed(state)
    result = shard.run(dispatch(keys, "w", ""))
    assert (result.moved, result.oldest_ms, result.newest_ms) == (4, 30, 3)
    assert sorted(result.without_key) == [("", 1), ("w", 1)]
    assert added(result) == {"w": noted(5000, 1)}


def test_what_stays_is_not_counted(shard: Shard, keys: ShardKeys) -> None:
    """The list of its topic was not given."""
    state = waiting(("w/k/", 5000))
    state["due"] |= {"b": T - 3}
    shard.seed(state)
    result = shard.run(dispatch(keys, ""))
    assert (result.lacking, result.waits, result.without_key) == (("w",), (), [("", 1)])


@pytest.mark.parametrize("keyed", [False, True])
def test_without_keys_it_answers_no_word_more(shard: Shard, name: str, keyed: bool) -> None:
    shard.seed({"meta": meta(), "due": {"a": T - 30, "w/b": T}})
    answer = shard.run(raw(shard_keys(name, 1, keyed=keyed), "", "w"))
    names = [
        "moved",
        "reaped",
        "buried",
        "oldest",
        "newest",
        "next_ms",
        "now_us",
        "by_topic",
        "lacking",
        "unheard",
        "routed",
    ]
    assert list(map(bytes.decode, answer[1::2])) == names
