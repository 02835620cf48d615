"""A sink of somebody's own for asyncio: what it returns, and what it raises as a worker's handler does."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from importlib.metadata import EntryPoint
from typing import Any, ClassVar

import msgspec
import pytest

from shardq import Bury, Engine, Hold, Retry, Snooze, Task
from shardq.features.sinks import AsyncSink, Message, Sent, registry
from tests.sinks.seen import left, sink_stats
from tests.support.states import state_of
from tests.support.waiting import wait_until

Answer = Callable[[Message], Awaitable[Any]]


class AskingSink(AsyncSink):
    answer: ClassVar[Answer]
    opened: ClassVar[int] = 0

    def __init__(self, url: str) -> None:
        self.connections: int = 4
        self.batch: int = 16

    async def open(self) -> None:
        type(self).opened += 1

    async def send(self, message: Message) -> Any:
        return await type(self).answer(message)


async def _well(message: Message) -> Any:
    return Sent()


@pytest.fixture
def asking(feeding: Engine, monkeypatch: pytest.MonkeyPatch) -> type[AskingSink]:
    point = EntryPoint("asking", f"{__name__}:AskingSink", registry.GROUP)
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: [point] if group == registry.GROUP else [])
    monkeypatch.setattr(AskingSink, "answer", _well, raising=False)
    monkeypatch.setattr(AskingSink, "opened", 0)
    feeding.forward("mail", to="asking://here")
    return AskingSink


def test_what_it_raises_means_what_it_means_in_a_handler(
    feeding: Engine, asking: type[AskingSink], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[str, str | None, int, int]] = []

    async def answer(message: Message) -> Any:
        said = msgspec.json.decode(message.payload)
        seen.append((said, message.key, message.attempt, message.failures))
        if message.attempt == 1 and len([each for each in seen if each[0] == said]) == 1:
            match said:
                case "retry":
                    raise Retry(0.05, "not yet")
                case "bury":
                    raise Bury("never")
                case "snooze":
                    raise Snooze(0.05)
                case "hold":
                    raise Hold(0.5)
        return Sent()

    monkeypatch.setattr(asking, "answer", answer)
    bad = feeding.push("bury", topic="mail")
    feeding.push("hold", topic="mail", key="shop")
    wait_until(lambda: "hold" in [each[0] for each in seen], "its key waits")
    feeding.push("behind", topic="mail", key="shop")
    feeding.push_many([Task(said, topic="mail") for said in ("retry", "snooze", "well")])
    wait_until(lambda: sink_stats(feeding, "mail").sent == 5, "all others are taken")
    task = feeding.get(bad)
    assert task is not None
    assert (task.state, task.reason) == ("dead", "never")
    tries = {said: [each[2:] for each in seen if each[0] == said] for said in ("retry", "snooze", "hold")}
    assert tries == {"retry": [(1, 0), (2, 1)], "snooze": [(1, 0), (1, 0)], "hold": [(1, 0), (1, 0)]}
    assert [said for said, key, *_ in seen if key == "shop"] == ["hold", "hold", "behind"], "the key has kept its order"
    stats = sink_stats(feeding, "mail")
    assert (stats.sent, stats.retried, stats.buried, stats.circuit, asking.opened) == (5, 1, 1, "closed", 1)


def test_other_exceptions_are_an_outage_and_no_attempt(
    feeding: Engine, asking: type[AskingSink], monkeypatch: pytest.MonkeyPatch
) -> None:
    attempts: list[int] = []

    async def fails(message: Message) -> Any:
        attempts.append(message.attempt)
        raise ConnectionError("nobody listens")

    monkeypatch.setattr(asking, "answer", fails)
    id = feeding.push("x", topic="mail", max_attempts=1)
    wait_until(lambda: sink_stats(feeding, "mail").failed >= 2, "it is down")
    assert "nobody listens" in sink_stats(feeding, "mail").error
    monkeypatch.setattr(asking, "answer", _well)
    wait_until(lambda: state_of(feeding, id) == "gone", "it is taken")
    assert set(attempts) == {1}
    assert asking.opened >= 2, "it connects anew after an outage"


def test_a_slow_one_holds_up_itself_alone_and_no_more_are_under_way_than_connections(
    feeding: Engine, asking: type[AskingSink], monkeypatch: pytest.MonkeyPatch
) -> None:
    most, under_way, slow = 0, 0, threading.Event()

    async def answer(message: Message) -> Any:
        nonlocal most, under_way
        under_way += 1
        most = max(most, under_way)
        if message.payload == b'"slow"':
            await asyncio.to_thread(slow.wait)
        else:
            await asyncio.sleep(0)
        under_way -= 1
        return Sent()

    monkeypatch.setattr(asking, "answer", answer)
    id = feeding.push("slow", topic="mail")
    feeding.push_many([Task(n, topic="mail") for n in range(200)])
    wait_until(lambda: left(feeding) == 1, "all others are taken")
    assert state_of(feeding, id) == "leased"
    slow.set()
    wait_until(lambda: left(feeding) == 0, "it is, too")
    assert most == 4
