"""A seed is a round, every kind of fault has a way, and every planted fault is still a change of the product."""

from __future__ import annotations

from typing import get_args

import pytest

from shardq.core.scripts import script
from tests.chaos.nemesis.ways import WAYS
from tests.chaos.plan import FORGETTING, GROUND_KINDS, HELD_BACK, KINDS, FaultKind, GroundKind, ProgramKind, drawn
from tests.chaos.planted import PLANTED
from tests.chaos.program import Child


def test_every_kind_has_a_way() -> None:
    assert set(WAYS) == set(KINDS) == set(get_args(FaultKind))


@pytest.mark.parametrize("ground", GROUND_KINDS)
def test_a_seed_is_one_plan_and_all_kinds_come(ground: GroundKind) -> None:
    assert drawn(7, ground) == drawn(7, ground)
    assert drawn(7, ground) != drawn(8, ground)
    plans = [drawn(seed, ground, every_s=0.5) for seed in range(80)]
    assert {fault.kind for plan in plans for fault in plan.faults} == {
        kind for kind, told in KINDS.items() if ground in told.grounds
    }
    assert all(0 < fault.at_s < plan.seconds for plan in plans for fault in plan.faults)


def test_only_what_is_asked_for_is_drawn_and_nothing_that_a_machine_lacks() -> None:
    assert {fault.kind for fault in drawn(1, "cluster", every_s=0.1, only=["split", "cut"]).faults} == {"split", "cut"}
    lacking: list[FaultKind] = ["set clock", "fill disk"]
    plans = [drawn(seed, "aof", every_s=0.1, without=lacking) for seed in range(20)]
    assert not {fault.kind for plan in plans for fault in plan.faults} & set(lacking)


def test_every_program_has_its_method() -> None:
    simulated = {"produce", "consume", "operate", "administer", "watch"}
    assert all(hasattr(Child, f"_{kind}") for kind in get_args(ProgramKind) if kind not in simulated)


def test_twelve_faults_are_planted() -> None:
    assert len(PLANTED) == 12


@pytest.mark.parametrize("name", [name for name, planted in PLANTED.items() if planted.script])
def test_a_planted_fault_changes_its_script(name: str) -> None:
    planted = PLANTED[name]
    assert script(planted.script).text.count(planted.ours) == 1
    assert planted.ours != planted.theirs


def test_where_clocks_jump_nothing_recurs() -> None:
    plans = [drawn(seed, "aof", every_s=0.5) for seed in range(40)]
    plans += [drawn(seed, "aof", every_s=0.5, only=["set clock", "cut"]) for seed in range(5)]
    assert any(plan.clocks for plan in plans)
    for plan in plans:
        assert plan.clocks == any(fault.kind == "set clock" for fault in plan.faults)
        assert not (plan.clocks and any(program.kind == "tick" for program in plan.programs))


@pytest.mark.parametrize("ground", GROUND_KINDS)
def test_where_servers_forget_it_is_known_how_much(ground: GroundKind) -> None:
    plans = [drawn(seed, ground, every_s=0.5) for seed in range(40)]
    assert {plan.forgets for plan in plans} == {True, False}
    for plan in plans:
        kinds = {fault.kind for fault in plan.faults}
        assert len(kinds & FORGETTING) <= plan.forgets
        assert not (plan.forgets and kinds & HELD_BACK)
        assert not (plan.forgets and any(program.kind in ("tick", "send") for program in plan.programs))
