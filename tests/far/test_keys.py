"""Tasks with keys in the table: found by their whole ids, and one at a time once they are loaded."""

from __future__ import annotations

import pytest

from shardq import Engine, Outcome, Task
from shardq.errors import InvalidOption
from shardq.features.far.rows import is_made
from tests.far.conftest import DAY_S, Make
from tests.far.test_commands import in_redis, walked
from tests.support.states import claim
from tests.support.waiting import wait_until

FAR_S = 30 * DAY_S


def in_table(engine: Engine) -> int:
    return engine.stats().far.tasks or 0  # type: ignore[union-attr]


@pytest.mark.parametrize("topic", ["webhook", ""])
def test_a_far_one_is_a_row(make: Make, url: str, name: str, topic: str) -> None:
    engine = make()
    id = engine.push({"n": 1}, delay=FAR_S, topic=topic, key="customer-7")
    assert id.startswith(f"{topic}/customer-7/")
    assert is_made(id)
    info = engine.get(id)
    assert info is not None
    assert (info.id, info.topic, info.state, info.payload) == (id, topic, "scheduled", {"n": 1})
    assert [task.id for task in walked(engine, topic=topic)] == [id]
    assert engine.reschedule(id, delay=2 * FAR_S) is Outcome.MOVED
    assert engine.cancel(id.replace("customer-7", "customer-8")) is Outcome.GONE
    assert engine.cancel(id) is Outcome.CANCELLED
    assert engine.cancel(id) is Outcome.GONE
    assert in_table(engine) == in_redis(url, name) == 0


def test_a_far_webhook_keeps_its_url_and_its_key(make: Make) -> None:
    engine = make()
    id = engine.push({"n": 1}, delay=FAR_S, topic="hooks", url="https://customer.example/in")
    info = engine.get(id)
    assert info is not None
    assert (is_made(id), info.url) == (True, "https://customer.example/in")
    assert info.key == "customer.example~b7eccf85"
    engine.forward("mail", to="elsewhere")
    with pytest.raises(InvalidOption, match="url= can't be given"):
        engine.push({"n": 1}, delay=FAR_S, topic="mail", url="https://customer.example/in")
    with pytest.raises(InvalidOption, match="url= can't be given"):
        engine.push_many([Task({"n": 1}, delay=FAR_S, topic="mail", url="https://customer.example/in")])
    assert in_table(engine) == 1


def test_many_at_once(make: Make) -> None:
    engine = make()
    tasks = [Task(n, delay=FAR_S, topic="webhook", key=f"customer-{n % 3}" if n % 3 else None) for n in range(9)]
    ids = engine.push_many(tasks)
    assert [len(id.split("/")) for id in ids] == [2, 3, 3] * 3
    for n, id in enumerate(ids):
        info = engine.get(id)
        assert info is not None
        assert (info.id, info.payload) == (id, n)
    assert {task.id for task in walked(engine, key="customer-1")} == set(ids[1::3])
    assert engine.cancel_all(topic="webhook", key="customer-1").done == 3
    assert {task.id for task in walked(engine)} == {*ids[0::3], *ids[2::3]}
    assert engine.cancel_all(topic="webhook").done == 6
    assert in_table(engine) == 0


def test_far_tasks_of_a_key_are_listed_behind_the_others(make: Make) -> None:
    engine = make()
    far = [engine.push(n, delay=FAR_S + n, topic="webhook", key="customer-7") for n in range(2)]
    near = [engine.push(n, delay=60 - n, topic="webhook", key="customer-7") for n in range(3)]
    engine.push("x", delay=FAR_S, topic="webhook", key="customer-8")
    tasks = walked(engine, topic="webhook", key="customer-7")
    assert [task.id for task in tasks] == [*near[::-1], *sorted(far)]
    assert [task.id for task in walked(engine, key="customer-7")] == [*near[::-1], *sorted(far)]


@pytest.mark.slow
@pytest.mark.usefixtures("soon")
def test_loaded_ones_come_one_at_a_time(make: Make) -> None:
    """The engine has no keys before the first is loaded."""
    engine = make(ahead=1.0)
    ids = [engine.push(n, delay=3 + n / 1000, topic="webhook", key="customer-7") for n in range(3)]
    assert in_table(engine) == 3
    engine.start()
    wait_until(lambda: in_table(engine) == 0, "all are loaded")
    consumer = engine.consumer("webhook")
    for id in ids:
        [delivery] = claim(consumer, 1)
        assert delivery.id == id
        assert consumer.claim(2) == []
        consumer.ack(delivery)
