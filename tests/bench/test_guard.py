"""The guard reports a ratio that is below its usual range, and allows for noise."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from bench import guard, ratios
from bench.guard import Baseline, Usual, compared, fallen

USUAL = {
    "dispatch ÷ C client": Usual([0.90, 0.95, 0.92, 0.91, 0.93, 0.94, 0.92]),
    "push ÷ SET": Usual([0.80, 0.81, 0.82, 0.80, 0.81, 0.83, 0.80]),
}


def test_a_run_as_usual_passes() -> None:
    verdicts = compared(USUAL, {"dispatch ÷ C client": 0.91, "push ÷ SET": 0.81})
    assert [verdict.word for verdict in verdicts] == ["ok", "ok"]
    assert fallen(verdicts) == []


def test_a_slower_engine_falls_and_the_rest_stays() -> None:
    verdicts = compared(USUAL, {"dispatch ÷ C client": 0.45, "push ÷ SET": 0.81})
    assert fallen(verdicts) == ["dispatch ÷ C client"]


def test_a_faster_one_is_no_reason_to_fail() -> None:
    assert fallen(compared(USUAL, dict.fromkeys(USUAL, 3.0))) == []


def test_one_script_more_than_the_bound_falls() -> None:
    name, *_ = guard.BOUNDS
    assert fallen(compared(guard.BOUNDS, dict.fromkeys(guard.BOUNDS, 1.0))) == []
    assert fallen(compared(guard.BOUNDS, dict.fromkeys(guard.BOUNDS, 1.0) | {name: 0.99})) == [name]


def test_runs_that_differ_much_allow_much() -> None:
    calm, wild = Usual([1.0, 1.0, 1.02]), Usual([0.9, 1.0, 1.1])
    assert calm.floor == pytest.approx(0.9)
    assert wild.floor == pytest.approx(0.5)


def test_one_odd_run_does_not_make_everything_allowed() -> None:
    runs = [0.88, 0.91, 1.0, 0.9, 0.21, 0.9, 0.87, 0.91]
    assert 0.75 < Usual(runs).floor < 0.85


def test_what_hardly_differs_is_allowed_little() -> None:
    assert Usual([1.0, 1.0, 1.001], guard.LEAST_OF_EXACT).floor == pytest.approx(0.98)


def test_what_is_new_or_was_not_measured_is_named_and_does_not_fail() -> None:
    verdicts = compared(USUAL, {"dispatch ÷ C client": 0.92, "memory": 1.0})
    assert [verdict.word for verdict in verdicts] == ["ok", "not measured", "new"]
    assert fallen(verdicts) == []


def test_the_committed_baseline_can_be_read_and_knows_ratios_that_are_measured() -> None:
    baseline = msgspec.json.decode(guard.BASELINE.read_bytes(), type=Baseline)
    for usual in baseline.usual.values():
        # lateness under such a load differs by a factor of six from run to run: any floor would be none
        assert set(usual) == set(ratios.NAMES) - {ratios.PROMPT} - set(guard.BOUNDS)
        assert all(0 < each.floor < each.median for each in usual.values())


def test_without_a_baseline_it_says_how_to_learn_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert guard.main(["--baseline", str(tmp_path / "none.json")]) == 1
    assert "--learn 7" in capsys.readouterr().err


def test_a_part_of_the_ratios_is_chosen_by_words_of_their_names(capsys: pytest.CaptureFixture[str]) -> None:
    found = ["worker whose metrics are read ÷ worker", "200 consumers in four processes ÷ 20 in one"]
    assert guard.chosen(["Metrics", "four processes"]) == found
    assert guard.chosen([]) == list(ratios.NAMES)
    assert guard.main(["--only", "nothing", "--only", "of it all"]) == 2
    assert "no ratio has 'nothing' or 'of it all' in its name; there are: push, one" in capsys.readouterr().err
