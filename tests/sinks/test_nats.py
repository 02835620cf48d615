"""A topic that is forwarded to NATS JetStream: what is stored, what is refused, and a broker that is killed."""

from __future__ import annotations

import asyncio
import gc
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import unquote

import nats
import pytest

from cluster.nats import NatsServer
from cluster.ports import free_port
from shardq import BadInput, Engine, Task
from shardq.core.layout.topology import Route
from shardq.features.sinks.registry import check
from tests.sinks.seen import left, sink_stats
from tests.support.states import state_of
from tests.support.waiting import wait_until

T = TypeVar("T")


@pytest.fixture
def broker() -> Iterator[NatsServer]:
    with NatsServer() as server:
        yield server


def on(broker: NatsServer, work: Callable[[Any], Awaitable[T]]) -> T:
    """Does some work with a JetStream context."""

    async def done() -> T:
        client = await nats.connect(f"nats://{broker.address}")
        try:
            return await work(client.jetstream(timeout=20))
        finally:
            await client.close()

    return asyncio.run(done())


def make_stream(broker: NatsServer, **options: Any) -> None:
    on(broker, lambda js: js.add_stream(name="orders", subjects=["orders.>"], **options))


def stored(broker: NatsServer) -> list[Any]:
    """All messages of the stream."""

    async def read(js: Any) -> list[Any]:
        state = (await js.stream_info("orders")).state
        return [await js.get_msg("orders", number) for number in range(state.first_seq, state.last_seq + 1)]

    return on(broker, read)


def assert_quiet(caplog: pytest.LogCaptureFixture) -> None:
    """The client leaves no task behind of which asyncio would log an error."""
    gc.collect()
    assert not [record.getMessage() for record in caplog.records if record.name == "asyncio"]


def test_messages_of_a_stream(feeding: Engine, broker: NatsServer) -> None:
    feeding.forward("orders", to=f"nats://{broker.address}#orders.new")
    early = feeding.push({"n": 0}, topic="orders", headers={"trace": "00-1", "Nats-Msg-Id": "mine", "odd name": "x"})
    wait_until(lambda: "no stream stores the subject 'orders.new'" in sink_stats(feeding, "orders").error, "it waits")
    make_stream(broker, max_msg_size=2000)
    wait_until(lambda: left(feeding) == 0, "it is stored", timeout=60)
    (message,) = stored(broker)
    assert (message.subject, message.data) == ("orders.new", b'{"n":0}')
    assert message.headers == {"trace": "00-1", "Nats-Msg-Id": str(early), "Content-Type": "application/json"}
    large = feeding.push("x" * 3000, topic="orders")
    wait_until(lambda: state_of(feeding, large) == "dead", "it is refused")
    task = feeding.get(large)
    assert task is not None
    assert "message size exceeds maximum allowed" in (task.reason or "")
    assert sink_stats(feeding, "orders").buried == 1


def test_what_is_too_large_with_its_headers_is_refused_alone_and_odd_ids_are_stored(
    feeding: Engine, broker: NatsServer
) -> None:
    make_stream(broker)
    feeding.pause("orders")
    feeding.forward("orders", to=f"nats://{broker.address}#orders.new")
    large = feeding.push("x" * ((1 << 20) - 20), topic="orders")
    ids = [feeding.push(n, topic="orders", id=id) for n, id in enumerate(("a", "a ", "письмо-7", "50%", "x" * 200))]
    wait_until(lambda: feeding.stats().ready == 6, "all are ready")
    feeding.resume("orders")
    wait_until(
        lambda: state_of(feeding, large) == "dead" and left(feeding) == 1, "it is refused, the others are stored"
    )
    task = feeding.get(large)
    assert task is not None
    assert "bytes with its headers, and NATS takes 1,048,576 at most: make it smaller" in (task.reason or "")
    assert {unquote(message.headers["Nats-Msg-Id"]): message.data for message in stored(broker)} == {
        id: b"%d" % n for n, id in enumerate(ids)
    }


def test_no_server_is_said_at_once_with_its_address(feeding: Engine, caplog: pytest.LogCaptureFixture) -> None:
    address = f"127.0.0.1:{free_port()}"
    feeding.forward("orders", to=f"nats://{address}?timeout=600#orders.new")
    feeding.push(1, topic="orders")
    wait_until(lambda: sink_stats(feeding, "orders").error, "it is said")
    told = sink_stats(feeding, "orders").error
    assert told.startswith(f"NATS at {address} can't be reached: Connection refused; check that it runs")
    feeding.forward("orders", to=None)
    assert_quiet(caplog)


def test_a_wrong_password_is_said_with_the_address(feeding: Engine, tmp_path: Path) -> None:
    file = tmp_path / "nats.conf"
    file.write_text("authorization { user: shop, password: right }\n")
    with NatsServer(config=file) as server:
        feeding.forward("orders", to=f"nats://shop:wrong@{server.address}#orders.new")
        feeding.push(1, topic="orders")
        wait_until(lambda: sink_stats(feeding, "orders").error, "it is said")
        told = sink_stats(feeding, "orders").error
    assert f"NATS at {server.address} took no connection: " in told
    assert "Authorization Violation" in told
    assert "check the user, the password" in told


def test_a_broker_that_is_killed_under_load(
    feeding: Engine, broker: NatsServer, caplog: pytest.LogCaptureFixture
) -> None:
    make_stream(broker)
    feeding.forward("orders", to=f"nats://{broker.address}#orders.new")
    ids: list[str] = []
    for _ in range(2):
        ids += feeding.push_many([Task(n, topic="orders", max_attempts=1) for n in range(300)])
        broker.kill()
        wait_until(lambda: sink_stats(feeding, "orders").circuit != "closed" or left(feeding) == 0, "it is noticed")
        broker.start()
    wait_until(lambda: left(feeding) == 0, "nothing is left here", timeout=60)
    # within the duplicate window each task is stored once, however often it was sent
    assert Counter(message.headers["Nats-Msg-Id"] for message in stored(broker)) == Counter(ids)
    assert_quiet(caplog)


@pytest.mark.parametrize(
    ("to", "text"),
    [
        ("nats://h:4222", "ends with the subject, without blanks and wildcards: nats://HOST:4222#orders.mail"),
        ("nats://h#orders.*", "without blanks and wildcards"),
        ("nats://h:port#orders", "are not HOST:PORT"),
        ("nats+tls://u:sec/ret@h:x#orders", "are not HOST:PORT"),
    ],
)
def test_wrong_urls(to: str, text: str) -> None:
    with pytest.raises(BadInput, match=text) as caught:
        check(Route(to))
    assert "ret" not in str(caught.value)
