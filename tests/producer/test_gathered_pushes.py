"""Pushes of one event loop that are under way together share calls, and each caller learns what became of its own."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import pytest

from cluster.server import Server
from shardq import (
    AsyncEngine,
    Conflict,
    Engine,
    EngineClosed,
    OutOfMemory,
    Receipt,
    ServerFault,
    Task,
    Unanswered,
    Unavailable,
)
from shardq.calls.request import Word
from shardq.engine.parts import async_driver_of, cache_of
from shardq.model.record import JSON, decode_record, encode_record
from shardq.producer.gathering import FEW, Gatherer
from shardq.producer.packing import BATCH, CALL_BYTES, Entries, Packer
from tests.support.engines import SHARDS
from tests.support.proxies import Proxy
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


async def outcomes(pushes: list[Coroutine[Any, Any, Receipt]]) -> list[Receipt | BaseException]:
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
        gatherer = Gatherer(await async_driver_of(engine), cache_of(engine), packer)
        words: list[list[Word]] = [[f"made-{n}", -3_600_000, encode_record(JSON, n)] for n in range(50)]
        # FEW others are under way, so that all of these are gathered
        others = [asyncio.create_task(gatherer.push(packer.one(Task("x", delay=FAR_S)))) for _ in range(FEW)]
        await asyncio.sleep(0)
        receipts = await asyncio.gather(*(gatherer.push(Entries([str(each[0])], each, [])) for each in words))
        await asyncio.gather(*others)
        assert {n for n in range(50) if receipts[n] != f"made-{n}"} == {3, 7}
        kept = stored(url, name)
        assert [kept[receipt] for receipt in receipts] == list(range(50))
        assert kept["made-3"] == kept["made-7"] == "before"

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


# ---- cancelled callers


def test_a_caller_that_is_cancelled_before_the_end_of_the_turn_sends_nothing(url: str, name: str) -> None:
    async def main(engine: AsyncEngine) -> None:
        pushes = [asyncio.create_task(engine.push(n, delay=FAR_S)) for n in range(MANY)]
        await asyncio.sleep(0)  # each has come to its first wait
        cancelled = set(range(FEW, MANY, 3))
        for n in cancelled:
            pushes[n].cancel()
        told = await asyncio.gather(*pushes, return_exceptions=True)
        assert {n for n in range(MANY) if isinstance(told[n], asyncio.CancelledError)} == cancelled
        assert set(stored(url, name).values()) == set(range(MANY)) - cancelled

    run(url, name, main)


@pytest.mark.parametrize("seed", range(3))
def test_callers_that_are_cancelled_at_any_instant(url: str, name: str, seed: int) -> None:
    async def main(engine: AsyncEngine) -> None:
        chance = random.Random(seed)
        pushes: dict[int, asyncio.Task[Receipt]] = {}
        for n in range(5 * MANY):
            pushes[n] = asyncio.create_task(
                engine.push(n, delay=FAR_S, id=f"own-{n}" if chance.random() < 0.5 else None)
            )
            if chance.random() < 0.1:
                for _ in range(chance.randrange(6)):
                    await asyncio.sleep(0)
            if chance.random() < 0.4:
                pushes[chance.randrange(max(0, n - MANY), n + 1)].cancel()
        answers = await asyncio.gather(*pushes.values(), return_exceptions=True)
        told = dict(zip(pushes, answers, strict=True))
        assert {type(answer) for answer in answers} == {Receipt, asyncio.CancelledError}
        check_ledger(told, stored(url, name))

    run(url, name, main)


def test_without_callers_a_call_is_given_up(own_server: Server, name: str) -> None:
    async def main(engine: AsyncEngine) -> None:
        own_server.pause()
        before = asyncio.all_tasks()
        pushes = [asyncio.create_task(engine.push(n, delay=FAR_S)) for n in range(MANY)]
        await asyncio.sleep(0.05)
        for push in pushes:
            push.cancel()
        await asyncio.wait(pushes)
        deadline = asyncio.get_running_loop().time() + PROMPT_S
        while asyncio.all_tasks() - before:
            assert asyncio.get_running_loop().time() < deadline, asyncio.all_tasks()
            await asyncio.sleep(0.01)
        own_server.resume()

    run(own_server.url, name, main)


@pytest.mark.parametrize("turns", [1, 2, 3, 4, 6])
def test_somebody_cancels_all_tasks_of_the_loop(url: str, name: str, turns: int) -> None:
    """But those who push."""

    async def main(engine: AsyncEngine) -> None:
        before = asyncio.all_tasks()
        pushes = {n: asyncio.create_task(engine.push(n, delay=FAR_S)) for n in range(MANY)}
        for _ in range(turns):
            await asyncio.sleep(0)
        for task in asyncio.all_tasks() - before - set(pushes.values()):
            task.cancel()
        answers = await asyncio.wait_for(asyncio.gather(*pushes.values(), return_exceptions=True), PROMPT_S)
        assert {type(answer) for answer in answers} <= {Receipt, Unanswered}
        check_ledger(dict(zip(pushes, answers, strict=True)), stored(url, name))

    run(url, name, main)


def test_a_loop_that_ends_leaves_no_task_pending(own_server: Server, name: str) -> None:
    engine = AsyncEngine(own_server.url, name=name, shards=SHARDS, timeout=RETRY_FOR_S)
    pushes: list[asyncio.Task[Receipt]] = []
    faults: list[dict[str, Any]] = []

    async def first() -> None:
        await engine.open()
        own_server.pause()
        pushes.extend(asyncio.create_task(engine.push(n, delay=FAR_S)) for n in range(MANY))
        await asyncio.sleep(0.05)
        await engine.close()

    async def second() -> None:
        async with engine:
            assert len(await asyncio.gather(*(engine.push(n, delay=FAR_S) for n in range(MANY)))) == MANY

    for main in (first, second):
        loop = asyncio.new_event_loop()
        loop.set_exception_handler(lambda _, context: faults.append(context))
        loop.run_until_complete(main())
        assert asyncio.all_tasks(loop) <= set(pushes)
        if main is first:
            loop.run_until_complete(asyncio.wait(pushes))
            assert {type(push.exception()) for push in pushes} == {EngineClosed}
            own_server.resume()
        loop.close()
    assert faults == []


# ---- close, kill, resize


@pytest.mark.parametrize("turns", [0, 1, 2, 3, 5, 20])
def test_closed_in_the_middle(url: str, name: str, turns: int) -> None:
    async def main() -> None:
        engine = await AsyncEngine(url, name=name, shards=SHARDS, timeout=RETRY_FOR_S).open()
        told: dict[int, Receipt | BaseException] = {}

        async def some(first: int) -> None:
            for number in range(first, first + 20):
                try:
                    told[number] = await engine.push(number, delay=FAR_S)
                except (EngineClosed, ServerFault) as exc:
                    told[number] = exc

        pushing = [asyncio.create_task(some(20 * n)) for n in range(MANY)]
        for _ in range(turns):
            await asyncio.sleep(0)
        await engine.close()
        await asyncio.wait_for(asyncio.gather(*pushing), PROMPT_S)
        assert len(told) == 20 * MANY
        assert EngineClosed in {type(answer) for answer in told.values()}
        check_ledger(told, stored(url, name))

    asyncio.run(main())


@pytest.mark.parametrize("timeout", [2.0, RETRY_FOR_S])
def test_a_server_that_is_killed_in_the_middle(own_server: Server, name: str, timeout: float) -> None:
    async def main(engine: AsyncEngine) -> None:
        told: dict[int, Receipt | BaseException] = {}
        begun = asyncio.Event()

        async def some(first: int) -> None:
            for number in range(first, first + 20):
                [told[number]] = await outcomes([engine.push(number, delay=FAR_S)])
                if len(told) == 5 * MANY:
                    begun.set()
                if not isinstance(told[number], Receipt):
                    return

        pushing = [asyncio.create_task(some(20 * n)) for n in range(MANY)]
        await begun.wait()
        own_server.kill()
        if timeout == RETRY_FOR_S:
            await asyncio.to_thread(own_server.start)
        await asyncio.gather(*pushing)
        if timeout == RETRY_FOR_S:
            assert {type(answer) for answer in told.values()} == {Receipt}
        else:
            own_server.start()
            assert {type(answer) for answer in told.values()} <= {Receipt, Unavailable, Unanswered}
        check_ledger(told, stored(own_server.url, name))

    run(own_server.url, name, main, timeout=timeout)


@pytest.mark.parametrize("own", [False, True])
def test_the_number_of_shards_changes_meanwhile(url: str, name: str, own: bool) -> None:
    async def main(engine: AsyncEngine) -> None:
        told: dict[int, Receipt | BaseException] = {}
        changed = asyncio.Event()

        async def some(first: int) -> None:
            number = first
            while number < first + 10 or not changed.is_set():
                [told[number]] = await outcomes([engine.push(number, delay=FAR_S, id=f"own-{number}" if own else None)])
                number += 1

        pushing = [asyncio.create_task(some(1_000_000 * n)) for n in range(MANY)]
        with Engine(url, name=name, timeout=RETRY_FOR_S) as other:
            other.start()
            growth = await asyncio.to_thread(other.expand, SHARDS + 3)
            changed.set()
            await asyncio.gather(*pushing)
            await asyncio.to_thread(growth.wait, RETRY_FOR_S)
        assert {type(answer) for answer in told.values()} == {Receipt}
        check_ledger(told, stored(url, name, SHARDS + 3))

    run(url, name, main)


@pytest.mark.parametrize("own", [False, True])
def test_an_answer_is_lost_and_the_number_of_shards_changes(own_server: Server, name: str, own: bool) -> None:
    """What was stored under the old number is found, and not stored again."""
    with Proxy(own_server.address) as proxy, Engine(own_server.url, name=name, shards=SHARDS) as other:

        async def main(engine: AsyncEngine) -> None:
            await teach(engine)
            proxy.passing.clear()
            pushes = [engine.push(n, delay=FAR_S, id=f"own-{n}" if own else None) for n in range(MANY)]
            under_way = asyncio.gather(*pushes)
            deadline = asyncio.get_running_loop().time() + PROMPT_S
            while len(stored(own_server.url, name)) < MANY:
                assert asyncio.get_running_loop().time() < deadline
                await asyncio.sleep(0.01)
            await asyncio.to_thread(other.expand, SHARDS + 3)
            proxy.drop()
            proxy.passing.set()
            receipts = await under_way
            assert {receipt.outcome for receipt in receipts} == {"pushed"}
            kept = stored(own_server.url, name, SHARDS + 3)
            assert [kept[receipt] for receipt in receipts] == list(range(MANY))
            assert len(kept) == MANY

        run(proxy.url, name, main)
