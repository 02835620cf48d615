"""The search: a sample of all searches finds nothing, and planted faults are found, with the steps that lead there."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.sim.planted import PLANTED, Planted
from tests.sim.search.exhaustive import Found
from tests.sim.search.kinds import KINDS
from tests.sim.search.many import GROUPS, Place, of_place, places
from tests.sim.search.plans import BEGINNINGS
from tests.sim.search.searching import Budget, Search

PARTS = 4
EVERY = 2003
"""One search in so many. All of them take hours."""


@pytest.mark.slow
@pytest.mark.promise
@pytest.mark.parametrize("part", range(PARTS))
def test_a_sample_finds_nothing(part: int) -> None:
    for place in places(list(GROUPS), every=EVERY)[part::PARTS]:
        tally = of_place(place)
        assert not tally.violations, tally.violations[0]
        assert not tally.undecided
        assert tally.states > 1


@pytest.mark.slow
@pytest.mark.promise
@pytest.mark.parametrize("at_once", [1, 2])
def test_a_sample_with_keys_finds_nothing(at_once: int) -> None:
    """Two tasks of one key, where so many of it may be out at once."""
    groups = ["two", "ticks", "three", "changes"]
    words = [sys.executable, "-m", "tests.sim", "search", "--group", *groups, "--every", "6007", "--jobs", "2"]
    ended = subprocess.run(
        words, env=os.environ | {"SHARDQ_SEARCH_KEYED": str(at_once)}, capture_output=True, text=True
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr


def test_all_interleavings_of_two_requests_are_few() -> None:
    """A request each, without faults: either order, and what becomes of the one that comes second."""
    found = _searched("gone", ["cancel", "get"], Budget(0, 0))
    assert (found.states, found.ends) == (5, 2)


PAIRS = {
    "a lease that ran out stays in leased": ("lease over", ["dispatch", "get"]),
    "a claim leaves ids in the ready list": ("ready", ["claim", "get"]),
    "any token settles": ("ready", ["ack", "claim"]),
    "an ack keeps its record": ("leased", ["ack", "get"]),
    "a push of a ready id counts no ghost": ("ready", ["push replace", "claim"]),
    "a task is taken and stays": ("scheduled, reserved", ["move", "get"]),
    "a put needs no mark": ("scheduled, taken", ["cancel", "get"]),
}
"""Planted faults, and a search that meets them."""


@pytest.mark.tool
@pytest.mark.parametrize("planted", [each for each in PLANTED if each.what in PAIRS], ids=lambda each: each.what)
def test_a_planted_fault_is_found(planted: Planted) -> None:
    beginning, kinds = PAIRS[planted.what]
    found = _searched(beginning, kinds, Budget(1, 1), planted)
    assert found.violation


@pytest.mark.tool
def test_the_steps_to_a_violation_are_told() -> None:
    planted = next(each for each in PLANTED if each.what == "a put needs no mark")
    lines = _searched("scheduled, taken", ["cancel", "get"], Budget(1, 1), planted).violation.splitlines()
    assert lines[0] == "cancel, get, from 'scheduled, taken':"
    assert lines[1].startswith("  1. ")
    assert any(line.startswith("nothing explains that ") for line in lines)


@pytest.mark.tool
def test_a_search_is_named_by_its_place() -> None:
    everything = places(list(GROUPS))
    assert len(set(everything)) == len(everything) > 20_000
    assert everything[0] == Place("two", 0)


def _searched(beginning: str, kinds: list[str], budget: Budget, planted: Planted | None = None) -> Found:
    (begins,) = [each for each in BEGINNINGS if each.name == beginning]
    by_name = {kind.name: kind for kind in KINDS}
    scripts = {} if planted is None else planted.scripts()
    return Search(begins, [by_name[name] for name in kinds], budget, instead=scripts).run()
