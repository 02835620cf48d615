"""The asyncio engine makes the same changes, awaited."""

from __future__ import annotations

import asyncio

import pytest

from shardq import AsyncEngine, ChangeUnderWay, Engine, InvalidShardCount, Task
from tests.resharding.migration import Migration
from tests.support.states import FAR_S


@pytest.mark.parametrize("url", ["single"], indirect=True)
@pytest.mark.parametrize("awaited", [False, True], ids=["sync", "asyncio"])
def test_who_waits_where_nobody_moves_is_told_once(
    url: str, name: str, awaited: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("shardq.core.resharding.progress.ALONE_S", 0.1)

    async def change() -> bool:
        async with AsyncEngine(url, name=name, shards=4) as engine:
            return await (await engine.expand(8)).wait(1.0)

    with Engine(url, name=name, shards=4) as engine:
        engine.push_many([Task(n, delay=FAR_S) for n in range(100)])
        done = asyncio.run(change()) if awaited else engine.expand(8).wait(1.0)
        warnings = [said for said in caplog.messages if "no dispatcher runs to move the tasks" in said]
        assert (done, len(warnings)) == (False, 1)
        engine.start()
        caplog.clear()
        assert engine.growth().wait(30)
        assert "no dispatcher" not in caplog.text


def test_a_change_awaited(url: str, name: str, migration: Migration) -> None:
    async def change() -> None:
        async with AsyncEngine(url, name=name, shards=4, timeout=10.0) as engine:
            await engine.start()
            ids = await engine.push_many([Task(n, delay=FAR_S) for n in range(300)])
            growth = await engine.expand(8, rate=2000)
            progress = await growth.progress()
            assert (progress.shards, progress.in_force) == (8, True)
            assert await growth.wait(30)
            assert await growth.done()
            assert (await growth.progress()).fraction == 1.0
            again = await engine.shrink(3)
            looked = await engine.growth()
            assert await looked.wait(30)
            assert await again.done()
            assert [id for id in ids if not await engine.cancel(id)] == []
            with pytest.raises(InvalidShardCount, match=r"use shrink\(2\)"):
                await engine.expand(2)
            migration.step(migration.resizing(9), 3)
            with pytest.raises(ChangeUnderWay):
                await engine.expand(5)
            growth = await engine.expand(9)
            assert await growth.wait(30)

    asyncio.run(change())
