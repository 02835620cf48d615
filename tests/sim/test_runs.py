"""Simulated runs of whole engines: none shows a fault, a seed is a run, and planted faults are found."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from unittest import mock

import msgspec
import pytest

from shardq.core.consumer.policy import Backoff
from shardq.core.layout.keys import ShardKeys, shard_keys
from shardq.core.operation import Operation
from shardq.core.replicas import ReplicaBarrier
from tests.sim.model.values import Hash
from tests.sim.planted import PLANTED, PLANTED_CODE, Planted, PlantedCode, Unlucky
from tests.sim.runs.plan import (
    FLEETS,
    Fault,
    FaultKind,
    Forgetting,
    Plan,
    Program,
    directed,
    drawn,
    elsewhere,
    fleets,
    forgetting,
)
from tests.sim.runs.running import Run, Told, run
from tests.sim.runs.stories import cut_down, story
from tests.sim.world.hub import Hub, Process

PARTS, RUNS_OF_A_PART = 5, 4

MOST_RUNS = 30
"""In so many runs a planted fault must be found."""


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_no_run_shows_a_fault(part: int) -> None:
    for seed in range(part * RUNS_OF_A_PART, (part + 1) * RUNS_OF_A_PART):
        told = run(drawn(seed))
        assert not told.violation, story(told)
        assert told.verdict is not None
        assert told.verdict.undecided * 20 <= told.verdict.ids


@pytest.mark.parametrize(
    ("kind", "seed"), [("tail", 23), ("tail", 42), ("tail", 69), ("snapshot", 83), ("wipe", 2), ("wipe", 37)]
)
def test_servers_that_forget(kind: Forgetting, seed: int) -> None:
    """They lose what was not on the disk, go back to a snapshot, or lose everything. Seeds that have shown faults."""
    told = run(forgetting(seed, (kind,)))
    assert not told.violation, story(told)


@pytest.mark.slow
@pytest.mark.promise
@pytest.mark.parametrize("seed", [2, 3, 5, 14])
def test_fleets_that_come_and_go(seed: int) -> None:
    """Workers are deployed and scaled, and crash; the last two runs have other faults, too."""
    told = run(fleets(seed))
    assert not told.violation, story(told)


@pytest.mark.tool
@pytest.mark.parametrize("kind", FLEETS)
def test_a_run_of_fleets_is_cut_down_to_one_without_workers(kind: FaultKind) -> None:
    plan = fleets(2)
    few = tuple(program for program in plan.programs if program.kind in ("dispatch", "produce"))
    plan = msgspec.structs.replace(plan, seconds=10.0, programs=few, faults=(Fault(5.0, kind, 1, 0.5),))
    told = run(plan)
    assert told.reached[f"fault {kind}"] == 1


def test_a_retry_is_waited_for() -> None:
    """Who was killed with its workers for the eighth time may wait for two minutes: that is no fault of the engine."""
    programs = (Program("dispatch", 0, 0), Program("produce", 60, 1), Program("work", 0, 2))
    plan = msgspec.structs.replace(fleets(2), seconds=30.0, programs=programs, faults=(), pause=0.5)
    with mock.patch.object(Backoff, "delay_s", return_value=200.0):
        told = run(plan)
    assert not told.violation, story(told)
    assert told.seconds > 200


@pytest.mark.slow
@pytest.mark.promise
@pytest.mark.parametrize("seed", [2, 8])
def test_an_address_that_leads_to_another_engine(seed: int) -> None:
    """Nothing is written there, and processes come back when it leads home."""
    told = run(elsewhere(seed))
    assert not told.violation, story(told)
    assert told.verdict is not None
    assert told.verdict.errors["AnotherEngine"]


def test_each_connection_of_a_process_that_dies_ends() -> None:
    """Also as each of them removes itself from those of the process."""
    hub, process, ended = Hub(1), Process("any"), list[int]()

    def ends(number: int) -> None:
        ended.append(number)
        process.ended.remove(calls[number])

    calls = [partial(ends, number) for number in range(4)]
    process.ended += calls
    hub.kill(process)
    assert ended == [0, 1, 2, 3]


@pytest.mark.tool
def test_without_a_wait_for_the_disk_a_moved_task_is_lost() -> None:
    asked = ReplicaBarrier.behind

    def without(self: ReplicaBarrier, shards: Iterable[ShardKeys], *, disk: bool = False) -> Operation[set[int]]:
        return (yield from asked(self, shards))

    with mock.patch.object(ReplicaBarrier, "behind", without):
        assert "nothing explains" in str(run(forgetting(213, ("tail",))).violation)


DISPATCHERS = 2
PROGRAMS = (*(Program("dispatch", 0, number) for number in range(DISPATCHERS)), Program("produce", 60, DISPATCHERS))


@pytest.mark.parametrize("target", [0, 1, 3, 4])
def test_while_a_dispatcher_is_cut_off_from_a_node_another_dispatches_what_is_due_there(target: int) -> None:
    """Each of two dispatchers, and each of two nodes: also the one of the heartbeats."""
    assert target % len(PROGRAMS) < DISPATCHERS
    told = run(
        Plan(
            seed=target,
            nodes=2,
            is_cluster=True,
            replicated=False,
            shards=6,
            seconds=40,
            programs=PROGRAMS,
            faults=(Fault(5.0, "part", target, 30.0),),
        )
    )
    assert not told.violation, story(told)
    assert told.verdict is not None


@pytest.mark.tool
def test_the_same_seed_is_the_same_run() -> None:
    one, other = (list(map(str, run(drawn(3)).story)) for _ in range(2))
    assert len(one) > 100
    assert one == other
    assert list(map(str, run(drawn(4)).story)) != one


@pytest.mark.parametrize(("shard_counts", "unguarded"), [({2, 5}, {"b"}), ({2}, set())])
def test_what_a_failover_brings_back_may_be_beside_a_new_task_in_another_shard(
    shard_counts: set[int], unguarded: set[str]
) -> None:
    a_run = Run(drawn(1))
    node = a_run.servers.nodes[0]
    keys = shard_keys("x", 1)
    node.space.made(keys.task.encode(), Hash)[b"b"] = b"record"
    assert a_run.tasks_of(node) == {(1, "b")}
    a_run.facts.shard_counts = shard_counts
    a_run.brought_back(a_run.tasks_of(node))
    assert a_run.facts.unguarded == unguarded


LATE = {"an old topology is as good as any"}
"""Faults that a later run finds, after six seconds on an idle machine."""


@pytest.mark.tool
@pytest.mark.parametrize(
    "planted",
    [pytest.param(each, marks=pytest.mark.slow if each.what in LATE else (), id=each.what) for each in PLANTED],
)
def test_a_planted_fault_is_found(planted: Planted) -> None:
    _found(planted.when, planted)


@pytest.mark.tool
@pytest.mark.slow
@pytest.mark.parametrize("planted", PLANTED_CODE, ids=lambda each: each.what)
def test_a_fault_planted_into_code_is_found(planted: PlantedCode) -> None:
    with mock.patch.object(planted.where, planted.name, planted.instead):
        _found(planted.when)


@pytest.mark.tool
def test_a_failing_run_is_cut_down_and_told() -> None:
    planted = next(each for each in PLANTED if each.what == "an ack keeps its record")
    told = _found(planted.when, planted)
    less = cut_down(told, planted.instead(), seconds=8)
    assert len(less.plan.programs) < len(told.plan.programs)
    text = story(less)
    assert text.startswith(f"run {told.plan.seed}")
    assert " settle " in text
    assert text.endswith(less.violation)


def _found(when: Unlucky, planted: Planted | None = None) -> Told:
    scripts = None if planted is None else planted.instead()
    for seed in range(MOST_RUNS):
        is_of_fleets = set(when.kinds) & set(FLEETS)
        plan = fleets(seed) if is_of_fleets else directed(seed, when.kinds, when.after)
        told = run(msgspec.structs.replace(plan, keeps_ends=seed % 2 == 0), scripts)
        if told.violation:
            return told
    raise AssertionError(f"it is not found in {MOST_RUNS} runs")
