"""Ids of the caller's own in cold topics: pushes look in the table and in Redis, and each id is one task."""

from __future__ import annotations

import time
from typing import Any

import pytest

from shardq import Conflict, Engine, Outcome, PushError, Task, Unavailable
from shardq.errors import ColdTopic, InvalidOption, InvalidTopic
from shardq.features.cold import own
from shardq.features.cold.store import Store
from tests.cold.conftest import DAY_S, Make
from tests.cold.test_commands import walked
from tests.support.states import counted

FAR_S = 30 * DAY_S

MODULES = ("shardq.features.cold.own_sync", "shardq.features.cold.own_aio")


@pytest.fixture
def engine(make: Make) -> Engine:
    return make(cold_topics=["mail", ""])


def in_table(engine: Engine) -> int:
    return engine.stats().cold.tasks or 0  # type: ignore[union-attr]


def test_a_far_one_is_a_row(engine: Engine) -> None:
    receipt = engine.push({"user": 7}, id="u7", topic="mail", delay=FAR_S, headers={"a": "b"}, tags=["x"])
    assert (receipt, receipt.outcome) == ("mail/u7", Outcome.PUSHED)
    assert (in_table(engine), counted(engine).scheduled) == (1, 0)
    info = engine.get("mail/u7")
    assert info is not None
    assert (info.payload, info.headers, info.tags, info.topic) == ({"user": 7}, {"a": "b"}, ("x",), "mail")
    assert engine.reschedule("mail/u7", delay=2 * FAR_S) is Outcome.MOVED
    assert [task.id for task in walked(engine, topic="mail")] == ["mail/u7"]
    assert engine.requeue("mail/u7") is Outcome.SCHEDULED
    assert engine.cancel("mail/u7") is Outcome.CANCELLED
    assert engine.cancel("mail/u7") is Outcome.GONE
    assert in_table(engine) == 0


def test_a_near_one_is_in_redis(engine: Engine) -> None:
    for delay in (0, 60, 3600 + 899):
        assert engine.push("x", id="near", delay=delay).outcome is Outcome.PUSHED
        assert (in_table(engine), counted(engine).scheduled + counted(engine).ready) == (0, 1)
        assert engine.push("y", id="near", delay=FAR_S).state in ("scheduled", "ready")
        assert engine.cancel("near") is Outcome.CANCELLED


def test_other_topics_stay_in_redis(engine: Engine) -> None:
    engine.push("x", id="u", topic="sms", delay=FAR_S)
    assert (in_table(engine), counted(engine).scheduled) == (0, 1)
    assert engine.cancel("sms/u") is Outcome.CANCELLED


@pytest.mark.parametrize("first_s", [60, FAR_S])
@pytest.mark.parametrize("then_s", [60, FAR_S])
def test_one_id_is_one_task(engine: Engine, first_s: float, then_s: float) -> None:
    """The conflict rules hold wherever the task is, and wherever the second would be."""

    def held() -> tuple[int, Any]:
        found = engine.get("a")
        return in_table(engine) + counted(engine).scheduled, found and found.payload

    assert engine.push(1, id="a", delay=first_s).outcome is Outcome.PUSHED
    kept = engine.push(2, id="a", delay=then_s)
    assert (kept.outcome, kept.state, held()) == ("kept", "scheduled", (1, 1))
    with pytest.raises(Conflict) as caught:
        engine.push(3, id="a", delay=then_s, on_conflict="reject")
    assert (caught.value.state, held()) == ("scheduled", (1, 1))
    assert engine.push(4, id="a", delay=then_s, on_conflict="replace").outcome == "replaced"
    assert held() == (1, 4)
    assert engine.cancel("a") is Outcome.CANCELLED
    assert held() == (0, None)
    assert engine.push(5, id="a", delay=then_s, on_conflict="replace").outcome == "pushed"
    assert held() == (1, 5)


@pytest.mark.parametrize("delay", [60, FAR_S])
def test_a_window_outlives_a_cancel(engine: Engine, delay: float) -> None:
    engine.push(1, id="a", delay=delay, dedup=600)
    assert engine.cancel("a") is Outcome.CANCELLED
    for other in (60, FAR_S):
        assert engine.push(2, id="a", delay=other).outcome == "seen"
        with pytest.raises(Conflict) as caught:
            engine.push(2, id="a", delay=other, on_conflict="reject")
        assert caught.value.state == "seen"
    assert engine.push(3, id="a", delay=FAR_S, on_conflict="replace").outcome == "pushed"
    assert engine.cancel("a") is Outcome.CANCELLED
    assert engine.push(4, id="a", delay=FAR_S).outcome == "seen", "the window is still open"


def test_a_window_ends(engine: Engine) -> None:
    engine.push(1, id="a", delay=FAR_S, throttle=0.4)
    engine.cancel("a")
    assert engine.push(2, id="a", delay=FAR_S).outcome == "seen"
    time.sleep(0.5)
    assert engine.push(2, id="a", delay=FAR_S).outcome == "pushed"


def test_a_window_is_closed_by_no_load(engine: Engine) -> None:
    """What is left of it goes to Redis with the task; a task that replaced is loaded in spite of it."""
    engine.start()
    engine.push(1, id="a", delay=FAR_S, dedup=600)
    assert engine.reschedule("a", delay=0) is Outcome.MOVED
    consumer = engine.consumer()
    [delivery] = consumer.claim(1, wait=20)
    consumer.ack(delivery)
    assert engine.push(2, id="a", delay=60).outcome == "seen"
    assert engine.push(3, id="a", delay=FAR_S, on_conflict="replace").outcome == "pushed"
    assert in_table(engine) == 1
    assert engine.reschedule("a", delay=0) is Outcome.MOVED
    [delivery] = consumer.claim(1, wait=20)
    assert delivery.payload == 3
    consumer.ack(delivery)


def test_many(engine: Engine) -> None:
    """Far and near, own ids and made ones, ids twice, in order."""
    tasks = [
        Task(n, delay=FAR_S * (n % 2), topic=("mail", "sms", "")[n % 3], id=f"o{n // 4}" if n % 4 < 3 else None)
        for n in range(300)
    ]
    receipts = engine.push_many(tasks)
    expected: set[str] = set()
    for n, (task, receipt) in enumerate(zip(tasks, receipts, strict=True)):
        if task.id is None:
            assert receipt.outcome is Outcome.PUSHED
            continue
        whole = f"{task.topic}/{task.id}" if task.topic else task.id
        assert receipt == whole
        assert receipt.outcome == ("kept" if whole in expected else "pushed"), n
        expected.add(whole)
    first, second = engine.push_many([Task(1, id="q", delay=FAR_S), Task(2, id="q", delay=60, on_conflict="replace")])
    assert (first.outcome, second.outcome) == ("pushed", "replaced")
    assert engine.get("q").payload == 2  # type: ignore[union-attr]
    with pytest.raises(PushError) as caught:
        engine.push_many([Task(1, id="q", on_conflict="reject"), Task(1, id="new", delay=FAR_S), Task(2, topic="sms")])
    assert [type(error) for error in caught.value.failed.values()] == [Conflict]
    assert len(caught.value.stored) == 2


def test_an_answer_that_is_lost(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    adds: list[int] = []

    def lost(*arguments: Any) -> dict[str, bool | None]:
        adds.append(1)
        done = own.add(*arguments)
        assert done == {"a": len(adds) == 1}
        return {"a": None}

    for module in MODULES:
        monkeypatch.setattr(f"{module}.add", lost)
    assert engine.push("x", id="a", delay=FAR_S, on_conflict="reject").outcome == "pushed"
    assert in_table(engine) == 1


def test_a_late_removal_spares_the_next_task_of_the_id(engine: Engine, store: Store) -> None:
    """Who moved a row, and comes late to its removal, does not remove a later row of the same id and instant."""
    at = time.time() + FAR_S
    engine.push(1, id="a", at=at)
    found = store.find("a", time.monotonic() + 10)
    assert found is not None
    engine.cancel("a")
    engine.push(2, id="a", at=at)
    store.forget([found[0]], time.monotonic() + 10)
    assert engine.get("a").payload == 2  # type: ignore[union-attr]


def test_what_is_of_the_engine(engine: Engine, make: Make) -> None:
    """Its topics hold for all of its processes, are added to by any, and a process without cold= is refused."""
    engine.push("x", id="a", topic="mail", delay=FAR_S)
    plain = make(cold=None)
    for push in (
        lambda: plain.push("y", id="a", topic="mail"),
        lambda: plain.cancel("mail/a"),
        lambda: plain.get("mail/a"),
    ):
        with pytest.raises(ColdTopic, match="give cold="):
            push()
    with pytest.raises(PushError) as caught:
        plain.push_many([Task(1, id="a", topic="mail"), Task(2)])
    assert [type(error) for error in caught.value.failed.values()] == [ColdTopic]
    with pytest.raises(PushError):
        list(plain.push_iter([Task(1, id="a", topic="mail")]))
    other = make()
    assert other.push("y", id="a", topic="mail").outcome == "kept"
    other.push("x", id="b", topic="sms", delay=FAR_S)
    assert in_table(other) == 1
    more = make(cold_topics=["sms"])
    assert more.push("y", id="b", topic="sms").outcome == "kept"
    assert set(more.topology.cold.topics) == {"", "mail", "sms"}  # type: ignore[union-attr]
    more.push("z", id="c", topic="sms", delay=FAR_S)
    assert other.push("y", id="c", topic="sms").outcome == "kept", "told by the first refusal"
    with pytest.raises(ColdTopic):
        plain.push("y", id="c", topic="sms")


def test_a_server_that_is_away(make: Make) -> None:
    engine = make(url="redis://127.0.0.1:1", cold_topics=["mail"], timeout=1, connect_timeout=1)
    with pytest.raises(Unavailable):
        engine.push("x", id="a", topic="mail", delay=FAR_S)


def test_a_database_that_is_away(make: Make) -> None:
    engine = make(cold="postgresql://shardq@127.0.0.1:1/none", cold_topics=["mail"], timeout=1)
    with pytest.raises(Unavailable):
        engine.push("x", id="a", topic="mail")
    assert engine.push("x", id="a", topic="sms").outcome == "pushed"


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"cold": None, "cold_topics": ["mail"]}, InvalidOption, "give cold= as well"),
        ({"cold_topics": "mail"}, InvalidOption, "give a list"),
        ({"cold_topics": ["a b"]}, InvalidTopic, "a b"),
    ],
)
def test_topics_that_are_not_possible(make: Make, options: dict[str, Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        make(**options)


def test_a_resize_meanwhile(make: Make) -> None:
    engine = make(cold_topics=[""], shards=2)
    near = [f"n{n}" for n in range(50)]
    for id in near:
        engine.push("x", id=id, delay=600)
    engine.resize(5)
    kept = engine.push_many([Task("y", id=id, delay=FAR_S) for id in near])
    assert {receipt.outcome for receipt in kept} == {"kept"}
    assert in_table(engine) == 0
