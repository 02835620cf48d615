"""Rows that another program, or another version, has put into the table: they are told, and hold up no other."""

from __future__ import annotations

import time
from typing import Any

import pytest

from shardq import Engine, Outcome, Task
from shardq.features.cold import statements as sql
from shardq.features.cold.ids import HOUR_MS
from shardq.features.cold.postgres import PostgresStore
from shardq.features.cold.rows import Row
from shardq.features.cold.store import Session, Store
from tests.cold.conftest import Make, later
from tests.cold.test_commands import walked
from tests.support.findings import red
from tests.support.waiting import wait_until

pytestmark = pytest.mark.usefixtures("soon")

FAR_S = 30 * 86_400.0

ODD: dict[str, dict[str, Any]] = {
    "an empty record": {"record": b""},
    "a record of another version": {"record": b"\xf1{}"},
    "a record that is cut off": {"record": b"\x19\xff\xff\x81"},
    "no payload of its codec": {"record": b"\x11{"},
    "a topic that is none": {"topic": "a\x01b"},
    "a topic with a slash": {"topic": "a/b"},
    "a number below 0": {"seq": -5},
    "a large number": {"seq": (1 << 62)},
    "tags that are none": {"tags": "x"},
    "another hour": {"bucket": 5},
    "a time before 1970": {"due": -HOUR_MS, "bucket": -1},
    "a time after the year 9999": {"due": 1 << 60, "bucket": (1 << 31) - 1},
}

INSERT = f"""
INSERT INTO {sql.COLD} (bucket, seq, due, topic, tags, record)
VALUES (:bucket, :seq, :due, :topic, :tags, :record)"""

INSERT_NAMED = f"""
INSERT INTO {sql.NAMED} (id, bucket, seq, due, topic, tags, record)
VALUES (:name, :bucket, :seq, :due, :topic, :tags, :record)"""


@pytest.fixture
def engine(make: Make) -> Engine:
    return make(cold_after=1.0)


def put(store: Store, due_ms: int, *, named: bool) -> int:
    """Puts each of the odd rows there. Returns how many."""

    def work(session: Session, _: bool) -> int:
        count = 0
        store.prepare(session, [Row(due_ms // HOUR_MS, 0, due_ms, "", None, b"")])
        for number, odd in enumerate(ODD.values()):
            usual = {"bucket": due_ms // HOUR_MS, "seq": number, "due": due_ms, "topic": "t", "tags": None}
            values = {**usual, "record": b"\x11{}", "name": f"t/odd-{number}\x7f", **odd}
            if not named and isinstance(store, PostgresStore) and values["bucket"] != usual["bucket"]:
                continue  # no partition takes it
            session.change(INSERT_NAMED if named else INSERT, values)
            count += 1
        return count

    return store.attempt(work, later())


def store_of(engine: Any) -> Store:
    made: Any = engine if isinstance(engine, Engine) else engine._target
    store: Store = made._cold_store.store
    return store


@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize("due_s", [-5.0, FAR_S], ids=["due", "far"])
def test_odd_rows(engine: Engine, named: bool, due_s: float) -> None:
    good = engine.push_many([Task(n, delay=FAR_S) for n in range(3)])
    store = store_of(engine)
    count = put(store, int((time.time() + due_s) * 1000), named=named)
    assert [task.id for task in walked(engine) if task.id in good] == sorted(good)
    assert engine.stats().cold.tasks == count + 3  # type: ignore[union-attr]
    assert engine.forecast("month").total >= 3
    engine.start()
    for id in good:
        assert engine.reschedule(id, delay=0) is Outcome.MOVED
    seen = set[str]()
    consumer = engine.consumer()
    end = time.monotonic() + 30
    while not seen >= set(good) and time.monotonic() < end:
        for delivery in consumer.claim(10, wait=1):
            seen.add(delivery.id)
            consumer.ack(delivery)
    assert seen >= set(good)
    if due_s < 0:
        wait_until(lambda: "cold" in red(engine.health()), "what can't be moved is told")
    engine.cancel_all(everything=True)
    engine.purge(everything=True)
