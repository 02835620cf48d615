"""tags= and cancel_all(tag=): tags are told wherever a task is seen, and a task goes with its tag, in any state."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from shardq import BulkResult, Consumer, Engine, Outcome, Task
from shardq.core.model.task import State
from shardq.features.listing import bulk
from tests.support.engines import Engines
from tests.support.listed import listed
from tests.support.states import FAR_S, STATES, claim, put, state_of


def test_tags_travel_with_the_task(running: Engine, consumer: Consumer) -> None:
    """With headers and an expiry, which the server writes into the same head."""
    id = running.push("x", tags=["user-42", "ä b", "user-42"], headers={"k": "v"}, expires=FAR_S, max_attempts=3)
    task = running.get(id)
    assert task is not None
    assert (task.tags, task.headers, task.max_attempts) == (("user-42", "ä b"), {"k": "v"}, 3)
    [delivery] = claim(consumer, 1)
    assert (delivery.tags, delivery.headers) == (("user-42", "ä b"), {"k": "v"})
    consumer.bury(delivery, "of no use")
    [dead] = listed(running, state="dead")
    assert dead.tags == ("user-42", "ä b")
    plain = running.get(running.push("x", delay=FAR_S))
    assert plain is not None
    assert plain.tags == ()


@pytest.mark.parametrize("state", STATES)
def test_a_task_in_every_state(running: Engine, state: State) -> None:
    id = put(running, state, id="mine", tags=["a", "b"])
    other = running.push("other", delay=FAR_S, tags=["c", "ab"])
    assert running.cancel_all(tag="c ").done == 0
    done = running.cancel_all(tag="b")
    assert isinstance(done, BulkResult)
    assert done.looked_at == 2
    if state == "leased":
        assert (done.done, done.running, bool(done)) == (0, (id,), False)
        assert state_of(running, id) == "leased"
    else:
        assert (done.done, done.running, bool(done)) == (1, (), True)
        assert state_of(running, id) == "gone"
        assert running.cancel(id) == Outcome.GONE
    assert state_of(running, other) == "scheduled"


@pytest.mark.parametrize(("slow_s", "pages"), [(-1.0, range(9, 30)), (60.0, range(2, 6))])
def test_pages_that_hold_a_shard_up_are_halved(
    engines: Engines, url: str, name: str, slow_s: float, pages: range, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk, "SLOW_S", slow_s)
    engine = engines.opened(url, name=name, shards=1)
    engine.push_many([Task(n, delay=FAR_S, tags=["a"]) for n in range(1000)])
    seen: list[int] = []
    assert engine.cancel_all(tag="a", progress=lambda so_far: seen.append(so_far.done)).done == 1000
    assert len(seen) in pages, seen


def test_none_has_the_tag(engine: Engine) -> None:
    assert engine.cancel_all(tag="a") == BulkResult(matched=0, done=0)
    engine.push("x", delay=FAR_S, id="a", headers={"a": "a"})
    assert engine.cancel_all(tag="a") == BulkResult(matched=0, done=0, looked_at=1)
    assert engine.cancel_all(tag="a")


def test_a_task_that_is_replaced_has_the_tags_of_its_last_push(engine: Engine) -> None:
    engine.push("first", id="mine", delay=FAR_S, tags=["old"])
    engine.push("second", id="mine", delay=FAR_S, tags=["new"], on_conflict="replace")
    assert engine.cancel_all(tag="old").done == 0
    assert engine.cancel_all(tag="new").done == 1


def test_one_that_is_retried_runs_again_with_its_tags(running: Engine, consumer: Consumer) -> None:
    id = put(running, "ready", tags=["a"])
    [delivery] = claim(consumer, 1)
    assert running.cancel_all(tag="a").running == (id,)
    consumer.retry(delivery, delay=FAR_S)
    assert running.cancel_all(tag="a").done == 1
    assert state_of(running, id) == "gone"


def test_how_far_it_came(engine: Engine) -> None:
    engine.push_many([Task(n, delay=FAR_S, tags=["a"]) for n in range(3000)])
    told: list[BulkResult] = []
    done = engine.cancel_all(tag="a", progress=told.append)
    assert told[-1] == done
    assert done.done == 3000
    assert len(told) > engine.topology.shards
    for earlier, later in pairwise(told):
        assert earlier.done <= later.done
        assert earlier.looked_at <= later.looked_at


def test_whoever_is_told_may_end_it(engine: Engine) -> None:
    engine.push_many([Task(n, delay=FAR_S, tags=["a"]) for n in range(3000)])
    told: list[BulkResult] = []

    def enough(so_far: BulkResult) -> None:
        told.append(so_far)
        raise KeyError("enough")

    with pytest.raises(KeyError, match="enough"):
        engine.cancel_all(tag="a", progress=enough)
    assert len(told) == 1
    assert engine.cancel_all(tag="a").done == 3000 - told[0].done


@pytest.mark.parametrize("payload", ["x" * 200_000, "x"])
def test_large_payloads(engine: Engine, payload: str) -> None:
    engine.push_many([Task(payload, delay=FAR_S, tags=["a"] if n % 2 else None) for n in range(200)])
    done = engine.cancel_all(tag="a")
    assert (done.done, done.looked_at) == (100, 200)
    assert engine.stats().scheduled == 100


def test_in_a_buffer_and_by_name(engine: Engine, engines: Any) -> None:
    send = engine.task(topic="mail")(len)
    id = engines.done(send.options(delay=FAR_S, tags=["a"], window=60).push("x"))
    task = engine.get(id)
    assert task is not None
    assert task.tags == ("a",)
    assert engine.cancel_all(tag="a").done == 1
