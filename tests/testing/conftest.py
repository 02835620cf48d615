"""Runs pytest as a user of shardq does: in a process of its own, with test files of the user's."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

LONGEST_S = 300.0
"""For a machine that is very busy: a run takes a second or two."""


@dataclass(frozen=True)
class Run:
    """A run of pytest that has ended."""

    code: int
    out: str
    folder: Path

    def counts(self) -> dict[str, int]:
        """Outcome → how many tests had it, by the last line."""
        return {word: int(number) for number, word in re.findall(r"(\d+) ([a-z]+)", self.out.splitlines()[-1])}

    def servers(self) -> list[psutil.Process]:
        """The embedded servers of this run that still live."""
        found = []
        for process in psutil.process_iter(["cmdline", "cwd", "name"]):
            words = [*(process.info["cmdline"] or ()), process.info["cwd"] or ""]
            if any(str(self.folder) in word for word in words) and "server" in (process.info["name"] or ""):
                found.append(process)
        return found


PytestRun = Callable[..., Run]


@pytest.fixture
def run_pytest(tmp_path: Path) -> PytestRun:
    """Writes test files, runs pytest on them, and returns how that ended. Plugins that pytest finds by itself are left
    out, unless ``autoload``: to load all of this repository's takes longer than most runs.
    """

    def run(*arguments: str, autoload: bool = False, env: dict[str, str] | None = None, **files: str) -> Run:
        for name, text in files.items():
            (tmp_path / f"{name}.py").write_text(textwrap.dedent(text))
        (tmp_path / "pytest.ini").touch()
        inherited = {
            key: value for key, value in os.environ.items() if not key.startswith(("SHARDQ_", "PYTEST_", "COV_"))
        }
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", f"--basetemp={tmp_path / 'base'}"]
        if not autoload:
            inherited["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
            command += ["-p", "shardq.testing.plugin"]
        done = subprocess.run(
            [*command, *arguments],
            cwd=tmp_path,
            env=inherited | (env or {}),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=LONGEST_S,
        )
        return Run(done.returncode, done.stdout, tmp_path)

    return run
