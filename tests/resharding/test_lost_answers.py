"""An answer is lost and a newer topology refuses the resend: the first send, which may have worked, still counts."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest

from shardq import Engine, Task, Unavailable
from shardq.core.calls.request import Call, Stale
from shardq.core.model.record import codec_named
from shardq.core.operation import Many, Operation
from shardq.core.producer import commands_by_id
from shardq.core.producer.packing import Packer
from shardq.core.producer.stream import Stream
from shardq.errors import Unanswered
from tests.resharding.conftest import SHARDS
from tests.resharding.migration import Migration, moving_ids
from tests.resharding.stepping import Stepped
from tests.support.states import FAR_S, put

LATER = dt.datetime(2100, 1, 1, tzinfo=dt.UTC)
MORE = 7

pytestmark = pytest.mark.parametrize("url", ["single"], indirect=True)


@pytest.fixture
def id() -> str:
    """Of a task that the change migration."""
    return moving_ids(SHARDS, MORE)[0]


PACKER = Packer(codec_named("json"), max_payload=1000)


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
    cancel = Stepped("cancel", commands_by_id.cancel(migration.cache(), id))
    migration.lose(cancel, pushed_again)
    while cancel.request is None or isinstance(cancel.request, Call) or "HGET" not in cancel.request.words:
        migration.step(cancel, 1)
    cancel.advance(lambda request: Unavailable("the server is gone"))
    assert isinstance(cancel.result, Unanswered)
    assert isinstance(cancel.result.__cause__, Unavailable)


@pytest.mark.parametrize("own", [False, True], ids=["ids of ours", "an id of the caller's"])
def test_push_iter(engine: Engine, migration: Migration, id: str, own: bool) -> None:
    cache = migration.cache()
    stream = Stream(cache, PACKER, iter([Task("x", id=id if own else None, at=LATER)]), 30.0)
    pair = next(stream)

    def one() -> Operation[Any]:
        return (yield Many([pair]))

    sending = Stepped("the first", one())
    migration.lose(sending, lambda: engine.resize(MORE))
    ((answered, answer),) = sending.result
    assert isinstance(answer, Stale)
    assert next(stream, None) is None
    stream.note(answered, answer)
    (window,) = stream.finished()
    rest = Stepped("the rest", stream.completed(window))
    migration.step(rest, 50)
    (receipt,) = rest.result
    assert receipt.outcome == "pushed"
    stream.check()
    assert engine.stats().scheduled == 1
