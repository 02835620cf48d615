"""The program of the page about the replay runs as it stands there."""

from __future__ import annotations

from pathlib import Path

from tests.support.pages import run_program


def test_the_program_of_the_page_runs(tmp_path: Path, url: str) -> None:
    assert run_program("replay", url, tmp_path) == "2 0 0\n"
