"""The programs of pages, run as they stand there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "shardq"


def page(folder: str) -> str:
    """The text of a package's page."""
    [page] = PACKAGE.glob(f"**/{folder}/README.md")
    return page.read_text()


def programs(folder: str) -> list[str]:
    """The Python on a package's page."""
    return re.findall(r"```python\n(.*?)```", page(folder), re.DOTALL)


def printed(program: str, url: str, *words: str, cwd: Path | None = None) -> str:
    """The output of a program that has a server."""
    done = subprocess.run(
        [sys.executable, "-c", program, *words],
        cwd=cwd,
        env=os.environ | {"SHARDQ_URL": url},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
