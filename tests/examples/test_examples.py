"""The examples, run as a newcomer runs them: as programs of their own, which print what they say and end cleanly."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cluster.server import Server
from tests.support.programs import Program

FOLDER = Path(__file__).parent


Run = Callable[..., Program]


@pytest.fixture
def run(own_server: Server) -> Iterator[Run]:
    """Runs an example against a server of this test's own."""
    programs = []

    def begin(file: str, *words: str, **variables: str) -> Program:
        programs.append(Program(FOLDER / file, *words, variables={"SHARDQ_URL": own_server.url} | variables))
        return programs[-1]

    yield begin
    for program in programs:
        program.end()


def test_every_example_is_tested_and_listed() -> None:
    tests = "".join(path.read_text(encoding="utf-8") for path in FOLDER.glob("test_*.py"))
    page = (FOLDER / "README.md").read_text(encoding="utf-8")
    for path in FOLDER.glob("*.py"):
        if not path.name.startswith(("_", "test_")):
            assert f'"{path.name}"' in tests or f'"{path.stem}:' in tests, path.name
            assert f"[`{path.name}`]({path.name})" in page, path.name


def test_threads(run: Run) -> None:
    lines = run("threads.py").ends_well()
    assert sorted(lines[:-1]) == sorted(
        f"{text} (attempt 1)" for text in ("call Ann", "tea is ready", "the train leaves", "water the plants")
    )
    assert lines[-1] == "4 reminders handled"


def test_threads_on_an_embedded_server(run: Run, tmp_path: Path) -> None:
    lines = run("threads.py", SHARDQ_URL="", HOME=str(tmp_path), XDG_DATA_HOME=str(tmp_path / "data")).ends_well()
    assert lines[-1] == "4 reminders handled"


def test_coroutines(run: Run) -> None:
    program = run("coroutines.py")
    program.until("rescheduled: True", "cancelled: True")

    def told() -> set[str]:
        return {line.partition(": ")[2] for line in program.lines if line.startswith("consumer")}

    wanted = {"tea is ready", "the meeting begins", *(f"lap {lap}" for lap in range(1, 6))}
    while told() != wanted:
        program.next_line()
    program.interrupt()
    lines = program.ends_well()
    assert (len(lines), lines[-1]) == (2 + len(wanted) + 1, "stopped")


def test_a_worker(run: Run) -> None:
    program = run("worker.py")
    program.until(
        "mail to ann@example.org: thank you",
        "mail to ann@example.org: how do you like it?",
        "cat.jpg is 320 pixels wide",
        "invoice of order 42, attempt 2",
    )
    program.interrupt()
    lines = program.ends_well()
    assert (len(lines), lines[-1]) == (5, "stopped")


def test_webhooks(run: Run) -> None:
    lines = run("webhooks.py").ends_well()
    assert lines[0] == "996 customers got 3 events each, in order and one at a time"
    assert lines[1] == "busy: 3 wait, hold for 10 min; no failure"
    assert re.fullmatch(r"failing: [23] wait, backoff for \d+ (s|min); HTTP 500 Database down", lines[2])
    assert lines[3] == "gone: 2 wait, hold for 1440 min; no failure"
    assert re.fullmatch(r"hanging: [23] wait, backoff for \d+ (s|min); .*: no answer within 1 s \(timeout=\)", lines[4])
    assert len(lines) == 5


def test_forwarding(run: Run) -> None:
    took = run("forwarding.py").ends_well()
    texts = [json.loads(line.removeprefix("took "))["text"] for line in took]
    assert sorted(texts) == sorted(["welcome", "we miss you", "how do you like it"])
