"""Operations by id are right at every point of a task's move, to more shards and to fewer."""

from __future__ import annotations

import datetime as dt

import pytest

from shardq import Conflict, Engine, Outcome, PushError, Task
from shardq.core.calls.request import Call
from shardq.core.model.record import codec_named
from shardq.core.producer.by_id import get
from shardq.core.producer.packing import Packer
from shardq.core.producer.pushing import push_unique
from tests.resharding.conftest import SHARDS
from tests.resharding.migration import STAGES, Migration, Stage, moving_ids
from tests.resharding.stepping import Stepped
from tests.support.listed import listed
from tests.support.states import FAR_S, claim, put, state_of
from tests.support.waiting import wait_until

LATER = dt.datetime(2100, 1, 1, tzinfo=dt.UTC)

# races that the searches go through, too: one case of each at each change
pytestmark = [pytest.mark.slow, pytest.mark.promise, pytest.mark.parametrize("shards", [7, 2])]


@pytest.fixture
def id(shards: int) -> str:
    """Of a task that the change migration."""
    return moving_ids(SHARDS, shards)[0]


def changed(engine: Engine, shards: int) -> None:
    """The new number is in force; there is no dispatcher, so nothing migration."""
    engine.resize(shards)
    assert engine.topology.priors == (SHARDS,)


def settled(engine: Engine) -> None:
    """Dispatchers bring everything where it belongs."""
    engine.start()
    assert engine.resize(dry_run=True).wait(30), engine.resize(dry_run=True).progress()


@pytest.mark.parametrize("stage", STAGES)
def test_get(engine: Engine, migration: Migration, shards: int, id: str, stage: Stage) -> None:
    engine.push([1], id=id, at=LATER, headers={"a": "b"}, max_attempts=3)
    before = engine.get(id)
    changed(engine, shards)
    migration.bring(id, stage)
    assert engine.get(id) == before
    settled(engine)
    assert engine.get(id) == before
    assert migration.places(id, 7) == [migration.cache().home(id)]


@pytest.mark.parametrize("stage", STAGES)
def test_cancel(engine: Engine, migration: Migration, shards: int, id: str, stage: Stage) -> None:
    engine.push("x", id=id, delay=FAR_S)
    changed(engine, shards)
    migration.bring(id, stage)
    assert engine.cancel(id) is Outcome.CANCELLED
    assert engine.cancel(id) is Outcome.GONE
    settled(engine)
    assert engine.get(id) is None
    assert migration.places(id, 7) == []


@pytest.mark.parametrize("stage", STAGES)
def test_reschedule(engine: Engine, migration: Migration, shards: int, id: str, stage: Stage) -> None:
    engine.push("x", id=id, delay=FAR_S)
    changed(engine, shards)
    migration.bring(id, stage)
    assert engine.reschedule(id, at=LATER) is Outcome.MOVED
    settled(engine)
    task = engine.get(id)
    assert task is not None
    assert task.due == LATER
    assert engine.reschedule(id, delay=0)
    (delivery,) = claim(engine.consumer(), 1)
    assert delivery.id == id


@pytest.mark.parametrize("stage", STAGES)
def test_requeue(engine: Engine, migration: Migration, shards: int, id: str, stage: Stage) -> None:
    engine.start()
    put(engine, "dead", id=id)
    engine.stop()
    changed(engine, shards)
    migration.bring(id, stage)
    if stage != "taken":  # listing the dead puts what it finds on its way where it goes
        assert [task.reason for task in listed(engine, state="dead")] == ["of no use"]
    assert engine.requeue(id, at=LATER) is Outcome.REQUEUED
    settled(engine)
    task = engine.get(id)
    assert task is not None
    assert (task.state, task.due, task.attempt) == ("scheduled", LATER, 1)


@pytest.mark.parametrize("stage", STAGES)
def test_a_push_of_a_task_whose_window_is_behind(
    engine: Engine, migration: Migration, shards: int, id: str, stage: Stage
) -> None:
    """The window stays in the earlier shard until all tasks have moved; the task itself is what counts."""
    engine.push("x", id=id, delay=FAR_S, dedup=FAR_S)
    changed(engine, shards)
    migration.bring(id, stage)
    receipt = engine.push("y", id=id)
    assert (receipt.outcome, receipt.state) == (Outcome.KEPT, "scheduled")
    with pytest.raises(Conflict) as refused:
        engine.push("y", id=id, on_conflict="reject")
    assert refused.value.state == "scheduled"
    assert engine.cancel(id) is Outcome.CANCELLED
    assert engine.push("y", id=id).outcome is Outcome.SEEN


@pytest.mark.parametrize("requests", [0, 1, 2])
@pytest.mark.parametrize("until", [("taken",), ("moved",), ("taken", "settled")])
def test_a_task_that_moves_during_the_question(
    engine: Engine, migration: Migration, shards: int, id: str, requests: int, until: tuple[Stage | str, ...]
) -> None:
    engine.push("x", id=id, delay=FAR_S)
    changed(engine, shards)
    question = Stepped("get", get(migration.cache(), id, codec_named("json")))
    migration.step(question, requests)
    migration.bring(id, "moved" if "moved" in until else "taken")
    migration.step(question, requests)
    if "settled" in until:
        settled(engine)
    migration.step(question, 50)
    assert question.done
    assert question.result is not None
    assert question.result.payload == "x"


@pytest.mark.parametrize("many", [False, True], ids=["push", "push_many"])
@pytest.mark.parametrize("stage", STAGES)
def test_a_push_of_the_same_id(
    engine: Engine, migration: Migration, shards: int, id: str, stage: Stage, many: bool
) -> None:
    def push(payload: str, **options: object) -> object:
        if many:
            return engine.push_many([Task(payload, id=id, **options)])[0]  # type: ignore[arg-type]  # any of them
        return engine.push(payload, id=id, **options)  # type: ignore[arg-type]  # likewise

    push("first", delay=FAR_S)
    changed(engine, shards)
    migration.bring(id, stage)
    kept = push("second", delay=0)
    assert (kept.outcome, kept.state) == ("kept", "scheduled")  # type: ignore[attr-defined]  # a Receipt
    with pytest.raises(PushError if many else Conflict):
        push("third", delay=0, on_conflict="reject")
    assert push("last", at=LATER, on_conflict="replace").outcome == "replaced"  # type: ignore[attr-defined]
    settled(engine)
    task = engine.get(id)
    assert task is not None
    assert (task.payload, task.due) == ("last", LATER)
    assert migration.places(id, 7) == [migration.cache().home(id)]


def test_an_id_in_its_dedup_window(engine: Engine, shards: int, id: str) -> None:
    engine.start()
    engine.push("first", id=id, dedup=600)
    consumer = engine.consumer()
    consumer.ack(claim(consumer, 1))
    engine.stop()
    changed(engine, shards)
    assert engine.push("second", id=id).outcome == "seen"
    with pytest.raises(Conflict):
        engine.push("second", id=id, on_conflict="reject")
    settled(engine)
    assert engine.push("second", id=id).outcome == "seen"
    assert engine.push("third", id=id, on_conflict="replace").outcome == "pushed"
    (delivery,) = claim(consumer, 1)
    assert delivery.payload == "third"


def test_a_window_whose_task_is_done_between_two_questions(
    engine: Engine, migration: Migration, shards: int, id: str
) -> None:
    """It was on its way when the old shard was asked, and is gone when the new one is; its window is in the old one."""
    engine.push("first", id=id, dedup=600)
    changed(engine, shards)
    migration.bring(id, "taken")
    words = Packer(codec_named("json"), max_payload=1000).one(Task("second", id=id, dedup=600)).unique
    push = Stepped("push", push_unique(migration.cache(), words))
    migration.step(push, 1)
    while not (isinstance(push.request, Call) and push.request.script.name == "push_unique"):
        migration.step(push, 1)
    migration.dispatch(id)
    consumer = engine.consumer()
    consumer.ack(claim(consumer, 1))
    migration.step(push, 50)
    assert push.result == "seen"
    assert migration.places(id, 7) == []


@pytest.mark.parametrize("on_conflict", ["keep", "replace"])
def test_a_ready_one(engine: Engine, migration: Migration, shards: int, id: str, on_conflict: str) -> None:
    """Ready tasks stay where they are; pushed again, they are found there."""
    engine.start()
    put(engine, "ready", id=id, payload="first")
    engine.stop()
    changed(engine, shards)
    receipt = engine.push("second", id=id, on_conflict=on_conflict)  # type: ignore[arg-type]  # as parametrized
    engine.start()
    deliveries = claim(engine.consumer(), 1)
    if on_conflict == "keep":
        assert (receipt.outcome, receipt.state, deliveries[0].payload) == ("kept", "ready", "first")
    else:
        assert (receipt.outcome, deliveries[0].payload) == ("replaced", "second")
    engine.consumer().ack(deliveries)
    assert engine.resize(dry_run=True).wait(30)
    assert engine.consumer().claim(10) == []
    assert migration.places(id, 7) == []


@pytest.mark.slow
def test_a_running_one(engine: Engine, migration: Migration, shards: int, id: str) -> None:
    """What was claimed before the change is settled where it is, and goes home when it is retried."""
    engine.start()
    engine.push("x", id=id)
    consumer = engine.consumer()
    (delivery,) = claim(consumer, 1)
    changed(engine, shards)
    assert engine.cancel(id) is Outcome.RUNNING
    assert state_of(engine, id) == "leased"
    consumer.extend(delivery, 60)
    assert not engine.resize(dry_run=True).wait(1)
    consumer.retry(delivery, delay=FAR_S, reason="not now")
    assert engine.resize(dry_run=True).wait(30)
    assert migration.places(id, 7) == [migration.cache().home(id)]
    task = engine.get(id)
    assert task is not None
    assert (task.state, task.failures, task.attempt) == ("scheduled", 1, 2)
    assert engine.reschedule(id, delay=0)
    (delivery,) = claim(consumer, 1)
    assert delivery.attempt == 2
    consumer.ack(delivery)
    wait_until(lambda: engine.get(id) is None, "it is done")
