"""``.ci/unasync.py``: the code for threads is what it makes of the code for asyncio."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
GENERATED = "shardq/engine/task_commands_sync.py"


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    for name in ("shardq", ".ci"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def unasync(root: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command: list[str | Path] = [sys.executable, root / ".ci" / "unasync.py", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_a_stale_file_is_named_and_written_anew(copy: Path) -> None:
    fresh = unasync(copy, "--check")
    assert (fresh.returncode, fresh.stderr) == (0, ""), "make fmt brings the files up to date"

    path = copy / GENERATED
    present = path.read_text()
    path.write_text(present.replace("def cancel", "def call_off"))
    stale = unasync(copy, "--check")
    assert stale.returncode == 1
    assert stale.stderr == f"{GENERATED} is not what task_commands_aio.py makes of it: run `make fmt`\n"

    path.unlink()
    assert unasync(copy).returncode == 0
    assert path.read_text() == present


def test_nothing_of_asyncio_is_left_in_what_is_generated() -> None:
    generated = list(ROOT.glob("shardq/**/*_sync.py"))
    assert generated
    for path in generated:
        words = path.read_text().partition("\n")[2]
        assert "async" not in words.lower(), path
        assert "await" not in words, path
