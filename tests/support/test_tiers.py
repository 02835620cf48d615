"""The order in which the processes of a run take its tests."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from tests.support.tiers import spread


class Item:
    def __init__(self, name: str) -> None:
        self.name = name
        self.path = name[:-1]  # ten of a file, or fewer

    def get_closest_marker(self, marker: str) -> bool:
        return marker == "slow" and self.name.startswith("slow")


@pytest.mark.parametrize(
    ("quick", "slow", "processes"), [(100, 12, 6), (7, 12, 6), (0, 5, 2), (100, 0, 6), (101, 1, 8)]
)
def test_every_test_is_in_it_once_and_slow_ones_lie_among_the_first_of_each_process(
    quick: int, slow: int, processes: int
) -> None:
    items: list[Any] = [*(Item(f"slow{n}") for n in range(slow)), *(Item(f"quick{n}") for n in range(quick))]
    ordered = spread(items, processes)
    assert sorted(item.name for item in ordered) == sorted(item.name for item in items)
    names = [item.name for item in ordered if item.name.startswith("quick")]
    assert names == [f"quick{n}" for n in range(quick)], "files stay together"
    if quick > slow > 1:
        places = [place for place, item in enumerate(ordered) if item.name.startswith("slow")]
        assert max(later - sooner for sooner, later in pairwise(places)) < len(items) / processes
        assert places[-1] < len(items) * (1 - 0.3 / processes), "not at the end"
