"""What ``delay_through`` refuses, what it does twice, how it ends, and what a caller sees when something fails."""

from __future__ import annotations

import logging
import pickle
import subprocess
import sys
from typing import Any

import celery
import pytest
from kombu.exceptions import OperationalError

import shardq
from shardq import Engine
from shardq.errors import InvalidOption
from shardq.integrations.celery import delay_through, without_native_delay
from tests.integrations.celery.conftest import Make
from tests.integrations.celery.test_through_redis import waiting

NOWHERE = "redis://127.0.0.1:1"


@pytest.mark.parametrize(
    ("engine", "above", "says"),
    [
        (Engine(NOWHERE, codec="msgpack"), 60, "the codec 'msgpack' changes the bytes"),
        (shardq.AsyncEngine(NOWHERE), 60, "takes a shardq.Engine"),
        (Engine(NOWHERE), -1, "above can't be -1"),
        (Engine(NOWHERE), "60", "above can't be '60'"),
    ],
)
def test_wrong_arguments(engine: Any, above: Any, says: str) -> None:
    with pytest.raises(InvalidOption, match=says):
        delay_through(celery.Celery("app"), engine, above=above)


@pytest.mark.parametrize("app", ["x", None, Engine(NOWHERE)])
def test_what_is_no_app(app: Any) -> None:
    with pytest.raises(InvalidOption, match=rf"takes a celery.Celery app, not {type(app).__name__}"):
        delay_through(app, Engine(NOWHERE))


def test_nothing_is_read_or_connected_at_the_call() -> None:
    app, engine = celery.Celery("app"), Engine(NOWHERE)
    delaying = delay_through(app, engine)
    assert not app.configured
    assert delay_through(app, Engine(NOWHERE)) is delaying
    with pytest.raises(InvalidOption, match="delayed through <CeleryDelaying of 'app': above 60 s"):
        delay_through(app, engine, above=1)
    delaying.remove()
    with delay_through(app, engine, above=1) as other:
        delaying.remove()  # it has ended before
        assert delay_through(app, engine, above=1) is other
    app.conf.task_serializer = "yaml"
    assert app.conf.task_serializer == "yaml"


def test_it_ends(make: Make) -> None:
    stand, module = make(dispatching=False)
    module.add.apply_async((1, 2), countdown=1000)
    module.delaying.remove()
    result = module.add.apply_async((1, 2), countdown=1000)
    assert stand.redis.llen(stand.queue) == 1
    result.revoke()
    assert len(waiting(module)) == 1


def test_an_app_that_is_in_use_already(make: Make) -> None:
    stand, module = make(dispatching=False)
    app = celery.Celery("used", broker=stand.settings["broker"])
    app.conf.task_default_queue = stand.queue
    app.send_task("first", countdown=1000)
    app.control.revoke("nothing")
    with delay_through(app, module.engine):
        sent = app.send_task("second", countdown=1000)
        assert [task.id.partition("/")[2] for task in waiting(module)] == [sent.id]
        app.control.revoke(sent.id)
        assert waiting(module) == []
    assert stand.redis.llen(stand.queue) == 1
    app.close()


def test_an_app_with_classes_of_its_own_and_one_that_is_pickled() -> None:
    class Control(celery.app.control.Control):
        mine = True

    own = celery.Celery("own", control=Control)
    with delay_through(own, Engine(NOWHERE)):
        assert own.control.mine
        assert "Through" in str(type(own.control).__mro__)
    app = celery.Celery("plain", broker="memory://")
    with delay_through(app, Engine(NOWHERE)):
        copy = pickle.loads(pickle.dumps(app))
        copy.send_task("any", countdown=1000)
        copy.control.revoke("any")


def test_an_engine_that_can_not_be_reached(make: Make) -> None:
    _, module = make(dispatching=False, engine=NOWHERE, timeout=0.2, connect_timeout=0.2)
    with pytest.raises(OperationalError, match="shardq: "):
        module.add.apply_async((1, 2), countdown=1000)
    with pytest.raises(OperationalError, match="shardq: "):
        module.app.control.revoke("one")
    module.add.apply_async((1, 2))


def test_a_message_that_is_too_large_goes_as_before(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    stand, module = make(dispatching=False)
    with caplog.at_level(logging.WARNING, "shardq.integrations"):
        module.add.apply_async(("x" * (1 << 20), 2), countdown=1000)
    assert "too large" in caplog.text
    assert stand.redis.llen(stand.queue) == 1
    assert waiting(module) == []


def test_the_same_id_again_replaces_what_waits(make: Make) -> None:
    _, module = make(dispatching=False)
    module.add.apply_async((1, 2), countdown=1000, task_id="same")
    module.add.apply_async((3, 4), countdown=2000, task_id="same")
    [task] = waiting(module)
    assert task.payload["headers"]["argsrepr"] == "(3, 4)"


def test_native_delays_of_quorum_queues_are_taken_out() -> None:
    from kombu import Exchange
    from kombu.transport.native_delayed_delivery import calculate_routing_key

    given = {
        "exchange": Exchange("celery_delayed_27", type="topic"),
        "routing_key": calculate_routing_key(3600, "mail.x"),
    }
    options = without_native_delay({**given, "priority": 3})
    assert (options["exchange"].name, options["exchange"].type) == ("celery_delayed_delivery", "topic")
    assert options["routing_key"] == "0." * 28 + "mail.x"
    assert options["priority"] == 3
    other = {"exchange": Exchange("mine"), "routing_key": "1.0.1"}
    assert without_native_delay(other) == other


def test_the_package_is_named_where_it_is_missing() -> None:
    program = "import sys; sys.modules['celery'] = None; import shardq.integrations.celery"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert "MissingPackage: shardq.integrations.celery needs Celery: pip install 'shardq[celery]'" in done.stderr
