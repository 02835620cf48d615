"""The programs of a round as processes: started, ended, killed, frozen, and started again."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec
import psutil

from cluster import warden
from tests.chaos.plan import Program
from tests.chaos.program import Spec
from tests.judge.witness import monotonic_us

STOP_S = 60.0
"""For a program that ends: it waits for its calls, on a busy machine."""


@dataclass
class Process:
    program: Program
    spec: Spec
    popen: subprocess.Popen[bytes]
    log: Path

    @property
    def who(self) -> str:
        return self.spec.who

    @property
    def is_running(self) -> bool:
        return self.popen.poll() is None

    def ports(self) -> list[int]:
        """The ports of its ends of connections."""
        try:
            return [each.laddr.port for each in psutil.Process(self.popen.pid).net_connections("tcp") if each.raddr]
        except psutil.Error:
            return []

    def end(self) -> None:
        """Tells it to end, and does not wait."""
        assert self.popen.stdin is not None
        with contextlib.suppress(OSError):
            self.popen.stdin.close()

    def signal(self, what: signal.Signals) -> None:
        self.popen.send_signal(what)

    def tail(self) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-25:])


class Processes:
    """All of them. Threads may share it."""

    def __init__(self, make: Callable[[Program, int, int], Spec]) -> None:
        """``make``: the spec of a program's life, with the number that no other process has."""
        self._make = make
        self._lives: Counter[str] = Counter()
        self._count = 0
        self._lock = threading.Lock()
        self._keys: dict[str, int] = {}
        self.current: dict[str, Process] = {}
        self.specs: list[Spec] = []
        """Of all that ever were."""
        self.wrong: list[str] = []
        """What was not as it should be."""
        self.ended_us: dict[str, float] = {}
        """When each that was ended, or killed, was told so."""
        self.may_start = threading.Lock()
        """Held while none may start."""

    def start(self, program: Program, *, clock_s: float = 0.0) -> Process:
        """Starts a process of a program; also again, after its end. ``clock_s``: by how much its clock is off."""
        with self.may_start, self._lock:
            self._lives[program.name] += 1
            self._count += 1
            spec = msgspec.structs.replace(self._make(program, self._lives[program.name], self._count), clock_s=clock_s)
            self.specs.append(spec)
            key = self._keys.setdefault(program.name, warden.new_key())
        variables = {name: value for name, value in os.environ.items() if not name.startswith("SHARDQ_")}
        log = spec.file("log")
        with log.open("ab") as file:
            popen = subprocess.Popen(
                [sys.executable, "-m", "tests.chaos.program"],
                stdin=subprocess.PIPE,
                stdout=file,
                stderr=file,
                env=variables,
                start_new_session=True,  # Ctrl-C is for us
            )
        warden.note(key, pid=popen.pid, folder=None)
        assert popen.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            popen.stdin.write(msgspec.json.encode(spec) + b"\n")
            popen.stdin.flush()
        process = self.current[program.name] = Process(program, spec, popen, log)
        return process

    def kill(self, process: Process) -> None:
        """SIGKILL. One that has ended by itself before is noted as wrong."""
        self.ended_us[process.who] = monotonic_us()
        if not process.is_running:
            self._note(process, "ended by itself")
            return
        process.popen.kill()
        process.popen.wait()
        process.end()

    def stop(self, process: Process) -> None:
        """SIGTERM, and waits."""
        self.ended_us[process.who] = monotonic_us()
        if process.is_running:
            process.popen.terminate()
        self.finish(process)

    def finish(self, process: Process, timeout: float = STOP_S) -> None:
        """Waits for its end. One that does not come to it, or ends in an error, is noted as wrong."""
        try:
            code = process.popen.wait(timeout)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(OSError):
                process.popen.send_signal(signal.SIGABRT)  # faulthandler tells where it is
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.popen.wait(5)
            process.popen.kill()
            process.popen.wait()
            self._note(process, f"did not end within {timeout:.0f} s")
        else:
            has_begun = process.spec.file("book").exists()  # before that it has no handler of SIGTERM
            if code and (has_begun or code != -signal.SIGTERM):
                self._note(process, f"ended with {code}")
        process.end()

    def dismiss(self, process: Process) -> None:
        """SIGTERM, and waits; no other one takes its place."""
        self.stop(process)
        del self.current[process.program.name]

    def _note(self, process: Process, what: str) -> None:
        self.wrong.append(f"{process.who} {what}:\n{process.tail()}")

    def finish_all(self) -> None:
        some = list(self.current.values())
        for process in some:
            process.end()
        for process in some:
            self.finish(process)

    def close(self) -> None:
        """Nothing of them is left."""
        for process in self.current.values():
            if process.is_running:
                process.popen.kill()
                process.popen.wait()
            process.end()
        for key in self._keys.values():
            warden.note(key, pid=None, folder=None)
