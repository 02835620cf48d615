"""The asyncio engine makes the same changes, awaited."""

from __future__ import annotations

import asyncio

import pytest

from shardq import AsyncEngine, Engine, Task
from tests.support.states import FAR_S


@pytest.mark.slow
@pytest.mark.parametrize("url", ["single"], indirect=True)
@pytest.mark.parametrize("awaited", [False, True], ids=["sync", "asyncio"])
def test_who_waits_where_nobody_moves_is_told_once(
    url: str, name: str, awaited: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("shardq.core.resharding.resizing.ALONE_S", 0.1)

    async def change() -> bool:
        async with AsyncEngine(url, name=name, shards=4) as engine:
            return await (await engine.resize(8)).wait(1.0)

    with Engine(url, name=name, shards=4) as engine:
        engine.push_many([Task(n, delay=FAR_S) for n in range(100)])
        done = asyncio.run(change()) if awaited else engine.resize(8).wait(1.0)
        warnings = [said for said in caplog.messages if "no dispatcher runs to move the tasks" in said]
        assert (done, len(warnings)) == (False, 1)
        engine.start()
        caplog.clear()
        assert engine.resize(dry_run=True).wait(30)
        assert "no dispatcher" not in caplog.text
