"""After a fork the child's engine is like one that was never opened; objects of the parent are made anew, or say so."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.workers import Worker


def goes_well(case: str, url: str, name: str) -> None:
    with Worker("tests.support.forked_engines", case, url, name) as worker:
        assert worker.said() == "OK"


@pytest.mark.slow
def test_an_engine(url: str, name: str) -> None:
    goes_well("engine", url, name)


def test_locks_that_threads_of_the_parent_held(url: str, name: str) -> None:
    goes_well("locked", url, name)


@pytest.mark.parametrize("url", ["single"], indirect=True)
def test_a_buffer(url: str, name: str) -> None:
    goes_well("buffer", url, name)


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_an_asyncio_engine(url: str, name: str, loop: str) -> None:
    goes_well(loop, url, name)


def test_an_embedded_server(tmp_path: Path, name: str) -> None:
    goes_well("embedded", f"embedded://{tmp_path / 'data'}", name)
