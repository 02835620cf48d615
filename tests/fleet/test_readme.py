"""The program of the page about the fleet runs as it stands there."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardq.core.fleet import Member
from tests.support.pages import page, run_program


@pytest.mark.slow
@pytest.mark.parametrize("url", ["single"], indirect=True)  # it waits for a worker's second report
def test_the_program_of_the_page_runs(tmp_path: Path, url: str, name: str) -> None:
    assert run_program("fleet", url, tmp_path, name=("fleet-page", name)).splitlines() == [
        "sent hello",
        "dispatcher (0, 1, 2, 3) 0 0 ''",
        "  mail 1 True",
        "worker ('mail',) 1 0 ''",
        "  mail 1 True",
    ]


def test_the_page_tells_of_every_field() -> None:
    told = page("fleet")
    assert [field for field in Member.__struct_fields__ if f"`{field}`" not in told] == []
