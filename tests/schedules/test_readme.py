"""The program of the page about recurring tasks runs as it stands there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "shardq" / "schedules" / "README.md"


@pytest.mark.parametrize("url", ["single"], indirect=True)
def test_the_program_of_the_page_runs(url: str, name: str) -> None:
    [program] = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    done = subprocess.run(
        [sys.executable, "-c", program.replace('"shop"', repr(name))],
        env=os.environ | {"SHARDQ_URL": url},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    ids, listed = done.stdout.splitlines()[:3], done.stdout.splitlines()[3:]
    assert all(re.fullmatch(r"mail/every-poll@\d{4}-\d\d-\d\dT[\d:]{8}(\.500)?Z", id) for id in ids)
    assert [line.split()[0] for line in listed] == ["nightly", "poll"]
