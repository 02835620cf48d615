"""A function as a sink: batches of deliveries, results for each, and failures that hold up no others."""

from __future__ import annotations

from typing import Any

import pytest

from cluster.server import Server
from shardq import Bury, Delivery, Engine, Task
from shardq.errors import InvalidOption
from tests.sinks.seen import left, sink_stats
from tests.support.engines import Engines
from tests.support.states import state_of
from tests.support.waiting import wait_until


def test_a_batch_of_deliveries(engines: Engines, single: Server, name: str) -> None:
    got: list[Delivery] = []

    async def take_in_loop(batch: list[Delivery]) -> None:
        got.extend(batch)

    def take(batch: list[Delivery]) -> None:
        got.extend(batch)

    engine = engines.opened(single.url, name=name, shards=2)
    if engines.kind == "sync":
        with pytest.raises(InvalidOption, match="forward to it with AsyncEngine"):
            engine.forward("mail", to=take_in_loop)
    engine.start()
    engine.forward("mail", to=take if engines.kind == "sync" else take_in_loop)
    ids = engine.push_many([Task({"n": n}, topic="mail", headers={"a": "b"}) for n in range(100)])
    wait_until(lambda: len(got) == 100, "all have come")
    assert {(d.id, d.payload["n"], d.headers["a"]) for d in got} == {(id, n, "b") for n, id in enumerate(ids)}
    wait_until(lambda: sink_stats(engine, "mail").sent == 100, "all are counted")
    assert sink_stats(engine, "mail").to.startswith("python://tests.sinks.test_functions.")


def test_results_for_each(feeding: Engine) -> None:
    tries: list[tuple[int, int]] = []

    def take(batch: list[Delivery]) -> list[Any]:
        tries.extend((d.payload, d.attempt) for d in batch)
        return [judged(d) for d in batch]

    def judged(delivery: Delivery) -> Exception | None:
        if delivery.payload == 3:
            return Bury("no such address")
        return ValueError("again") if delivery.payload == 5 and delivery.attempt < 2 else None

    feeding.pause("mail")
    feeding.forward("mail", to=take)
    ids = feeding.push_many([Task(n, topic="mail") for n in range(10)])
    wait_until(lambda: feeding.stats().ready == 10, "all are ready")
    feeding.resume("mail")

    def is_over() -> bool:
        # beside others that are taken a failure is the task's own, and counts
        feeding.push(100, topic="mail")
        return state_of(feeding, ids[5]) == "gone"

    wait_until(is_over, "the other try has come", timeout=60)
    wait_until(lambda: left(feeding) == 1, "one is left", timeout=60)
    task = feeding.get(ids[3])
    assert task is not None
    assert (task.state, task.reason) == ("dead", "no such address")
    assert (5, 2) in tries
    seen = sink_stats(feeding, "mail")
    assert (seen.retried, seen.buried) == (1, 1)


def test_one_that_raises_holds_up_no_others_and_dies_of_its_last_attempt(feeding: Engine) -> None:
    taken = set[int]()

    def take(batch: list[Delivery]) -> None:
        if any(d.payload == 4 for d in batch):
            raise KeyError("four")
        taken.update(d.payload for d in batch)

    feeding.pause("mail")
    feeding.forward("mail", to=take)
    ids = feeding.push_many([Task(n, topic="mail", max_attempts=1) for n in range(10)])
    wait_until(lambda: feeding.stats().ready == 10, "all are ready")
    feeding.resume("mail")
    # alone it counts as the sink's own failure: beside others it is its own
    pushed = iter(range(10, 10_000))

    def is_dead() -> bool:
        feeding.push(next(pushed), topic="mail")
        return state_of(feeding, ids[4]) == "dead"

    wait_until(is_dead, "it is dead", timeout=60)
    task = feeding.get(ids[4])
    assert task is not None
    assert "KeyError: 'four'" in (task.reason or "")
    wait_until(lambda: taken >= {*range(10)} - {4}, "all others are taken")


def test_only_the_process_that_has_the_function_serves_it(feeding: Engine, single: Server) -> None:
    first: list[Any] = []
    second: list[Any] = []
    with Engine(single.url, name=feeding.name) as other:
        other.start()
        feeding.forward("mail", to=first.extend)
        feeding.push_many([Task(n, topic="mail") for n in range(20)])
        wait_until(lambda: len(first) == 20, "all have come")
        assert other.stats().sinks == ()
        # another function of the same name takes its place at once
        feeding.forward("mail", to=second.extend)
        feeding.push_many([Task(n, topic="mail") for n in range(20)])
        wait_until(lambda: len(second) == 20, "all have come")
    assert len(first) == 20


def test_a_function_whose_topic_goes_elsewhere_leaves_that_in_peace(
    feeding: Engine, single: Server, sink: Server
) -> None:
    feeding.forward("mail", to=lambda batch: None)
    with Engine(single.url, name=feeding.name) as other:
        other.forward("mail", to=f"{sink.url}#mail")
        feeding.push(1, topic="mail")
        wait_until(lambda: sink.ask("LLEN", "mail") == 1, "one has come")
        other.pause("letters")
        wait_until(lambda: feeding.topology.paused, "the process knows of another change")
        feeding.push(2, topic="mail")
        wait_until(lambda: sink.ask("LLEN", "mail") == 2, "the other has come")
    wait_until(lambda: sink_stats(feeding, "mail").sent == 2, "one sender has sent both")
