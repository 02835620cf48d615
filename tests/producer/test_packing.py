"""Tasks become entries and calls: many at once are packed as each alone, and none is lost."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardq import BadInput, Task
from shardq.core.layout.topology import Topology
from shardq.core.model.checks import MAX_DELAY_S, due_spec, due_specs
from shardq.core.model.ids import topic_of
from shardq.core.model.record import JSON
from shardq.core.producer.packing import (
    CALL_BYTES,
    CHUNK,
    FIRST_OF_SHARD,
    FRESH,
    MOST_OF_SHARD,
    UNIQUE,
    Entries,
    Packer,
    batches,
    chunk_sizes,
)
from shardq.core.producer.stream import CHUNK_BYTES, Stream
from shardq.core.topology_cache import TopologyCache
from shardq.errors import InvalidDelay, PayloadNotEncodable, PayloadTooLarge

LIMIT = 1000

delays = st.one_of(
    st.none(),
    st.integers(0, 10**9),
    st.floats(0, MAX_DELAY_S),
    st.timedeltas(dt.timedelta(0), dt.timedelta(days=9)),
    st.sampled_from([True, -1, -1e-9, float("nan"), float("inf"), 2.0 * MAX_DELAY_S, "5", 10**400]),
)
ats = st.one_of(st.none(), st.none(), st.floats(0, 1e9), st.just(dt.datetime(2030, 1, 1, tzinfo=dt.UTC)))
payloads = st.one_of(
    st.integers(), st.text(max_size=5), st.sampled_from([object(), b"x", "x" * LIMIT, Task(1), 10**30])
)


@st.composite
def tasks(draw: st.DrawFn) -> Task:
    delay: Any = draw(st.one_of(st.just(5), delays))
    options: dict[str, Any] = draw(
        st.one_of(
            st.just({}),
            st.just({}),
            st.sampled_from(
                [
                    {"topic": "email"},
                    {"topic": "e mail"},
                    {"topic": 5},
                    {"headers": {"a": "b"}},
                    {"max_attempts": 3},
                    {"expires": 60},
                    {"dedup": 60},
                    {"on_conflict": "reject"},
                    {"on_conflict": "never"},
                    {"throttle": 60},
                    {"tags": ["a", "b"]},
                    {"tags": "ab"},
                    {"window": 0},
                    {"id": "mine"},
                    {"id": "mine", "window": 60},
                    {"id": "mine", "throttle": 60},
                    {"id": "mine", "throttle": 60, "dedup": 60},
                    {"id": "mine", "dedup": 60, "on_conflict": "replace", "topic": "email"},
                ]
            ),
        )
    )
    at = draw(ats) if draw(st.integers(0, 9)) == 0 else None
    return Task(draw(st.one_of(st.just("usual"), payloads)), delay=delay, at=at, **options)


def packer() -> Packer:
    return Packer(JSON, max_payload=LIMIT)


def read(record: Any) -> tuple[dict[str, Any], bytes]:
    """The head of a record, and all the rest of it."""
    end = 3 + int.from_bytes(record[1:3], "big")
    return msgspec.msgpack.decode(record[3:end]), record[:1] + record[end:]


def described(entries: Entries) -> tuple[list[Any], list[Any]]:
    """All of it, but of ids that are ours only the topic, and no nonces."""
    fresh, unique = entries.fresh, entries.unique
    rows = [(topic_of(str(fresh[at])), *fresh[at + 1 : at + FRESH]) for at in range(0, len(fresh), FRESH)]
    heads = [read(record) for record in unique[2::UNIQUE]]
    unique = [*unique]
    unique[2::UNIQUE] = [str((head | {"n": 0}, rest)) for head, rest in heads]
    return rows, unique


def one_by_one(many: list[Task]) -> Entries | tuple[type[BadInput], str]:
    whole, single = Entries(), packer()
    for position, task in enumerate(many):
        try:
            entries = single.one(task)
        except BadInput as exc:
            return type(exc), f"task {position} of this call: {exc}"
        whole.ids += entries.ids
        whole.fresh += entries.fresh
        whole.unique += entries.unique
    return whole


@given(st.lists(tasks(), max_size=8))
def test_many_tasks_are_packed_as_each_of_them_is(many: list[Task]) -> None:
    expected = one_by_one(many)
    if isinstance(expected, Entries):
        found = packer().many(many)
        assert described(found) == described(expected)
        assert len(set(found.fresh[::FRESH])) == len(expected.fresh) // FRESH
        assert [topic_of(id) for id in found.ids] == [topic_of(id) for id in expected.ids]
        assert [id for id in found.ids if id not in found.unique] == found.fresh[::FRESH]
        nonces = [read(record)[0]["n"] for record in found.unique[2::UNIQUE]]
        assert len(set(nonces)) == len(nonces)
    else:
        kind, message = expected
        with pytest.raises(kind) as caught:
            packer().many(many)
        assert str(caught.value) == message
        assert type(caught.value) is kind


@pytest.mark.parametrize(
    ("bad", "error"),
    [
        (Task("x", delay=-1), InvalidDelay),
        (Task("x", delay=float("nan")), InvalidDelay),
        (Task("x" * LIMIT), PayloadTooLarge),
        (Task(object()), PayloadNotEncodable),
        (Task(Task("x")), BadInput),
    ],
)
@pytest.mark.parametrize("place", [0, 17, CHUNK, CHUNK + 17])
def test_the_error_of_one_among_many_says_its_place(bad: Task, error: type[BadInput], place: int) -> None:
    many = [Task("x", delay=5)] * (CHUNK + 100)
    many[place] = bad
    with pytest.raises(error, match=f"^task {place} of this call: "):
        packer().many(many)


@given(st.lists(delays, max_size=6), st.data())
def test_due_words_of_many(some: list[Any], data: st.DataObject) -> None:
    instants = [data.draw(ats) if data.draw(st.booleans()) else None for _ in some]
    try:
        expected = [due_spec(delay, at) for delay, at in zip(some, instants, strict=True)]
    except BadInput:
        with pytest.raises(BadInput):
            due_specs(some, instants)
    else:
        assert due_specs(some, instants) == expected


# ---- calls


def cache(shards: int) -> TopologyCache:
    return TopologyCache("packing", Topology(epoch=1, shards=shards))


@pytest.mark.parametrize("count", [1, 2, FIRST_OF_SHARD, FIRST_OF_SHARD + 1, 40_123])
@pytest.mark.parametrize(("shards", "most"), [(1, 1000), (3, 7), (16, 500)])
def test_every_task_is_in_one_call_of_its_shard(count: int, shards: int, most: int) -> None:
    entries = packer().many(Task(n, delay=n * 7919 % 1000) for n in range(count))
    whole = cache(shards)
    told: list[Any] = []
    for batch in batches(whole, 1, entries.fresh, FRESH, most=most, sizes=chunk_sizes(shards)):
        assert 0 < len(batch.ids) <= most
        assert {whole.topology.shard_of(id) for id in batch.ids} == {batch.keys.shard}
        told += [tuple(batch.words[at : at + FRESH]) for at in range(0, len(batch.words), FRESH)]
    rows = [tuple(entries.fresh[at : at + FRESH]) for at in range(0, len(entries.fresh), FRESH)]
    assert Counter(told) == Counter(rows)


def test_ids_of_the_caller_keep_their_order_within_a_shard() -> None:
    """One id may come twice, and the rule of the second depends on the first."""
    entries = packer().many(Task(n, delay=n * 7919 % 1000, id=f"mine-{n % 300}") for n in range(5000))
    told: dict[str, list[Any]] = {}
    for batch in batches(cache(4), 1, entries.unique, UNIQUE, sizes=chunk_sizes(4)):
        for at in range(0, len(batch.words), UNIQUE):
            told.setdefault(str(batch.words[at]), []).append(batch.words[at + 2])
    expected: dict[str, list[Any]] = {}
    for at in range(0, len(entries.unique), UNIQUE):
        expected.setdefault(str(entries.unique[at]), []).append(entries.unique[at + 2])
    assert told == expected


def test_calls_are_bounded_in_bytes() -> None:
    large = Packer(JSON, max_payload=4 * CALL_BYTES)
    sizes = [CALL_BYTES // 10] * 95 + [3 * CALL_BYTES] * 5
    entries = large.many(Task("x" * size) for size in sizes)
    calls = list(batches(cache(2), 1, entries.fresh, FRESH, sizes=chunk_sizes(2)))
    assert sum(len(batch.ids) for batch in calls) == len(sizes)
    for batch in calls:
        assert len(batch.ids) == 1 or sum(len(record) for record in batch.words[2::FRESH]) <= CALL_BYTES  # type: ignore[arg-type, misc]


# ---- the chunks of push_iter


def taken(size: int, count: int, *, shards: int) -> Iterator[int]:
    """How many tasks of such a size a stream takes at a time."""
    number = 0

    def source() -> Iterator[Task]:
        nonlocal number
        for _ in range(count):
            number += 1
            yield Task("x" * size)

    stream = Stream(cache(shards), Packer(JSON, max_payload=size + 2), source(), 30.0)
    before = 0
    for _ in stream:
        if number != before:
            yield number - before
            before = number


@pytest.mark.parametrize("shards", [1, 16, 256])
def test_windows_grow(shards: int) -> None:
    sizes = list(taken(10, 3 * CHUNK, shards=shards))
    assert sum(sizes) == 3 * CHUNK
    first, largest = FIRST_OF_SHARD * shards, min(CHUNK, MOST_OF_SHARD * shards)
    assert sizes[:3] == [min(first * times, largest) for times in (1, 2, 4)]
    assert sizes[-2] == max(sizes) == largest


def test_windows_of_large_payloads_are_smaller() -> None:
    size = 40_000
    first, *later = taken(size, 4000, shards=16)
    assert first == FIRST_OF_SHARD * 16
    assert sum(later) == 4000 - first
    assert max(later) * size <= CHUNK_BYTES


def test_chunks_of_two_topologies_are_not_under_way_together() -> None:
    """An id may have another shard in the second: what is refused in the first would be stored behind it."""
    ours = cache(1)
    source = (Task(n, id=f"id-{n % FIRST_OF_SHARD}") for n in range(2 * FIRST_OF_SHARD))
    stream = Stream(ours, Packer(JSON, max_payload=10), source, 30.0)
    (sent, _) = next(stream)
    ours.learn(Topology(shards=8, epoch=ours.topology.epoch + 1))
    assert next(stream, None) is None
    stream.note(sent, ["pushed"] * FIRST_OF_SHARD)
    assert len(list(stream.finished())) == 1
    assert sum(len(batch.ids) for (_, batch), _ in stream) == FIRST_OF_SHARD
