"""Pushes of one event loop that are under way together share calls, and each caller learns what became of its own."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any

import pytest

from cluster.server import Server
from shardq import AsyncEngine, Conflict, Receipt, ServerFault, Task, Unanswered, Unavailable
from shardq.core.calls.request import Call, Word
from shardq.core.model.record import JSON, encode_record
from shardq.core.producer.gathering import FEW, Gatherer
from shardq.core.producer.packing import BATCH, CALL_BYTES, Entries, Packer
from shardq.engine.access import EngineAccess
from shardq.errors import OutOfMemory
from tests.producer.gathered import (
    MANY,
    RETRY_FOR_S,
    calls_of,
    check_ledger,
    outcomes,
    run,
    stored,
    teach,
)
from tests.support.engines import SHARDS
from tests.support.servers import Servers, keys_of
from tests.support.states import FAR_S

# ---- what goes together


def test_pushes_under_way_together_share_calls(url: str, name: str, servers: Servers) -> None:
    async def main(engine: AsyncEngine) -> None:
        async def some(first: int) -> list[Receipt]:
            return [
                await engine.push(first + n, delay=FAR_S, id=f"own-{first + n}" if n % 2 else None) for n in range(6)
            ]

        before = calls_of(servers)
        receipts = [r for each in await asyncio.gather(*(some(n * 6) for n in range(MANY))) for r in each]
        assert calls_of(servers) - before < 6 * MANY / 3
        assert {receipt.outcome for receipt in receipts} == {"pushed"}
        kept = stored(url, name)
        assert [kept[receipt] for receipt in receipts] == list(range(6 * MANY))
        assert len(kept) == 6 * MANY

    run(url, name, main)


def test_few_pushes_go_alone(url: str, name: str, servers: Servers) -> None:
    async def main(engine: AsyncEngine) -> None:
        await teach(engine)
        before = calls_of(servers)
        await asyncio.gather(*(engine.push(n, delay=FAR_S) for n in range(FEW)))
        assert calls_of(servers) - before == FEW

    run(url, name, main, shards=1)


def test_a_shared_call_is_bounded(url: str, name: str, servers: Servers) -> None:
    """In bytes and in tasks: 2,000 of one turn, and 40 of 50 KiB."""

    async def main(engine: AsyncEngine) -> None:
        await teach(engine)
        before = calls_of(servers)
        await asyncio.gather(*(engine.push(n, delay=FAR_S) for n in range(2000 + FEW)))
        assert calls_of(servers) - before == FEW + 2000 / BATCH
        before = calls_of(servers)
        await asyncio.gather(*(engine.push("x" * 50_000, delay=FAR_S) for n in range(40 + FEW)))
        assert calls_of(servers) - before == FEW + 40 / (CALL_BYTES // 50_000)

    run(url, name, main, shards=1)


@pytest.mark.parametrize("shards", [1, 8])
def test_the_server_works_for_one_half_while_the_other_pushes(url: str, name: str, shards: int) -> None:
    """Callers that all pushed in one turn would wait in one: for the server, which has waited for them before."""

    async def main(engine: AsyncEngine) -> None:
        await teach(engine)
        driver, sent = engine._redis.gatherer._driver, list[int]()
        begin_all = driver.begin_all

        def noted(calls: Sequence[tuple[Call[Any], float]]) -> Any:
            sent.append(sum(len(call.words) // 3 - 1 for call, _ in calls))
            return begin_all(calls)

        driver.begin_all = noted  # type: ignore[method-assign, assignment]

        async def caller() -> None:
            for n in range(10):
                await engine.push(n, delay=FAR_S)

        await asyncio.gather(*(caller() for _ in range(MANY)))
        first, *others = sent
        assert first == MANY - FEW, "nobody knew how many would come"
        assert max(others) <= MANY // 2 + FEW  # those that went alone are not counted
        assert max(others) >= MANY // 8, "they go together all the same"

    run(url, name, main, shards=shards)


# ---- what each caller learns


OPTIONS: list[dict[str, Any]] = [
    {"id": "there"},
    {"id": "there", "on_conflict": "reject"},
    {"id": "other", "on_conflict": "replace"},
    {"id": "done", "dedup": 600.0},
    {"id": "done", "on_conflict": "reject"},
    {"id": "new", "topic": "mail"},
    {"id": "news", "throttle": 600.0},
    {"id": "news", "throttle": 600.0},
    {"window": 60.0, "tags": ["one"], "headers": {"a": "b"}},
    {"expires": 7200.0, "max_attempts": 3},
]


def test_every_outcome_is_that_of_a_single_push(url: str, name: str) -> None:
    def shown(answer: Receipt | BaseException) -> tuple[object, ...]:
        if isinstance(answer, Conflict):
            return "Conflict", answer.id, answer.state
        assert isinstance(answer, Receipt)
        return answer.outcome, answer.state

    async def prepared(engine: AsyncEngine) -> None:
        for id in ("there", "other", "done"):
            await engine.push("first", id=id, delay=FAR_S, dedup=600.0 if id == "done" else None)
        await engine.cancel("done")

    async def main(engine: AsyncEngine) -> None:
        await prepared(engine)
        singly = [answer for each in OPTIONS for answer in await outcomes([engine.push("x", delay=FAR_S, **each)])]
        async with AsyncEngine(url, name=f"{name}-b", shards=SHARDS, timeout=RETRY_FOR_S) as other:
            await prepared(other)
            plain = [other.push("y", delay=FAR_S) for _ in range(MANY)]
            told = await outcomes([*plain, *(other.push("x", delay=FAR_S, **each) for each in OPTIONS)])
        assert all(isinstance(answer, Receipt) for answer in told[:MANY])
        assert list(map(shown, told[MANY:])) == list(map(shown, singly))
        assert {shown(answer)[0] for answer in singly} == {"pushed", "kept", "replaced", "seen", "Conflict"}

    run(url, name, main)


def test_pushes_of_one_id_are_done_in_their_order(url: str, name: str) -> None:
    """Some of them go alone, the others together."""

    async def main(engine: AsyncEngine) -> None:
        pushes = [engine.push(n, id="one", delay=FAR_S, on_conflict="replace") for n in range(3 * FEW)]
        assert [receipt.outcome for receipt in await asyncio.gather(*pushes)] == ["pushed"] + ["replaced"] * (
            3 * FEW - 1
        )

    run(url, name, main)
    assert stored(url, name) == {"one": 3 * FEW - 1}


def test_a_shard_that_refuses_tasks_harms_no_other_shard(url: str, name: str, servers: Servers) -> None:
    async def main(engine: AsyncEngine) -> None:
        broken = keys_of(name, SHARDS)[2]
        servers.ask(broken.slot, "SET", broken.due, "not a sorted set")
        ids = [f"own-{n}" for n in range(MANY)]
        told = await outcomes([engine.push(n, id=id, delay=FAR_S) for n, id in enumerate(ids)])
        failed = {id for id, answer in zip(ids, told, strict=True) if isinstance(answer, ServerFault)}
        assert failed == {id for id in ids if engine.topology.shard_of(id) == 2}
        errors = [answer for answer in told if isinstance(answer, ServerFault)]
        assert len(set(map(id_of, errors))) == len(errors), "each caller has an error of its own"
        assert all("WRONGTYPE" in str(error) for error in errors)
        servers.ask(broken.slot, "DEL", broken.due)
        assert set(stored(url, name)) == set(ids) - failed

    run(url, name, main)


def id_of(error: BaseException) -> int:
    return id(error)


def test_ids_that_are_taken(url: str, name: str) -> None:
    """Of two tasks that collide each gets another id, and the others keep theirs."""

    async def main(engine: AsyncEngine) -> None:
        for n in (3, 7):
            await engine.push("before", id=f"made-{n}", delay=FAR_S)
        packer = Packer(JSON, max_payload=1 << 20)
        deadline = time.monotonic() + 30
        gatherer = Gatherer(await EngineAccess(engine).open_driver(), EngineAccess(engine).cache, packer)
        words: list[list[Word]] = [[f"made-{n}", -3_600_000, encode_record(JSON, n)] for n in range(50)]
        # FEW others are under way, so that all of these are gathered
        others = [asyncio.create_task(gatherer.push(packer.one(Task("x", delay=FAR_S)), deadline)) for _ in range(FEW)]
        await asyncio.sleep(0)
        receipts = await asyncio.gather(*(gatherer.push(Entries([str(each[0])], each, []), deadline) for each in words))
        await asyncio.gather(*others)
        assert {n for n in range(50) if receipts[n] != f"made-{n}"} == {3, 7}
        kept = stored(url, name)
        assert [kept[receipt] for receipt in receipts] == list(range(50))
        assert kept["made-3"] == kept["made-7"] == "before"

    run(url, name, main)


def test_one_with_no_time_left_takes_none_of_the_others(url: str, name: str) -> None:
    async def main(engine: AsyncEngine) -> None:
        packer = Packer(JSON, max_payload=1 << 20)
        gatherer = Gatherer(await EngineAccess(engine).open_driver(), EngineAccess(engine).cache, packer)
        ends = [time.monotonic() + 30] * MANY
        ends[MANY // 2] = time.monotonic()
        told = await outcomes([gatherer.push(packer.one(Task(n, delay=FAR_S)), end) for n, end in enumerate(ends)])
        assert [n for n, answer in enumerate(told) if not isinstance(answer, str)] == [MANY // 2]

    run(url, name, main)


def test_a_server_without_memory_tells_every_caller(own_server: Server, name: str) -> None:
    async def main(engine: AsyncEngine) -> None:
        own_server.ask("CONFIG", "SET", "maxmemory", "1mb")
        told = await outcomes([engine.push(n, delay=FAR_S) for n in range(MANY)])
        assert {type(answer) for answer in told} == {OutOfMemory}
        own_server.ask("CONFIG", "SET", "maxmemory", "0")
        assert stored(own_server.url, name) == {}
        assert len(await asyncio.gather(*(engine.push(n, delay=FAR_S) for n in range(MANY)))) == MANY

    run(own_server.url, name, main)


def test_a_server_that_is_gone_tells_every_caller(own_server: Server, name: str) -> None:
    async def main(engine: AsyncEngine) -> None:
        own_server.kill()
        told = await outcomes([engine.push(n, delay=FAR_S) for n in range(MANY)])
        assert {type(answer) for answer in told} <= {Unavailable, Unanswered}
        assert len(set(map(id_of, [answer for answer in told if isinstance(answer, ServerFault)]))) == MANY
        assert all(isinstance(answer, ServerFault) and answer.node == own_server.address for answer in told)
        own_server.start()
        check_ledger(dict(enumerate(told)), stored(own_server.url, name))

    run(own_server.url, name, main, timeout=2.0)
