"""A length of time that no clock can count is refused in words, wherever one is taken."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from shardq import Backoff, BadInput, Engine, Every, Retry, Snooze, Task

NONE = "redis://127.0.0.1:1"
"""Arguments are checked before anything is asked of a server."""


def pending(engine: Engine, seconds: Any) -> object:
    with engine.buffered() as buffer:
        return buffer.push("x").result(timeout=seconds)


CALLS: dict[str, Callable[[Engine, Any], object]] = {
    "claim wait": lambda engine, t: engine.consumer().claim(wait=t),
    "consumer lease": lambda engine, t: engine.consumer(lease=t),
    "extend": lambda engine, t: engine.consumer().extend([], t),
    "retry": lambda engine, t: engine.consumer().retry([], delay=t),
    "settling": lambda engine, t: engine.consumer().settling([], delay=t),
    "worker lease": lambda engine, t: engine.worker(lease=t),
    "worker grace": lambda engine, t: engine.worker(grace=t),
    "handler timeout": lambda engine, t: engine.worker().on("x", timeout=t),
    "push delay": lambda engine, t: engine.push("x", delay=t),
    "push at": lambda engine, t: engine.push("x", at=t),
    "push dedup": lambda engine, t: engine.push("x", id="x", dedup=t),
    "push throttle": lambda engine, t: engine.push("x", id="x", throttle=t),
    "push window": lambda engine, t: engine.push("x", window=t),
    "push expires": lambda engine, t: engine.push("x", expires=t),
    "push_many delay": lambda engine, t: engine.push_many([Task("x", delay=t)]),
    "reschedule": lambda engine, t: engine.reschedule("x", delay=t),
    "requeue": lambda engine, t: engine.requeue("x", delay=t),
    "pending": pending,
    "health late": lambda engine, t: engine.health(max_late=t),
    "health age": lambda engine, t: engine.health(max_ready_age=t),
    "growth": lambda engine, t: engine.resize(dry_run=True).wait(timeout=t),
    "Retry": lambda engine, t: Retry(delay=t),
    "Snooze": lambda engine, t: Snooze(t),
    "Backoff": lambda engine, t: Backoff(base=t, cap=t),
    "interval": lambda engine, t: Every(interval=t),
    "jitter": lambda engine, t: Every(interval=60, jitter=t),
    "timeout": lambda engine, t: Engine(NONE, timeout=t),
    "connect_timeout": lambda engine, t: Engine(NONE, connect_timeout=t),
    "dead_age": lambda engine, t: Engine(NONE, dead_age=t),
    "replay": lambda engine, t: Engine(NONE, replay=t),
}


@pytest.mark.parametrize("seconds", [10**400, 1e300], ids=["an int", "a float"])
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("url", ["single"], indirect=True)
def test_no_clock_counts_so_far(url: str, name: str, call: str, seconds: float) -> None:
    with Engine(url, name=name, shards=2) as engine, pytest.raises(BadInput):
        CALLS[call](engine, seconds)
