"""The program on the page about claiming ahead."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.pages import run_program

pytestmark = pytest.mark.parametrize("url", ["single"], indirect=True)


def test_its_program_runs(url: str, name: str, tmp_path: Path) -> None:
    assert run_program("consumer", url, tmp_path, name=("consumer-page", name)) == "1000\n"
