"""The program of the page about pushing runs as it stands there, and prints what the page says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "shardq" / "producer" / "README.md"


@pytest.mark.parametrize("url", ["single"], indirect=True)
def test_the_program_of_the_page_runs(tmp_path: Path, url: str, name: str) -> None:
    [program] = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    [told] = re.findall(r"^It prints (.*)\.$", PAGE.read_text(), re.MULTILINE)
    done = subprocess.run(
        [sys.executable, "-c", program.replace('"pushing"', repr(name))],
        cwd=tmp_path,
        env=os.environ | {"SHARDQ_URL": url},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.stdout.splitlines() == re.findall("`([^`]*)`", told), done.stderr
