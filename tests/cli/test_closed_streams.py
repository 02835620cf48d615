"""Every command with a standard stream that is closed or takes nothing, and with Ctrl-C while it works."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from cluster.server import Server
from shardq import Engine, Task
from tests.cli.ledger import lines
from tests.cli.shell import LONGEST_S, SCRIPT, Shell
from tests.support.waiting import wait_until

UNWRITABLE = "error: the output can't be written: No space left on device\n"

FILE = "FILE"
"""Stands for the path of one with two tasks."""

COMMANDS: dict[str, int] = {
    "push 1 --delay 1h": 0,
    f"import {FILE} --ids": 0,
    "get nobody": 1,
    "cancel nobody": 1,
    "reschedule nobody --delay 5": 1,
    "every tick --interval 1h": 0,
    "every": 0,
    "forward mail --to list": 0,
    "stats": 0,
    "topics": 0,
    "shards": 0,
    "resize 4": 0,
    "resize 4 --dry-run": 0,
    "list --state dead": 0,
    "list --next": 0,
    "forecast": 0,
    "cancel --topic mail --yes": 0,
    "requeue --all --yes": 0,
    "purge --topic mail --yes": 0,
    "pause mail": 0,
    "resume mail": 0,
    "limit mail --rate 5": 0,
    "acl producer": 0,
    "--help": 0,
}
"""And the exit code of each."""


TALKERS = (f"import {FILE} --ids", "stats", "acl producer")
"""Say something on stderr."""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    file = tmp_path / "tasks.jsonl"
    file.write_text(lines({"payload": n, "delay": 3600} for n in range(2)))
    return file


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_streams_that_are_closed_or_take_nothing(shardq: Shell, engine: Engine, file: Path, command: str) -> None:
    line = f"exec {SCRIPT} {command.replace(FILE, str(file))}"
    code = COMMANDS[command]
    running = [
        (expected, told, _sh(shardq, f"{line} {redirected}"))
        for redirected, expected, told in (
            ("<&- >&- 2>&-", code, None),
            (">/dev/full", 1, UNWRITABLE),
            ("2>/dev/full", code, None),
        )
        if redirected != "2>/dev/full" or command in TALKERS
    ]
    for expected, told, process in running:
        _, err = process.communicate(timeout=LONGEST_S)
        assert process.returncode == expected, err
        if told is not None:
            assert err.splitlines(keepends=True)[-1] == told
        assert "Traceback" not in err
        assert "Exception" not in err


def _sh(shell: Shell, line: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        ["sh", "-c", line],
        env=shell.environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.slow
@pytest.mark.parametrize("redirected", [">/dev/full 2>/dev/full", ""], ids=["full disks", "readers that have gone"])
@pytest.mark.parametrize("command", ["run", "run --json", "run --processes 2"])
def test_pollers_go_on_while_nobody_hears_of_them(shardq: Shell, engine: Engine, command: str, redirected: str) -> None:
    process = _sh(shardq, f"exec {SCRIPT} {command} {redirected}")
    for stream in (process.stdout, process.stderr):
        assert stream is not None
        stream.close()
    for _ in range(2):
        engine.push("x")
        wait_until(lambda: not engine.stats().scheduled, "it is dispatched")
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=LONGEST_S) == 0


ASKING = [command for command in COMMANDS if not command.startswith(("acl", "--help"))]
"""Those that need a server."""


@pytest.mark.parametrize(
    ("some", "number", "code"),
    [
        *((ASKING[at : at + 4], signal.SIGINT, 130) for at in range(0, len(ASKING), 4)),
        (["stats", "run"], signal.SIGTERM, -signal.SIGTERM),  # which a shell calls 143
    ],
)
def test_a_signal_while_the_server_says_nothing(
    shell: Shell, own_server: Server, file: Path, some: list[str], number: signal.Signals, code: int
) -> None:
    own_server.pause()
    running = []
    for command in some:
        words = [str(file) if word == FILE else word for word in command.split()]
        running.append(shell.start(*words, "--json", "--url", own_server.url, "--name", "paused"))
    untold = list(running)

    def told() -> bool:
        # each at once: a command that waits for long ends by itself
        for process in [each for each in untold if _connected(each, own_server.port)]:
            process.send_signal(number)
            untold.remove(process)
        return not untold

    wait_until(told, "all of them wait for the server", timeout=60)
    for command, process in zip(some, running, strict=True):
        out, err = process.communicate(timeout=LONGEST_S)
        assert (process.returncode, out, err.strip()) == (code, "", ""), command
    own_server.resume()


def _connected(process: subprocess.Popen[str], port: int) -> bool:
    return any(
        connection.raddr and connection.raddr.port == port
        for connection in psutil.Process(process.pid).net_connections()
    )


@pytest.mark.parametrize(
    ("module", "loaded"),
    [
        ("shardq.cli", ["__future__", "shardq", "shardq.cli", "shardq.core", "shardq.core.lazy"]),
        ("cluster.entry", ["__future__", "cluster", "cluster.entry"]),
    ],
)
def test_until_main_hears_of_ctrl_c_next_to_nothing_is_loaded(module: str, loaded: list[str]) -> None:
    code = f"import sys; known = set(sys.modules); import {module}; print(*sorted(set(sys.modules) - known))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=LONGEST_S)
    assert done.stdout.split() == loaded


@pytest.mark.parametrize(
    ("module", "inner"), [("shardq", "shardq.engine"), ("cluster", "cluster.local"), ("bench", "bench.suites")]
)
def test_ctrl_c_while_a_module_is_loading(module: str, inner: str) -> None:
    code = f"""
import runpy, sys

class Interrupted:
    def find_spec(self, name, *rest):
        if name == "{inner}":
            raise KeyboardInterrupt

sys.meta_path.insert(0, Interrupted())
runpy.run_module("{module}", run_name="__main__", alter_sys=True)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=LONGEST_S)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


@pytest.mark.parametrize(("command", "code"), [("shardq --help", 141), ("cluster status", 1), ("bench --list", 1)])
def test_a_module_as_a_command_and_a_reader_that_has_gone(tmp_path: Path, command: str, code: int) -> None:
    words = [sys.executable, "-m", *command.split()]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = subprocess.run(
            words,
            stdout=writing,
            stderr=subprocess.PIPE,
            cwd=tmp_path,
            env=environment,
            text=True,
            check=False,
            timeout=LONGEST_S,
        )
    finally:
        os.close(writing)
    assert (done.returncode, done.stderr) == (code, "")


@pytest.mark.parametrize("command", ["list --all", "list --all --json"])
def test_head_ends_a_command_as_it_ends_others(shardq: Shell, engine: Engine, command: str) -> None:
    """As SIGPIPE ends a program: the shell calls it 141, and nothing has failed."""
    engine.push_many(Task("x" * 100, delay=3600) for _ in range(1000))
    process = _sh(shardq, f"{{ {SCRIPT} {command}; echo $? >&2; }} | head -1")
    out, err = process.communicate(timeout=LONGEST_S)
    assert (len(out.splitlines()), err) == (1, "141\n")


@pytest.mark.parametrize(
    ("content", "code", "err"),
    [
        (b"", 0, "0 pushed\n"),
        (b'\xef\xbb\xbf{"payload": 1}\r\n\r\n{"payload": 2}\r\n', 0, "2 pushed\n"),
        (b'{"payload": "caf\xe9"}\n', 1, "line 1: it is not UTF-8: invalid continuation byte at byte 16\n"),
        (b"\xff\xfe{\x00}\x00", 1, "line 1: it is not UTF-8: invalid start byte at byte 0\n"),
        (
            b'{"payload": "' + b"x" * 2_000_000 + b'"}',
            1,
            "line 1: the encoded payload has 2000002 bytes; ",
        ),
        (b'{"payload": "' + b"x" * 4_000_000 + b'"}', 1, "line 1: it has 4,000,015 bytes; 3,211,264 are allowed\n"),
    ],
    ids=["empty", "BOM and CRLF", "latin-1", "UTF-16", "a large payload", "a huge line"],
)
def test_files_of_other_systems(shardq: Shell, tmp_path: Path, content: bytes, code: int, err: str) -> None:
    file = tmp_path / "tasks"
    file.write_bytes(content)
    shardq.run("push", "1")  # there is an engine of that name
    done = shardq.run("import", str(file))
    assert (done.code, done.out) == (code, "")
    assert done.err.startswith(err)


def test_paths_that_are_no_files(shardq: Shell, tmp_path: Path) -> None:
    for path, why in ((tmp_path, "Is a directory"), (tmp_path / "none", "No such file or directory")):
        done = shardq.run("import", str(path))
        assert (done.code, done.out, done.err) == (1, "", f"error: {path}: {why}\n")
