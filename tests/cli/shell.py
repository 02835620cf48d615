"""The installed ``shardq`` script, run as users run it: in a process with a home directory of its own."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from cluster.server import Server
from tests.support import forked
from tests.support.programs import plain_environment
from tests.support.waiting import wait_until

SCRIPT = Path(sys.executable).parent / "shardq"

LONGEST_S = 100.0
"""No command of these tests takes half of it, on a machine that is busy."""

ON_BOTH = pytest.mark.parametrize("url", ["single", "cluster"], indirect=True)
"""On a server and on a cluster."""

_NEWS = re.compile(
    r"^(?:\S+Z shardq\S* )?"
    r"(warning|error): ((shard \d+ can't be dispatched|shard \d+ is dispatched again|the heartbeat|could not sign off|"
    r"no subscription on|subscribed on) |.* are not dispatched meanwhile|\S+: the outage is over).*\n",
    re.MULTILINE,
)

_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


@dataclass(frozen=True)
class Done:
    """A command that has ended."""

    code: int
    out: str
    err: str

    @property
    def own_err(self) -> str:
        return own(self.err)

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()

    @property
    def objects(self) -> list[Any]:
        """The output of a command with --json."""
        return [json.loads(line) for line in self.lines]

    @property
    def object(self) -> Any:
        (one,) = self.objects
        return one


def own(text: str) -> str:
    """What a command with pollers says itself: without what the engine logs when its server stands still for long."""
    return _NEWS.sub("", text)


class Shell:
    """Runs commands; kills at its end what still runs of them."""

    def __init__(self, home: Path, variables: Mapping[str, str]) -> None:
        self.temporary = home / "tmp"
        self.temporary.mkdir(parents=True, exist_ok=True)
        self.environment = plain_environment() | {
            "HOME": str(home),
            "XDG_DATA_HOME": str(home / "data"),
            "TMPDIR": str(self.temporary),
            "COLUMNS": "",
            "LINES": "",
            "TERM": "xterm-256color",
            **variables,
        }
        self.cwd: Path | None = None
        """The directory that commands are started in; None: that of the tests."""
        self._started: list[subprocess.Popen[str]] = []

    def run(self, *words: str, stdin: str | bytes = "", **variables: str) -> Done:
        """The command, waited for, in a process that has it loaded unless a variable is for Python's start."""
        given = stdin.encode() if isinstance(stdin, str) else stdin
        environment = self.environment | variables
        if any(variable.startswith(("PYTHON", "LC_")) for variable in variables):
            done = subprocess.run(
                [SCRIPT, *words], input=given, capture_output=True, env=environment, timeout=LONGEST_S, check=False
            )
            return Done(done.returncode, done.stdout.decode(), done.stderr.decode())
        with tempfile.TemporaryDirectory() as folder:
            code, out, err = forked.run(
                words,
                stdin=given,
                environment=environment,
                cwd=self.cwd,
                folder=Path(folder),
                timeout=LONGEST_S,
            )
        return Done(code, out.decode(), err.decode())

    def start(self, *words: str, stdin: int = subprocess.DEVNULL) -> subprocess.Popen[str]:
        """The command, in the background."""
        process = subprocess.Popen(
            [SCRIPT, *words],
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=self.environment,
            cwd=self.cwd,
        )
        self._started.append(process)
        return process

    def interrupted(self, number: int, server: Server, *words: str) -> Done:
        """The command on this server, ended by a signal while the server lets its writes wait."""
        server.ask("CLIENT", "PAUSE", 90_000, "WRITE")
        process = self.start(*words, "--url", server.url)
        wait_until(lambda: server.ask("INFO", "clients")["blocked_clients"], "it waits for the server", timeout=60)
        process.send_signal(number)
        server.ask("CLIENT", "UNPAUSE")
        out, err = process.communicate(timeout=LONGEST_S)
        return Done(process.returncode, out, err)

    def on_terminal(self, *words: str, columns: int, rows: int, answer: str = "") -> Done:
        """The command on a terminal of that size, where ``answer`` is typed; ``out`` is all that was to be seen there,
        without colours.
        """
        code, seen = forked.run_on_terminal(
            words,
            answer=f"{answer}\n".encode() if answer else b"",
            columns=columns,
            rows=rows,
            environment=self.environment,
            timeout=LONGEST_S,
        )
        return Done(code, _ESCAPES.sub("", seen.decode()).replace("\r", "\n"), "")

    def end(self) -> None:
        for process in self._started:
            if process.poll() is None:
                process.kill()
            process.communicate()
