"""The tests and the program on the page about testing run as they stand there."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.support.pages import programs
from tests.testing.conftest import PytestRun

pytestmark = pytest.mark.timeout(600)


def test_the_tests_of_the_page_pass(run_pytest: PytestRun) -> None:
    tests, _ = programs("testing")
    run = run_pytest(test_page=tests)
    assert run.counts() == {"passed": 2}, run.out


@pytest.mark.slow
def test_the_program_of_the_page_runs(url: str) -> None:
    _, program = programs("testing")
    program = program.replace("redis://127.0.0.1:6379/0", url)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stderr) == (0, "")
