"""The program of the page about sinks runs as it stands there."""

from __future__ import annotations

from pathlib import Path

from cluster.server import Server
from shardq import Engine
from tests.support.pages import run_program


def test_the_program_of_the_page(single: Server, name: str, tmp_path: Path) -> None:
    out = run_program("sinks", single.url, tmp_path, name=("sinks-page", name))
    assert out.startswith("mail/")
    assert out.endswith(" {'to': 'ann'}\n")
    with Engine(single.url, name=name) as engine:
        engine.forward("orders", to=None)
