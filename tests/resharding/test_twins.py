"""The asyncio engine makes the same changes, awaited."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from shardq import AsyncEngine, Engine, Task
from tests.support.programs import Program
from tests.support.states import FAR_S

SOON_S = 15.0
"""The promise is three; the machine may be busy."""

PROGRAM = """
import asyncio, sys
from shardq import AsyncEngine, Engine

async def change():
    async with AsyncEngine(sys.argv[1], name=sys.argv[2]) as engine:
        await (await engine.resize(8)).wait(timeout=20)

"""


@pytest.mark.slow
@pytest.mark.parametrize("url", ["single"], indirect=True)
@pytest.mark.parametrize("awaited", [False, True], ids=["sync", "asyncio"])
def test_who_waits_where_nobody_moves_is_told_once(
    url: str, name: str, awaited: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("shardq.core.fleet.missing.LOOK_S", 0.1)

    async def change() -> bool:
        async with AsyncEngine(url, name=name, shards=4) as engine:
            return await (await engine.resize(8)).wait(1.0)

    with Engine(url, name=name, shards=4) as engine:
        engine.push_many([Task(n, delay=FAR_S) for n in range(100)])
        done = asyncio.run(change()) if awaited else engine.resize(8).wait(1.0)
        warnings = [said for said in caplog.messages if "nobody moves the tasks for the change to 8 shards" in said]
        assert (done, len(warnings)) == (False, 1)
        engine.start()
        caplog.clear()
        assert engine.resize(dry_run=True).wait(30)
        assert "no dispatcher" not in caplog.text


@pytest.mark.slow
@pytest.mark.parametrize("url", ["single"], indirect=True)
@pytest.mark.parametrize("awaited", [False, True], ids=["sync", "asyncio"])
def test_a_program_is_told_on_its_terminal_within_seconds(url: str, name: str, awaited: bool, tmp_path: Path) -> None:
    """It has set up no logging, and stands in ``wait``."""
    call = "asyncio.run(change())" if awaited else "Engine(sys.argv[1], name=sys.argv[2]).resize(8).wait(timeout=20)"
    (tmp_path / "grow.py").write_text(PROGRAM + call + "\n")
    began = time.monotonic()
    with Engine(url, name=name, shards=4):
        program = Program(str(tmp_path / "grow.py"), url, name, variables={}, logs=True)
        try:
            program.matching("nobody moves the tasks for the change to 8 shards.*engine.start().*`shardq run`")
            assert time.monotonic() - began < SOON_S
        finally:
            program.end()
