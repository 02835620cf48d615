"""A server whose disk is watched: which bytes of its append-only file an fsync has covered, and a loss of power."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from cluster.server import Server

SOURCE = Path(__file__).with_name("synced.c")

OPTIONS = {"appendonly": "yes", "appendfsync": "everysec", "auto-aof-rewrite-percentage": "0", "save": '""'}


class WatchedServer(Server):
    """A server of its own, with one append-only file that is not written anew."""

    def __init__(
        self, binary: Path, folder: Path, *, options: Mapping[str, str] | None = None, sync_ms: int = 0
    ) -> None:
        """``sync_ms``: how long its disk takes for an fsync."""
        folder.mkdir(parents=True, exist_ok=True)
        self._notes = folder / "synced"
        super().__init__(
            _watched(binary, folder, self._notes, sync_ms),
            folder=folder / "data",
            options={**OPTIONS, **(options or {})},
        )

    @property
    def file(self) -> Path:
        """The append-only file that it writes."""
        return max((self.folder / "appendonlydir").glob("*.incr.aof"), key=lambda path: int(path.name.split(".")[-3]))

    @property
    def covered(self) -> int:
        """The bytes of the file that are on the disk for sure."""
        return self.covered_of(self.file)

    def covered_of(self, file: Path) -> int:
        lines = self._notes.read_text(encoding="utf-8").splitlines() if self._notes.exists() else []
        noted = [line.rsplit(" ", 1) for line in lines]
        return max((int(size) for path, size in noted if path == str(file)), default=0)

    def has_on_disk(self, file: Path, what: bytes) -> bool:
        """True if the file has these bytes, and an fsync has covered them."""
        covered = self.covered_of(file)
        return what in file.read_bytes()[:covered]

    def lose_power(self, draw: random.Random) -> tuple[int, int, int]:
        """Kills it, and leaves at least what an fsync covered of the file, and at most what was written. Returns the
        bytes that were covered, kept and written.
        """
        self.kill()
        covered, written = self.covered, self.file.stat().st_size
        kept = draw.choice((covered, draw.randint(covered, written), draw.randint(covered, written)))
        os.truncate(self.file, kept)
        return covered, kept, written


def _watched(binary: Path, folder: Path, notes: Path, sync_ms: int) -> Path:
    """A program that starts the server with its fsyncs noted."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    assert compiler, "no C compiler (cc or gcc) on this machine: without one, no test can see what a server syncs"
    library, program = folder / "synced.so", folder / "server"
    subprocess.run([compiler, "-shared", "-fPIC", "-O2", "-o", library, SOURCE, "-ldl"], check=True)
    slow = f"SYNC_MS={sync_ms} " if sync_ms else ""
    program.write_text(f'#!/bin/sh\n{slow}LD_PRELOAD="{library}" SYNCED="{notes}" exec "{binary}" "$@"\n', "utf-8")
    program.chmod(0o755)
    return program
