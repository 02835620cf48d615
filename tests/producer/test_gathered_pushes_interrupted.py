"""Gathered pushes whose callers leave, or whose engine, server or number of shards goes away meanwhile: each caller
learns what became of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from typing import Any

import pytest

from cluster.server import Server
from shardq import AsyncEngine, Engine, Receipt, ServerFault, Unanswered, Unavailable
from shardq.core.producer.gathering import FEW
from shardq.errors import EngineClosed
from tests.producer.gathered import (
    MANY,
    PROMPT_S,
    RETRY_FOR_S,
    check_ledger,
    outcomes,
    run,
    stored,
    teach,
)
from tests.support.engines import SHARDS
from tests.support.proxies import Proxy
from tests.support.states import FAR_S

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


@pytest.mark.slow
@pytest.mark.parametrize("size", [10, 8_000])
@pytest.mark.parametrize("url", ["single"], indirect=True)
def test_callers_whose_stacks_are_used_up_fail_alone(url: str, name: str, size: int) -> None:
    """At any line of their pushes. The large ones fill their calls."""
    told: dict[int, Receipt | BaseException] = {}

    async def main(engine: AsyncEngine) -> None:
        async def nested(levels: int, number: int | None = None) -> Receipt | None:
            if levels:
                return await nested(levels - 1, number)
            return None if number is None else await pushed(number)

        async def pushed(number: int) -> Receipt:
            return await engine.push([number, "x" * size], delay=FAR_S)

        deepest = 0
        with contextlib.suppress(RecursionError):
            while True:
                await asyncio.create_task(nested(deepest + 1))
                deepest += 1
        for levels in range(deepest - 40, deepest):
            numbers = range(len(told), len(told) + MANY)
            deep = set(numbers[MANY // 2 :: 2])
            pushes: list[Any] = [nested(levels, n) if n in deep else pushed(n) for n in numbers]
            # the first are under way when the others, some of them deep in their stacks, come
            first = [asyncio.create_task(push) for push in pushes[: MANY // 2]]
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            async with asyncio.timeout(PROMPT_S):
                answers = await outcomes([*first, *pushes[MANY // 2 :]])
            told.update(zip(numbers, answers, strict=True))
            assert not [n for n in numbers if n not in deep and not isinstance(told[n], Receipt)]
            assert {type(told[n]) for n in deep} <= {Receipt, RecursionError}
        failed = [answer for answer in told.values() if not isinstance(answer, Receipt)]
        assert MANY // 4 <= len(failed) < 39 * MANY // 4, "some have enough, and some have not"

    run(url, name, main, shards=2)
    check_ledger(told, {id: number for id, (number, _) in stored(url, name, shards=2).items()})


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


@pytest.mark.parametrize("turns", [1, 3])
def test_somebody_cancels_all_tasks_of_the_loop(url: str, name: str, turns: int) -> None:
    """But those who push."""

    async def main(engine: AsyncEngine) -> None:
        before = asyncio.all_tasks()
        pushes = {n: asyncio.create_task(engine.push(n, delay=FAR_S)) for n in range(MANY)}
        for _ in range(turns):
            await asyncio.sleep(0)
        for task in asyncio.all_tasks() - before - set(pushes.values()):
            task.cancel()
        async with asyncio.timeout(PROMPT_S):
            answers = await asyncio.gather(*pushes.values(), return_exceptions=True)
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


@pytest.mark.slow
@pytest.mark.parametrize("turns", [0, 1, 5])
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
        async with asyncio.timeout(PROMPT_S):
            await asyncio.gather(*pushing)
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
            await asyncio.to_thread(other.resize, SHARDS + 3)
            proxy.drop()
            proxy.passing.set()
            receipts = await under_way
            assert {receipt.outcome for receipt in receipts} == {"pushed"}
            kept = stored(own_server.url, name, SHARDS + 3)
            assert [kept[receipt] for receipt in receipts] == list(range(MANY))
            assert len(kept) == MANY

        run(proxy.url, name, main)
