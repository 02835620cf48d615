"""Messages with an ETA wait in shardq and arrive on Celery's lists as the genuine ones."""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import time
from pathlib import Path
from typing import Any

import kombu
import pytest
import redis

from cluster.server import Server
from tests.integrations.celery.conftest import Make
from tests.support.waiting import wait_until


def waiting(module: Any) -> list[Any]:
    """What waits in the engine."""
    return list(module.engine.tasks(state="scheduled"))


def hurry(module: Any) -> None:
    """All that waits is due now."""
    for task in waiting(module):
        assert module.engine.reschedule(task.id, delay=0)


def without_tag(message: dict[str, Any]) -> dict[str, Any]:
    """A message without what is another one with each send."""
    message["properties"].pop("delivery_tag")
    message["properties"].pop("expiration", None)
    return message


OPTIONS: list[dict[str, Any]] = [
    {},
    {"priority": 5},
    {"expires": dt.datetime.now(dt.UTC) + dt.timedelta(hours=1), "headers": {"x-tenant": "é/1"}, "reply_to": "answers"},
    {"serializer": "pickle", "compression": "zlib"},
    {"queue": "reports.daily/ü"},
]


@pytest.mark.parametrize("broker", [0, 1])
def test_the_bytes_are_those_that_celery_would_have_sent(make: Make, broker: int) -> None:
    """In the engine's own database by one script, in another by its URL."""
    stand, module = make(db=broker)
    lists = []
    for number, options in enumerate(OPTIONS):
        queue = f"{stand.queue}-{number}{options.get('queue', '')}"
        step = f"\x06\x16{options['priority'] // 3 * 3}" if "priority" in options else ""
        lists.append(queue + step)
        eta = dt.datetime.now(dt.UTC) + dt.timedelta(minutes=9)
        args = ((1, 2),)
        link = module.total.s()
        known: dict[str, Any] = {**options, "queue": queue, "eta": eta, "task_id": f"id-{number}", "link": link}
        module.add.apply_async(*args, **known, shardq=False)
        module.add.apply_async(*args, **known)
    assert {task.id.partition("/")[2] for task in waiting(module)} == {f"id-{n}" for n in range(len(OPTIONS))}
    hurry(module)
    with redis.Redis.from_url(stand.settings["broker"]) as client:
        wait_until(lambda: all(client.llen(name) == 2 for name in lists), "all have arrived")
        for name in lists:
            through, genuine = [without_tag(json.loads(each)) for each in client.lrange(name, 0, -1)]
            assert through == genuine
            assert client.lindex(name, 0)[:10] == client.lindex(name, 1)[:10]


def test_a_broker_with_a_password_and_a_prefix(make: Make, server_binary: Path) -> None:
    with Server(server_binary, options={"requirepass": "a/b#c@d"}) as server:
        conf = {"broker_transport_options": {"global_keyprefix": "shop:"}}
        stand, module = make(broker=f"{server.url}/3", conf=conf)
        module.add.apply_async((1, 2), countdown=1000)
        module.add.apply_async((1, 2), countdown=1000, priority=9)
        hurry(module)
        with redis.Redis.from_url(stand.settings["broker"]) as client:
            keys = {f"shop:{stand.queue}".encode(), f"shop:{stand.queue}\x06\x169".encode()}
            wait_until(lambda: keys <= set(client.keys("*")), "both have arrived")
        routes = module.engine.topology.routes.values()
        assert {route.shown.partition("#")[0] for route in routes} == {f"redis://:***@{server.address}/3"}
        module.delaying.remove()
        module.app.close()
        kombu.pools.reset()


def test_an_operators_own_route_is_kept(make: Make) -> None:
    stand, module = make(db=2, dispatching=False)
    module.add.apply_async((1, 2), countdown=1000)
    [(topic, route)] = module.engine.topology.routes.items()
    own = route.to.replace("://", "://:${BROKER}@")
    module.engine.forward(topic, to=own, side="left")
    module.add.apply_async((1, 2), countdown=1000)
    assert module.engine.topology.routes[topic].to == own
    module.engine.forward(topic, to=f"{stand.settings['broker']}#old", side="left")
    module.add.apply_async((1, 2), countdown=1000)
    assert module.engine.topology.routes[topic] == route


def test_what_is_not_above_the_threshold_goes_as_before(make: Make) -> None:
    stand, module = make(above=100, dispatching=False)
    module.add.apply_async((1, 2))
    module.add.apply_async((1, 2), countdown=99)
    module.add.apply_async((1, 2), eta=dt.datetime.now(dt.UTC) - dt.timedelta(hours=1))
    module.add.apply_async((1, 2), countdown=1000, shardq=False)
    assert stand.redis.llen(stand.queue) == 4
    module.add.apply_async((1, 2), countdown=101)
    assert stand.redis.llen(stand.queue) == 4
    [task] = waiting(module)
    assert task.topic.startswith(f"celery.{stand.queue}.")
    assert 90 < task.due.timestamp() - time.time() <= 101


def test_an_eta_in_every_form(make: Make) -> None:
    _, module = make(above=60, dispatching=False)
    later = dt.datetime.now(dt.UTC).replace(microsecond=0) + dt.timedelta(hours=2)
    forms = [later, later.isoformat(), later.astimezone(dt.timezone(dt.timedelta(hours=5))), later.replace(tzinfo=None)]
    for eta in forms:
        module.add.apply_async((1, 2), eta=eta)
    assert {task.due for task in waiting(module)} == {later}


def test_signals_and_events_are_sent(make: Make) -> None:
    from celery import signals

    _, module = make(conf={"task_send_sent_event": True}, dispatching=False)
    seen: list[tuple[str, str]] = []

    def before(headers: Any = None, **_: Any) -> None:
        seen.append(("before", headers["id"]))

    def after(headers: Any = None, **_: Any) -> None:
        seen.append(("after", headers["id"]))

    signals.before_task_publish.connect(before)
    signals.after_task_publish.connect(after)
    events: list[Any] = []
    with module.app.connection_for_read() as connection:
        receiver = module.app.events.Receiver(connection, handlers={"task-sent": events.append})
        with receiver.consumer_context() as (listening, *_):
            drained(listening)  # it listens only now
            result = module.add.apply_async((1, 2), countdown=50)
            wait_until(lambda: drained(listening) and events, "the event is sent")
    assert seen == [("before", result.id), ("after", result.id)]
    assert [event["uuid"] for event in events] == [result.id]
    signals.before_task_publish.disconnect(before)
    signals.after_task_publish.disconnect(after)


def drained(connection: Any) -> bool:
    with contextlib.suppress(TimeoutError):
        connection.drain_events(timeout=0.05)
    return True
