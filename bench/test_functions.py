"""pytest-benchmark times single functions on a task's way: ``pytest bench --benchmark-only``.

Each name tells the number of tasks in one call.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Protocol, TypeVar

from bench.loads import PAYLOAD, spread_tasks
from shardq import Task
from shardq.core.consumer.claim_planner import ClaimPlanner, ReadyCounts, ShardClaim
from shardq.core.layout.topology import Topology
from shardq.core.model.ids import UNIQUE_LENGTH, Ids
from shardq.core.model.record import JSON, decode_record, encode_record, record_encoder
from shardq.core.producer.packing import FRESH, Entries, Packer, batches
from shardq.core.topology_cache import TopologyCache

T = TypeVar("T")

SHARDS = 16


class Timing(Protocol):
    """The ``benchmark`` fixture."""

    def __call__(self, function: Callable[..., T], /, *words: object) -> T: ...


def packer() -> Packer:
    return Packer(JSON, max_payload=1 << 20)


def test_one_id(benchmark: Timing) -> None:
    assert len(benchmark(Ids().one)) == UNIQUE_LENGTH


def test_1000_ids(benchmark: Timing) -> None:
    assert len(benchmark(Ids().many, 1000)) == 1000


def test_packing_1000_tasks(benchmark: Timing) -> None:
    assert len(benchmark(packer().many, spread_tasks(1000)).ids) == 1000


def test_routing_1000_tasks_and_packing_their_calls(benchmark: Timing) -> None:
    """The way from packed tasks to the bytes that are sent."""
    entries: Entries = packer().many(spread_tasks(1000))
    cache = TopologyCache("bench", Topology(epoch=1, shards=SHARDS))

    def packed() -> list[bytes]:
        parts = batches(cache, 1, entries.fresh, FRESH, sizes=[1000])
        return [batch.call.packed() for batch in parts]

    assert len(benchmark(packed)) == SHARDS


def test_packing_1000_tasks_with_keys(benchmark: Timing) -> None:
    tasks = [Task(PAYLOAD, topic="mail", key=f"customer-{number % 100}") for number in range(1000)]
    assert len(benchmark(packer().many, tasks).ids) == 1000


def test_encoding_one_record(benchmark: Timing) -> None:
    assert benchmark(record_encoder(JSON), PAYLOAD, None, "") == encode_record(JSON, PAYLOAD)


def test_decoding_one_record(benchmark: Timing) -> None:
    assert benchmark(decode_record, encode_record(JSON, PAYLOAD)).payload == PAYLOAD


def test_splitting_one_claim_over_16_shards(benchmark: Timing) -> None:
    topics = ["high", "low"]
    hints = ClaimPlanner(topics, None, ReadyCounts())
    source = random.Random(SHARDS)
    for shard in range(SHARDS):
        hints.ready_counts.learn(shard, {"high": source.randrange(10), "low": source.randrange(100)}, 0.0)

    def split() -> list[ShardClaim]:
        return hints.split(100, range(SHARDS), topics, {}, 1.0)

    assert sum(ask.max for ask in benchmark(split)) == 100


def test_locating_one_id(benchmark: Timing) -> None:
    shard_of = Topology(epoch=1, shards=SHARDS).shard_of
    assert benchmark(shard_of, Ids().one()) in range(SHARDS)


def test_locating_one_id_with_a_key(benchmark: Timing) -> None:
    shard_of = Topology(epoch=1, shards=SHARDS, is_keyed=True).shard_of
    assert benchmark(shard_of, Ids().one(topic="mail/customer-7")) in range(SHARDS)
