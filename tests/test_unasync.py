"""``.ci/unasync.py``: the code for threads is what it makes of the code for asyncio."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
GENERATED = "shardq/engine/tasks_sync.py"


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
    assert stale.stderr == f"{GENERATED} is not what tasks_aio.py makes of it: run `make fmt`\n"

    path.unlink()
    assert unasync(copy).returncode == 0
    assert path.read_text() == present


def test_nothing_of_asyncio_is_left_in_what_is_generated() -> None:
    generated = [path for path in ROOT.glob("shardq/**/*sync.py") if path.read_text().startswith("# Generated from ")]
    assert len(generated) >= 7
    for path in generated:
        code = re.sub(r"asyncio[ ,.]", "", path.read_text().partition("\n")[2])  # prose may name the other flavour
        assert not re.search("async|await|# ASYNC|TYPE_CHECKING or", code, re.IGNORECASE), path


def test_sections_leave_the_part_for_threads(copy: Path) -> None:
    source = copy / "shardq" / "engine" / "tried_aio.py"
    source.write_text(
        """# For asyncio. `make fmt` generates tried_sync.py from it.
if True:  # ASYNC
    import asyncio
else:
    import time


async def wait() -> None:
    if True:  # ASYNC
        async with asyncio.timeout(1):
            await asyncio.sleep(1)
    else:
        time.sleep(1)
    if True:  # ASYNC
        await wait()
    await wait()

    if False:  # ASYNC
        print("of threads")
"""
    )
    assert unasync(copy).returncode == 0
    assert (
        source.with_name("tried_sync.py").read_text()
        == """# Generated from tried_aio.py by `make fmt`: change that one.
import time


def wait() -> None:
    time.sleep(1)
    wait()

    print("of threads")
"""
    )
