"""The program of the page about recurring tasks runs as it stands there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.pages import run_program


@pytest.mark.promise
@pytest.mark.slow
@pytest.mark.parametrize("url", ["single"], indirect=True)
def test_the_program_of_the_page_runs(tmp_path: Path, url: str, name: str) -> None:
    lines = run_program("schedules", url, tmp_path, name=("schedules-page", name)).splitlines()
    ids, listed = lines[:3], lines[3:]
    assert all(re.fullmatch(r"mail/every-poll@\d{4}-\d\d-\d\dT[\d:]{8}(\.500)?Z", id) for id in ids)
    assert [line.split()[0] for line in listed] == ["nightly", "poll"]
