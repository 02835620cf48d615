"""The database is cut off while tasks fall due: for less than ``ahead``, and nothing is late; for longer, and what
it holds is late by the outage, and handled once. An hour is six seconds here.
"""

from __future__ import annotations

import threading
import time
import uuid

import pytest

from cluster.postgres import Postgres
from shardq import Engine, Task
from tests.support.waiting import wait_until

pytestmark = pytest.mark.usefixtures("soon")

AFTER_S, MARGIN_S = 6.0, 1.0
SPREAD_S = 30.0
TASKS = 3000
SHORT_S, LONG_S = AFTER_S / 2, 2 * AFTER_S
SLACK_S = 2.5
"""A busy machine, and the pause of the loader after an error."""


@pytest.mark.slow
@pytest.mark.timeout(180)
@pytest.mark.parametrize("url", ["cluster"], indirect=True)
def test_cut_off(url: str, name: str) -> None:
    with Postgres() as server:
        database = server.make_database(f"d{uuid.uuid4().hex}")
        handled: list[tuple[str, float]] = []
        end = threading.Event()
        with Engine(url, name=name, shards=4, far=database, ahead=AFTER_S, timeout=4) as engine:
            begin = time.time() + AFTER_S + MARGIN_S + 1.0
            ats = [begin + number * SPREAD_S / TASKS for number in range(TASKS)]
            due: dict[str, float] = dict(zip(engine.push_many([Task(at, at=at) for at in ats]), ats, strict=True))
            engine.start()
            consuming = threading.Thread(target=consume, args=(engine, handled, end))
            consuming.start()
            try:
                wait_until(lambda: len(handled) > 0, "tasks fall due", timeout=20)
                with server.stopped():
                    time.sleep(SHORT_S)
                time.sleep(1.0)
                long_began = time.time()
                with server.stopped():
                    time.sleep(LONG_S)
                    problems = engine.health().reasons
                    assert any("what it holds is late" in each for each in problems), problems
                long_ended = time.time()
                wait_until(lambda: len(handled) >= TASKS, "all are handled", timeout=60)
                time.sleep(1.0)
            finally:
                end.set()
                consuming.join()
            assert engine.stats().far.tasks == 0  # type: ignore[union-attr]
    assert sorted(id for id, _ in handled) == sorted(due), "each once"
    late = {id: at - due[id] for id, at in handled}
    assert min(late.values()) > -0.3, "none early"
    loaded = [late[id] for id, at in due.items() if at < long_began + AFTER_S - SLACK_S]
    assert max(loaded) < SLACK_S, "what was near had been loaded"
    assert all(at + late[id] < max(at, long_ended) + 2 * SLACK_S for id, at in due.items()), "late by the outage"


def consume(engine: Engine, handled: list[tuple[str, float]], end: threading.Event) -> None:
    consumer = engine.consumer()
    while not end.is_set():
        deliveries = consumer.claim(200, wait=0.2)
        now = time.time()
        handled.extend((each.id, now) for each in deliveries)
        consumer.ack(deliveries)
