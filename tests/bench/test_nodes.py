"""The cluster bench: its model and its verdicts on given numbers."""

from __future__ import annotations

import pytest

from bench.nodes.__main__ import main
from bench.nodes.costs import Balance, Cost, Measured, Sample, cost
from bench.nodes.model import LIFE, NODES, SHARDS, calibrated, modelled, point
from bench.nodes.timeline import Arrival, lateness, series


def a_cost(server_us: float, client_us: float) -> Cost:
    return Cost(100_000.0, server_us, client_us, 0.9, 0.5, Balance(1.0, 1.0, 1.0))


def a_size(masters: int, *, idle: float, server_us: float, client_us: float) -> Measured:
    return Measured(masters, 0, 48, idle, {name: a_cost(server_us, client_us) for name in LIFE})


def test_the_model_goes_by_the_dearest_of_what_was_measured() -> None:
    by = calibrated(
        [
            a_size(1, idle=0.1, server_us=1.0, client_us=2.0),
            a_size(3, idle=0.2, server_us=3.0, client_us=1.0),
        ]
    )
    assert (by.server_us, by.client_us, by.idle) == (3 * len(LIFE), 2 * len(LIFE), 0.2)


def test_a_point_of_the_model_is_its_formula() -> None:
    by = calibrated([a_size(1, idle=0.5, server_us=1.0, client_us=2.0)])
    one, many = point(1, 48, by), point(64, 256, by)
    assert one.tasks_per_s == pytest.approx(0.5 / 3e-6)
    assert many.tasks_per_s == pytest.approx(64 * one.tasks_per_s)
    # a core of a client makes 1 / 6 µs of tasks a second
    assert one.client_cores == pytest.approx(one.tasks_per_s * 6e-6)


def test_the_model_has_every_size() -> None:
    found = modelled([a_size(1, idle=0.0, server_us=1.0, client_us=1.0)])
    assert [(one.nodes, one.shards) for one in found.points] == [(n, s) for s in SHARDS for n in NODES]


def test_a_cost_is_what_comes_on_top_of_idling() -> None:
    sample = Sample(wall_s=2.0, client_s=1.0, server_s=[0.7, 0.3], commands=[30, 10])
    found = cost(sample, [600, 400], idle=0.05)
    assert found.tasks_per_s == pytest.approx(500)
    assert found.server_us == pytest.approx(0.8 / 1000 * 1e6)
    assert found.client_us == pytest.approx(1000)
    assert found.server_busy == pytest.approx(0.5)
    assert found.client_busy == pytest.approx(0.5)
    assert found.balance.tasks == pytest.approx(1.2)
    assert found.balance.commands == pytest.approx(1.5)
    assert found.balance.cpu == pytest.approx(0.6 / 0.4)


def test_what_costs_no_more_than_idling_is_even() -> None:
    sample = Sample(wall_s=2.0, client_s=1.0, server_s=[0.05, 0.05], commands=[30, 10])
    found = cost(sample, [600, 400], idle=0.05)
    assert (found.server_us, found.balance.cpu) == (0, 1)


def test_lateness_tells_of_delays_and_of_silence() -> None:
    found = lateness([Arrival(0.0, 0.001), Arrival(0.5, 2.001), Arrival(2.0, 2.0)])
    assert found is not None
    assert (found.tasks, found.p50_ms, found.max_ms) == (3, 1.0, 1501.0)
    assert found.later_than_100_ms == pytest.approx(1 / 3)
    assert found.gap_s == pytest.approx(1.999)
    assert lateness([]) is None


def test_a_series_goes_by_when_tasks_were_due() -> None:
    steps = series([Arrival(-0.05, 3.0), Arrival(0.01, 0.011), Arrival(0.09, 0.092), Arrival(0.31, 0.4)])
    assert [(step.s, step.tasks, step.p50_ms, step.max_ms) for step in steps] == [
        (-0.1, 1, 3050.0, 3050.0),
        (0.0, 2, 1.0, 2.0),
        (0.3, 1, 90.0, 90.0),
    ]


@pytest.mark.parametrize("masters", ["", "0", "1,x", "65"])
def test_masters_that_can_not_be(masters: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--masters", masters])
    assert ended.value.code == 2
    assert "give numbers from 1 to 64" in capsys.readouterr().err
