"""Plans on costs that are easy to reckon with, and on those that the package has."""

from __future__ import annotations

import msgspec
import pytest

from shardq.features.planning import (
    EVEN,
    FAR_MEMORY,
    FAR_ROW,
    HEADROOM,
    MOST_MASTERS,
    Costs,
    Load,
    NotPossible,
    at,
    by_magnitude,
    imbalance,
    measured,
    plan,
    shards_for,
)

COSTS = Costs(
    measured="a machine",
    push_one=40.0,
    push_many=2.0,
    push=((1_000, 2.0), (1_000_000, 2.0)),
    dispatch=((1_000, 1.0), (1_000_000, 1.0)),
    forward=4.0,
    claim=7.0,
    push_by_bytes=((100, 1.0), (1_000, 2.0)),
    claim_by_bytes=((100, 1.0), (1_000, 3.0)),
    client_push_one=70.0,
    client_push_many=3.5,
    client_dispatch=0.5,
    client_work=14.0,
    memory=((100, 200.0), (1_000, 1_100.0)),
    memory_spread=1.5,
    late=((0.0, 1.0, 2.0), (0.5, 5.0, 22.0)),
)

LOAD = Load(rate=10_000, delay_s=10, payload=100, single=False)
"""Costs 10 µs a task: a tenth of a core."""


def changed(load: Load, **fields: object) -> Load:
    return msgspec.structs.replace(load, **fields)


def test_the_cpu_of_a_master_is_the_sum_of_what_a_task_costs_there() -> None:
    assert plan(LOAD, COSTS).busy == pytest.approx(0.1)
    assert plan(changed(LOAD, single=True), COSTS).busy == pytest.approx(0.48)
    assert plan(changed(LOAD, forward=True), COSTS).busy == pytest.approx(0.06)
    assert plan(changed(LOAD, payload=1_000), COSTS).busy == pytest.approx(0.26)


def test_masters_are_added_until_cpu_and_memory_fit() -> None:
    assert plan(LOAD, COSTS).masters == 1
    by_cpu = plan(changed(LOAD, rate=200_000), COSTS)
    assert by_cpu.masters == 4
    assert by_cpu.busy <= 0.5
    # 100,000 tasks of 300 bytes
    by_memory = plan(changed(LOAD, node_memory=16_000_000), COSTS)
    assert by_memory.masters == 2
    assert by_memory.memory <= 16_000_000
    assert by_memory.maxmemory == pytest.approx(by_memory.memory * HEADROOM, abs=1)
    assert "memory decides" in " ".join(by_memory.reasons)
    assert "CPU decides" in " ".join(by_cpu.reasons)


def test_processes_and_handlers_come_from_the_rate() -> None:
    found = plan(changed(LOAD, rate=100_000, handler_s=0.02), COSTS)
    # cores: 0.35 for pushing, 1.4 for working, 0.05 for dispatching; each process is to use 0.7 of one
    assert (found.pushers, found.workers, found.dispatchers) == (1, 2, 2)
    assert found.concurrency == 2_000
    assert plan(changed(LOAD, rate=100_000, single=True), COSTS).pushers == 10
    assert plan(changed(LOAD, forward=True), COSTS).workers == 0


def test_lateness_is_read_at_the_busy_share() -> None:
    found = plan(changed(LOAD, rate=25_000), COSTS)
    assert found.late_p50_ms == pytest.approx(3.0)
    assert found.late_p99_ms == pytest.approx(12.0)


def test_a_load_that_no_cluster_carries_says_what_would() -> None:
    with pytest.raises(NotPossible, match=f"{MOST_MASTERS} masters do not carry that.*--push many"):
        plan(changed(LOAD, rate=1e9, single=True), COSTS)


def test_the_reader_is_told_where_the_measurements_end() -> None:
    deep = plan(changed(LOAD, delay_s=1_000), COSTS)
    assert any("more than the 1,000,000 that were measured" in each for each in deep.cautions)
    large = plan(changed(LOAD, payload=2_000), COSTS)
    assert any("larger than the 1,000 that were measured" in each for each in large.cautions)
    bare = plan(changed(LOAD, replicas=0), COSTS)
    assert any("without replicas" in each for each in bare.cautions)
    heavy = plan(changed(LOAD, rate=100_000, delay_s=100), COSTS)
    assert heavy.masters > 1
    assert any("MIGRATE" in each for each in heavy.cautions)


@pytest.mark.parametrize("masters", range(1, 65))
def test_shards_lie_evenly_wherever_they_can(masters: int) -> None:
    shards = shards_for(masters)
    assert 4 * masters <= shards <= max(16, 16 * masters)
    if imbalance(masters, shards) > EVEN:
        tried = [n for n in (48, 64, 96, 128, 192, 256, 384, 512) if 4 * masters <= n <= 16 * masters]
        assert imbalance(masters, shards) <= min(imbalance(masters, n) for n in tried)


def test_curves_go_on_as_they_grew() -> None:
    assert at([(0, 0.0), (10, 10.0), (20, 30.0)], 30) == 50.0
    assert by_magnitude([(10, 1.0), (100, 2.0)], 1_000) == pytest.approx(3.0)
    assert by_magnitude([(10, 1.0), (100, 2.0)], 0) == 1.0


def test_more_load_never_needs_less() -> None:
    costs = measured()
    sizes = [plan(Load(rate=rate, delay_s=600, payload=200), costs) for rate in (10, 1_000, 5_000, 20_000, 100_000)]
    assert [each.masters for each in sizes] == sorted(each.masters for each in sizes)
    assert sizes[-1].masters > sizes[0].masters == 1


def test_with_a_far_store_only_what_is_near_is_in_redis() -> None:
    load = Load(rate=100, delay_s=30 * 86_400, payload=100, replicas=0)
    plain, far = plan(load, COSTS), plan(changed(load, ahead_s=3600), COSTS)
    assert (plain.pending, plain.far_rows, plain.far_disk) == (100 * 30 * 86_400, 0, 0)
    assert (far.pending, far.far_rows) == (360_000, plain.pending - 360_000)
    assert far.far_disk == far.far_rows * (100 + FAR_ROW)
    remembered = 100 * (2 * 3600 + 900) * FAR_MEMORY
    assert far.memory == pytest.approx(360_000 * 200 * 1.5 + remembered)
    assert (plain.masters, far.masters) == (11, 1)
    assert any("rows of 250 bytes" in reason for reason in far.reasons)


def test_what_is_not_far_is_told() -> None:
    far = plan(changed(LOAD, ahead_s=3600), COSTS)
    assert far.far_rows == 0
    assert any("is not far" in caution for caution in far.cautions)
