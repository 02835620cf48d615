"""What an operator sees of keys: the largest ones of a topic, what each waits for, and those that are stuck."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from shardq import Engine, Task
from shardq.engine import KeyStats
from shardq.errors import BadInput
from shardq.worker import report
from tests.support.engines import Engines
from tests.support.findings import red
from tests.support.states import claim
from tests.support.waiting import wait_until

BOTH = pytest.mark.parametrize("url", ["single", "cluster"], indirect=True)


def seen(engine: Engine, topic: str = "w") -> dict[str, KeyStats]:
    return {each.key: each for each in engine.keys(topic)}


@BOTH
def test_the_largest_keys_and_what_they_wait_for(engine: Engine) -> None:
    assert engine.keys("w") == []
    engine.limit("w", per_key=1)
    engine.push_many([Task(n, topic="w", key="many") for n in range(9)])
    engine.push_many([Task(n, topic="w", key="few") for n in range(3)])
    engine.push_many([Task(n, topic="w", key="failed") for n in range(2)])
    engine.push("x", topic="w", key="later", delay=3600)
    engine.push("x", topic="w", key="stopped")
    engine.push("x", topic="v", key="many")
    engine.push("x", topic="w")
    until = time.time() + 600
    engine.hold("w", key="stopped", until=until)
    engine.start()
    consumer = engine.consumer("w")
    got: list[Any] = []

    def has_four() -> bool:
        got.extend(consumer.claim(10, wait=0.1))
        return len(got) == 4

    wait_until(has_four, "one of each key that is not on hold, and the plain one, are given out")
    (failed,) = [each for each in got if "/failed/" in each.id]
    consumer.retry(failed, delay=300)
    keys = engine.keys("w")
    assert [each.key for each in keys] == ["many", "few", "failed", "stopped", "later"]
    assert keys.is_whole
    of = {each.key: each for each in keys}
    assert [of["many"].held, of["many"].ready + of["many"].leased, of["many"].why] == [8, 1, "per_key"]
    assert of["many"].oldest is not None
    assert 0 <= of["many"].oldest < 60
    assert [of["failed"].held, of["failed"].scheduled, of["failed"].why] == [1, 1, "backoff"]
    assert of["failed"].until is not None
    assert 250 < of["failed"].until.timestamp() - time.time() < 301
    assert [of["stopped"].held, of["stopped"].why] == [1, "hold"]
    assert of["stopped"].until is not None
    assert abs(of["stopped"].until.timestamp() - until) < 0.01
    next_turn = of["later"].next_turn
    assert of["later"] == KeyStats(
        key="later", scheduled=1, held=0, ready=0, leased=0, oldest=None, why=None, until=None, next_turn=next_turn
    )
    assert next_turn is not None
    assert 3500 < next_turn.timestamp() - time.time() < 3601
    assert of["many"].next_turn is None
    assert of["failed"].next_turn == of["failed"].until
    assert of["stopped"].next_turn == of["stopped"].until
    assert not any(each.over for each in keys)
    assert [each.key for each in engine.keys("w", limit=2)] == ["many", "few"]
    assert [each.key for each in engine.keys("v")] == ["many"]


def test_a_rate_of_each_key(engine: Engine) -> None:
    engine.limit("w", per_key=5, per_key_rate=0.1)
    engine.push_many([Task(n, topic="w", key="k") for n in range(3)])
    engine.start()
    wait_until(lambda: seen(engine)["k"].ready == 1, "the first is ready")
    k = seen(engine)["k"]
    assert [k.held, k.why, k.until] == [2, "per_key_rate", None]
    claim(engine.consumer("w", lease=60), 1)
    k = seen(engine)["k"]
    assert [k.held, k.why] == [2, "per_key_rate"]
    assert k.until is not None
    assert k.next_turn == k.until
    assert 0 < k.until.timestamp() - time.time() < 10.01


def test_what_is_over_a_lowered_limit(engine: Engine) -> None:
    engine.limit("w", per_key=5)
    engine.push_many([Task(n, topic="w", key="k") for n in range(6)])
    engine.push_many([Task(n, topic="w", key="j") for n in range(4)])
    engine.start()
    consumer = engine.consumer("w", lease=60)
    claim(consumer, 9)
    assert {key: each.over for key, each in seen(engine).items()} == {"k": 0, "j": 0}
    engine.limit("w", per_key=2)
    keys = seen(engine)
    assert [keys["k"].over, keys["k"].held, keys["k"].why, keys["k"].next_turn] == [3, 1, "per_key", None]
    assert [keys["j"].over, keys["j"].held, keys["j"].why, keys["j"].next_turn] == [2, 0, None, None]


def test_many_keys_are_a_sample_that_misses_no_large_one(engine: Engine) -> None:
    engine.limit("w", per_key=1)
    engine.push_many([Task(n, topic="w", key=f"k{n:05}") for n in range(4000)])
    engine.push_many([Task(n, topic="w", key="zz") for n in range(40)])
    keys = engine.keys("w", limit=3)
    assert len(keys) == 3
    assert not keys.is_whole
    assert [keys[0].key, keys[0].held] == ["zz", 40]


def test_a_limit_that_is_not_possible(engine: Engine) -> None:
    for limit in (0, 501, True, "20"):
        with pytest.raises(BadInput, match="from 1 to 500"):
            engine.keys("w", limit=limit)  # type: ignore[arg-type]


@pytest.mark.slow
def test_health_names_a_key_that_waits_behind_a_task_that_is_stuck(
    engine: Engine, engines: Engines, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report, "LONG_S", 0.1)
    monkeypatch.setattr("shardq.core.fleet.report.LEAST_GAP_S", 0.1)
    engine.start()
    ended = threading.Event()
    worker = engine.worker(concurrency=4)
    worker.on("w")(lambda delivery: ended.wait(0.01 if delivery.payload == "quick" else 60))
    stuck = engine.push("x", topic="w", key="customer-7")
    engine.push("x", topic="w", key="customer-7")
    engine.push("x", topic="w", key="alone")
    engine.push_many([Task("quick", topic="w", key="busy") for _ in range(800)])
    with engines.working(worker):
        wait_until(lambda: "stuck_key" in red(engine.health(max_ready_age=1.0)), "the key is told")
        health = engine.health(max_ready_age=1.0)
        (reason,) = [each.text for each in health.findings if each.name == "stuck_key"]
        assert "topic 'w': a task of the key 'customer-7' has waited for" in reason
        assert f"behind task {stuck}, which has been running for" in reason
        assert "stuck_key" not in red(engine.health(max_ready_age=600))
        ended.set()


def test_up_to_300_keys_are_looked_at_one_by_one(engines: Engines, url: str, name: str) -> None:
    engine = engines.opened(url, name=name, shards=1)
    engine.push_many([Task(n, topic="w", key=f"k{n:03}") for n in range(300)])
    keys = engine.keys("w", limit=500)
    assert keys.is_whole
    assert [each.key for each in keys] == [f"k{n:03}" for n in range(300)]
    engine.push("x", topic="w", key="k300")
    keys = engine.keys("w", limit=500)
    assert not keys.is_whole
    assert len(keys) == 301


def test_a_handler_whose_task_was_replaced_has_its_place(engine: Engine) -> None:
    engine.push("old", topic="w", key="k", id="1")
    engine.start()
    (old,) = claim(engine.consumer("w", lease=60), 1)
    engine.push("new", topic="w", key="k", id="1", on_conflict="replace")
    engine.push("next", topic="w", key="k", id="2")
    wait_until(lambda: seen(engine)["k"].held == 2, "both are due")
    k = seen(engine)["k"]
    assert (k.ready, k.leased, k.why) == (0, 1, "per_key")
    assert old.id == "w/k/1"
