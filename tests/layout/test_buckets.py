"""The bucket table is even, grows with the least movement, and never changes."""

from __future__ import annotations

import hashlib
import itertools

import pytest

from shardq.core.layout.slots import BUCKETS, MAX_SHARDS, growth, table


@pytest.mark.parametrize(
    ("count", "digest"),
    [
        (1, "c35020473aed1b46"),
        (2, "c37180742ecd185f"),
        (3, "4ca8878bd2059260"),
        (6, "0e5dbb35d3a97639"),
        (16, "2213755b8e55ac32"),
        (17, "fff57520936ce631"),
        (64, "1cae62cf5e6e9706"),
        (1000, "212bcf95a41ab49c"),
        (1024, "8e37b7691f7cc0df"),
    ],
)
def test_tables_are_pinned(count: int, digest: str) -> None:
    shards = b"".join(shard.to_bytes(2, "big") for shard in table(count))
    assert hashlib.sha256(shards).hexdigest()[:16] == digest


def test_the_rule_taken_literally_gives_the_same_tables() -> None:
    held = [list(range(BUCKETS))]
    for count in range(2, 49):
        new: list[int] = []
        for _ in range(BUCKETS // count):
            fullest = max(range(count - 1), key=lambda shard: (len(held[shard]), -shard))
            new.append(held[fullest].pop())
        held.append(sorted(new))
        owner = {bucket: shard for shard, buckets in enumerate(held) for bucket in buckets}
        assert list(table(count)) == [owner[bucket] for bucket in range(BUCKETS)]


def test_the_rule_taken_literally_where_a_share_is_smaller_than_the_number_of_shards() -> None:
    held = [list(buckets) for buckets in next(itertools.islice(growth(), 899, None))]
    new: list[int] = []
    for _ in range(BUCKETS // 901):
        fullest = max(range(900), key=lambda shard: (len(held[shard]), -shard))
        new.append(held[fullest].pop())
    held.append(sorted(new))
    assert next(itertools.islice(growth(), 900, None)) == held


def test_for_every_count_each_shard_is_within_one_bucket_of_the_mean() -> None:
    for count, held in enumerate(itertools.islice(growth(), MAX_SHARDS), start=1):
        mean, over = divmod(BUCKETS, count)
        assert len(held) == count
        assert {len(buckets) for buckets in held} == ({mean, mean + 1} if over else {mean})


def test_each_step_of_growth_moves_the_ideal_share_and_only_to_the_new_shard() -> None:
    before = [0] * BUCKETS
    for count, held in enumerate(itertools.islice(growth(), MAX_SHARDS), start=1):
        after = before.copy()
        for bucket in held[-1]:
            after[bucket] = count - 1
        now = [0] * BUCKETS
        for shard, buckets in enumerate(held):
            for bucket in buckets:
                now[bucket] = shard
        assert now == after
        assert count == 1 or len(held[-1]) == BUCKETS // count
        before = after


@pytest.mark.parametrize(
    ("few", "many"), list(itertools.combinations([1, 2, 3, 5, 8, 16, 17, 31, 32, 100, 257, 1024], 2))
)
def test_growing_from_any_count_to_any_moves_only_what_the_new_shards_end_with(few: int, many: int) -> None:
    moves = [(old, new) for old, new in zip(table(few), table(many), strict=True) if old != new]
    assert all(new >= few for _, new in moves)
    assert len(moves) == sum(shard >= few for shard in table(many))


def test_every_bucket_has_a_shard_and_every_shard_buckets() -> None:
    for count in (1, 2, 7, 16, 100, 1024):
        assert len(table(count)) == BUCKETS
        assert set(table(count)) == set(range(count))


def test_tables_are_made_once() -> None:
    assert table(16) is table(16)
