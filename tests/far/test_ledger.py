"""Every id that was pushed is handled once or cancelled: loaders are killed and frozen, and the database restarts."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
import uuid
from contextlib import ExitStack
from pathlib import Path

import pytest

from cluster.postgres import Postgres
from shardq import Engine, Outcome, ShardqError, Task
from tests.support.waiting import wait_until
from tests.support.workers import Worker

pytestmark = pytest.mark.usefixtures("soon")

TASKS = 3000
AFTER_S, MARGIN_S = 4.0, 1.0
SPREAD_S = 9.0


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("url", "kind"), [("single", "sqlite"), ("cluster", "postgresql")], indirect=["url"])
def test_loaders_killed_and_frozen(url: str, name: str, kind: str, tmp_path: Path) -> None:
    draw = random.Random(7)
    with ExitStack() as stack:
        server = stack.enter_context(Postgres()) if kind == "postgresql" else None
        database = str(tmp_path / "far.db") if server is None else server.make_database(f"d{uuid.uuid4().hex}")
        engine = stack.enter_context(Engine(url, name=name, shards=4, far=database, ahead=AFTER_S, timeout=20))
        engine.push("first", delay=1)

        def dispatcher() -> Worker:
            words = (AFTER_S, MARGIN_S, url, name, database)
            worker = stack.enter_context(Worker("tests.support.far_dispatching", *words))
            assert worker.said()
            return worker

        dispatchers = [dispatcher(), dispatcher(), dispatcher()]
        end = threading.Event()
        handled: list[tuple[str, float]] = []

        def consume() -> None:
            consumer = engine.consumer()
            while not end.is_set():
                deliveries = consumer.claim(200, wait=0.2)
                now = time.time()
                handled.extend((each.id, now) for each in deliveries if each.payload != "first")
                if deliveries:
                    consumer.ack(deliveries)

        consuming = threading.Thread(target=consume)
        consuming.start()
        stack.callback(consuming.join)
        stack.callback(end.set)

        due: dict[str, float] = {}
        for _ in range(TASKS // 500):
            ats = [time.time() + AFTER_S + MARGIN_S + 1.0 + draw.uniform(0, SPREAD_S) for _ in range(500)]
            due |= dict(zip(engine.push_many([Task(at, at=at) for at in ats]), ats, strict=True))
        assert sum("." in id for id in due) == TASKS

        cancelled: set[str] = set()
        unsure: set[str] = set()
        ids = list(due)
        draw.shuffle(ids)

        def acting() -> None:
            for id in ids[: TASKS // 10]:
                try:
                    if draw.random() < 0.5:
                        outcome = engine.cancel(id)
                        if outcome is Outcome.CANCELLED:
                            cancelled.add(id)
                        elif outcome is Outcome.UNKNOWN:
                            unsure.add(id)
                    else:
                        at = time.time() + draw.uniform(0, 8)
                        if engine.reschedule(id, at=at):
                            due[id] = min(at, due[id])
                except ShardqError:
                    unsure.add(id)

        actor = threading.Thread(target=acting)
        actor.start()
        stack.callback(actor.join)

        dispatchers[0].kill()
        dispatchers.append(dispatcher())
        os.kill(dispatchers[1].pid, signal.SIGSTOP)
        engine.resize(7)
        if server is not None:
            server.kill()
            time.sleep(1)
            server.start()
        dispatchers[2].kill()
        dispatchers.append(dispatcher())
        time.sleep(2 * AFTER_S + 3)
        os.kill(dispatchers[1].pid, signal.SIGCONT)
        actor.join()

        def all_accounted() -> bool:
            seen = {id for id, _ in handled}
            return len(due.keys() - seen - cancelled - unsure) == 0

        wait_until(all_accounted, "every id is handled or cancelled", timeout=90)
        wait_until(lambda: engine.stats().far.tasks == 0, "the table is empty", timeout=60)  # type: ignore[union-attr]
        time.sleep(2)
        end.set()
        consuming.join()

    ids_handled = [id for id, _ in handled]
    assert len(ids_handled) == len(set(ids_handled)), "none twice"
    assert not set(ids_handled) & cancelled, "what was cancelled stays cancelled"
    early = [(id, due[id] - now) for id, now in handled if now < due[id] - 0.3]
    assert early == []
