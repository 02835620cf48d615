"""Replicas take over while loaders move rows to their masters: no task is lost, as a row is removed from the table only
when the replicas have its task. What a replica had not heard of yet, a claim or an acknowledgement, is done again.
"""

from __future__ import annotations

import random
import threading
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from cluster.cluster import Cluster
from shardq import Engine, Outcome, ShardqError, Task
from tests.support.waiting import wait_until
from tests.support.workers import Worker

pytestmark = pytest.mark.usefixtures("soon")

TASKS = 2000
AFTER_S, MARGIN_S = 6.0, 1.0
SPREAD_S = 12.0
CANCELLED = 200


@pytest.mark.timeout(240)
def test_none_is_lost(own_cluster: Cluster, name: str, tmp_path: Path) -> None:
    draw = random.Random(11)
    with ExitStack() as stack:
        database = str(tmp_path / "far.db")
        engine = stack.enter_context(
            Engine(own_cluster.url, name=name, shards=6, far=database, ahead=AFTER_S, timeout=30)
        )
        engine.push("first", delay=1)
        for _ in range(2):
            words = (AFTER_S, MARGIN_S, own_cluster.url, name, database)
            assert stack.enter_context(Worker("tests.support.far_dispatching", *words)).said()
        end = threading.Event()
        handled: list[tuple[str, float]] = []
        consuming = threading.Thread(target=consume, args=(engine, handled, end))
        consuming.start()
        stack.callback(consuming.join)
        stack.callback(end.set)

        begin = time.time() + AFTER_S + MARGIN_S + 2.0
        ats = [begin + draw.uniform(0, SPREAD_S) for _ in range(TASKS)]
        due: dict[str, float] = dict(zip(engine.push_many([Task(at, at=at) for at in ats]), ats, strict=True))
        assert engine.stats().far.tasks == TASKS  # type: ignore[union-attr]
        farthest = sorted(due, key=due.__getitem__)[-CANCELLED:]
        cancelled = {id for id in farthest if engine.cancel(id) is Outcome.CANCELLED}
        assert len(cancelled) == CANCELLED, "they are rows"

        wait_until(lambda: some_are_loaded(engine), "loading has begun", timeout=30)
        killed = own_cluster.masters[0]
        killed.kill()
        own_cluster.wait_promoted(killed)
        killed.restart()
        own_cluster.wait_ok()
        wait_until(lambda: own_cluster.replicas_of(own_cluster.masters[1]), "it has a replica")
        own_cluster.replicas_of(own_cluster.masters[1])[0].ask("CLUSTER", "FAILOVER", "TAKEOVER")
        own_cluster.wait_ok()

        wait_until(lambda: due.keys() - cancelled <= {id for id, _ in handled}, "none is lost", timeout=90)
        wait_until(lambda: engine.stats().far.tasks == 0, "the table is empty", timeout=60)  # type: ignore[union-attr]
    assert not {id for id, _ in handled} & cancelled
    assert [id for id, at in handled if at < due[id] - 0.3] == []


def some_are_loaded(engine: Engine) -> bool:
    far = engine.stats().far
    assert far is not None
    return 0 < (far.tasks or 0) < TASKS - CANCELLED


def consume(engine: Engine, handled: list[tuple[str, float]], end: threading.Event) -> None:
    consumer = engine.consumer()
    while not end.is_set():
        try:
            deliveries = consumer.claim(200, wait=0.2)
            now = time.time()
            handled.extend((each.id, now) for each in deliveries if each.payload != "first")
            consumer.ack(deliveries)
        except ShardqError:
            time.sleep(0.1)
