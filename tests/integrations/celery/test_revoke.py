"""``revoke`` cancels what waits, tells the workers as always, and whoever waits for the result."""

from __future__ import annotations

from typing import Any

import celery
import pytest
from celery import signals
from celery.exceptions import TaskRevokedError

from tests.integrations.celery.conftest import Make
from tests.integrations.celery.test_through_redis import drained, waiting
from tests.support.waiting import wait_until

# by which Celery stores its results
pytestmark = pytest.mark.filterwarnings("ignore:Call to deprecated setex:DeprecationWarning")


def test_a_revoked_task_never_runs_and_its_result_says_so(make: Make) -> None:
    stand, module = make(dispatching=False)
    kept = module.add.apply_async((1, 2), countdown=1000)
    one = module.add.apply_async((1, 2), countdown=1000, priority=9)
    odd = module.add.apply_async((1, 2), countdown=1000, task_id="an/odd id")
    several = [module.add.apply_async((n, 2), countdown=1000, queue=f"{stand.queue}-2") for n in range(3)]
    assert len(waiting(module)) == 6
    one.revoke()
    odd.revoke()
    module.app.control.revoke([each.id for each in several])
    assert [task.id.partition("/")[2] for task in waiting(module)] == [kept.id]
    for result in (one, odd, *several):
        assert result.state == "REVOKED"
        with pytest.raises(TaskRevokedError):
            result.get(10)
    assert kept.state == "PENDING"
    module.app.control.revoke("nobody's")


@pytest.mark.filterwarnings("ignore:Task name")  # the module of the app is there several times
def test_monitors_and_receivers_of_signals_are_told(make: Make) -> None:
    _, module = make(dispatching=False)
    signalled: list[Any] = []

    def receive(sender: Any, request: Any, **how: Any) -> None:
        signalled.append((sender, request.id, request.args, how))

    signals.task_revoked.connect(receive)
    events: list[Any] = []
    with module.app.connection_for_read() as connection:
        receiver = module.app.events.Receiver(connection, handlers={"task-revoked": events.append})
        with receiver.consumer_context() as (listening, *_):
            drained(listening)  # it listens only now
            result = module.add.apply_async((1, 2), countdown=1000)
            unknown = module.app.send_task("elsewhere", (1,), countdown=1000)
            module.app.control.revoke([result.id, unknown.id, "nobody's"])
            wait_until(lambda: drained(listening) and len(events) == 2, "the events are sent")
    signals.task_revoked.disconnect(receive)
    assert {event["uuid"] for event in events} == {result.id, unknown.id}
    assert all((event["terminated"], event["signum"], event["expired"]) == (False, None, False) for event in events)
    how = {"terminated": False, "signum": None, "expired": False, "signal": signals.task_revoked}
    senders = {id: sender and sender.name for sender, id, *_ in signalled}
    assert senders == {result.id: module.add.name, unknown.id: None}
    assert [given for *_, given in signalled] == [how, how]


def test_another_process_forwarded_the_topic_meanwhile(make: Make) -> None:
    """An open engine that knows only older routes finds the task all the same."""
    _, module = make(dispatching=False)
    _, other = make(dispatching=False)
    module.engine.open()
    other.engine.open()
    result = other.add.apply_async((1, 2), countdown=1000)
    module.app.control.revoke(result.id)
    assert waiting(module) == []
    assert result.state == "REVOKED"


@pytest.mark.slow
def test_chords_fail_and_workers_are_told(make: Make) -> None:
    """What a worker holds already is discarded there, as always."""
    stand, module = make()
    with stand.worker("--pool=threads", "--concurrency=2"):
        held = module.add.apply_async((1, 2), countdown=300, shardq=False)
        header = [module.add.s(1, 1).set(countdown=600), module.add.s(2, 2)]
        chord = celery.chord(header, module.total.s()).apply_async()
        stand.wait(1)
        wait_until(lambda: len(waiting(module)) == 1, "one part waits")
        chord.parent.results[0].revoke()
        wait_until(lambda: chord.state == "FAILURE", "whoever waits for the chord is told")
        held.revoke()
        wait_until(lambda: held.state == "REVOKED", "the worker is told")
    assert len(stand.runs()) == 1
