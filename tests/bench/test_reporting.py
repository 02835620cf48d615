"""The report is complete with any of its files missing, is well formed, and fetches nothing."""

from __future__ import annotations

import re
import xml.etree.ElementTree as xml
from pathlib import Path
from typing import Any

import msgspec
import pytest

from bench.reporting import __main__ as command
from bench.reporting.drawing import Bar, bars
from bench.reporting.inputs import CHAOS, MAKING, NODES, OLDEST, PEERS, RESULTS, SOAK

SERIES = {
    "s": [-0.1, 0.0, 0.1],
    "push_p50_ms": [0.1, 0.2, 0.1],
    "push_max_ms": [0.3, 9.0, 0.4],
    "late_p50_ms": [1.0, 2.0, 1.0],
    "late_max_ms": [3.0, 20.0, 4.0],
    "moved": [0, 10, 500],
}


def figure(suite: str, name: str, value: float, unit: str, **more: Any) -> dict[str, Any]:
    return {"suite": suite, "name": name, "value": value, "unit": unit, **more}


def backlog(pending: int, shards: int, value: float) -> dict[str, Any]:
    at = {"curve": "backlog: push", "pending": pending, "shards": shards}
    return figure("backlog", f"push, {pending} pending", value, "µs/task", at=at)


def size(work: str, shards: int) -> dict[str, Any]:
    at = {"curve": f"sizes: {work}", "bytes": 100, "shards": shards}
    return figure("sizes", f"{work}, {shards} shards", 1000.0 * shards, "tasks/s", at=at)


SIZES = {"consumers": 10, "shards": 16, "topics": 5_000, "dead": 0, "limit": "rate"}

SHARES = {"p50": 0.5, "p99": 4.0, "max": 8.0}

RESULTS_FILE = {
    "complete": True,
    "facts": {"machine": "a <machine> & more", "server": "Valkey", "python": "CPython", "pinned": "yes"},
    "suites": {"push": {"when": "today", "commit": "abc"}},
    "figures": [
        figure("push", "push_many of 100", 272_000, "tasks/s", ratio=0.9, reference="0.90 of the C client; aim: ≥ 1.0"),
        figure("dispatch", "dispatch of 100", 1e6, "tasks/s", ratio=0.96, reference="0.96; aim: ≥ 0.8"),
        figure("lateness", "due → ready", 0.5, "ms", percentiles=SHARES),
        figure("scales", "a task", 4.2, "scripts", at={"curve": "scales: a task", **SIZES}),
        figure("expand", "4 → 16 shards", 0.05, "s", at={"curve": "expand", "shards": 4, "to": 16}, series=SERIES),
        *(backlog(pending, shards, 2.5) for shards in (16, 64) for pending in (10_000, 100_000)),
        *(size("push_many", shards) for shards in (1, 16)),
        *(
            figure("memory", f"{n} a shard", 225, "bytes/task", at={"curve": "memory: tasks of a shard", "tasks": n})
            for n in (8_000, 16_000)
        ),
    ],
}

PEERS_FILE = {
    "facts": {"server": "Valkey"},
    "peers": [
        {"name": "shardq", "version": "1", "how": "push_many", "rows": {"schedule_per_s": 2e5, "lateness_p50_ms": 1.0}},
        {"name": "other", "version": "2", "how": "a loop", "rows": {"schedule_per_s": 1e3}, "problem": "it <broke>"},
    ],
}

A_COST = {
    "tasks_per_s": 1e5,
    "server_us": 3.0,
    "client_us": 2.0,
    "server_busy": 0.9,
    "client_busy": 0.5,
    "balance": {"tasks": 1.0, "commands": 1.1, "cpu": 1.2},
}

NODES_FILE = {
    "facts": {"server": "Valkey"},
    "measured": [
        {
            "masters": count,
            "replicas": 0,
            "shards": 48,
            "idle": 0.01,
            "work": {"push_many": A_COST},
        }
        for count in (1, 3, 6)
    ],
    "model": {
        "formula": "nodes ÷ cost",
        "meaning": "Costs are measured.",
        "calibration": {"server_us": 9.0, "client_us": 6.0, "idle": 0.01},
        "points": [
            {"nodes": n, "shards": 48, "imbalance": 1.0, "tasks_per_s": 1e5 * n, "client_cores": n} for n in (1, 8, 64)
        ],
    },
    "failover": {
        "promoted_s": 3.0,
        "ready": {"lost": {"p99_ms": 2900.0}, "none": None},
        "series": [{"s": 0.0, "p50_ms": 0.0, "max_ms": 3.0}, {"s": 0.1, "p50_ms": 2.0, "max_ms": 3.0}],
        "series_lost": [{"s": 0.1, "p50_ms": 2.0, "max_ms": 2900.0}, {"s": 0.2, "p50_ms": 2.0, "max_ms": 3.0}],
    },
}

OLDEST_FILE = {
    "complete": True,
    "facts": {"server": "Redis 7.0.15, one server on loopback TCP"},
    "figures": [
        figure("push", "push_many of 100", 161_000, "tasks/s", ratio=1.07),
        figure("lateness", "due → ready", 0.5, "ms", percentiles={"p50": 0.61, "p99": 4.4, "max": 8.0}),
        figure("flow", "while 123 fall due", 0.5, "ms"),
    ],
}

ROUND = {
    "seed": 1, "ground": "aof", "faults": 2, "tasks": 90_000, "plain": 89_000, "undecided": 0, "deliveries": 91_000,
    "late_s": {"p50": 0.1}, "seconds": {"faults": 60.0}, "clocks": False, "violations": {}, "wrong": [], "broken": [],
}  # fmt: skip

CHAOS_FILE = {
    "facts": {"server": "Valkey"},
    "rounds": [ROUND, ROUND],
    "faults": {"kill server": 3, "cut": 1},
    "faults_of": {"aof": {"kill server": 1, "cut": 1}, "cluster": {"kill server": 2}},
    "doubled": {"its lease ran out": 17},
    "lost": {"a failover took it": 4},
    "outcomes": {"push pushed": 90_000},
    "errors": {"Unanswered": 12},
}

SOAK_FILE = {
    "facts": {"server": "Valkey"},
    "ground": "aof",
    "seconds": 7200.0,
    "sample_s": 20.0,
    "warm_up_s": 900.0,
    "per_s": 1000.0,
    "tasks": 7_000_000,
    "bounds": {"rss": {"relative": 0.05, "absolute": 4e6, "unit": "bytes"}},
    "series": [{"kind": "rss", "name": "server 1", "points": [[float(at), 2e7 + at % 7] for at in range(0, 7200, 20)]}],
    "flat": [
        {"kind": "rss", "name": "server 1", "median": 2e7, "growth": 3e5, "bound": 4e6, "is_flat": True},
    ],
}

ALL = {
    RESULTS: RESULTS_FILE,
    OLDEST: OLDEST_FILE,
    PEERS: PEERS_FILE,
    NODES: NODES_FILE,
    CHAOS: CHAOS_FILE,
    SOAK: SOAK_FILE,
}


def written(folder: Path, files: dict[str, Any]) -> str:
    for name, content in files.items():
        (folder / name).write_bytes(msgspec.json.encode(content))
    assert command.main(["--folder", str(folder)]) == 0
    return (folder / command.PAGE).read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a report with nothing missing, for tests that only read it."""
    folder = tmp_path_factory.mktemp("whole")
    written(folder, ALL)
    return folder


def test_all_of_it(whole: Path) -> None:
    page = (whole / command.PAGE).read_text(encoding="utf-8")
    assert "is missing" not in page
    assert "not measured: it &lt;broke&gt;" in page
    assert "ready, lost, p99 ms" in page
    assert "a &lt;machine&gt; &amp; more" in page
    assert "180,000" in page
    assert "7,000,000 tasks in all" in page
    assert "its lease ran out" in page
    plots = {file.stem for file in whole.glob("*.svg")}
    assert "soak-rss" in plots
    assert {"limits", "peers-schedule", "lateness", "memory", "backlog-push", "nodes", "nodes-model"} <= plots
    assert {"expand-4-16-push", "expand-4-16-late", "expand-4-16-moved", "nodes-failover"} <= plots
    table = (whole / command.TABLE).read_text(encoding="utf-8")
    assert "272,000 tasks/s | 0.90 of the C client | 161,000 (1.07) |" in table
    assert "| on Redis 7.0.15 |" in table
    assert "0.610 / 4.40" in page
    assert "best other: other 1,000" in table


def test_plots_are_well_formed_and_nothing_is_fetched(whole: Path) -> None:
    page = (whole / command.PAGE).read_text(encoding="utf-8")
    for file in whole.glob("*.svg"):
        assert xml.fromstring(file.read_text(encoding="utf-8")).tag.endswith("svg")
    for plot in re.findall(r"<svg.*?</svg>", page, re.DOTALL):
        xml.fromstring(plot)
    # a plot's own parts, its markers, are referred to within the page
    assert not re.search(r"""(src|href)=(?!"#)|url\(|@import|https?:""", page)


@pytest.mark.parametrize("gone", ALL)
def test_a_missing_file_is_named_and_how_to_make_it(tmp_path: Path, gone: str) -> None:
    page = written(tmp_path, {name: content for name, content in ALL.items() if name != gone})
    assert f"{gone} is missing" in page
    assert MAKING[gone] in page


def test_a_suite_that_was_not_measured_is_said_so(tmp_path: Path) -> None:
    assert "Not measured" not in written(tmp_path, {}).split("Fleets and idle")[0]
    page = written(tmp_path, {RESULTS: {**RESULTS_FILE, "complete": False}})
    assert "Not measured" in page.split("Fleets and idle")[1]
    assert "was not completed" in page


def test_nothing_at_all_still_makes_a_page(tmp_path: Path) -> None:
    page = written(tmp_path, {})
    assert all(f"{name} is missing" in page for name in ALL)
    assert list(tmp_path.glob("*.svg")) == []


def test_a_file_of_another_form_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / PEERS).write_text('{"peers": 3}', encoding="utf-8")
    assert command.main(["--folder", str(tmp_path)]) == 1
    assert PEERS in capsys.readouterr().err


def test_ids_are_those_of_one_plot(whole: Path) -> None:
    ids = re.findall(r'\bid="([^"]*)"', (whole / command.PAGE).read_text(encoding="utf-8"))
    assert ids
    assert len(ids) == len(set(ids))


def test_what_is_pointed_at_tells_its_figures() -> None:
    plot = xml.fromstring(bars("a title", [Bar('a <b> & "c"', 1234, "so many")]))
    assert [title.text for title in plot.iter("title")] == ["a title", 'a <b> & "c": 1,234: so many']
