"""The program of the page about the replay runs as it stands there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

PAGE = Path(__file__).parents[2] / "shardq" / "replay" / "README.md"


def test_the_program_of_the_page_runs(tmp_path: Path, url: str) -> None:
    [program] = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env=os.environ | {"SHARDQ_URL": url},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.stdout == "2 0 0\n", done.stderr
