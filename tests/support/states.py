"""Brings one task into a given state, through the public interface only."""

from __future__ import annotations

from typing import Any, get_args

from shardq import Consumer, Delivery, Engine, Receipt, Task
from shardq.core.model.task import State
from shardq.engine.stats import Stats
from tests.support.waiting import wait_until

STATES: tuple[State, ...] = tuple(state for state in get_args(State) if state not in ("held", "done", "cancelled"))
"""Those of a task without a key."""

FAR_S = 3600.0
"""A delay that is longer than any test."""


def put(engine: Engine, state: State, *, payload: Any = "first", **options: Any) -> Receipt:
    """Pushes a task and brings it into ``state``. The engine dispatches, and nothing else of the topic is ready."""
    receipt = engine.push(payload, delay=FAR_S if state == "scheduled" else 0, **options)
    if state == "scheduled":
        return receipt
    wait_until(lambda: state_of(engine, receipt) == "ready", f"{receipt} is ready")
    if state == "ready":
        return receipt
    consumer = engine.consumer(options.get("topic", ""), lease=60)
    (delivery,) = claim(consumer, 1)
    assert delivery.id == receipt
    if state == "dead":
        consumer.bury(delivery, "of no use")
    return receipt


def state_of(engine: Engine, id: str) -> str:
    """The state of an id, ``gone`` included."""
    task = engine.get(id)
    return "gone" if task is None else task.state


def ready_of(engine: Engine, topic: str) -> int:
    """The number of the topic's ready tasks."""
    seen = engine.stats().topics.get(topic)
    return 0 if seen is None else seen.ready


def make_ready(engine: Engine, count: int, *, topic: str = "mail") -> None:
    """Pushes so many tasks, and waits until all of the topic's are ready."""
    engine.push_many([Task(n, topic=topic) for n in range(count)])
    wait_until(lambda: ready_of(engine, topic) == count, f"{count} tasks are ready")


def counted(engine: Engine) -> Stats:
    """Stats of all shards: one that could not be seen in time would count as empty."""

    def all_seen() -> Stats | None:
        stats = engine.stats()
        return None if any(shard.error for shard in stats.shards) else stats

    stats = wait_until(all_seen, "every shard is seen", timeout=100)
    assert stats is not None
    return stats


def claim(consumer: Consumer, count: int) -> list[Delivery]:
    """Claims exactly this many deliveries, as they become ready."""
    deliveries: list[Delivery] = []

    def all_claimed() -> bool:
        deliveries.extend(consumer.claim(count - len(deliveries), wait=0.2))
        return len(deliveries) >= count

    wait_until(all_claimed, f"{count} tasks are claimed")
    return deliveries
