"""Sinks that answer anything, at any pace, while routes are paused, ended and set again: no task is lost, none waits
for ever, and none that is fine is dead.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Sequence
from importlib.metadata import EntryPoint
from typing import Any, ClassVar

import pytest

from shardq import Engine, Hold, Retry, Snooze, Task
from shardq.features.sinks import AsyncSink, Failed, Message, Sent, Sink, Unsent, registry
from tests.support.states import counted
from tests.support.waiting import wait_until

TOPICS = 12
TASKS = 600
MOODY_S = 2.5


class Moods:
    """What all sinks of a test do."""

    moody: ClassVar[bool] = True
    taken: ClassVar[Counter[str]] = Counter()

    @classmethod
    def answer(cls, message: Message) -> Any:
        kind = random.random() if cls.moody else 1.0
        if kind < 0.05:
            return Failed("not this one")
        if kind < 0.10:
            return Unsent("not now", random.choice((0.0, 0.2)))
        if kind < 0.13:
            raise ConnectionError("lost")
        if kind < 0.15:
            return "nonsense"
        cls.taken[message.id] += 1
        return Sent()


class MoodySink(Sink):
    batch = 32

    def __init__(self, url: str) -> None:
        pass

    def open(self) -> None:
        if Moods.moody and random.random() < 0.2:
            raise OSError("no way in")

    def send(self, batch: Sequence[Message]) -> Any:
        if Moods.moody:
            time.sleep(random.choice((0.0, 0.001, 0.05)))
        return [Moods.answer(message) for message in batch]


class MoodyAsyncSink(AsyncSink):
    connections = 4
    batch = 16

    def __init__(self, url: str) -> None:
        pass

    async def open(self) -> None:
        if Moods.moody and random.random() < 0.2:
            raise OSError("no way in")

    async def send(self, message: Message) -> Any:
        if Moods.moody:
            await asyncio.sleep(random.choice((0.0, 0.001, 0.05)))
            if random.random() < 0.06:
                raise random.choice((Retry(0.01, "again"), Snooze(0.01), Hold(0.05)))
        return Moods.answer(message)


@pytest.mark.slow
def test_all_tasks_arrive(feeding: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    points = [
        EntryPoint("moody", f"{__name__}:MoodySink", registry.GROUP),
        EntryPoint("moody-async", f"{__name__}:MoodyAsyncSink", registry.GROUP),
    ]
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: points if group == registry.GROUP else [])
    monkeypatch.setattr(Moods, "moody", True)
    monkeypatch.setattr(Moods, "taken", Counter())
    topics = [f"mail-{n}" for n in range(TOPICS)]
    ways = ["moody://here", "moody-async://here", "moody://there", "moody-async://there"]
    for n, topic in enumerate(topics):
        feeding.forward(topic, to=ways[n % 4])
    tasks = [
        Task(n, topic=topics[n % TOPICS], key=f"k{n % 7}" if n % 3 == 0 else None, max_attempts=1000)
        for n in range(TASKS)
    ]
    ids: list[str] = []
    ends = time.monotonic() + MOODY_S
    while time.monotonic() < ends:
        ids += feeding.push_many(tasks[len(ids) : len(ids) + 40])
        topic = random.choice(topics)
        match random.randrange(4):
            case 0:
                feeding.pause(topic)
                feeding.resume(topic)
            case 1:
                feeding.forward(topic, to=random.choice(ways))
            case 2:
                feeding.forward(topic, to=None)
                feeding.forward(topic, to=random.choice(ways))
        time.sleep(0.05)
    ids += feeding.push_many(tasks[len(ids) :])
    Moods.moody = False

    def left() -> dict[str, int]:
        stats = counted(feeding)
        return {s: n for s in ("scheduled", "ready", "leased") if (n := getattr(stats, s))}

    wait_until(lambda: not left() and set(Moods.taken) == set(ids), "all have arrived", timeout=60)
    assert counted(feeding).dead == 0
