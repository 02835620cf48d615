"""What failed is run once more, alone, and the closing line says so; where one failure is one too many it stays red."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.support.again import MOST, ONCE

ROOT = Path(__file__).parents[2]

BUSY = """
from pathlib import Path

import pytest

TRIED = Path(__file__).with_suffix(".tried")

def test_that_loses_a_race_once():
    tried, _ = TRIED.exists(), TRIED.touch()
    assert tried, "the machine is busy"

def test_that_passes(): ...
"""

BROKEN = """
def test_that_is_broken():
    assert not "as before"
"""

ENDING = """
from pathlib import Path

import pytest

TRIED = Path(__file__).with_suffix(".tried")

@pytest.fixture
def resource():
    yield
    tried, _ = TRIED.exists(), TRIED.touch()
    assert tried, "it is not closed yet"

def test_that_ends_late(resource): ...
"""

TOOK = r" in [\d.]+s( \([\d:]+\))?"

MARKED = """
import pytest

pytestmark = pytest.mark.ledger
"""


@pytest.fixture(params=["-n0", "-n2"])
def processes(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def run(folder: Path, processes: str, files: Mapping[str, str]) -> tuple[int, str, str]:
    """Runs these tests, as `make test` does. Returns the exit code, all that is said, and its last line."""
    (folder / "pytest.ini").write_text("[pytest]\nmarkers =\n  ledger: accounts\n")
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    words = ("-p", "tests.support.again", "-p", "xdist", processes, "tests")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},  # which takes a second
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr, done.stdout.splitlines()[-1].strip("= ")


@pytest.mark.slow
def test_one_that_passes_alone_is_counted_and_named(tmp_path: Path, processes: str) -> None:
    code, said, last = run(tmp_path, processes, {"tests/cli/test_busy.py": BUSY})
    assert re.fullmatch(rf"1 passed, 1 passed alone \(test_that_loses_a_race_once\){TOOK}", last), said
    assert code == 0
    assert "tests/cli/test_busy.py::test_that_loses_a_race_once (call)" in said
    assert "AssertionError: the machine is busy" in said


@pytest.mark.slow
def test_one_that_fails_again_is_red(tmp_path: Path, processes: str) -> None:
    files = {"tests/cli/test_busy.py": BUSY, "tests/cli/test_broken.py": BROKEN, "tests/cli/test_ending.py": ENDING}
    code, said, last = run(tmp_path, processes, files)
    named = r"\((test_that_loses_a_race_once, test_that_ends_late|test_that_ends_late, test_that_loses_a_race_once)\)"
    assert re.fullmatch(rf"1 failed, 1 passed, 2 passed alone {named}{TOOK}", last), said
    assert code == 1
    assert "FAILED tests/cli/test_broken.py::test_that_is_broken" in said


@pytest.mark.slow
def test_where_one_failure_is_red(tmp_path: Path) -> None:
    files = {f"tests/{folder}/test_{folder}.py": BUSY for folder in ONCE} | {"tests/cli/test_marked.py": MARKED + BUSY}
    code, said, last = run(tmp_path, "-n2", files)
    assert re.fullmatch(rf"{len(files)} failed, {len(files)} passed{TOOK}", last), said
    assert code == 1


@pytest.mark.slow
def test_a_broken_build_is_not_run_again(tmp_path: Path, processes: str) -> None:
    broken = "".join(BROKEN.replace("broken", f"broken_{n}") for n in range(MOST))
    code, said, last = run(tmp_path, processes, {"tests/cli/test_broken.py": broken, "tests/cli/test_busy.py": BUSY})
    assert re.fullmatch(rf"{MOST + 1} failed, 1 passed{TOOK}", last), said
    assert code == 1
    assert f"{MOST + 1} tests failed: none is run again" in said
