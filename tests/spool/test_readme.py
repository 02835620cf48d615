"""The program of the page about the spool runs as it stands there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.pages import run_program


@pytest.mark.slow
def test_the_program_of_the_page_runs(tmp_path: Path, url: str) -> None:
    outcome, gauge, payload = run_program("spool", url, tmp_path).splitlines()
    assert outcome in ("pushed", "spooled")  # a machine that stands still is an outage, too
    assert re.fullmatch(r"\d+ 0", gauge)
    assert payload == "{'order': 42}"
