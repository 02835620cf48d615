"""``python -m cluster`` as a person uses it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

import cluster as package
from tests.support.waiting import wait_until

_ROOT = Path(package.__file__).parent.parent

_LONGEST_S = 100.0
"""Of one command, on a machine that is busy."""

_TRIES = 20


class Shell:
    """Runs the command in a directory of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = {**os.environ, "PYTHONPATH": str(_ROOT)}

    def run(self, *arguments: str) -> tuple[int, str, str]:
        done = subprocess.run(
            [sys.executable, "-m", "cluster", *arguments],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=_LONGEST_S,
            check=False,
        )
        assert "Traceback" not in done.stderr
        return done.returncode, done.stdout, done.stderr

    def begin(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "cluster", *arguments],
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    @contextlib.contextmanager
    def halfway(self, at: str, *arguments: str) -> Iterator[tuple[subprocess.Popen[str], list[int]]]:
        """``up`` in the middle of its work, when this file of it is there, and the processes it has started. It stands
        still until the end of the block. Begun again where it was quicker than our look at it.
        """
        for _ in range(_TRIES):
            process = self.begin("up", *arguments)
            file = self.folder / ".cluster" / at
            wait_until(lambda: file.exists() or process.poll() is not None, f"{at} is there")  # noqa: B023  at once
            process.send_signal(signal.SIGSTOP)
            wait_until(lambda: process.poll() is not None or _stopped(process.pid), "it stands still")  # noqa: B023
            if process.poll() is None and not self.record.exists():
                try:
                    yield process, [child.pid for child in psutil.Process(process.pid).children()]
                finally:
                    process.send_signal(signal.SIGCONT)
                return
            process.send_signal(signal.SIGCONT)
            process.communicate()
            self.run("down")
        raise AssertionError(f"{_TRIES} times it was done before it could be looked at")

    @property
    def record(self) -> Path:
        """It is written when all is up."""
        return self.folder / ".cluster" / "record.json"

    def pids(self) -> list[int]:
        return [process["pid"] for process in json.loads(self.record.read_text())["processes"]]


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    shell = Shell(tmp_path)
    yield shell
    shell.run("down")


def _status(pid: int) -> str:
    try:
        return psutil.Process(pid).status()
    except psutil.NoSuchProcess:
        return psutil.STATUS_DEAD


def _running(pids: list[int]) -> list[int]:
    return [pid for pid in pids if _status(pid) not in (psutil.STATUS_DEAD, psutil.STATUS_ZOMBIE)]


def _stopped(pid: int) -> bool:
    return _status(pid) == psutil.STATUS_STOPPED


@pytest.mark.slow
def test_up_twice_look_and_down(shell: Shell) -> None:
    code, out, _ = shell.run("up", "--masters", "2", "--replicas", "1")
    url = shell.run("url")[1].strip()
    assert code == 0
    assert url.startswith("redis+cluster://127.0.0.1:")
    assert f"export SHARDQ_URL={url}" in out
    pids = shell.pids()
    assert len(_running(pids)) == 4

    code, out, _ = shell.run("up")
    assert code == 0
    assert "already up here: 4 of 4" in out
    assert url in out
    assert shell.pids() == pids

    # a node that stands still does not answer
    out = wait_until(lambda: (told := shell.run("status"))[0] == 0 and told[1], "every node answers") or ""
    assert out.count("master  ") == 2
    assert out.count("replica of 127.0.0.1:") == 2

    assert shell.run("down")[0] == 0
    assert _running(pids) == []
    assert list(shell.folder.iterdir()) == []


@pytest.mark.slow
def test_it_needs_nothing_but_what_shardq_needs(shell: Shell) -> None:
    # a new user has what `pip install '.[embedded,cli]'` brings
    blocker = shell.folder.parent / "blocker"
    blocker.mkdir()
    for module in ("psutil", "pytest", "mypy", "hypothesis"):
        (blocker / f"{module}.py").write_text(f"raise ImportError('{module} is not there')")
    shell.environment["PYTHONPATH"] = f"{blocker}{os.pathsep}{_ROOT}"
    code, _, error = shell.run("up", "--masters", "1", "--replicas", "0")
    assert (code, error) == (0, "")
    assert "Stopped 1 processes" in shell.run("down")[1]


@pytest.mark.slow
def test_an_interrupted_start_takes_everything_back(shell: Shell) -> None:
    with shell.halfway("node-6/server.log") as (process, started):
        process.send_signal(signal.SIGINT)
    out, error = process.communicate(timeout=_LONGEST_S)
    assert process.returncode == 130, out
    assert error == "interrupted; what was begun was taken back\n"
    assert list(shell.folder.iterdir()) == []
    wait_until(lambda: not _running(started), "every process is gone")


@pytest.mark.slow
def test_a_killed_start_leaves_no_process_and_no_obstacle(shell: Shell) -> None:
    with shell.halfway("node-1/server.log", "--masters", "3", "--replicas", "0") as (process, started):
        process.kill()
    process.communicate()
    wait_until(lambda: not _running(started), "every process is gone")
    assert shell.run("up", "--masters", "1", "--replicas", "0")[0] == 0


@pytest.mark.parametrize("arguments", [("up", "--masters", "0"), ("up", "--server", "redis1"), ("sideways",), ()])
def test_what_is_not_understood(arguments: tuple[str, ...], shell: Shell) -> None:
    code, _, error = shell.run(*arguments)
    assert code == 2
    assert error.startswith("usage:")
