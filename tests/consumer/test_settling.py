"""``with consumer.settling(…)``: what becomes of deliveries whose block ends, or raises."""

from __future__ import annotations

import asyncio
import datetime as dt
import logging
import time
from typing import Any

import pytest

from shardq import AsyncEngine, Bury, Consumer, Delivery, Engine, LeaseLost, Retry, Snooze, Task, TaskInfo
from shardq.errors import EngineClosed, InvalidDelay, InvalidOption
from tests.support.engines import Engines
from tests.support.states import FAR_S, claim, state_of
from tests.support.waiting import wait_until


def claimed(engine: Engine, consumer: Consumer, count: int = 1, **options: Any) -> list[Delivery]:
    engine.push_many([Task(n, **options) for n in range(count)])
    return claim(consumer, count)


def told(engine: Engine, delivery: Delivery) -> TaskInfo:
    info = engine.get(delivery.id)
    assert info is not None
    return info


def test_a_block_that_comes_to_its_end_is_an_ack(running: Engine) -> None:
    consumer = running.consumer()
    one, *many = claimed(running, consumer, 5)
    with consumer.settling(one):
        assert state_of(running, one.id) == "leased"
    assert state_of(running, one.id) == "gone"
    with consumer.settling(delivery for delivery in many):
        pass
    assert {state_of(running, delivery.id) for delivery in many} == {"gone"}
    with consumer.settling([]):
        pass


def test_a_block_that_raises_is_a_retry_and_the_exception_goes_on(running: Engine) -> None:
    consumer = running.consumer()
    now, *later = claimed(running, consumer, 3)
    with pytest.raises(ValueError, match="wrong"), consumer.settling(now):
        raise ValueError("wrong")
    # By the backoff of workers: at most a second after the first attempt.
    wait_until(lambda: state_of(running, now.id) == "ready", "it is due again")
    (again,) = claim(consumer, 1)
    assert (again.id, again.attempt, again.failures) == (now.id, 2, 1)
    began = time.time()
    with pytest.raises(ValueError, match="wrong"), consumer.settling(later, delay=FAR_S):
        raise ValueError("wrong")
    for delivery in later:
        info = told(running, delivery)
        assert (info.state, info.failures) == ("scheduled", 1)
        assert info.due is not None
        assert info.due.timestamp() > began + FAR_S - 60


def test_the_last_attempt_leaves_the_reason(running: Engine) -> None:
    consumer = running.consumer()
    (delivery,) = claimed(running, consumer, max_attempts=1)
    with pytest.raises(ZeroDivisionError), consumer.settling(delivery):
        _ = 1 / 0
    info = told(running, delivery)
    assert info.state == "dead"
    assert "Traceback" in str(info.reason)
    assert str(info.reason).endswith("ZeroDivisionError: division by zero")


def test_retry_and_bury_decide_and_end_there(running: Engine) -> None:
    consumer = running.consumer()
    buried, by_itself, by_block, grouped = claimed(running, consumer, 4, max_attempts=2)
    with consumer.settling(buried):
        raise Bury("nobody wants it")
    info = told(running, buried)
    assert (info.state, info.reason) == ("dead", "nobody wants it")
    with consumer.settling(by_itself):
        raise Retry(delay=FAR_S)
    with consumer.settling(by_block, delay=FAR_S):
        raise Retry
    with consumer.settling(grouped):
        raise ExceptionGroup("a task group", [Retry(FAR_S, "not yet")])
    for delivery in (by_itself, by_block, grouped):
        info = told(running, delivery)
        assert (info.state, info.failures) == ("scheduled", 1)
        assert info.due is not None
        assert info.due.timestamp() > time.time() + FAR_S / 2


def test_a_snooze_ends_there_and_counts_no_attempt(running: Engine, caplog: pytest.LogCaptureFixture) -> None:
    consumer = running.consumer()
    deliveries = claimed(running, consumer, 3, max_attempts=1)
    now, later, grouped = deliveries
    with caplog.at_level(logging.INFO):
        with consumer.settling(now):
            raise Snooze(0)
        with consumer.settling([later], delay=5):
            raise Snooze(dt.timedelta(seconds=FAR_S))
        with consumer.settling(grouped):
            raise ExceptionGroup("a task group", [Snooze(FAR_S)])
    assert caplog.messages == []
    (again,) = claim(consumer, 1)
    assert (again.id, again.payload, again.attempt) == (now.id, now.payload, 1)
    for delivery in (later, grouped):
        info = told(running, delivery)
        assert (info.state, info.attempt, info.failures, info.lapses) == ("scheduled", 1, 0, 0)
        assert info.due is not None
        assert info.due.timestamp() > time.time() + FAR_S / 2


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_what_ends_the_program_gives_them_back(running: Engine, kind: type[BaseException]) -> None:
    consumer = running.consumer()
    deliveries = claimed(running, consumer, 3)
    with pytest.raises(kind), consumer.settling(deliveries, delay=FAR_S):
        raise kind
    again = claim(consumer, 3)
    assert {(delivery.attempt, delivery.failures, delivery.lapses) for delivery in again} == {(1, 0, 0)}


class Unprintable(Exception):
    def __str__(self) -> str:
        raise TypeError

    __repr__ = __str__


def test_a_lease_that_is_lost_is_told(running: Engine, caplog: pytest.LogCaptureFixture) -> None:
    consumer = running.consumer()
    one, other, third = claimed(running, consumer, 3)

    def lose(delivery: Delivery, exc: Exception | None) -> None:
        with consumer.settling(delivery):
            consumer.ack(delivery)
            if exc is not None:
                raise exc

    def said() -> list[str]:
        return [record.getMessage() for record in caplog.records if record.name == "shardq.consumer"]

    with caplog.at_level(logging.WARNING, logger="shardq.consumer"):
        with pytest.raises(LeaseLost):
            lose(one, None)
        with pytest.raises(LeaseLost):
            lose(third, Bury("too late"))
        assert said() == []
        with pytest.raises(Unprintable) as caught:
            lose(other, Unprintable())
    (note,) = caught.value.__notes__
    assert note.startswith("its deliveries could not be settled: ")
    assert other.id in note
    (line,) = said()
    assert line.startswith("deliveries could not be settled after a Unprintable: ")
    assert other.id in line


def test_an_engine_that_is_closed_in_the_block(engines: Engines, running: Engine) -> None:
    consumer = running.consumer()
    one, other = claimed(running, consumer, 2)
    with pytest.raises(EngineClosed), consumer.settling(one):
        running.close()
    with pytest.raises(ValueError, match="wrong") as caught, consumer.settling(other):
        raise ValueError("wrong")
    assert "closed" in caught.value.__notes__[0]


def test_wrong_arguments_are_refused_before_the_block(running: Engine) -> None:
    consumer = running.consumer()
    (delivery,) = claimed(running, consumer)
    wrong: Any = delivery.id
    with pytest.raises(InvalidOption, match="a delivery can't be str"):
        consumer.settling(wrong)
    with pytest.raises(InvalidDelay):
        consumer.settling(delivery, delay=-1)
    assert state_of(running, delivery.id) == "leased"


@pytest.mark.parametrize("url", ["single"], indirect=True)
def test_a_block_that_is_cancelled_gives_back(url: str, name: str) -> None:
    """Also if it is cancelled again while it does so."""

    async def main() -> None:
        async with AsyncEngine(url, name=name, shards=2) as engine:
            await engine.start()
            consumer = engine.consumer()
            for times in (1, 2):
                id = await engine.push("x")
                (delivery,) = await consumer.claim(1, wait=30)
                inside = asyncio.Event()

                async def handle(delivery: Delivery = delivery, inside: asyncio.Event = inside) -> None:
                    async with consumer.settling(delivery):
                        inside.set()
                        await asyncio.sleep(FAR_S)

                handling = asyncio.create_task(handle())
                await inside.wait()
                for _ in range(times):
                    handling.cancel()
                    await asyncio.sleep(0)
                with pytest.raises(asyncio.CancelledError):
                    await handling
                (again,) = await consumer.claim(1, wait=30)
                assert (again.id, again.attempt) == (id, 1)
                await consumer.ack(again)

    asyncio.run(main())
