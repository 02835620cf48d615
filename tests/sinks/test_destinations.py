"""What is wrong with a destination is said before anything changes, and no secret is shown anywhere."""

from __future__ import annotations

import logging
import sys
from importlib.metadata import EntryPoint
from typing import Any

import pytest

from cluster.server import Server
from shardq import BadInput, Engine
from shardq.core.layout.destinations import masked
from shardq.core.layout.topology import Route
from shardq.errors import InvalidOption, MissingPackage
from shardq.features.sinks import Message, Sent, Sink, registry
from tests.sinks.seen import sink_stats
from tests.support.waiting import wait_until


@pytest.mark.parametrize(
    ("to", "text"),
    [
        (
            "ftp://h/x",
            "nothing forwards to ftp:// URLs; allowed are .*redis://.*, the name of a list, and stream:",
        ),
        ("no scheme://h", "this URL is not understood; allowed are"),
        ("redis://h:6379/0", r"ends with the key: redis://…#LIST or #stream:NAME"),
        ("redis://h:6379/0#", "ends with the key"),
        ("redis://h:6379/0#stream:", "ends with the key"),
        ("redis://h:x/0#mail", "the address in a redis:// URL is not host:port"),
        ("redis+cluster://h:1/3#mail", "a Redis Cluster has only database 0"),
        ("redis://h/0#shardq:{x}:due", "is a key of shardq's own"),
        ("redis://u:secret@h:x#mail", "the characters / \\? # @ of a user or password percent-encoded"),
        ("amqp://h", r"ends with the exchange and the routing key: amqp://HOST/VHOST#EXCHANGE/KEY"),
        ("amqp://h/vhost#exchange", "ends with the exchange and the routing key"),
        ("amqps://h/#/", "ends with the exchange and the routing key"),
        ("amqp://u:secret@h:port/#/queue", "this amqp:// URL is not understood"),
        ("amqp://h/v/w#/queue", "a / in the name of the vhost is written %2F"),
        ("amqp://h/v?heartbeat=1#/queue", r"an option after the \? that is not known; allowed are: timeout \("),
        ("amqp://h/v?ca=/x#/queue", r"that is not known; allowed are: timeout \("),
        ("amqps://h/v?verify=no#/queue", "that is not known; allowed are: timeout, ca, cert, key, check_hostname"),
        ("amqps://h/v?check_hostname=maybe#/queue", "check_hostname= of a amqps:// URL is not understood"),
        ("amqps://h/v?key=/x#/queue", "key= of a amqps:// URL needs cert= too"),
        ("redis://h/0?timeout=soon#mail", "timeout= of a redis:// URL is not possible; give seconds, from 0.1 to 600"),
        ("redis://h/0?time=3#mail", "that is not known; allowed are: timeout "),
        ("rediss://h?time=3#mail", "allowed are: ca, cert, key, check_hostname, timeout "),
        ("nats://h?timeout=0#orders", "timeout= of a nats:// URL is not possible"),
        ("nats+tls://h?tls=1#orders", "allowed are: timeout, ca, cert, key, check_hostname"),
        ("https://h/p?timeout=x#timeout=1000", "timeout= of a https:// URL is not possible"),
        (f"amqp://h/#/{'q' * 256}", "have 255 bytes each at most"),
        ("python://shop.take", r"nothing forwards to python:// URLs; allowed are amqp://, .*, and stream:NAME"),
    ],
)
def test_a_wrong_destination(to: str, text: str) -> None:
    engine = Engine("redis://127.0.0.1:1")  # nobody is asked
    with pytest.raises(BadInput, match=text) as caught:
        engine.forward("mail", to=to)
    assert "secret" not in str(caught.value)


def test_a_function_is_told_to_be_a_handler_of_batches() -> None:
    engine = Engine("redis://127.0.0.1:1")  # nobody is asked
    text = r"a topic is not forwarded to a function; decorate it with @worker.on\('mail', batch=100\): as a handler of "
    with pytest.raises(InvalidOption, match=text):
        engine.forward("mail", to=print)  # type: ignore[arg-type]
    with pytest.raises(InvalidOption, match=f"topic 'mail': .*{text}"):
        engine.configure(topics={"mail": {"forward": print}})


@pytest.mark.parametrize(
    "to",
    [
        "redis://h/0#mail?timeout=3",
        "amqp://h/v#/mail?timeout=3",
        "nats://h#mail?timeout=3",
        "sidekiq+redis://h/0#mail?timeout=3",
        "dramatiq+redis://h/0#dramatiq:mail?timeout=3",
    ],
)
def test_options_are_no_part_of_a_name(to: str) -> None:
    with pytest.raises(BadInput, match=r"options of a .* URL stand before the #: .*; a \? in the name is written %3F"):
        Engine("redis://127.0.0.1:1").forward("mail", to=to)


@pytest.mark.parametrize("to", ["mail", "redis://h/0#mail", "https://h/"])
def test_only_streams_are_trimmed(to: str) -> None:
    engine = Engine("redis://127.0.0.1:1")  # nobody is asked
    with pytest.raises(InvalidOption, match="maxlen= is for streams of Redis; leave it out"):
        engine.forward("mail", to=to, maxlen=10)
    with pytest.raises(InvalidOption, match="maxlen=0 is not possible; give an int from 1"):
        engine.forward("mail", to="stream:mail", maxlen=0)


@pytest.mark.parametrize(
    ("to", "shown"),
    [
        ("mail", "mail"),
        ("stream:mail", "stream:mail"),
        ("redis://:secret@h:1/0#mail", "redis://:***@h:1/0#mail"),
        ("redis://u:se@cret@h#mail", "redis://u:***@h#mail"),
        ("amqp://u:${PASSWORD}@h/v#e/k", "amqp://u:${PASSWORD}@h/v#e/k"),
        ("amqp://u:secret${PASSWORD}@h/v#e/k", "amqp://u:***@h/v#e/k"),
        ("https://secret@h/p?key=secret", "https://***@h/p?***"),
        ("rediss://h?ca=/x#mail", "rediss://h?***#mail"),
        ("https://h/p?a=secret#timeout=5&header.X-Key=secret", "https://h/p?***#timeout=5&header.X-Key=***"),
        ("https://h/p#sign=secret&header.X-Key=${KEY}", "https://h/p#sign=***&header.X-Key=${KEY}"),
    ],
)
def test_secrets_are_masked(to: str, shown: str) -> None:
    assert masked(to) == Route(to).shown == shown
    assert "secret" not in repr(Route(to))


def test_a_password_is_shown_nowhere(
    feeding: Engine, sink: Server, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink.ask("ACL", "SETUSER", "u", ">hushhush", "~*", "+@all", "on")
    where = sink.url.removeprefix("redis://")
    with caplog.at_level(logging.DEBUG):
        feeding.forward("mail", to=f"redis://u:hushhush@{where}#mail")
        feeding.push(1, topic="mail")
        wait_until(lambda: sink.ask("LLEN", "mail") == 1, "it has arrived")
        sink.ask("ACL", "SETUSER", "u", "resetpass", ">another")
        sink.ask("CLIENT", "KILL", "USER", "u")
        feeding.push(1, topic="mail")
        wait_until(lambda: sink_stats(feeding, "mail").error, "it can't log in")
        shown = f"{feeding.stats()!r} {feeding.health()!r} {feeding.topology!r} {feeding.fleet()!r}"
        assert f"redis://u:***@{where}#mail" in shown
        # by a reference it is not even stored
        monkeypatch.setenv("SHARDQ_SECRET_SINK_PASSWORD", "another")
        feeding.forward("mail", to=f"redis://u:${{SINK_PASSWORD}}@{where}#mail")
        wait_until(lambda: sink.ask("LLEN", "mail") == 2, "it has arrived", timeout=60)
        assert feeding.topology.routes["mail"].to == f"redis://u:${{SINK_PASSWORD}}@{where}#mail"
        feeding.forward("mail", to=f"redis://u:${{NO_SUCH}}@{where}#mail")
        wait_until(
            lambda: "no secret NO_SUCH; set SHARDQ_SECRET_NO_SUCH" in sink_stats(feeding, "mail").error,
            "it is said",
        )
    assert "hushhush" not in shown + caplog.text
    assert "another" not in caplog.text


@pytest.mark.parametrize(("package", "to"), [("nats", "nats://h#orders"), ("amqp", "amqp://h/#/orders")])
def test_a_missing_package_is_named(package: str, to: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.delitem(sys.modules, f"shardq.features.sinks.{to.partition('://')[0]}", raising=False)
    with pytest.raises(MissingPackage, match=r"need .*: pip install 'shardq\["):
        Engine("redis://127.0.0.1:1").forward("mail", to=to)


class MemorySink(Sink):
    """As somebody's package brings it."""

    taken: list[str] = []  # noqa: RUF012  a test's

    def __init__(self, url: str) -> None:
        self.url = url

    def send(self, batch: Any) -> list[Any]:
        assert all(isinstance(message, Message) for message in batch)
        self.taken.extend(f"{message.id} {message.payload!r}" for message in batch)
        return [Sent()] * len(batch)


def test_a_sink_of_an_entry_point(feeding: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    point = EntryPoint("memory", "tests.sinks.test_destinations:MemorySink", registry.GROUP)
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: [point] if group == registry.GROUP else [])
    feeding.forward("mail", to="memory://here")
    id = feeding.push({"n": 1}, topic="mail")
    wait_until(lambda: MemorySink.taken, "it has arrived")
    payload = b'{"n":1}'
    assert MemorySink.taken == [f"{id} {payload!r}"]
