"""Messages of Dramatiq that wait in an engine, and run in Dramatiq's unmodified worker."""

from __future__ import annotations

import logging
import os
from collections import Counter
from contextlib import ExitStack
from typing import Any

import dramatiq
import pytest
import redis
from dramatiq.brokers.rabbitmq import RabbitmqBroker
from dramatiq.brokers.stub import StubBroker

from cluster.server import Server
from shardq import Engine
from shardq.core.layout.topology import Route
from shardq.errors import InvalidOption, InvalidUrl
from shardq.features.sinks.base import SENT, Message
from shardq.features.sinks.redis import DramatiqSink
from shardq.features.sinks.registry import check
from shardq.integrations.dramatiq import DramatiqDelaying, _rabbit_of, delay_through
from tests.integrations.dramatiq.actors import Actors, Signals
from tests.integrations.dramatiq.conftest import StartWorker
from tests.integrations.examples import run_examples
from tests.support.waiting import wait_until
from tests.support.workers import Worker

HOUR_MS = 3_600_000
TOPIC = "dramatiq.default"


def ran(client: redis.Redis, name: str) -> list[str]:
    found: Any = client.lrange(f"{name}:ran", 0, -1)
    return [id.decode() for id in found]


def waiting(engine: Engine) -> int:
    return engine.stats().scheduled


def in_dramatiq(client: redis.Redis, name: str, queue: str) -> int:
    count: Any = client.llen(f"{name}:{queue}")
    return int(count)


def test_what_is_above_the_threshold_waits_in_the_engine(
    actors: Actors, engine: Engine, client: redis.Redis, name: str
) -> None:
    signals = Signals()
    actors.broker.add_middleware(signals)
    with delay_through(actors.broker, engine, above=60) as delaying:
        far = actors.run.send_with_options(args=(7,), delay=HOUR_MS)
        actors.run.send_with_options(delay=60_000)
        actors.run.send()
        assert (waiting(engine), in_dramatiq(client, name, "default.DQ"), in_dramatiq(client, name, "default")) == (
            1,
            1,
            1,
        )
        assert signals.seen[:2] == [("before", "default.DQ", HOUR_MS), ("after", "default.DQ", HOUR_MS)]
        assert (far.queue_name, far.options["trace"]) == ("default.DQ", "abc")
        [task] = engine.tasks(topic=TOPIC)
        assert task.id == f"{TOPIC}/{far.message_id}"
        assert task.payload == far.asdict() | {
            "queue_name": "default",
            "args": [7],
            "options": {"trace": "abc", "redis_message_id": far.options["redis_message_id"]},
        }
        assert repr(delaying) == f"<DramatiqDelaying of RedisBroker: above 60 s through {name!r}, 1 so far>"
        assert delaying.cancel(far)
        assert waiting(engine) == 0
    actors.run.send_with_options(delay=HOUR_MS)
    assert (waiting(engine), in_dramatiq(client, name, "default.DQ")) == (0, 2)


def test_delayed_messages_pipelines_groups_and_retries_run_in_the_worker(
    actors: Actors, engine: Engine, client: redis.Redis, name: str, start_worker: StartWorker
) -> None:
    engine.start()
    start_worker(TESTS_ENGINE=name)
    with delay_through(actors.broker, engine, above=0):
        one = actors.run.send_with_options(args=(1,), delay=300)
        then = actors.run.message_with_options(args=(2,), delay=200)
        piped: Any = dramatiq.pipeline([actors.run.message(1), then], broker=actors.broker)
        children = [actors.run.message(3), actors.run.message(4)]
        group: Any = dramatiq.group(children, broker=actors.broker)  # type: ignore[no-untyped-call]
        failing = actors.fail.send_with_options(delay=300)
        piped.run(delay=300)
        group.run(delay=300)
        once = [one, *piped.messages, *group.children]
        wanted = Counter([message.message_id for message in once] + [failing.message_id] * 2)
        wait_until(lambda: Counter(ran(client, name)) == wanted, "all have run", timeout=60)
    assert in_dramatiq(client, name, "default.DQ") == 0
    # the retry and the second of the pipeline were sent by the worker
    wait_until(lambda: sum(sink.sent for sink in engine.stats().sinks) == 7, "all came through the engine")


def test_a_message_that_is_sent_twice_is_enqueued_once(
    actors: Actors, engine: Engine, client: redis.Redis, single: Server, name: str
) -> None:
    with delay_through(actors.broker, engine):
        sent = actors.run.send_with_options(delay=HOUR_MS)
        info = engine.get(f"{TOPIC}/{sent.message_id}", decode=False)
        assert info is not None
        message = Message(id=info.id, topic=TOPIC, payload=info.payload, codec="json", headers=info.headers, attempt=1)
        sink = DramatiqSink(f"dramatiq+{single.url}#{name}:default")
        sink.open()
        assert sink.send([message, message]) == [SENT, SENT]
        assert sink.send([message]) == [SENT]
        sink.close()
    assert in_dramatiq(client, name, "default") == 1
    # what Dramatiq has of it is what it would have itself
    consumed = next(actors.broker.consume("default"))
    assert consumed is not None
    assert consumed.message_id == sent.message_id


def test_the_same_message_enqueued_again_is_moved(actors: Actors, engine: Engine) -> None:
    with delay_through(actors.broker, engine):
        message = actors.run.message(1)
        actors.broker.enqueue(message, delay=HOUR_MS)
        actors.broker.enqueue(message, delay=2 * HOUR_MS)
    assert waiting(engine) == 1


def test_what_the_engine_can_not_take_is_delayed_by_dramatiq(
    actors: Actors, client: redis.Redis, name: str, own_server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    with Engine(own_server.url, name="down", timeout=2.0) as down, delay_through(actors.broker, down):
        actors.run.send_with_options(delay=HOUR_MS)
        assert in_dramatiq(client, name, "default.DQ") == 0
        own_server.kill()
        with caplog.at_level(logging.WARNING, "shardq.integrations"):
            message = actors.run.send_with_options(delay=HOUR_MS)
    assert in_dramatiq(client, name, "default.DQ") == 1
    assert f"message {message.message_id} is delayed by Dramatiq itself" in caplog.text


def test_messages_are_moved_back(actors: Actors, engine: Engine, client: redis.Redis, name: str) -> None:
    delaying = delay_through(actors.broker, engine)
    ids = {actors.run.send_with_options(args=(n,), delay=HOUR_MS).message_id for n in range(3)}
    assert delaying.move_back() == 3
    assert (waiting(engine), in_dramatiq(client, name, "default.DQ")) == (0, 3)
    stored: Any = client.hvals(f"{name}:default.DQ.msgs")
    assert {dramatiq.Message.decode(data).message_id for data in stored} == ids


def test_the_child_of_a_fork_delays_too(actors: Actors, engine: Engine) -> None:
    with delay_through(actors.broker, engine):
        actors.run.send_with_options(delay=HOUR_MS)
        child = os.fork()
        if not child:
            try:
                actors.run.send_with_options(delay=HOUR_MS)
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        assert waiting(engine) == 2


def test_what_is_wrong_is_said(actors: Actors, engine: Engine, single: Server, name: str) -> None:
    no_broker: Any = "x"
    with pytest.raises(InvalidOption, match="a RedisBroker or a RabbitmqBroker, not str"):
        delay_through(no_broker, engine)
    with pytest.raises(InvalidOption, match="a RedisBroker or a RabbitmqBroker, not StubBroker"):
        delay_through(StubBroker(), engine)
    with Engine(single.url, name=name, codec="msgpack") as other, pytest.raises(InvalidOption, match="codec"):
        delay_through(actors.broker, other)
    with delay_through(actors.broker, engine) as delaying:
        assert delay_through(actors.broker, engine) is delaying
        with pytest.raises(InvalidOption, match="already"):
            delay_through(actors.broker, engine, above=5)
    with pytest.raises(InvalidUrl, match="namespace and the queue"):
        check(Route("dramatiq+redis://h:1#mail"))


def test_the_urls_of_brokers() -> None:
    rabbit = RabbitmqBroker(url="amqp://ann:p%40ss@rabbit:5673/shop")
    assert _rabbit_of(rabbit) == "amqp://ann:p%40ss@rabbit:5673/shop"
    with pytest.raises(InvalidOption, match="amqps://"):
        _rabbit_of(RabbitmqBroker(url=["amqp://a", "amqp://b"]))


def test_the_examples_of_the_docstrings(actors: Actors, single: Server, name: str) -> None:
    with Engine(single.url, name=name) as engine:
        names = {"delay_through": delay_through, "broker": actors.broker, "remind": actors.run, "engine": engine}
        assert run_examples(delay_through, names)
        assert run_examples(DramatiqDelaying.cancel, names)
        assert run_examples(DramatiqDelaying.move_back, names)


@pytest.mark.slow
@pytest.mark.ledger
def test_dispatchers_are_killed_while_a_worker_runs(
    actors: Actors, single: Server, engine: Engine, client: redis.Redis, name: str, start_worker: StartWorker
) -> None:
    """Every message runs once, also those that were sent twice."""
    start_worker()
    ids: list[str] = []
    with ExitStack() as stack, delay_through(actors.broker, engine, above=0):
        for round in range(2):
            dispatcher = stack.enter_context(Worker("tests.support.dispatching", single.url, name, 4))
            assert dispatcher.said()
            ids += [actors.run.send_with_options(args=(n,), delay=10 * n).message_id for n in range(100)]
            wait_until(lambda: len(ran(client, name)) > len(ids) - 60, "some have run", timeout=60)  # noqa: B023
            if round == 0:
                dispatcher.kill()
        wait_until(lambda: len(ran(client, name)) >= len(ids), "all have run", timeout=60)
        wait_until(lambda: waiting(engine) + engine.stats().leased == 0, "nothing is left", timeout=60)
    assert Counter(ran(client, name)) == Counter(ids)
