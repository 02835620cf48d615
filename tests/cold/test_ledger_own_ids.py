"""Ids of the caller's own: each is pushed by several, far and near, and is handled once or cancelled, whatever dies."""

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

from cluster.postgres import Postgres
from shardq import Engine, Outcome, ShardqError, Task
from tests.support.waiting import wait_until
from tests.support.workers import Worker

pytestmark = pytest.mark.usefixtures("soon")

IDS, PUSHERS = 1500, 3
AFTER_S, MARGIN_S = 3.0, 1.0
SPREAD_S = 10.0
WINDOW_S = 600.0
"""An id that was pushed is known for the whole test, also when it is done or cancelled."""


@pytest.mark.slow
@pytest.mark.timeout(200)
@pytest.mark.parametrize("url", ["single"], indirect=True)
def test_each_id_once(url: str, name: str) -> None:
    with ExitStack() as stack:
        server = stack.enter_context(Postgres())
        database = server.make_database(f"d{uuid.uuid4().hex}")

        def engine_of() -> Engine:
            options = {"cold": database, "cold_after": AFTER_S, "cold_topics": ["mail"], "timeout": 20}
            return stack.enter_context(Engine(url, name=name, shards=4, **options))  # type: ignore[arg-type]

        engines = [engine_of() for _ in range(PUSHERS)]
        engines[0].push("first", id="first", topic="mail", delay=1)

        def dispatcher() -> Worker:
            worker = stack.enter_context(
                Worker("tests.support.cold_dispatching", AFTER_S, MARGIN_S, url, name, database)
            )
            assert worker.said()
            return worker

        dispatchers = [dispatcher(), dispatcher()]
        end = threading.Event()
        handled: Counter[str] = Counter()

        def consume() -> None:
            consumer = engines[0].consumer("mail")
            while not end.is_set():
                if deliveries := consumer.claim(200, wait=0.2):
                    handled.update(each.id for each in deliveries)
                    consumer.ack(deliveries)

        outcomes: list[dict[str, str]] = [{} for _ in engines]
        cancelled, unsure = set[str](), set[str]()

        def push(number: int) -> None:
            draw, ids = random.Random(number), [f"k{n}" for n in range(IDS)]
            draw.shuffle(ids)
            for begin in range(0, IDS, 20):
                tasks = [
                    Task(number, id=id, topic="mail", delay=draw.uniform(0, SPREAD_S), dedup=WINDOW_S)
                    for id in ids[begin : begin + 20]
                ]
                try:
                    receipts = engines[number].push_many(tasks)
                    outcomes[number].update({receipt: str(receipt.outcome) for receipt in receipts})
                except ShardqError:
                    unsure.update(f"mail/{task.id}" for task in tasks)
                id = f"mail/{draw.choice(ids)}"
                try:
                    outcome = engines[number].cancel(id)
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
        dispatchers[0].kill()
        os.kill(dispatchers[1].pid, signal.SIGSTOP)
        dispatchers.append(dispatcher())
        engines[1].resize(6)
        server.kill()
        time.sleep(0.5)
        server.start()
        for thread in threads:
            thread.join()
        os.kill(dispatchers[1].pid, signal.SIGCONT)
        pushed = Counter(id for said in outcomes for id, outcome in said.items() if outcome == "pushed")
        known = {f"mail/k{n}" for n in range(IDS)} - unsure

        def all_accounted() -> bool:
            return known <= handled.keys() | cancelled

        wait_until(all_accounted, "every id is handled or cancelled", timeout=60)
        wait_until(lambda: engines[0].stats().cold.tasks == 0, "the table is empty", timeout=60)  # type: ignore[union-attr]
        time.sleep(1)
        end.set()
        consuming.join()

    assert [id for id, count in handled.items() if count > 1] == [], "none twice"
    assert not handled.keys() & cancelled, "what was cancelled stays cancelled"
    assert {pushed[id] for id in known} == {1}, "of all pushes of an id one stores it"
