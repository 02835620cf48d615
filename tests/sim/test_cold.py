"""The searches of the cold store: a sample finds nothing, and faults that are planted in its rules are found."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from shardq.features.cold import own, sqlite
from shardq.features.cold import statements as sql
from shardq.features.cold.rows import Horizon
from tests.sim.cold import actors
from tests.sim.cold.kinds import KINDS
from tests.sim.cold.plans import BEGINNINGS, GROUPS, HELD
from tests.sim.cold.searching import Budget, Search
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
    found = searched("far", ["get", "get"], Budget(0, 0))
    assert (found.violation, found.states, found.ends) == ("", 5, 2)


def no_lock(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(actors.SimStore, "lock", "")


def no_version(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(sql, "BUMP_STRIPE", sql.BUMP_STRIPE.replace(" AND version = :version", ""))


def any_row_of_the_id(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(sql, "FORGET_NAMED", "DELETE FROM shardq_cold_named WHERE id = :name")


def not_only_far_ones(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(sql, "MOVE_NAMED", sql.MOVE_NAMED.replace(sql.FAR, "TRUE"))


def no_windows(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(own.Known, "seen_by", lambda *_, **__: None)


def nothing_is_remembered(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(sqlite, "_REMEMBER", sqlite._REMEMBER + " WHERE FALSE")
    patch.setattr(sql, "LOOK_WINDOWS", sql.LOOK_WINDOWS + " AND FALSE")


def always_kept(patch: pytest.MonkeyPatch) -> None:
    class Keeping(own.Push):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            self.row = self.row._replace(rule="keep")

    from shardq.features.cold import cold

    patch.setattr(cold, "Push", Keeping)


def nothing_is_stale(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Horizon, "stale_ms", property(lambda _: 10**12))


@pytest.mark.tool
@pytest.mark.parametrize(
    ("plant", "beginning", "kinds", "budget"),
    [
        (no_lock, "far", ["push keep near", "cancel"], Budget(0, 0, 1)),
        (no_version, "gone", ["push keep near", "push keep far"], Budget(0, 0)),
        (any_row_of_the_id, "handled and left", ["push keep far", "load"], Budget(0, 0)),
        (not_only_far_ones, "loaded and left", ["reschedule far", "cancel"], Budget(0, 0)),
        (no_windows, "cancelled in its window", ["push keep far", "get"], Budget(0, 0)),
        (nothing_is_remembered, "of the outbox, relayed", ["relay", "cancel"], Budget(0, 0)),
        (nothing_is_stale, "a made id, handled and left", ["load", "load"], Budget(0, 0, holds=1)),
        (always_kept, "handled in its window", ["push replace far", "get"], Budget(0, 0)),
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
