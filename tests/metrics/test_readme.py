"""The program of the page runs as it stands there, and its table is the list of what is exported."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from shardq.metrics.exposition import METRICS
from tests.support.pages import page, run_program


@pytest.mark.parametrize("url", ["single"], indirect=True)
def test_the_program_of_the_page_runs(tmp_path: Path, url: str, name: str) -> None:
    printed = run_program("metrics", url, tmp_path, name=("metrics-page", name))
    assert printed == f'shardq_up{{engine="{name}"}} 1.0\nshardq_pushed_total{{engine="{name}"}} 1.0\n'


def test_the_table_has_every_metric() -> None:
    rows = re.findall(r"^\| `(shardq_\w+)` \| (.*) \|$", page("metrics"), re.MULTILINE)
    assert rows == [
        (each.name, f"{each.kind} | {each.scope} | {', '.join(each.labels)} | {each.help}") for each in METRICS.values()
    ]
