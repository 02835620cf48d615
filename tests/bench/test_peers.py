"""The comparison with other queues: its rules and its arithmetic. The others are not installed."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from array import array
from pathlib import Path

import psutil
import pytest

from bench.cores import Cores
from bench.peers import __main__ as command
from bench.peers import homes, outcome
from bench.peers.adapter import Adapter, Here, Npm, Venv
from bench.peers.catalogue import ADAPTERS
from bench.peers.child import Child, Failed, Notes
from bench.peers.homes import PROGRAMS, Home, Unavailable
from bench.peers.outcome import COLUMNS, Peer, Rows
from bench.peers.programs import kit
from bench.peers.turns import Sizes, Turn
from cluster import servers
from tests.support.waiting import wait_until
from tests.support.workers import gone

SIZES = Sizes(schedule=200, drain=200, late=5, idle_s=0.5)

NO_PINNING = Cores(frozenset(), frozenset())

SHARDQ = ADAPTERS[0]

CHATTY = """
import subprocess, sys
print(subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)']).pid, file=sys.stderr, flush=True)
sys.stdin.read()
"""


def quiet(text: str) -> None:
    """Progress that nobody looks at."""


def running(code: str, folder: Path) -> Home:
    return Home("1", (sys.executable, "-c", code), folder)


# ---- the rules


@pytest.mark.parametrize("adapter", ADAPTERS, ids=lambda adapter: adapter.name)
def test_every_adapter_pins_its_versions_and_has_a_program(adapter: Adapter) -> None:
    assert (PROGRAMS / adapter.program).is_file()
    match adapter.source:
        case Venv(packages=packages):
            assert all("==" in package for package in packages)
        case Npm(packages=packages):
            assert all("@" in package for package in packages)
        case Here():
            assert adapter.name == "shardq"


def test_names_differ() -> None:
    assert len({adapter.name for adapter in ADAPTERS}) == len(ADAPTERS)


@pytest.mark.parametrize("program", sorted(PROGRAMS.glob("*.py")), ids=lambda program: program.stem)
def test_programs_import_nothing_of_ours_but_the_kit(program: Path) -> None:
    modules = {
        node.module
        for node in ast.walk(ast.parse(program.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom) and node.module is not None
    }
    assert {module for module in modules if module.startswith("bench")} <= {"bench.peers.programs"}
    assert program.stem == "shardq" or "shardq" not in modules


def test_the_kit_needs_the_standard_library_only() -> None:
    code = "import bench.peers.programs.kit"
    run = subprocess.run(
        [sys.executable, "-S", "-c", code], cwd=homes.ROOT, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr


def test_a_payload_is_100_bytes_as_json_and_begins_with_its_due_time() -> None:
    payload = kit.payload(1_790_000_000.123)
    assert len(f'"{payload}"') == 100
    assert float(payload[: kit.DUE_CHARACTERS]) == 1_790_000_000.123


# ---- a program while it runs


def test_one_that_ends_is_named_with_its_last_error(tmp_path: Path) -> None:
    home = running("print('ValueError: it is broken\\nsome advice', file=__import__('sys').stderr); exit(3)", tmp_path)
    with (
        Child(home, "push", url="", folder=tmp_path) as child,
        pytest.raises(Failed, match="its pusher ended with code 3: ValueError: it is broken"),
    ):
        child.answer()


def test_one_that_says_nothing_is_given_up(tmp_path: Path) -> None:
    home = running("import sys; sys.stdin.read()", tmp_path)
    with (
        Child(home, "push", url="", folder=tmp_path) as child,
        pytest.raises(Failed, match=r"did not answer within 0 s: \(it wrote nothing\)"),
    ):
        child.answer(timeout=0.1)


def test_what_it_started_ends_with_it(tmp_path: Path) -> None:
    log = tmp_path / "work.log"
    with Child(running(CHATTY, tmp_path), "work", url="", folder=tmp_path):
        wait_until(lambda: log.read_text().endswith("\n"), "it told the id of what it started")
        grandchild = psutil.Process(int(log.read_text()))
    wait_until(lambda: gone(grandchild), "its child is gone")


def test_notes_are_read_once_and_whole(tmp_path: Path) -> None:
    notes = Notes(tmp_path)
    file = tmp_path / "1.late"
    file.write_bytes(array("d", [1.0, 2.0]).tobytes() + b"\0\0\0")
    assert notes.fresh() == [1.0, 2.0]
    assert notes.fresh() == []
    file.write_bytes(array("d", [1.0, 2.0, 3.0]).tobytes())
    (tmp_path / "2.late").write_bytes(array("d", [4.0]).tobytes())
    assert notes.fresh() == [3.0, 4.0]


# ---- turns


def test_a_broken_peer_is_named_stage_by_stage(tmp_path: Path) -> None:
    home = running("raise SystemExit('RuntimeError: no luck')", tmp_path)
    rows = Turn(SHARDQ, home, servers.DEFAULT, NO_PINNING, SIZES, whole=True, say=quiet).take()
    assert [problem.split(":")[0] for problem in rows.problems] == ["schedule", "work"]
    assert all("no luck" in problem for problem in rows.problems)


def test_a_peer_whose_program_is_missing_is_unavailable(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", os.fspath(tmp_path))
    beanstalkd = next(adapter for adapter in ADAPTERS if adapter.name == "beanstalkd")
    with pytest.raises(Unavailable, match="no beanstalkd on the PATH; the Debian package beanstalkd has it"):
        homes.home(beanstalkd, say=quiet)


# ---- what comes out


def test_rates_are_medians_over_rounds() -> None:
    peer = Peer("a", "1", "so")
    for rate in (1.0, 9.0, 5.0):
        peer.add(Rows(drain_per_s=rate))
    assert peer.rows["drain_per_s"] == 5.0
    assert peer.rows["schedule_per_s"] is None


def test_a_problem_stays_until_the_figure_is_there() -> None:
    peer = Peer("a", "1", "so")
    peer.add(Rows(problems=["drain: too slow"]))
    assert peer.problem == "drain: too slow"
    peer.add(Rows(**dict.fromkeys(COLUMNS, 1.0)))  # type: ignore[arg-type] # every column is a float
    assert peer.problem is None


def test_who_is_ahead() -> None:
    slow, fast = Peer("slow", "", ""), Peer("fast", "", "")
    slow.add(Rows(drain_per_s=1.0, bytes_per_task=1.0))
    fast.add(Rows(drain_per_s=2.0, bytes_per_task=2.0))
    assert outcome.best([slow, fast]) == {"drain_per_s": "fast", "bytes_per_task": "slow"}


def test_who_is_early_is_not_ahead() -> None:
    early, late = Peer("early", "", ""), Peer("late", "", "")
    early.add(Rows(lateness_p50_ms=-1.0))
    late.add(Rows(lateness_p50_ms=1.0))
    assert outcome.best([early, late]) == {"lateness_p50_ms": "late"}


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--json", "/no/such/folder/peers.json"], "give a file in a directory that exists"),
        (["--rounds", "0"], "give 1 or more"),
        (["--only", "cron"], "invalid choice: 'cron'"),
    ],
)
def test_what_is_wrong_with_the_arguments_is_said(
    arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exit:
        command.main(arguments)
    assert exit.value.code == 2
    assert sentence in capsys.readouterr().err
