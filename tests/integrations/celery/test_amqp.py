"""RabbitMQ as the broker: what it says of one message counts for that message, each exchange and key waits for itself,
and a connection that is silent ends. The broker here is one of the tests'; ``tests/brokers`` has a real one.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from cluster.ports import free_port
from shardq.errors import InvalidUrl
from shardq.features.sinks import routes
from shardq.features.sinks.base import Failed, Message, Refused, Sent, Unsent
from shardq.features.sinks.kombu import KombuSink
from shardq.integrations.celery import messages
from tests.integrations.celery.conftest import Make
from tests.integrations.celery.test_brokers import ENVELOPE, message_of
from tests.integrations.celery.test_through_redis import hurry, waiting
from tests.sinks.seen import sink_stats
from tests.support.amqp_broker import AmqpBroker, Answer
from tests.support.waiting import wait_until

# by which Celery stores its results
pytestmark = pytest.mark.filterwarnings("ignore:Call to deprecated setex:DeprecationWarning")


@pytest.fixture
def broker() -> Iterator[AmqpBroker]:
    with AmqpBroker() as broker:
        yield broker


def message(key: str, **more: Any) -> Message:
    return message_of({**ENVELOPE, "exchange": "shop", "routing_key": key, **more})


GONE = "'bad' of the exchange 'shop': 404 NOT_FOUND - no exchange 'shop'"
FULL = "'bad' of the exchange 'shop': a queue is full"


@pytest.mark.parametrize(
    ("answer", "result", "says"),
    [
        ("nack", Failed, FULL),
        ("missing", Failed, GONE),
        ("large", Refused, "'bad' of the exchange 'shop': 406 PRECONDITION_FAILED - message size 9"),
        ("unroutable", Refused, "unroutable: no queue takes the key 'bad' of the exchange 'shop'"),
    ],
)
def test_an_answer_counts_for_its_message(
    broker: AmqpBroker, answer: Answer, result: type[Failed | Refused], says: str
) -> None:
    broker.answers["bad"] = answer
    results = sent(broker, *(message(key) for key in ("good", "bad", "good", "bad")))
    assert [type(each) for each in results] == [Sent, result, Sent, result]
    assert says in str(results[1])
    assert [key for key, _ in broker.taken] == ["good", "good"]


@pytest.mark.parametrize(("answer", "says"), [("nack", FULL), ("missing", GONE)])
def test_a_queue_that_is_full_or_gone_by_now_is_down(broker: AmqpBroker, answer: Answer, says: str) -> None:
    """It costs the messages no attempt. One that is declined before others are taken has failed by itself."""
    broker.of_bodies = {b"no": answer}
    results = sent(broker, *(message("bad", body=body) for body in ("yes", "no", "yes", "no", "no")))
    own = [Failed, Sent] if answer == "nack" else [Unsent, Unsent]  # a missing exchange is asked once a batch
    assert [type(each) for each in results] == [Sent, *own, Unsent, Unsent]
    assert says in str(results[-1])


def sent(broker: AmqpBroker, *batch: Message) -> Sequence[Any]:
    sink = KombuSink(f"kombu+{broker.url}")
    sink.open()
    try:
        return sink.send(batch)
    finally:
        sink.close()


def test_headers_that_are_larger_than_a_frame(broker: AmqpBroker) -> None:
    large, good = sent(broker, message("a", headers={"x": "x" * (1 << 17)}), message("a", body="x" * (1 << 18)))
    assert isinstance(large, Refused)
    assert isinstance(good, Sent)


def opened(sink: KombuSink, broker: AmqpBroker) -> None:
    broker.talking.set()
    sink.open()
    broker.talking.clear()


def sending(sink: KombuSink, broker: AmqpBroker) -> None:
    opened(sink, broker)
    results = sink.send([message("a")] * 3)
    assert {type(result) for result in results} == {Unsent}
    assert broker.address in str(results[0])


def opening(sink: KombuSink, broker: AmqpBroker) -> None:
    with pytest.raises(ConnectionError, match=broker.address):
        sink.open()


def closing(sink: KombuSink, broker: AmqpBroker) -> None:
    opened(sink, broker)
    sink.close()


@pytest.mark.parametrize("stopping", [False, True], ids=["its time is over", "the process ends"])
@pytest.mark.parametrize("doing", [opening, sending, closing])
def test_a_silent_broker_holds_up_nothing(
    broker: AmqpBroker, doing: Callable[[KombuSink, AmqpBroker], None], stopping: bool
) -> None:
    sink = KombuSink(f"kombu+{broker.url}?timeout={60 if stopping else 0.2}")
    broker.talking.clear()
    ended = threading.Event()

    def interrupt() -> None:
        while not ended.wait(0.1):
            sink.interrupt()

    thread = threading.Thread(target=interrupt)
    if stopping:
        thread.start()
    began = time.monotonic()
    try:
        doing(sink, broker)
        sink.close()
    finally:
        ended.set()
        if stopping:
            thread.join()
    assert time.monotonic() - began < 20  # of 60
    broker.talking.set()
    assert sink.send([message("a")]) == [Sent()]
    sink.close()


def test_the_timeout_of_the_url() -> None:
    with pytest.raises(InvalidUrl, match=r"timeout= of a kombu\+amqp:// URL is not possible"):
        KombuSink("kombu+amqp://h/?timeout=soon")


def test_errors_of_connecting_say_what_to_do(broker: AmqpBroker) -> None:
    wrong = KombuSink(f"kombu+{broker.url.replace('guest:guest', 'guest:wrong')}")
    with pytest.raises(ConnectionError, match=rf"{broker.address}.*ACCESS_REFUSED.*; check the user, the password and"):
        wrong.open()
    address = f"127.0.0.1:{free_port()}"
    with pytest.raises(ConnectionError, match=rf"{address}.*ConnectionRefusedError.*; check that it runs"):
        KombuSink(f"kombu+amqp://{address}//").open()


def arrived(broker: AmqpBroker) -> list[str]:
    """The queues of the tasks that were taken. What is broadcast to workers has no key, and events have their own."""
    return sorted(key for key, _ in broker.taken if key not in ("", "task.revoked"))


def test_one_id_for_two_queues_is_two_messages(make: Make, broker: AmqpBroker) -> None:
    _, module = make(broker=broker.url)
    for queue in ("red", "blue", "red"):
        module.add.apply_async((1, 2), countdown=1000, task_id="same", queue=queue)
    assert len(waiting(module)) == 2
    hurry(module)
    wait_until(lambda: arrived(broker) == ["blue", "red"], "each queue has its message")
    for queue in ("red", "blue"):
        module.add.apply_async((1, 2), countdown=1000, task_id="same", queue=queue)
    result = module.app.AsyncResult("same")
    result.revoke()
    assert waiting(module) == []
    assert result.state == "REVOKED"


def test_a_missing_exchange_or_a_full_queue_is_its_own_matter(make: Make, broker: AmqpBroker) -> None:
    _, module = make(broker=broker.url)
    broker.answers |= {"gone": "missing", "full": "nack"}
    for _ in range(3):
        for queue in ("gone", "full", "good"):
            module.add.apply_async((1, 2), countdown=1000, queue=queue)
    topics = {topic.split(".")[1]: topic for topic in module.engine.topology.routes}
    assert set(topics) == {"gone", "full", "good"}
    [dispatcher] = module.dispatchers
    hurry(module)
    wait_until(lambda: arrived(broker) == ["good"] * 3, "the others have arrived")

    def said() -> bool:
        errors = {queue: sink_stats(dispatcher, topic).error for queue, topic in topics.items()}
        return "404" in errors["gone"] and "a queue is full" in errors["full"] and not errors["good"]

    wait_until(said, "it says why")
    broker.answers.clear()
    wait_until(lambda: len(arrived(broker)) == 9, "they come when there is room")


def test_any_number_of_keys_has_a_bounded_number_of_topics(
    make: Make, broker: AmqpBroker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(messages, "OWN_TOPICS", 2)
    _, module = make(broker=broker.url)
    for queue in ("a", "b", "c", "d", "a", "e"):
        module.add.apply_async((queue, 2), countdown=1000, queue=queue)
    assert sorted(topic.split(".")[1] for topic in module.engine.topology.routes) == ["a", "amqp-others", "b"]
    assert len(waiting(module)) == 6
    with caplog.at_level(logging.WARNING, "shardq.integrations"):
        for queue in ("a", "b", "c", "d"):
            module.add.apply_async((1, 2), countdown=1000, task_id="same", queue=queue)
    assert "task same waits in Celery's worker: its id is taken in a topic that many queues share" in caplog.text
    wait_until(lambda: arrived(broker) == ["d"], "Celery has sent it itself")
    module.app.control.revoke("same")
    hurry(module)
    wait_until(lambda: arrived(broker) == ["a", "a", "b", "c", "d", "d", "e"], "all but the revoked have arrived")


def test_an_engine_ends_in_time_while_the_broker_is_silent(
    make: Make, broker: AmqpBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routes, "SENDING_S", 0.2)
    _, module = make(broker=broker.url)
    module.add.apply_async((1, 2), countdown=1000)
    [dispatcher] = module.dispatchers
    broker.answers[module.app.conf.task_default_queue] = "silent"
    hurry(module)
    wait_until(lambda: broker.asked, "it is on its way")
    broker.talking.clear()
    began = time.monotonic()
    dispatcher.close()
    assert time.monotonic() - began < 20
    wait_until(
        lambda: not [thread for thread in threading.enumerate() if thread.name.startswith("shardq-sink")],
        "no thread of it is left",
    )
