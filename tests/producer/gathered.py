"""Pushes of one event loop, for the tests of how they are gathered."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from shardq import (
    AsyncEngine,
    Receipt,
    Unavailable,
)
from shardq.core.model.record import JSON, decode_record
from tests.support.engines import SHARDS
from tests.support.servers import Servers, keys_of
from tests.support.states import FAR_S

MANY = 200
RETRY_FOR_S = 60.0
"""For so long pushes are tried through a restart."""
PROMPT_S = 20.0

Main = Callable[[AsyncEngine], Awaitable[None]]


def run(url: str, name: str, main: Main, *, shards: int = SHARDS, timeout: float = RETRY_FOR_S) -> None:
    async def opened() -> None:
        async with AsyncEngine(url, name=name, shards=shards, timeout=timeout) as engine:
            await main(engine)

    asyncio.run(opened())


def stored(url: str, name: str, shards: int = SHARDS) -> dict[str, Any]:
    """Id → payload of every task that has a record, once it is seen that each id is in one shard only."""
    found: list[tuple[str, Any]] = []
    with Servers(url) as servers:
        for keys in keys_of(name, shards):
            records = servers.ask(keys.slot, "HGETALL", keys.task)
            found += [(id.decode(), decode_record(record, own=JSON).payload) for id, record in records.items()]
    assert len(dict(found)) == len(found), "no id is in two shards"
    return dict(found)


def calls_of(servers: Servers) -> int:
    infos = [client.info("commandstats") for client in servers.masters]
    return sum(info.get(f"cmdstat_{verb}", {}).get("calls", 0) for info in infos for verb in ("evalsha", "eval"))


async def teach(engine: AsyncEngine) -> None:
    """Sees to it that every server knows the scripts: a call by which one learns them is sent twice."""
    for n in range(20):
        await engine.push("x", id=f"own-{n}", delay=FAR_S)
        for id in (f"own-{n}", await engine.push("x", delay=FAR_S)):
            await engine.cancel(id)


async def outcomes(pushes: Sequence[Awaitable[Receipt]]) -> list[Receipt | BaseException]:
    return await asyncio.gather(*pushes, return_exceptions=True)


def check_ledger(told: dict[int, Receipt | BaseException], kept: dict[str, Any]) -> None:
    """Every payload is stored once at most; what was acknowledged under its id, and what was refused not at all."""
    copies = Counter(kept.values())
    assert set(copies) <= set(told)
    assert max(copies.values(), default=0) <= 1
    for number, answer in told.items():
        if isinstance(answer, Receipt):
            assert kept.get(answer) == number
        elif isinstance(answer, Unavailable):
            assert number not in copies
