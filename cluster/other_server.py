"""The common part of servers of other kinds (``postgres``, ``nats``, ``rabbitmq``): a folder, a free port, a group
of processes that ends with the process that started it, and a start that is waited for.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import psutil

from cluster import warden
from cluster.ports import free_port
from cluster.server import ServerFailed

START_TIMEOUT_S = 90.0  # a slow machine under load, after a crash


def installed(name: str, *, missing: str, places: str = "") -> str:
    """The path of a program that no package brings: in ``$SHARDQ_BROKERS``, in these places, or on the PATH. Raises
    ServerFailed with what is missing, and how to get it.
    """
    found = shutil.which(
        name, path=os.pathsep.join([os.environ.get("SHARDQ_BROKERS", ""), places, os.environ.get("PATH", "")])
    )
    if found is None:
        raise ServerFailed(missing)
    return found


class OtherServer(ABC):
    """One server, for a ``with`` block. ``kill()`` is SIGKILL to all of its processes; ``start()`` starts it again with
    what it had stored.
    """

    title = ""
    """Its name in messages."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix=f"shardq-{self.title.lower()}-"))
        self.port = free_port()
        self._log = self.folder / "log"
        self._processes: list[subprocess.Popen[bytes]] = []
        """The first leads the group of all."""
        self._key = warden.new_key()

    def __enter__(self) -> Self:
        warden.note(self._key, pid=None, folder=self.folder)
        try:
            self._prepare()
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def start(self) -> None:
        self._launch()
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self._answers():
            if self._processes[-1].poll() is not None or time.monotonic() > deadline:
                raise ServerFailed(f"{self.title} did not start:\n{self._log.read_text(errors='replace')[-3000:]}")
            time.sleep(0.02)

    @property
    def pids(self) -> list[int]:
        """The processes that were started here; they may have children."""
        return [process.pid for process in self._processes]

    def kill(self) -> None:
        """SIGKILL, as a crash is."""
        processes, self._processes = self._processes, []
        # Some of their children have groups of their own, as PostgreSQL's, which would answer a little longer.
        children = [child for process in processes for child in _children(process)]
        if any(process.poll() is None for process in processes):
            os.killpg(processes[0].pid, signal.SIGKILL)
        for child in children:
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()
        for process in processes:
            process.wait()
        psutil.wait_procs(children, timeout=5)

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """SIGSTOP for the time of a block: it holds its connections, and answers nothing."""
        frozen: list[psutil.Process] = []
        try:
            # The first stops before its children are listed. Some of them have groups of their own.
            for process in self._processes:
                leader = psutil.Process(process.pid)
                leader.suspend()
                frozen.append(leader)
                for child in leader.children(recursive=True):
                    with contextlib.suppress(psutil.NoSuchProcess):
                        child.suspend()
                        frozen.append(child)
            yield
        finally:
            for each in frozen:
                with contextlib.suppress(psutil.NoSuchProcess):
                    each.resume()

    def close(self) -> None:
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)
        warden.note(self._key, pid=None, folder=None)

    def _begin(self, words: Sequence[str | Path], **options: Any) -> None:
        """Starts one process, in the group of the first."""
        group = self._processes[0].pid if self._processes else 0
        with self._log.open("ab") as log:
            process = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, process_group=group, **options
            )
        self._processes.append(process)
        warden.note(self._key, pid=-self._processes[0].pid, folder=self.folder)

    def _prepare(self) -> None:  # noqa: B027  most need nothing
        """Prepares the folder, once, before the first start."""

    @abstractmethod
    def _launch(self) -> None:
        """Begins its processes; the last one is the server."""

    @abstractmethod
    def _answers(self) -> bool:
        """True when it is up."""


def _children(process: subprocess.Popen[bytes]) -> list[psutil.Process]:
    try:
        return psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []
    except psutil.NoSuchProcess:
        return []
