"""The asyncio twin: the same changes, awaited."""

from __future__ import annotations

import asyncio

import pytest

from shardq import AsyncEngine, ChangeUnderWay, InvalidShardCount, Task
from tests.growth.migration import Migration
from tests.support.states import FAR_S


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
