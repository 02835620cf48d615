"""Where a process may send, for each kind of sink: the servers that it was told, and no address of the link."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

from shardq import Engine
from shardq.core.layout.topology import Route
from shardq.errors import BadInput, InvalidOption, InvalidUrl
from shardq.features.sinks import AsyncSink, Message, Sent, Sink, egress
from shardq.features.sinks.base import SinkBase
from shardq.features.sinks.egress import WEBHOOK, Egress, is_of_link
from shardq.features.sinks.registry import BUILTIN, GROUP, KOMBU, check, sink_of
from tests.sinks.seen import left, sink_stats
from tests.sinks.test_http import Endpoint
from tests.support.waiting import wait_until

REST = {
    "redis": "/0#mail",
    "rediss": "/0#mail",
    "redis+cluster": "#stream:mail",
    "rediss+cluster": "#mail",
    "redis+sentinel": "/main#mail",
    "rediss+sentinel": "/main#mail",
    "http": "/hooks",
    "https": "/hooks",
    "amqp": "/v#/mail",
    "amqps": "/v#/mail",
    "nats": "#mail",
    "nats+tls": "#mail",
    "rq+redis": "/0",
    "rq+rediss": "/0",
    "rq+redis+sentinel": "/main",
    "rq+rediss+sentinel": "/main",
    "dramatiq+redis": "/0#dramatiq:mail",
    "dramatiq+rediss": "/0#dramatiq:mail",
    "dramatiq+redis+sentinel": "/main#dramatiq:mail",
    "dramatiq+rediss+sentinel": "/main#dramatiq:mail",
    "sidekiq+redis": "/0#mail",
    "sidekiq+rediss": "/0#mail",
    "sidekiq+redis+sentinel": "/main#mail",
    "sidekiq+rediss+sentinel": "/main#mail",
    "kombu+amqp": "/v",
    "kombu+redis": "/0",
    "own": "/place#mail",
}
"""Scheme → what follows the server in a URL of it."""

WITHOUT_HOSTS = {"unix", "rq+unix", "dramatiq+unix", "sidekiq+unix"}

EACH = pytest.mark.parametrize("scheme", REST)


class OwnSink(Sink):
    """A sink of a package, which says nothing of its servers."""

    def __init__(self, url: str) -> None:
        self.url = url

    def send(self, batch: Sequence[Message]) -> Sequence[Any]:
        return [Sent()] * len(batch)


@pytest.fixture(autouse=True)
def _own(monkeypatch: pytest.MonkeyPatch) -> None:
    point = EntryPoint("own", "tests.sinks.test_egress:OwnSink", GROUP)
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: [point] if group == GROUP else [])


def url(scheme: str, server: str, login: str = "") -> str:
    return f"{scheme}://{login}{server}{REST[scheme]}"


def test_the_table_has_each_kind() -> None:
    others = {KOMBU, WEBHOOK}  # tests/webhooks/test_routes.py has the latter
    assert BUILTIN.keys() - others <= REST.keys() | WITHOUT_HOSTS


# ---- secrets


@EACH
def test_a_secret_stands_in_a_login_alone(scheme: str) -> None:
    check(Route(url(scheme, "h:1", "ann:${WORD}@")))
    where = f"{scheme}://ann:word@"
    for wrong in (
        f"{where}${{WORD}}:1{REST[scheme]}",
        f"{where}h${{WORD}}.example.org:1{REST[scheme]}",
        f"{where}h:1/${{WORD}}{REST[scheme]}",
        f"{where}h:1{REST[scheme]}${{WORD}}",
        f"{where}h:1{REST[scheme].replace('#', '?timeout=${WORD}#')}",
        f"{where}h:1{REST[scheme]}?x=://${{WORD}}@h",
        f"{where}h:1{REST[scheme]}#x=://${{WORD}}@h",
        f"${{WORD}}://h:1{REST[scheme]}",
        url(scheme, "h:1", "${WO-RD}@"),
    ):
        if "${" in wrong:
            with pytest.raises(BadInput, match=r"\$\{NAME\} stands for a secret, and is possible only in"):
                check(Route(wrong))


@pytest.mark.parametrize("scheme", sorted(WITHOUT_HOSTS))
def test_a_secret_of_a_socket_stands_in_its_login_alone(scheme: str) -> None:
    rest = {"rq+unix": "", "dramatiq+unix": "#dramatiq:mail"}.get(scheme, "#mail")
    assert check(Route(f"{scheme}://ann:${{WORD}}@/run/redis.sock{rest}")) == ("/run/redis.sock",)
    with pytest.raises(InvalidUrl, match="stands for a secret"):
        check(Route(f"{scheme}:///run/${{WORD}}.sock{rest}"))


def test_headers_and_passwords_among_options() -> None:
    check(Route("https://h/#header.Authorization=Bearer+${A}&sign=${B}&header.X=${C}${D}"))
    check(Route("redis+sentinel://h:1/main?sentinel_user=${A}&sentinel_password=${B}#mail"))
    check(Route("rediss+sentinel://h:1/main?ca=/ca.pem&sentinel_password=${B}#mail"))
    check(Route("kombu+amqp://u:${A}@a;amqp://u:${B}@b"))
    for wrong in (
        "https://h/#header.${A}=x",
        "redis+sentinel://h:1/main&sentinel_user=${A}#mail",
        "redis+sentinel://h:1/main#mail&sentinel_user=${A}",
        "redis+sentinel://h:1/main?timeout=5#mail?sentinel_user=${A}",
        "https://h/#method=${A}",
        "https://h/?a&header.X=${A}",
        "kombu+amqp://a;b${A}",
    ):
        with pytest.raises(InvalidUrl, match="stands for a secret"):
            check(Route(wrong))


def test_only_secrets_are_read_and_each_for_its_hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORD", "of the process")
    monkeypatch.setenv("SHARDQ_SECRET_FREE", "by a variable")
    monkeypatch.setenv("SHARDQ_SECRET_BOTH", "by a variable")
    monkeypatch.setenv("SHARDQ_SECRET_BOUND@api.example.org:8443", "for one port")
    for name, value in {"BOTH": "by a file\n", "BOUND": "for none", "BOUND@*.example.org": "below", "BAD@": ""}.items():
        (tmp_path / name).write_text(value)
    rules = Egress.given(None, tmp_path)

    def filled(name: str, *servers: str) -> str:
        return rules.filled(f"${{{name}}}", "https", servers)

    assert (filled("FREE", "h:1"), filled("BOTH", "h:1")) == ("by%20a%20variable", "by%20a%20file")
    assert filled("BOUND", "api.example.org:8443") == "for%20one%20port"
    assert filled("BOUND", "api.example.org:443") == filled("BOUND", "a.b.example.org:1", "c.example.org:2") == "below"
    for servers in (("example.org:443",), ("evil.org:443",), ("a.example.org:1", "evil.org:1"), ("10.0.0.7:1",), ()):
        with pytest.raises(InvalidUrl, match=r"the secret BOUND is for \*\.example.org and api.example.org:8443"):
            filled("BOUND", *servers)
    for name in ("WORD", "BAD"):
        with pytest.raises(InvalidUrl, match=f"no secret {name}; set SHARDQ_SECRET_{name} in its environment"):
            filled(name, "h:1")


def test_a_secret_is_read_again_when_the_sink_connects_again(tmp_path: Path) -> None:
    (tmp_path / "TOKEN").write_text("first")
    rules, route = Egress.given(None, tmp_path), Route("https://${TOKEN}@h/")
    sink = sink_of(route, rules)
    assert sink_of(route, rules, sink) is sink
    (tmp_path / "TOKEN").write_text("next")
    assert sink_of(route, rules, sink).made_of == "https://next@h/"


# ---- where to


@EACH
def test_a_process_sends_to_its_sinks_alone(scheme: str) -> None:
    rules = Egress.given([f"{scheme}://*.example.org", f"{scheme}://10.0.0.7:99", f"{scheme}://[::1]"], None)
    for allowed in ("a.example.org:1", "a.b.example.org:2", "10.0.0.7:99", "[::1]:5", "A.EXAMPLE.ORG:1"):
        check(Route(url(scheme, allowed)), rules)
    for refused in (
        "example.org:1",
        "a.example.org.evil.org:1",
        "aexample.org:1",
        "10.0.0.7:98",
        "127.0.0.1:99",
        "[::2]:5",
        "evil.org:1",
    ):
        with pytest.raises(InvalidUrl, match=r"this process may not send to .*: none of its sinks= names that"):
            check(Route(url(scheme, refused)), rules)
    for other in (f"x{scheme}://a.example.org", "stream://h"):
        with pytest.raises(InvalidUrl, match="may not send to"):
            check(Route(url(scheme, "a.example.org:1")), Egress.given([other], None))
    with pytest.raises(InvalidUrl, match="may not send to"):
        check(Route(url(scheme, "a.example.org:1")), Egress.given([], None))


def test_each_of_several_servers_counts() -> None:
    for to in (
        "redis+cluster://a.example.org:1,evil.org:1#mail",
        "redis+sentinel://a.example.org:1,evil.org:1/main#mail",
        "nats://a.example.org,evil.org#mail",
        "kombu+amqp://a.example.org;amqp://u:p@evil.org/v",
        "kombu+amqp://a.example.org;evil.org",
        "own://a.example.org,evil.org/x",
        "http://a.example.org@evil.org/",
        "amqp://a.example.org:1@evil.org/#/mail",
    ):
        scheme = to.partition("://")[0]
        with pytest.raises(InvalidUrl, match=r"may not send to .*evil.org"):
            check(Route(to), Egress.given([f"{scheme}://*.example.org"], None))


def test_sockets_and_transports_without_a_server_are_named_by_themselves() -> None:
    rules = Egress.given(["unix:///run/redis.sock", "kombu+sqs://"], None)
    check(Route("unix:///run/redis.sock#mail"), rules)
    check(Route("kombu+memory://"), Egress.given(["kombu+memory://"], None))
    for to in ("unix:///run/other.sock#mail", "kombu+memory://", "redis:///0#mail"):
        with pytest.raises(InvalidUrl, match="may not send to"):
            check(Route(to), rules)


@pytest.mark.parametrize(
    "sinks",
    [
        ["example.org"],
        ["https://h/path"],
        ["https://*"],
        ["https://a*.b"],
        ["https://u@h"],
        ["https://"],
        ["https://h:99999"],
        [1],
    ],
)
def test_a_wrong_pattern(sinks: Any) -> None:
    with pytest.raises(
        InvalidOption, match="which is not a pattern of servers; write SCHEME://HOST or SCHEME://HOST:PORT"
    ):
        Engine("redis://127.0.0.1:1", sinks=sinks)


def test_wrong_options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidOption, match="give a list"):
        Engine("redis://127.0.0.1:1", sinks="https://h")
    with pytest.raises(InvalidOption, match="is not a folder that can be read"):
        Engine("redis://127.0.0.1:1", secrets=tmp_path / "none")
    monkeypatch.setenv("SHARDQ_SINKS", "https://a.example.org redis://h")
    monkeypatch.setenv("SHARDQ_SECRETS", str(tmp_path))
    assert Egress.given(None, None) == Egress.given(["https://a.example.org", "redis://h"], tmp_path)
    with pytest.raises(InvalidUrl, match=r"may not send to https://b.example.org"):
        Engine("redis://127.0.0.1:1").forward("mail", to="https://b.example.org/")


# ---- addresses of the link


@pytest.mark.parametrize(
    "ip",
    [
        "169.254.169.254",
        "169.254.170.2",
        "fe80::1",
        "fe80::1%eth0",
        "::ffff:169.254.169.254",
        "64:ff9b::a9fe:a9fe",
        "2002:a9fe:a9fe::",
        "fd00:ec2::254",
        "100.100.100.200",
    ],
)
def test_addresses_of_the_link(ip: str) -> None:
    assert is_of_link(ip)
    assert not any(map(is_of_link, ("127.0.0.1", "10.0.0.7", "::1", "2001:db8::1", "192.168.1.1")))


class Listener:
    """Counts the connections to an address, and greets each."""

    def __init__(self, host: str, greeting: bytes = b"") -> None:
        self._greeting = greeting
        self._socket = socket.create_server((host, 0))
        self.port = self._socket.getsockname()[1]
        self.connections = 0
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._socket.accept()
                self.connections += 1
                with connection:
                    connection.sendall(self._greeting)
                    connection.settimeout(0.5)
                    with suppress(TimeoutError):
                        connection.recv(1 << 16)

    def close(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


@pytest.fixture
def link(monkeypatch: pytest.MonkeyPatch) -> Iterator[Listener]:
    """A server at 127.0.0.2, which counts as an address of the link."""
    monkeypatch.setattr(egress, "LINK", [ipaddress.ip_network("127.0.0.2/32")])
    listener = Listener("127.0.0.2")
    yield listener
    listener.close()


MESSAGE = Message(id="mail/1", topic="mail", payload=b"{}", codec="json", headers={}, attempt=1)


def tried(sink: SinkBase) -> str:
    """Opens the sink, and sends it a message. Returns why that failed."""
    try:
        if isinstance(sink, AsyncSink):
            return asyncio.run(_tried(sink))
        assert isinstance(sink, Sink)
        sink.check_names(1.0)
        sink.open()
        (result,) = sink.send([MESSAGE])
        return str(result)
    except Exception as exc:  # noqa: BLE001  each client has errors of its own
        return f"{type(exc).__name__}: {exc}"
    finally:
        if isinstance(sink, Sink):
            sink.close()


async def _tried(sink: AsyncSink) -> str:
    await sink.open()
    try:
        return str(await sink.send(MESSAGE))
    finally:
        await sink.close()


LOOK_UP_THEMSELVES = {"kombu+amqp", "kombu+redis", "own"}
ONCE = {"http", "https"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("scheme", "rebound"),
    [*((each, False) for each in REST), *((each, True) for each in sorted(REST.keys() - LOOK_UP_THEMSELVES - ONCE))],
)
def test_no_address_of_the_link_is_connected_to(
    scheme: str, rebound: bool, link: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``rebound``: the name has a harmless address when it is looked up first. kombu and the sinks of packages look
    names up by themselves, so there the first look-up counts.
    HTTP looks up once, and connects to what that gave.
    """
    answers = ["127.0.0.1"] if rebound else []
    resolve = socket.getaddrinfo

    def getaddrinfo(host: Any, *args: Any, **options: Any) -> Any:
        name = host.decode() if isinstance(host, bytes) else host
        if name == "sink.test":
            host = answers.pop() if answers else "127.0.0.2"
        return resolve(host, *args, **options)

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    told = tried(sink_of(Route(url(scheme, f"sink.test:{link.port}")), Egress()))
    assert "link-local" in told
    assert link.connections == 0
    # by its number it is refused, too, unless a pattern has it
    server = f"127.0.0.2:{link.port}"
    assert "link-local" in tried(sink_of(Route(url(scheme, server)), Egress()))
    assert link.connections == 0
    if not rebound and scheme != "own":
        told = tried(sink_of(Route(url(scheme, server)), Egress.given([f"{scheme}://127.0.0.2"], None)))
        assert "link-local" not in told
        assert link.connections > 0, told


# ---- an engine


@pytest.fixture
def endpoint(tmp_path: Path) -> Iterator[Endpoint]:
    endpoint = Endpoint(tmp_path / "requests")
    yield endpoint
    endpoint.end()


def test_an_engine_refuses_what_it_may_not_send_and_quotes_whom_it_may(
    feeding: Engine, endpoint: Endpoint, single: Any, name: str
) -> None:
    named = [f"http://127.0.0.1:{endpoint.port}"]
    feeding.stop()
    with Engine(single.url, name=name, sinks=named) as engine:
        with pytest.raises(InvalidUrl, match=r"this process may not send to https://evil.org"):
            engine.forward("hooks", to="https://evil.org/")
        # another process was not asked
        feeding.forward("hooks", to=f"http://localhost:{endpoint.port}/")
        engine.start()
        engine.push(1, topic="hooks")
        wait_until(lambda: sink_stats(engine, "hooks").error, "it is said")
        said = f"may not send to http://localhost:{endpoint.port}: none of its sinks="
        assert any("hooks" in reason and said in reason for reason in engine.health().reasons)
        assert (endpoint.requests(), left(engine)) == ([], 1)
        engine.forward("hooks", to=f"{named[0]}/")
        refused = engine.push({"status": 400}, topic="hooks")
        wait_until(lambda: (task := engine.get(refused)) is not None and task.state == "dead", "it is refused")
        task = engine.get(refused)
        assert task is not None
        assert task.reason == "HTTP 400 Bad Request: this is why"


def test_a_service_that_speaks_no_http_is_not_quoted(feeding: Engine) -> None:
    listener = Listener("127.0.0.1", b"220 inner.example.org ready\r\n\r\n")
    feeding.forward("hooks", to=f"http://127.0.0.1:{listener.port}/")
    feeding.push(1, topic="hooks")
    wait_until(lambda: "it is not HTTP" in sink_stats(feeding, "hooks").error, "it is said")
    assert "inner" not in sink_stats(feeding, "hooks").error
    listener.close()
