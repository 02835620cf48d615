"""The marks in the scripts change nothing but what is counted, and what was never reached is named."""

from __future__ import annotations

import re

import pytest

from shardq.core.calls import by_id
from shardq.core.layout.keys import shard_keys
from shardq.core.scripts import script
from tests.lua.contract import NAMES
from tests.sim.branches.points import instead_of_ours, instrumented, points
from tests.sim.branches.reached import MODULES, ROOT, Reached, counting, missing, out_of_reach, seldom, wrong
from tests.sim.model.keyspace import Keyspace
from tests.sim.model.server import Server
from tests.sim.runs.plan import drawn
from tests.sim.runs.running import run

KEYS = shard_keys("x", 0)
GUARD = "common/guard: {}: if not meta[1] then return {{'missing'}} end"


def test_lines_keep_their_numbers() -> None:
    assert sorted(instrumented()) == NAMES
    for name, marked in instrumented().items():
        ours, theirs = script(name).text.splitlines(), marked.text.splitlines()
        assert len(ours) == len(theirs)
        assert [line for line in ours if line.startswith("--")] == [line for line in theirs if line.startswith("--")]


@pytest.mark.slow
def test_a_branch_is_counted_once_for_each_server() -> None:
    call = by_id.cancel(KEYS, 1, "a").at("1")
    with counting() as reached:
        for _ in range(2):
            server = Server(Keyspace(lambda: 0))
            for _ in range(3):
                assert server.run(instrumented()["cancel"], call.keys, call.words) == [b"missing"]
    assert reached.branches == {GUARD.format("then"): 2}
    assert GUARD.format("else") in {place.name for place in missing(reached)}


def test_an_operand_is_a_branch_of_its_own() -> None:
    names = {point.name for point in points() if point.file == "common/roomy"}
    line = "local function roomy(size, packed, adding) return size <= packed and size + adding > 16 end"
    assert names == {f"common/roomy: function: {line}", f"common/roomy: and size + adding > 16: {line}"}


@pytest.mark.slow
def test_runs_are_the_same_with_marks() -> None:
    with counting() as reached:
        marked = run(drawn(9), instead_of_ours())
    assert marked.story == run(drawn(9)).story
    assert not marked.violation
    assert len(reached.branches) > 100
    assert all(reached.arcs[module] for module in MODULES)


@pytest.mark.slow
def test_what_is_missing_is_named_and_a_needless_reason_too() -> None:
    reached = Reached()
    every = {place.name: "" for place in missing(reached)}
    assert not wrong(reached, every)
    (name,) = {point.name for point in points()} & {GUARD.format("then")}
    del every[name]
    (told,) = wrong(reached, every)
    assert told.startswith("never reached: common/guard.lua:8: then: if not meta[1]")
    reached += Reached(Reached().branches + reached.branches)
    reached.branches[name] += 1
    assert not wrong(reached, every)
    (told,) = wrong(reached, every | {name: "a reason"})
    assert told.endswith(name)


@pytest.mark.slow
def test_recovery_is_named_line_by_line() -> None:
    with counting() as reached:
        run(drawn(9), instead_of_ours())
    places = [place.where for place in missing(reached) if place.name.startswith("shardq/core/topology_recovery.py")]
    assert places
    # what is run at import is none of it
    assert not [where for where in places if ": def " in where or ": class " in where or ": from " in where]


def test_reasons_are_of_branches_that_there_are() -> None:
    names = {point.name for point in points()}
    texts = {module: (ROOT / module).read_text(encoding="utf-8") for module in MODULES}
    for name, reason in out_of_reach().items():
        assert reason.endswith(".")
        file, _, rest = name.partition(": ")
        if file in texts:
            lines = {line.strip() for line in texts[file].splitlines()}
            assert {re.sub(r" \(\d+\)$", "", each) for each in rest.split(" → ")} - {"its end"} <= lines, name
        else:
            assert name in names, name


def test_a_branch_that_is_seldom_reached_is_shown_by_a_test() -> None:
    assert seldom().keys() < out_of_reach().keys()
    for shown_by in seldom().values():
        file, _, name = shown_by.partition("::")
        assert f"def {name}(" in (ROOT / "tests" / file).read_text(encoding="utf-8"), shown_by
