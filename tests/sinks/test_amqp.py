"""Errors of a topic that is forwarded to RabbitMQ say where, why, and what to do. The rest is in ``tests/brokers``."""

from __future__ import annotations

import re
import time

import pytest

from cluster.ports import free_port
from shardq import Engine
from shardq.features.sinks import Message, Refused, Sent, Unsent
from shardq.features.sinks.amqp import SHORT, AmqpSink
from tests.sinks.seen import sink_stats
from tests.support.amqp_broker import AmqpBroker, Answer
from tests.support.waiting import wait_until


def a_message(id: str, **headers: str) -> Message:
    return Message(id=id, topic="mail", payload=b"1", codec="json", headers=headers, attempt=1)


def test_no_broker(feeding: Engine) -> None:
    address = f"127.0.0.1:{free_port()}"
    feeding.forward("mail", to=f"amqp://{address}#/mail")
    feeding.push(1, topic="mail")
    wait_until(lambda: sink_stats(feeding, "mail").error, "it is said")
    told = sink_stats(feeding, "mail").error
    assert told.startswith(f"RabbitMQ at {address} can't be reached: Connection refused; check that it runs, and ")


@pytest.mark.slow
def test_a_broker_that_hangs_takes_no_goodbye() -> None:
    with AmqpBroker() as broker:
        sink = AmqpSink(f"amqp://{broker.address}?timeout=60#/mail")
        sink.open()
        broker.talking.clear()
        began = time.monotonic()
        sink.close()
        assert time.monotonic() - began < 30


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        ("missing", r" refused: 404 .*; declare the exchange, or correct its name"),
        ("nack", r"a queue is full, or failed; let consumers drain it, or raise its limit"),
        ("silent", r": the broker has confirmed nothing for 0.3 s: .*; look at its log"),
    ],
)
def test_what_a_broker_says(answer: Answer, told: str) -> None:
    with AmqpBroker() as broker:
        broker.answers[answer] = answer
        sink = AmqpSink(f"amqp://{broker.address}?timeout=0.3#shop/{answer}")
        sink.open()
        (result,) = sink.send([a_message("mail/1")])
        sink.close()
        assert isinstance(result, Unsent)
        assert answer == "nack" or result.reason.startswith(f"RabbitMQ at {broker.address}")
        assert re.search(told, result.reason)


def test_one_whose_headers_have_no_room_is_refused_and_names_that_are_too_long_are_not() -> None:
    long = {"n" * SHORT: "sent", "n" * (SHORT + 1): "left out"}
    with AmqpBroker() as broker:
        sink = AmqpSink(f"amqp://{broker.address}#/mail")
        sink.open()
        batch = [
            a_message("mail/1", large="x" * 131_072),
            a_message(f"mail/{'i' * SHORT}"),
            a_message("mail/3", **long),
        ]
        results = sink.send(batch)
        sink.close()
    assert results == [Refused("its headers are larger than a frame of the broker"), Sent(), Sent()]
