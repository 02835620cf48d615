"""Payloads through every codec, and engines that read what engines with another codec wrote."""

from __future__ import annotations

import pickle
import zlib
from typing import Any

import pytest

from shardq import Codec, Engine
from shardq.errors import PayloadNotDecodable, PayloadNotEncodable, PayloadTooLarge
from tests.support.engines import Engines
from tests.support.states import FAR_S, claim, state_of
from tests.support.waiting import wait_until


class Squeezed:
    """Somebody's own codec."""

    name = "squeezed"

    def encode(self, payload: Any, /) -> bytes:
        return zlib.compress(pickle.dumps(payload))

    def decode(self, data: bytes, /) -> Any:
        return pickle.loads(zlib.decompress(data))


CASES: list[tuple[str | Codec, Any]] = [
    ("json", {"n": 1, "text": "ä\u2028", "list": [None, True, 1.5]}),
    ("json", ""),
    ("msgpack", {"bytes": b"\x00\xff", "n": [1, 2]}),
    ("raw", bytes(range(256))),
    ("raw", b""),
    (Squeezed(), {"any": {1, 2, 3}}),
]


@pytest.mark.parametrize(("codec", "payload"), CASES)
def test_a_payload_comes_back_as_it_went(
    engines: Engines, url: str, name: str, codec: str | Codec, payload: Any
) -> None:
    engine = engines.opened(url, name=name, shards=2, codec=codec)
    engine.start()
    id = engine.push(payload)
    task = engine.get(id)
    assert task is not None
    assert task.payload == payload
    (delivery,) = claim(engine.consumer(), 1)
    assert (delivery.id, delivery.payload) == (id, payload)


def test_the_record_says_its_codec(engines: Engines, url: str, name: str) -> None:
    ids = []
    for codec, payload in CASES:
        ids.append(engines.opened(url, name=name, shards=2, codec=codec).push(payload, delay=FAR_S))
    reader = engines.opened(url, name=name, codec=Squeezed())
    for id, (_, payload) in zip(ids, CASES, strict=True):
        task = reader.get(id)
        assert task is not None
        assert task.payload == payload


def test_an_own_codec_is_needed_to_read_what_it_wrote(engines: Engines, url: str, name: str) -> None:
    id = engines.opened(url, name=name, shards=2, codec=Squeezed()).push("x", delay=FAR_S)
    with pytest.raises(PayloadNotDecodable, match="open the engine with the codec= that wrote it"):
        engines.opened(url, name=name).get(id)


def test_a_payload_that_nobody_can_read_is_given_as_it_is_stored(engines: Engines, url: str, name: str) -> None:
    id = engines.opened(url, name=name, shards=2, codec=Squeezed()).push("x", delay=FAR_S, headers={"a": "b"})
    task = engines.opened(url, name=name).get(id, decode=False)
    assert task is not None
    assert (task.payload, task.headers) == (Squeezed().encode("x"), {"a": "b"})


@pytest.mark.slow
def test_what_a_consumer_can_not_read_is_a_failed_attempt(
    engines: Engines, url: str, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """So that one which can read it has a try, and a deploy that was wrong can be taken back."""
    writer = engines.opened(url, name=name, shards=1, codec=Squeezed(), max_attempts=2)
    bad, good = writer.push("x", topic="email"), writer.push("y", topic="other")
    reader = engines.opened(url, name=name)
    reader.start()
    wait_until(lambda: reader.stats().ready == 2, "both are ready")
    assert reader.consumer("email").claim(10) == []
    assert f"task {bad} can't be decoded, which is a failed attempt: " in caplog.text
    task = writer.get(bad)
    assert task is not None
    assert task.state != "dead"
    assert task.failures == 1

    consumer = reader.consumer("email")

    def dead() -> bool:
        assert consumer.claim(10, wait=0.1) == []
        return state_of(writer, bad) == "dead"

    wait_until(dead, "its last attempt is over")
    reader.stop()
    task = writer.get(bad)
    assert task is not None
    assert task.reason is not None
    assert task.reason.startswith("can't be decoded: ")
    assert state_of(writer, good) == "ready"


def test_what_one_consumer_can_not_read_another_can(engines: Engines, url: str, name: str) -> None:
    writer = engines.opened(url, name=name, shards=1, codec=Squeezed())
    writer.start()
    id = writer.push("x")
    other, own = engines.opened(url, name=name).consumer(), writer.consumer()

    def refused() -> bool:
        assert other.claim(1, wait=0.1) == []
        task = writer.get(id)
        return task is not None and task.failures > 0

    wait_until(refused, "one can't read it")
    # A retry's delay is drawn from 0 to a second, so one claim may have met the task more than once.
    [delivery] = own.claim(1, wait=30)
    assert delivery.payload == "x"
    assert delivery.attempt == delivery.failures + 1 > 1


@pytest.mark.parametrize(
    ("codec", "payload"), [("json", {1j}), ("msgpack", object()), ("raw", "text"), (Squeezed(), lambda: None)]
)
def test_what_a_codec_can_not_write(engine: Engine, engines: Engines, url: str, codec: Any, payload: Any) -> None:
    other = engines.opened(url, name=engine.name, codec=codec)
    with pytest.raises(PayloadNotEncodable, match="push what it can encode, or choose another codec="):
        other.push(payload)
    assert other.stats().scheduled == 0


def test_the_limit_is_a_setting(engines: Engines, url: str, name: str) -> None:
    engine = engines.opened(url, name=name, shards=2, codec="raw", max_payload=10)
    assert engine.push(b"x" * 10, delay=FAR_S)
    with pytest.raises(PayloadTooLarge, match="11 bytes; 10 are allowed"):
        engine.push(b"x" * 11)
    large = engines.opened(url, name=name, codec="raw", max_payload=5 << 20)
    id = large.push(b"x" * (5 << 20))
    large.start()
    (delivery,) = claim(large.consumer(), 1)
    assert (delivery.id, len(delivery.payload)) == (id, 5 << 20)
