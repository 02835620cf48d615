"""Slots of keys, tags, and how evenly shards are spread over masters."""

from __future__ import annotations

import bisect
import itertools
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardq.core.layout.slots import MAX_SHARDS, SLOTS, slot_of, tag, target_slot

names = st.from_regex(r"[A-Za-z0-9_.-]{1,64}", fullmatch=True)


@pytest.mark.parametrize(
    ("key", "slot"),
    [
        ("123456789", 0x31C3),
        ("foo", 12182),
        ("bar", 5061),
        ("{user1000}.following", 3443),
        ("{user1000}.followers", 3443),
        ("foo{bar}{zap}", 5061),
        ("foo{{bar}}zap", 4015),
        ("foo{}{bar}", 8363),
        ("{bar", 4015),
        ("", 0),
    ],
)
def test_a_key_is_in_the_slot_that_the_specification_of_redis_cluster_gives(key: str, slot: int) -> None:
    assert slot_of(key) == slot


@pytest.mark.parametrize(
    ("name", "shard", "expected", "slot"),
    [
        ("orders", 0, "orders:0.035z", 8),
        ("orders", 1, "orders:1.061o", 8200),
        ("orders", 2, "orders:2.005k", 4104),
        ("orders", 3, "orders:3.05uv", 12296),
        ("orders", 15, "orders:15.0609", 15368),
        ("orders", 255, "orders:255.01xh", 16328),
        ("orders", 1023, "orders:1023.0a0x", 16376),
        ("a", 0, "a:0.0dcm", 8),
        ("x.y_z-9" * 9, 7, "x.y_z-9" * 9 + ":7.041g", 14344),
    ],
)
def test_tags_are_pinned(name: str, shard: int, expected: str, slot: int) -> None:
    assert tag(name, shard) == expected
    assert slot_of(expected) == slot


@given(names, st.integers(0, MAX_SHARDS - 1))
def test_a_tag_is_exactly_on_its_slot(name: str, shard: int) -> None:
    found = tag(name, shard)
    head, dot, salt = found.rpartition(".")
    assert (head, dot, len(salt)) == (f"{name}:{shard}", ".", 4)
    assert slot_of(found) == target_slot(shard)


@pytest.mark.slow
@given(st.sampled_from(["a", "orders", "mail-2.eu_west"]), st.integers(0, MAX_SHARDS - 1))
def test_the_salt_is_the_smallest_that_reaches_the_slot(name: str, shard: int) -> None:
    digits = string.digits + string.ascii_lowercase
    salts = map("".join, itertools.product(digits, repeat=4))
    first = next(salt for salt in salts if slot_of(f"{name}:{shard}.{salt}") == target_slot(shard))
    assert tag(name, shard) == f"{name}:{shard}.{first}"


def test_every_slot_can_be_reached() -> None:
    # What a head adds to the slot can be anything, so tags of one shard under many names ask for all of them.
    wanted = {slot_of(f"n{number}:5.0000") for number in range(SLOTS * 12)}
    assert len(wanted) == SLOTS
    for number in range(SLOTS * 12):
        if (start := slot_of(f"n{number}:5.0000")) in wanted:
            wanted.discard(start)
            assert slot_of(tag(f"n{number}", 5)) == target_slot(5)


def test_every_shard_has_a_slot_of_its_own_well_inside_its_cell() -> None:
    slots = sorted(map(target_slot, range(MAX_SHARDS)))
    assert slots == list(range(8, SLOTS, 16))


def test_places_follow_the_van_der_corput_sequence() -> None:
    eighths = [(target_slot(shard) - 8) * 8 / SLOTS for shard in range(8)]
    assert eighths == [0, 4, 2, 6, 1, 5, 3, 7]


def ends_of_runs(masters: int) -> list[int]:
    """The last slot of each master, as ``redis-cli --cluster create`` deals them."""
    each = SLOTS / masters
    return [round(each * (number + 1) - 1) for number in range(masters - 1)] + [SLOTS - 1]


def shards_by_master(shards: int, masters: int) -> list[int]:
    ends = ends_of_runs(masters)
    held = [0] * masters
    for shard in range(shards):
        held[bisect.bisect_left(ends, slot_of(tag("orders", shard)))] += 1
    return held


@pytest.mark.parametrize(
    ("shards", "masters", "fullest_to_mean"),
    [(16, 16, 1.0), (16, 6, 1.125), (64, 6, 1.032), (16, 3, 1.125), (64, 3, 1.032), (256, 32, 1.0)],
)
def test_fullest_to_mean_as_documented(shards: int, masters: int, fullest_to_mean: float) -> None:
    assert max(shards_by_master(shards, masters)) * masters / shards <= fullest_to_mean


@pytest.mark.parametrize("masters", range(1, 33))
def test_every_count_of_shards_is_spread_evenly(masters: int) -> None:
    ends = ends_of_runs(masters)
    held = [0] * masters
    for shard in range(256):
        held[bisect.bisect_left(ends, target_slot(shard))] += 1
        mean = (shard + 1) / masters
        # A power of two masters divides the sequence evenly; others see at most three more, or fewer, than the mean.
        bound = 1 - 1 / masters if masters & (masters - 1) == 0 else 3
        assert max(held) - mean <= bound
        assert mean - min(held) <= bound


def test_the_bound_of_the_spread_is_not_loose() -> None:
    worst = max(
        max(shards_by_master(shards, masters)) - shards / masters
        for masters in range(1, 33)
        for shards in range(1, 257)
    )
    assert worst == 3


@pytest.mark.parametrize("off", [-7, 7])
def test_masters_with_a_few_slots_more_or_less_get_the_same_shards(off: int) -> None:
    sixteen = ends_of_runs(16)
    shifted = [end + off for end in sixteen[:-1]] + [SLOTS - 1]
    for shard in range(MAX_SHARDS):
        slot = target_slot(shard)
        assert bisect.bisect_left(sixteen, slot) == bisect.bisect_left(shifted, slot)
