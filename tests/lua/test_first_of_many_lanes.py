"""``first_of`` is asked for many lanes, one after the other: one read answers for many of them, and no read is larger
than is useful.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence

import pytest

from shardq.core.layout.lanes import lane_of
from tests.lua.parts import asked, bytewise, entry, of_each_word, waiting
from tests.lua.shard import T
from tests.support.rows import each_row


def numbered(numbers: Iterable[int]) -> list[str]:
    return [f"w/{number:04}/" for number in numbers]


def firsts(there: Mapping[str, int], lanes: Sequence[str]) -> list[str]:
    """Asks for the first of lanes, where so many wait of these, and looks at the answers. Returns from which lane on
    `keys` was read, and how many entries.
    """
    tasks = [(f"{lane}{n}", T + n % 3) for lane, count in there.items() for n in range(count)]
    told, made = asked(waiting(tasks), of_each_word("first_of(word) or 'none'"), *lanes)
    of_lane: dict[str, str] = {}
    for found in bytewise(entry(*task) for task in tasks):
        of_lane.setdefault(str(lane_of(found)), found)
    assert told == [of_lane.get(lane, "none") for lane in lanes]
    reads = [line.removeprefix("ZRANGEBYLEX keys [").replace(" + LIMIT 0 ", " ") for line in made]
    return [line for line in reads if not line.startswith("HMGET meta")]


def of_numbers(there: Iterable[int], asks: Iterable[int]) -> list[str]:
    return firsts(dict.fromkeys(numbered(there), 1), numbered(asks))


def pages(*pages: tuple[int, int]) -> list[str]:
    return [f"w/{number:04}/ {count}" for number, count in pages]


STRETCHES: dict[str, tuple[Iterable[int], Iterable[int], list[str]]] = {
    # lanes of which one task waits, lanes that are asked, in this order; from which on how many entries are read
    "nothing waits at all": ([], [1, 2], []),
    "one lane, twice": ([1], [1, 1], pages((1, 16))),
    "lanes one after the other": (
        range(1200),
        range(1200),
        pages((0, 16), (16, 32), (48, 64), (112, 128), (240, 256), (496, 256), (752, 256), (1008, 256)),
    ),
    "every other one": (range(100), range(0, 100, 2), pages((0, 16), (16, 32), (48, 64))),
    "every eighth": (range(100), range(0, 40, 8), pages((0, 16), (16, 16), (32, 16))),
    "every ninth": (range(100), range(0, 40, 9), pages((0, 16), (9, 1), (18, 1), (27, 1), (36, 1))),
    "three of a page": (range(100), [0, 5, 10, 40, 41], pages((0, 16), (40, 32))),
    "two of a page": (range(100), [0, 8, 40, 41], pages((0, 16), (40, 16))),
    "one of a page": (range(100), [0, 40, 41], pages((0, 16), (40, 1), (41, 1))),
    "nothing waits of the first": (range(1, 100), [0, 40, 41], pages((0, 16), (40, 1), (41, 1))),
    "one of a page of 32": (range(100), [*range(16), 16, 60, 61], pages((0, 16), (16, 32), (60, 1), (61, 1))),
    "some of a page of 32": (range(100), [*range(16), 16, 24, 60, 61], pages((0, 16), (16, 32), (60, 32))),
    "five of a page of 32": (range(100), [*range(16), *range(16, 21), 60, 61], pages((0, 16), (16, 32), (60, 64))),
    "sixteen of a page of 128": (
        range(400),
        [*range(128), 300, 301],
        pages((0, 16), (16, 32), (48, 64), (112, 128), (300, 128)),
    ),
    "four of a page of 32": (range(100), [*range(16), *range(16, 20), 60, 61], pages((0, 16), (16, 32), (60, 32))),
    "backwards": (range(100), [9, 8, 7], pages((9, 16), (8, 1), (7, 1))),
    "nothing waits of those between": (range(0, 20, 2), range(20), pages((0, 16))),
    "nothing waits of those behind": ([1, 2], [1, 2, 3, 9], pages((1, 16))),
    "nothing waits of any but the last": ([9], [1, 2, 3, 9], pages((1, 16))),
    "nothing waits behind a page of one": (
        [0, *range(20, 60)],
        [0, 40, 59, 61, 62],
        pages((0, 16), (40, 1), (59, 1), (61, 1)),
    ),
    "behind the last, and before": ([5], [7, 6, 5], pages((7, 16), (6, 1), (5, 1))),
}


@each_row(("there", "asks", "reads"), STRETCHES)
def test_what_is_read_of_many_lanes(there: Iterable[int], asks: Iterable[int], reads: list[str]) -> None:
    assert of_numbers(there, asks) == reads


def test_a_lane_with_much_that_waits_is_passed_by_another_read() -> None:
    """Up to eight entries of a lane are passed by, to the next one that is asked."""
    assert firsts({"w/a/": 8, "w/b/": 1}, ["w/a/", "w/b/"]) == ["w/a/ 16"]
    assert firsts({"w/a/": 9, "w/b/": 1}, ["w/a/", "w/b/"]) == ["w/a/ 16", "w/b/ 1"]


def test_lanes_of_which_nothing_waits_are_known_where_the_next_topic_begins() -> None:
    assert firsts({"w/a/": 1, "x/a/": 1}, ["w/a/", "w/b/", "w/z/", "x/a/"]) == ["w/a/ 16"]
    assert firsts({"v/a/": 1, "x/a/": 1}, ["v/a/", "w/b/", "w/z/", "x/a/"]) == ["v/a/ 16"]


@pytest.mark.parametrize("seed", range(6))
def test_the_first_of_any_lanes(seed: int) -> None:
    source = random.Random(seed)
    topics = ["", "a", "ab", "a.b", "b", "w", "w-"]
    for _ in range(10):
        some = [
            f"{topic}/{key}/"
            for topic in topics
            for key in source.sample(["0", "1", "10", "a", "ab", "b", "k", "é", "~"], 5)
        ]
        there = {lane: source.choice([0, 0, 1, 1, 2, 9]) for lane in some if source.random() < 0.8}
        lanes = source.sample(some, source.randint(1, len(some)))
        if source.random() < 0.7:
            lanes.sort(key=str.encode)
        firsts(there, lanes)
