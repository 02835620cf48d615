"""Schedules whose tasks have a key."""

from __future__ import annotations

import base64
import time

import pytest

import shardq
from shardq import Engine
from shardq.errors import InvalidKey
from tests.support.engines import Engines
from tests.support.states import claim
from tests.support.waiting import wait_until


def only(engine: Engine) -> shardq.Schedule:
    [schedule] = engine.schedules()
    return schedule


@pytest.mark.parametrize("codec", ["json", "encrypted"])
def test_its_tasks_come_one_at_a_time(engines: Engines, url: str, name: str, codec: str) -> None:
    encrypted = shardq.codecs.encrypted(base64.urlsafe_b64encode(b"k" * 32))
    engine = engines.make(url, name=name, codec=encrypted if codec == "encrypted" else "json")
    engine.every("tick", interval=0.1, topic="t", key="customer-7", payload={"n": 1}, catch_up="all")
    assert (only(engine).topic, only(engine).key) == ("t", "customer-7")
    engine.start()
    consumer = engine.consumer("t")
    run = engine.schedule("tick").run()
    assert run.startswith("t/customer-7/every-tick@run-")
    met = set[str]()
    while run not in met or len(met) < 5:
        [delivery] = claim(consumer, 1)
        assert delivery.payload == {"n": 1}
        assert delivery.id.startswith("t/customer-7/every-tick@")
        assert delivery.id not in met
        assert consumer.claim(2) == []
        met.add(delivery.id)
        consumer.ack(delivery)
    engine.schedule("tick").remove()


def test_a_held_one_is_not_finished(running: Engine) -> None:
    running.hold("t", key="customer-7", until=time.time() + 60)
    running.every("tick", interval=0.2, topic="t", key="customer-7", overlap="skip", catch_up="all")
    wait_until(lambda: only(running).skipped >= 3, "occurrences are left out")
    [task] = running.tasks(topic="t")
    assert task.state == "held"
    running.hold("t", key="customer-7", until=None)
    [delivery] = claim(running.consumer("t"), 1)
    assert delivery.id == task.id
    running.schedule("tick").remove()


@pytest.mark.slow
def test_another_key_takes_its_place(running: Engine) -> None:
    running.every("tick", interval=0.5, topic="t", key="customer-7")
    consumer = running.consumer("t")
    consumer.ack(claim(consumer, 1))
    for key in ("customer-8", None):
        running.every("tick", interval=0.5, topic="t", key=key)
        begin = f"t/{key}/every-tick@" if key else "t/every-tick@"

        def came() -> bool:
            deliveries = consumer.claim(1, wait=1.0)
            consumer.ack(deliveries)
            return any(each.id.startswith(begin) for each in deliveries)  # noqa: B023  called at once

        wait_until(came, "its tasks have the other key")
    running.schedule("tick").pause()
    consumer.ack(consumer.claim(10))
    assert list(running.tasks(topic="t", state="scheduled")) == []
    with pytest.raises(InvalidKey, match="has '/'"):
        running.every("tick", interval=0.5, topic="t", key="a/b")
