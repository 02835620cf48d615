"""Ids of the caller's own: each is pushed into an outbox by several, far and near, and is handled once or cancelled,
whatever dies: relays, dispatchers, the database.
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time
import uuid
from collections import Counter
from contextlib import ExitStack

import pytest
import sqlalchemy as sa

from cluster.postgres import Postgres
from shardq import Engine, Outcome, ShardqError, Task, outbox
from shardq.relay.database import open_database, waiting
from tests.support.waiting import wait_until
from tests.support.workers import Worker

pytestmark = pytest.mark.usefixtures("soon")

IDS, PUSHERS = int(os.environ.get("SHARDQ_LEDGER", "1500")), 3
AHEAD_S, MARGIN_S = 3.0, 1.0
SPREAD_S = 10.0
WINDOW_S = 600.0
"""An id that was pushed is known for the whole test, also when it is done or cancelled."""


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("url", ["single"], indirect=True)
def test_each_id_once(url: str, name: str) -> None:
    with ExitStack() as stack:
        server = stack.enter_context(Postgres())
        database_url = server.make_database(f"d{uuid.uuid4().hex}")
        database = open_database(database_url)
        stack.callback(database.dispose)
        outbox.create(database)
        engine = stack.enter_context(Engine(url, name=name, shards=4, far=database_url, ahead=AHEAD_S, timeout=20))
        engine.push("first", id="first", topic="mail", delay=1)

        def started(module: str) -> Worker:
            words = (AHEAD_S, MARGIN_S, url, name, database_url)
            worker = stack.enter_context(Worker(f"tests.support.{module}", *words))
            assert worker.said()
            return worker

        dispatchers = [started("far_dispatching"), started("far_dispatching")]
        relays = [started("far_relaying"), started("far_relaying")]
        end = threading.Event()
        handled: Counter[str] = Counter()

        def consume() -> None:
            consumer = engine.consumer("mail")
            while not end.is_set():
                if deliveries := consumer.claim(200, wait=0.2):
                    handled.update(each.id for each in deliveries)
                    consumer.ack(deliveries)

        stored, cancelled, unsure = set[str](), set[str](), set[str]()

        def push(number: int) -> None:
            draw, ids = random.Random(number), [f"k{n}" for n in range(IDS)]
            draw.shuffle(ids)
            for begin in range(0, IDS, 20):
                tasks = [
                    Task(number, id=id, topic="mail", delay=draw.uniform(0, SPREAD_S), dedup=WINDOW_S)
                    for id in ids[begin : begin + 20]
                ]
                try:
                    with database.begin() as connection:
                        pushed = outbox.push_many(connection, tasks)
                    stored.update(pushed)
                except sa.exc.DBAPIError:  # committed, or not
                    time.sleep(0.05)
                id = f"mail/{draw.choice(ids)}"
                try:
                    outcome = engine.cancel(id)
                except ShardqError:
                    outcome = Outcome.UNKNOWN
                if outcome is Outcome.CANCELLED:
                    cancelled.add(id)
                elif outcome is Outcome.UNKNOWN:
                    unsure.add(id)

        threads = [threading.Thread(target=push, args=(number,)) for number in range(PUSHERS)]
        consuming = threading.Thread(target=consume)
        for thread in (consuming, *threads):
            thread.start()
        stack.callback(consuming.join)
        stack.callback(end.set)
        time.sleep(1)
        relays[0].kill()
        os.kill(relays[1].pid, signal.SIGSTOP)
        dispatchers[0].kill()
        os.kill(dispatchers[1].pid, signal.SIGSTOP)
        dispatchers.append(started("far_dispatching"))
        relays.append(started("far_relaying"))
        engine.resize(6)
        server.kill()
        time.sleep(0.5)
        server.start()
        for thread in threads:
            thread.join()
        relays.append(started("far_relaying"))
        os.kill(dispatchers[1].pid, signal.SIGCONT)
        relays[2].kill()
        wait_until(lambda: waiting(database, outbox.default_outbox).rows == 0, "all rows are moved", timeout=90)
        os.kill(relays[1].pid, signal.SIGCONT)
        due = stored - unsure

        def all_accounted() -> bool:
            return due <= handled.keys() | cancelled

        wait_until(all_accounted, "every id is handled or cancelled", timeout=60)
        wait_until(lambda: engine.stats().far.tasks == 0, "the table is empty", timeout=60)  # type: ignore[union-attr]
        time.sleep(1)
        end.set()
        consuming.join()

    assert len(stored) > IDS / 2
    assert [id for id, count in handled.items() if count > 1] == [], "none twice"
    assert not handled.keys() & cancelled, "what was cancelled stays cancelled"
