"""The program of the page about pushing runs as it stands there, and prints what the page says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.pages import page, run_program


@pytest.mark.parametrize("url", ["single"], indirect=True)
def test_the_program_of_the_page_runs(tmp_path: Path, url: str, name: str) -> None:
    [told] = re.findall(r"^It prints (.*)\.$", page("producer"), re.MULTILINE)
    printed = run_program("producer", url, tmp_path, name=("pushing", name))
    assert printed.splitlines() == re.findall("`([^`]*)`", told)
