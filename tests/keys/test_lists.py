"""The list of the tasks of one key: what is leased, what is ready, and what waits, in the order in which it runs."""

from __future__ import annotations

import time
from typing import Any

import pytest

from shardq import Engine, Task, TaskInfo
from tests.keys.account import TOPIC
from tests.keys.test_moving_keys import Moving, moving, running
from tests.support.engines import Engines
from tests.support.states import claim
from tests.support.waiting import wait_until

__all__ = ["moving", "running"]

BOTH = pytest.mark.parametrize("url", ["single", "cluster"], indirect=True)


def walked(engine: Engine, topic: str | None, limit: int = 100, **filter: Any) -> list[TaskInfo]:
    page = engine.tasks(topic, limit=limit, **filter)
    found = list(page)
    while page.cursor is not None:
        page = engine.tasks(topic, limit=limit, cursor=page.cursor, **filter)
        assert len(page) <= limit
        found += page
    return found


def shown(tasks: list[TaskInfo]) -> list[tuple[str, Any]]:
    return [(task.state, task.payload) for task in tasks]


@BOTH
def test_one_page_has_all_states_in_the_order_in_which_they_run(engine: Engine) -> None:
    engine.limit("w", per_key=3)
    engine.push("dead", topic="w", key="k")
    engine.push("other", topic="w", key="kk")
    engine.push("other", topic="w")
    engine.start()
    consumer = engine.consumer("w", lease=60)
    for delivery in claim(consumer, 3):
        consumer.bury(delivery, "of no use")
    for n in range(6):
        engine.push(n, topic="w", key="k", id=f"{9 - n}", at=time.time() - 10 + n)
    engine.push_many([Task("later", topic="w", key="k", delay=3600), Task("soon", topic="w", key="k", delay=60)])
    wait_until(lambda: len(engine.tasks("w", key="k", state="ready")) == 3, "three are ready")
    leased = [delivery.payload for delivery in claim(consumer, 1)]
    assert leased == [0]
    page = engine.tasks("w", key="k")
    assert shown(page) == [
        ("leased", 0),
        *[("ready", n) for n in (2, 1)],
        *[("held", n) for n in (3, 4, 5)],
        *[("scheduled", word) for word in ("soon", "later")],
    ]
    assert page.cursor is None
    assert [task.payload for task in engine.tasks("w", key="k", state="dead")] == ["dead"]
    for limit in (1, 2, 3, 7, 8):
        assert shown(walked(engine, "w", limit, key="k")) == shown(page)
    assert engine.tasks("w", key="none") == []


@BOTH
def test_what_is_at_the_front_comes_first(engine: Engine) -> None:
    engine.limit("w", per_key=1)
    for n in range(3):
        engine.push(n, topic="w", key="k")
    engine.start()
    consumer = engine.consumer("w", lease=60)
    (first,) = claim(consumer, 1)
    consumer.retry(first, delay=300, reason="boom")
    found = engine.tasks("w", key="k")
    assert shown(found) == [("scheduled", 0), ("held", 1), ("held", 2)]
    assert found[0].reason == "boom"


def test_a_handler_of_a_replaced_task_is_no_task(engine: Engine) -> None:
    engine.push("old", topic="w", key="k", id="1")
    engine.push("next", topic="w", key="k", id="2")
    engine.start()
    claim(engine.consumer("w", lease=60), 1)
    engine.push("new", topic="w", key="k", id="1", on_conflict="replace")
    wait_until(lambda: engine.stats().held == 2, "both are due")
    assert shown(engine.tasks("w", key="k")) == [("held", "next"), ("held", "new")]


@pytest.mark.slow
@BOTH
def test_of_every_topic_that_has_the_key(engine: Engine) -> None:
    names = ["", *(f"t{n:03}" for n in range(150))]
    engine.push_many([Task(n, topic=name, key="k") for name in names for n in range(2)])
    engine.push_many([Task(n, topic=name, key="other") for name in names for n in range(2)])
    for limit in (7, 1000):
        tasks = walked(engine, None, limit, key="k")
        assert [(task.topic, task.payload) for task in tasks] == [(name, n) for name in names for n in range(2)]


def test_a_tag_of_a_key(engine: Engine) -> None:
    engine.push_many([Task(n, topic="w", key="k", tags=["odd"] if n % 2 else []) for n in range(6)])
    assert [task.payload for task in walked(engine, "w", 2, key="k", tag="odd")] == [1, 3, 5]


@BOTH
def test_a_key_is_found_among_many_in_one_call(engines: Engines, url: str, name: str) -> None:
    engine = engines.opened(url, name=name, shards=2)
    for n in range(0, 6000, 2000):
        engine.push_many([Task(m, topic="w", key=f"k{m:05}") for m in range(n, n + 2000)])
    page = engine.tasks("w", key="k05999")
    assert [task.payload for task in page] == [5999]
    assert page.cursor is None


def test_while_a_key_moves(moving: Moving) -> None:
    tasks = moving.engine.tasks(TOPIC, key=moving.key)
    assert [(task.state, task.payload) for task in tasks] == [("leased", "first"), ("held", "held")]
    moving.push("next")
    moving.push("later", delay=600)
    wait_until(lambda: moving.arrived("next"), "what is pushed now is where the key goes")
    for limit in (1, 2, 100):
        found = walked(moving.engine, TOPIC, limit, key=moving.key)
        assert [task.payload for task in found] == ["first", "held", "next", "later"]


def test_a_cursor_of_the_list_of_a_key_is_of_no_other(engine: Engine) -> None:
    engine.push_many([Task(n, topic="w", key="k") for n in range(3)])
    page = engine.tasks("w", key="k", limit=1)
    assert page.cursor
    with pytest.raises(Exception, match="of another query"):
        engine.tasks("w", key="k", state="scheduled", cursor=page.cursor)
