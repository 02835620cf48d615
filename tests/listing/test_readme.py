"""The program of the page about lists of tasks runs as it stands there."""

from __future__ import annotations

from pathlib import Path

from tests.support.pages import run_program


def test_the_program_of_the_page_runs(tmp_path: Path, url: str, name: str) -> None:
    *first, found, counts, done = run_program("listing", url, tmp_path, name=("listing-page", name)).splitlines()
    assert first == [f"mail {{'order': {n}}}" for n in range(3)]
    assert 300 <= int(found.split()[0]) <= 500  # more, where the program stood still after the pushes
    overdue, most, later = map(int, counts.split())
    assert (overdue, later) == (0, 0)
    assert 55 <= most <= 65
    assert done == "500 of 500 cancelled"
