"""Far tasks under ids of the caller's own: the relay folds the pushes of an outbox in their order, and each id is one
task, wherever it is.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

import shardq
from shardq import Engine, Outcome, outbox
from shardq.features.far.store import Store
from shardq.outbox import OutboxRelay
from tests.support.states import counted

FAR_S = 30 * 86_400.0


@pytest.fixture
def engine(url: str, name: str, tmp_path: Path, database_url: str) -> Iterator[Engine]:
    far = str(tmp_path / "far.db") if database_url.startswith("sqlite") else database_url
    with Engine(url, name=name, shards=4, far=far) as engine:
        yield engine


@pytest.fixture
def relay(engine: Engine, database: sa.Engine) -> Iterator[OutboxRelay]:
    with contextlib.closing(OutboxRelay(engine, database)) as relay:
        yield relay


def pushed(relay: OutboxRelay, database: sa.Engine, payload: Any, **options: Any) -> int:
    """Pushes one task, and has it moved. Returns how many were refused."""
    before = relay.refused
    with database.begin() as connection:
        outbox.push(connection, payload, id="a", **options)
    while relay.step():
        pass
    return relay.refused - before


def in_table(engine: Engine) -> int:
    return engine.stats().far.tasks or 0  # type: ignore[union-attr]


def held(engine: Engine) -> tuple[int, Any]:
    found = engine.get("a")
    return in_table(engine) + counted(engine).scheduled, found and found.payload


def store_of(engine: Engine) -> Store:
    assert engine._far is not None
    return engine._far.store


@pytest.mark.parametrize("first_s", [60, FAR_S])
@pytest.mark.parametrize("then_s", [60, FAR_S])
def test_one_id_is_one_task(
    engine: Engine, relay: OutboxRelay, database: sa.Engine, first_s: float, then_s: float
) -> None:
    """The conflict rules hold wherever the task is, and wherever the second would be."""
    assert pushed(relay, database, 1, delay=first_s) == 0
    assert in_table(engine) == (first_s == FAR_S)
    assert pushed(relay, database, 2, delay=then_s) == 0
    assert held(engine) == (1, 1)
    assert pushed(relay, database, 3, delay=then_s, on_conflict="reject") == 1
    assert held(engine) == (1, 1)
    assert pushed(relay, database, 4, delay=then_s, on_conflict="replace") == 0
    assert held(engine) == (1, 4)
    assert engine.cancel("a") is Outcome.CANCELLED
    assert held(engine) == (0, None)
    assert pushed(relay, database, 5, delay=then_s, on_conflict="replace") == 0
    assert held(engine) == (1, 5)


@pytest.mark.parametrize(("delay", "purges"), [(60, False), (FAR_S, False), (60, True), (FAR_S, True)])
def test_a_window_outlives_a_cancel_and_a_purge(
    engine: Engine, relay: OutboxRelay, database: sa.Engine, delay: float, purges: bool
) -> None:
    """Alike in Redis, where the near task is, and in the table."""
    pushed(relay, database, 1, delay=delay, dedup=600)
    if purges:
        assert engine.purge(everything=True) == 1
    else:
        assert engine.cancel("a") is Outcome.CANCELLED
    for other in (60, FAR_S):
        assert pushed(relay, database, 2, delay=other) == 0
        assert held(engine) == (0, None)
        assert pushed(relay, database, 2, delay=other, on_conflict="reject") == 1
    pushed(relay, database, 3, delay=FAR_S, on_conflict="replace")
    assert held(engine) == (1, 3)


def test_all_rows_of_an_id_in_their_order(engine: Engine, relay: OutboxRelay, database: sa.Engine) -> None:
    with database.begin() as connection:
        outbox.push(connection, 1, id="a", delay=FAR_S)
        outbox.push(connection, 2, id="a", delay=60, on_conflict="replace")
        outbox.cancel(connection, "a")
        outbox.push(connection, 3, id="a", delay=FAR_S)
        outbox.reschedule(connection, "a", delay=60)
    until = time.monotonic() + 30
    while relay.waiting().rows and time.monotonic() < until:
        relay.step()
    assert held(engine) == (1, 3)
    assert (in_table(engine), counted(engine).scheduled) == (0, 1)


def test_by_id_and_in_lists(engine: Engine, relay: OutboxRelay, database: sa.Engine) -> None:
    pushed(relay, database, {"user": 7}, topic="mail", delay=FAR_S, headers={"a": "b"}, tags=["x"])
    info = engine.get("mail/a")
    assert info is not None
    assert (info.payload, info.headers, info.tags, info.topic) == ({"user": 7}, {"a": "b"}, ("x",), "mail")
    assert engine.reschedule("mail/a", delay=2 * FAR_S) is Outcome.MOVED
    assert [task.id for task in engine.tasks(topic="mail", tag="x")] == ["mail/a"]
    assert engine.requeue("mail/a") is Outcome.SCHEDULED
    assert engine.cancel("mail/a") is Outcome.CANCELLED
    assert engine.cancel("mail/a") is Outcome.GONE
    assert in_table(engine) == 0


def test_a_window_is_closed_by_no_load(engine: Engine, relay: OutboxRelay, database: sa.Engine) -> None:
    """What is left of it goes to Redis with the task; a task that replaced is loaded in spite of it."""
    engine.start()
    pushed(relay, database, 1, delay=FAR_S, dedup=600)
    consumer = engine.consumer()
    for payload in (1, 3):
        assert engine.reschedule("a", delay=0) is Outcome.MOVED
        [delivery] = consumer.claim(1, wait=20)
        assert delivery.payload == payload
        consumer.ack(delivery)
        if payload == 1:
            pushed(relay, database, 2, delay=60)
            pushed(relay, database, 3, delay=FAR_S, on_conflict="replace")
            assert in_table(engine) == 1


@pytest.mark.parametrize("rule", ["keep", "replace"])
def test_an_answer_that_is_lost(
    engine: Engine, relay: OutboxRelay, database: sa.Engine, monkeypatch: pytest.MonkeyPatch, rule: Any
) -> None:
    store, calls = store_of(engine), list[Any]()
    if rule == "replace":
        pushed(relay, database, 1, delay=FAR_S)
    done = store._once

    def lost(*arguments: Any) -> list[bool | None]:
        calls.append(done(*arguments))
        return [None] * len(calls[-1])

    monkeypatch.setattr(store, "_once", lost)
    assert pushed(relay, database, 2, delay=FAR_S, on_conflict=rule) == 0
    assert calls == [[True]]
    assert held(engine) == (1, 2)


@pytest.mark.parametrize(("url", "database_url"), [("single", "postgresql")], indirect=True)
def test_a_relay_that_stood_still_behind_its_look(
    engine: Engine, relay: OutboxRelay, database: sa.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another has carried its row out meanwhile, and the task was moved to Redis, and is done."""
    engine.start()
    with database.begin() as connection:
        outbox.push(connection, 1, id="a", delay=FAR_S)
    store = store_of(engine)
    found = store.find

    def still(*arguments: Any, **options: Any) -> Any:
        answer = found(*arguments, **options)
        monkeypatch.undo()
        with contextlib.closing(OutboxRelay(engine, database)) as other:
            with database.begin() as connection:  # its claim has lapsed
                connection.execute(outbox.table.update().values(claimed=None))
            while other.step():
                pass
        assert engine.reschedule("a", delay=0) is Outcome.MOVED
        consumer = engine.consumer()
        [delivery] = consumer.claim(1, wait=20)
        consumer.ack(delivery)
        return answer

    monkeypatch.setattr(store, "find", still)
    while relay.step():
        pass
    assert held(engine) == (0, None)


def test_a_resize_meanwhile(engine: Engine, relay: OutboxRelay, database: sa.Engine) -> None:
    near = [f"n{n}" for n in range(50)]
    with database.begin() as connection:
        for id in near:
            outbox.push(connection, "x", id=id, delay=600)
    while relay.step():
        pass
    engine.resize(7)
    with database.begin() as connection:
        for id in near:
            outbox.push(connection, "y", id=id, delay=FAR_S)
    while relay.step():
        pass
    assert in_table(engine) == 0
    assert {info.payload for id in near if (info := engine.get(id))} == {"x"}


def test_a_far_id_of_the_caller_s_own_that_looks_like_a_made_one(
    engine: Engine, relay: OutboxRelay, database: sa.Engine
) -> None:
    """It stays in Redis: whoever meets it later could not tell it from one."""
    with database.begin() as connection:
        outbox.push(connection, 1, id="PURCHASE-0001", delay=FAR_S)
        outbox.push(connection, 1, id="customer-0001", delay=FAR_S)
    while relay.step():
        pass
    assert (in_table(engine), counted(engine).scheduled) == (1, 1)
    assert engine.cancel("PURCHASE-0001") is Outcome.CANCELLED
    assert engine.cancel("customer-0001") is Outcome.CANCELLED


def test_the_other_engine_is_told(engine: Engine, relay: OutboxRelay, database: sa.Engine, url: str) -> None:
    pushed(relay, database, 1, delay=FAR_S)
    with shardq.Engine(url, name=engine.name) as plain, pytest.raises(shardq.errors.MissingLink):
        plain.tasks()
