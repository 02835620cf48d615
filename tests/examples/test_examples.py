"""The examples, run as a newcomer runs them: as programs of their own, which print what they say and end cleanly."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cluster.server import Server

FOLDER = Path(__file__).parent

ENDS_S = 60.0
"""For a program on a busy machine."""


class Program:
    """An example that runs. Its lines are read as they come; it is killed at the end of the test if it still runs."""

    def __init__(self, file: str, *words: str, **variables: str) -> None:
        inherited = {key: value for key, value in os.environ.items() if not key.startswith("SHARDQ_")}
        self.lines: list[str] = []
        self._process = subprocess.Popen(
            [sys.executable, FOLDER / file, *words],
            env=inherited | {"PYTHONUNBUFFERED": "1", **variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def next_line(self) -> str:
        """Waits for it."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, f"it ended after {self.lines}: {self._rest()[1]}"
        self.lines.append(line.rstrip("\n"))
        return self.lines[-1]

    def until(self, *wanted: str) -> None:
        """Reads its lines until each of these has come, in any order."""
        while not set(wanted) <= set(self.lines):
            self.next_line()

    def interrupt(self) -> None:
        """Ctrl-C."""
        self._process.send_signal(signal.SIGINT)

    def ends_well(self) -> list[str]:
        """All of its lines, once it has ended by itself. It may log, but shows no traceback."""
        rest, errors = self._rest()
        assert self._process.returncode == 0, errors
        assert "Traceback" not in errors
        return self.lines + rest.splitlines()

    def end(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._rest()

    def _rest(self) -> tuple[str, str]:
        return self._process.communicate(timeout=ENDS_S)


Run = Callable[..., Program]


@pytest.fixture
def run(own_server: Server) -> Iterator[Run]:
    """Runs an example against a server of this test's own."""
    programs = []

    def begin(file: str, *words: str, **variables: str) -> Program:
        programs.append(Program(file, *words, **({"SHARDQ_URL": own_server.url} | variables)))
        return programs[-1]

    yield begin
    for program in programs:
        program.end()


def test_every_example_is_tested() -> None:
    text = Path(__file__).read_text(encoding="utf-8")
    for path in FOLDER.glob("[!_t]*.py"):
        assert f'"{path.name}"' in text


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


def test_forwarding(run: Run) -> None:
    took = run("forwarding.py").ends_well()
    texts = [json.loads(line.removeprefix("took "))["text"] for line in took]
    assert sorted(texts) == sorted(["welcome", "we miss you", "how do you like it"])


def asked(url: str, method: str, body: Any = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    with urllib.request.urlopen(urllib.request.Request(url, data, method=method), timeout=ENDS_S) as answer:
        return json.load(answer)


def test_a_web_service(run: Run) -> None:
    program = run("web_service.py", "0")
    url = re.sub("listening on ", "", program.next_line())
    later = asked(url, "POST", {"text": "lunch", "delay": 3600})["id"]
    assert asked(f"{url}/{later}", "GET")["state"] == "scheduled"
    assert asked(f"{url}/{later}", "DELETE") == {"outcome": "cancelled"}
    asked(url, "POST", {"text": "tea", "delay": 0.5})
    program.until("reminder: tea")
    program.interrupt()
    assert program.ends_well() == [f"listening on {url}", "reminder: tea", "stopped"]
