"""The program of the page about looking at an engine runs as it stands there."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.pages import run_program


@pytest.mark.promise
@pytest.mark.slow
def test_the_program_of_the_page_runs(tmp_path: Path, url: str, name: str) -> None:
    assert run_program("engine", url, tmp_path, name=("looked-at", name)) == "mail 1 1 0 0\nok\n"
