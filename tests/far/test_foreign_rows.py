"""Rows that another program, or another version, has put into the table: they are told, and hold up no other."""

from __future__ import annotations

import time
from typing import Any

import pytest

from shardq import Engine, Outcome, Task
from shardq.features.far import statements as sql
from shardq.features.far.store import Session, Store
from tests.far.conftest import Make, later
from tests.far.test_commands import walked
from tests.support.findings import red
from tests.support.waiting import wait_until

pytestmark = pytest.mark.usefixtures("soon")

FAR_S = 30 * 86_400.0
HOUR_MS = 3_600_000

ODD: dict[str, dict[str, Any]] = {
    "an empty record": {"record": b""},
    "a record of another version": {"record": b"\xf1{}"},
    "a record that is cut off": {"record": b"\x19\xff\xff\x81"},
    "no payload of its codec": {"record": b"\x11{"},
    "a topic that is none": {"id": "a\x01b/odd"},
    "a topic with a slash": {"id": "a/b/c/odd"},
    "an id of nothing": {"id": ""},
    "tags that are none": {"tags": "x"},
    "a time before 1970": {"due": -HOUR_MS},
    "a time after the year 9999": {"due": 1 << 60},
    "a rule that is none": {"rule": "odd"},
    "a nonce below 0": {"nonce": -5, "known": 0, "until": 0},
}

INSERT = f"""
INSERT INTO {sql.TABLE} (id, due, tags, record, until, known, nonce, rule)
VALUES (:id, :due, :tags, :record, :until, :known, :nonce, :rule)"""


@pytest.fixture
def engine(make: Make) -> Engine:
    return make(ahead=1.0)


def put(store: Store, due_ms: int) -> int:
    """Puts each of the odd rows there. Returns how many."""

    def work(session: Session, _: bool) -> int:
        for number, odd in enumerate(ODD.values()):
            usual = {"due": due_ms, "tags": None, "record": b"\x11{}", "id": f"t/odd-{number}\x7f"}
            session.change(INSERT, {"until": None, "known": None, "nonce": None, "rule": None, **usual, **odd})
        return len(ODD)

    return store.attempt(work, later())


def store_of(engine: Any) -> Store:
    made: Any = engine if isinstance(engine, Engine) else engine._target
    store: Store = made._far.store
    return store


@pytest.mark.parametrize("due_s", [-5.0, FAR_S], ids=["due", "far"])
def test_odd_rows(engine: Engine, due_s: float) -> None:
    good = engine.push_many([Task(n, delay=FAR_S) for n in range(3)])
    store = store_of(engine)
    count = put(store, int((time.time() + due_s) * 1000))
    assert [task.id for task in walked(engine) if task.id in good] == sorted(good)
    assert engine.stats().far.tasks == count + 3  # type: ignore[union-attr]
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
        wait_until(lambda: "far" in red(engine.health()), "what can't be moved is told")
    engine.cancel_all(everything=True)
    engine.purge(everything=True)
