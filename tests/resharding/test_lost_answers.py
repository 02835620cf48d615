"""An answer is lost and a newer topology refuses the resend: the first send, which may have worked, still counts."""

from __future__ import annotations

import datetime as dt
from functools import partial
from typing import Any

import pytest

from shardq import Engine, Outcome, Task, Unavailable
from shardq.core.calls import by_id as calls
from shardq.core.calls import consume
from shardq.core.calls.consume import SettleAck
from shardq.core.calls.request import Call, Epoch, Stale
from shardq.core.consumer.settling import SettleStatuses
from shardq.core.layout.keys import ShardKeys
from shardq.core.model.record import codec_named
from shardq.core.model.task import OnConflict
from shardq.core.operation import Many, Operation
from shardq.core.producer import by_id, pushing
from shardq.core.producer.packing import Entries, Packer
from shardq.core.producer.stream import Stream
from shardq.core.recovery import call_every_shard, call_shard, call_shards
from shardq.errors import Unanswered
from tests.resharding.conftest import SHARDS
from tests.resharding.migration import Migration, moving_ids
from tests.resharding.stepping import Stepped
from tests.support.states import FAR_S, claim, put, state_of

LATER = dt.datetime(2100, 1, 1, tzinfo=dt.UTC)
LATER_MS = int(LATER.timestamp() * 1000)
MORE = 7

pytestmark = pytest.mark.parametrize("url", ["single"], indirect=True)


@pytest.fixture
def id() -> str:
    """Of a task that the change migration."""
    return moving_ids(SHARDS, MORE)[0]


PACKER = Packer(codec_named("json"), max_payload=1000)


def packed(task: Task) -> Entries:
    return PACKER.one(task)


def dead(engine: Engine, id: str) -> None:
    engine.start()
    put(engine, "dead", id=id)
    engine.stop()


def test_cancel_that_can_not_bring_a_moving_task_in(engine: Engine, migration: Migration, id: str) -> None:
    """It may have cancelled the one before, so it does not say that nothing was done."""

    def pushed_again() -> None:
        engine.push("y", id=id, delay=FAR_S)
        engine.resize(MORE)
        migration.bring(id, "taken")

    engine.push("x", id=id, delay=FAR_S)
    cancel = Stepped("cancel", by_id.cancel(migration.cache(), id))
    migration.lose(cancel, pushed_again)
    while cancel.request is None or isinstance(cancel.request, Call) or "HGET" not in cancel.request.words:
        migration.step(cancel, 1)
    cancel.advance(lambda request: Unavailable("the server is gone"))
    assert isinstance(cancel.result, Unanswered)
    assert isinstance(cancel.result.__cause__, Unavailable)


def test_requeue_of_all(engine: Engine, migration: Migration, id: str) -> None:
    dead(engine, id)
    makes = {id: partial(calls.requeue, id=id, due=LATER_MS)}
    requeue = Stepped("requeue each", by_id.call_each(migration.cache(), makes))
    migration.lose(requeue, lambda: engine.resize(MORE))
    migration.step(requeue, 50)
    assert requeue.result == {id: Outcome.UNKNOWN}
    assert state_of(engine, id) == "scheduled"


@pytest.mark.parametrize("how", ["each", "on_shard", "everywhere"])
def test_ack(engine: Engine, migration: Migration, id: str, how: str) -> None:
    engine.start()
    engine.push("x", id=id)
    (delivery,) = claim(engine.consumer(), 1)
    engine.stop()
    cache = migration.cache()
    its = cache.keys(delivery.shard)

    def settle(keys: ShardKeys, epoch: Epoch) -> Call[SettleStatuses]:
        return consume.settle(keys, epoch, [SettleAck(id, delivery.token)] if keys == its else [])

    operations: dict[str, Operation[Any]] = {
        "each": call_shards(cache, {"ack": (its, settle)}),
        "on_shard": call_shard(cache, its, settle),
        "everywhere": call_every_shard(cache, settle),
    }
    ack = Stepped("ack", operations[how])
    if how == "everywhere":
        migration.step(ack, delivery.shard)
    migration.lose(ack, lambda: engine.resize(MORE))
    migration.step(ack, 50)
    assert ack.result in ({}, {"ack": {}}, [(keys, {}) for keys in cache.span()])
    assert engine.get(id) is None


@pytest.mark.parametrize("on_conflict", ["keep", "reject", "replace"])
@pytest.mark.parametrize("many", [False, True], ids=["push", "push_many"])
def test_push(engine: Engine, migration: Migration, id: str, on_conflict: OnConflict, many: bool) -> None:
    entries = packed(Task("x", id=id, at=LATER, on_conflict=on_conflict))
    cache = migration.cache()
    if many:
        push = Stepped("push", pushing.push(cache, PACKER, entries))
    else:
        push = Stepped("push", pushing.push_one(cache, PACKER, entries))
    migration.lose(push, lambda: engine.resize(MORE))
    migration.step(push, 50)
    (receipt,) = push.result if many else [push.result]
    assert receipt.outcome == "pushed"
    engine.start()
    assert engine.resize(dry_run=True).wait(30)
    assert migration.places(id, MORE) == [migration.cache().home(id)]


@pytest.mark.parametrize("own", [False, True], ids=["ids of ours", "an id of the caller's"])
def test_push_iter(engine: Engine, migration: Migration, id: str, own: bool) -> None:
    cache = migration.cache()
    stream = Stream(cache, PACKER, iter([Task("x", id=id if own else None, at=LATER)]), 30.0)
    calls = stream.calls()
    pair = next(calls)

    def one() -> Operation[Any]:
        return (yield Many([pair]))

    sending = Stepped("the first", one())
    migration.lose(sending, lambda: engine.resize(MORE))
    ((answered, answer),) = sending.result
    assert isinstance(answer, Stale)
    assert next(calls, None) is None
    stream.note(answered, answer)
    (window,) = stream.finished()
    rest = Stepped("the rest", stream.completed(window))
    migration.step(rest, 50)
    (receipt,) = rest.result
    assert receipt.outcome == "pushed"
    stream.check()
    assert engine.stats().scheduled == 1
