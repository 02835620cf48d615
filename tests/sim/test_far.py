"""The searches of the far store: a sample finds nothing, and faults that are planted in its rules are found."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from shardq.features.far import relaying
from shardq.features.far import statements as sql
from shardq.features.far.rows import Horizon
from tests.sim.far import actors
from tests.sim.far.kinds import KINDS
from tests.sim.far.plans import BEGINNINGS, GROUPS, HELD
from tests.sim.far.searching import Budget, Search
from tests.sim.search.many import of_place, places

PARTS = 2
EVERY = 877
"""One search in so many. All of them take more than an hour."""


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_a_sample_finds_nothing(part: int) -> None:
    for place in places(list(GROUPS), every=EVERY)[part::PARTS]:
        tally = of_place(place)
        assert not tally.violations, tally.violations[0]
        assert not tally.undecided
        assert tally.states > 1


def test_two_looks_are_few() -> None:
    found = searched("a made id, far", ["get", "get"], Budget(0, 0))
    assert (found.violation, found.states, found.ends) == ("", 5, 2)


def no_lock(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(actors.SimStore, "lock", "")


def not_only_far_ones(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(sql, "MOVE", sql.MOVE.replace(sql.FAR, "NOT gone"))


def no_windows(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(relaying._Push, "seen_by", lambda *_: "free")


def nothing_is_remembered(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(sql, "LEAVE", f"DELETE FROM {sql.TABLE} WHERE id {{among}} AND {sql.FAR}")


def nothing_is_stale(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Horizon, "stale_ms", property(lambda _: 10**12))


@pytest.mark.tool
@pytest.mark.parametrize(
    ("plant", "beginning", "kinds", "budget"),
    [
        (no_lock, "far", ["cancel", "get"], Budget(0, 0, 1)),
        (not_only_far_ones, "a made id, loaded and left", ["reschedule far", "cancel"], Budget(0, 0)),
        (no_windows, "cancelled in its window", ["relay keep far", "get"], Budget(0, 0)),
        (nothing_is_remembered, "of the outbox, relayed", ["relay keep far", "cancel"], Budget(0, 0)),
        (nothing_is_stale, "a made id, handled and left", ["load", "load"], Budget(0, 0, holds=1)),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_a_planted_fault_is_found(
    plant: Callable[[pytest.MonkeyPatch], None],
    beginning: str,
    kinds: list[str],
    budget: Budget,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert not searched(beginning, kinds, budget).violation
    plant(monkeypatch)
    lines = searched(beginning, kinds, budget).violation.splitlines()
    assert lines[0] == f"{', '.join(kinds)}, from '{beginning}':"
    assert lines[1].startswith("  1. ")


def searched(beginning: str, kinds: list[str], budget: Budget) -> Any:
    (begins,) = [each for each in (*BEGINNINGS, *(begins for begins, _ in HELD)) if each.name == beginning]
    by_name = {kind.name: kind for kind in KINDS}
    return Search(begins, [by_name[name] for name in kinds], budget).run()
