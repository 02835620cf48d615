"""Where a hook may go: a URL of a customer is that of a stranger, who may mean the machines beside this one."""

from __future__ import annotations

import socket
import ssl
from pathlib import Path
from typing import Any

import pytest

from shardq import Bury, Retry
from shardq.core.drivers import sockets
from shardq.errors import InvalidOption, InvalidUrl
from shardq.features.sinks.egress import Egress
from shardq.features.webhooks.destination import check_public, destination
from tests.sinks.nasty import READ, NastyServer
from tests.support import certificates
from tests.webhooks.posting import LOOPBACK, OK, answering, delivery, hooks, outcome

PRIVATE = [
    "0.0.0.0",
    "10.0.0.7",
    "100.64.0.1",
    "127.0.0.1",
    "127.255.255.254",
    "168.63.129.16",
    "169.254.169.254",
    "172.16.0.1",
    "192.0.0.192",
    "192.0.2.1",
    "192.168.1.1",
    "198.18.0.1",
    "224.0.0.1",
    "239.1.1.1",
    "240.0.0.1",
    "255.255.255.255",
    "::",
    "::1",
    "::7f00:1",
    "::ffff:127.0.0.1",
    "::ffff:10.0.0.7",
    "::ffff:169.254.169.254",
    "64:ff9b::7f00:1",
    "64:ff9b::a00:7",
    "64:ff9b:1::7f00:1",
    "2002:7f00:1::",
    "2002:a00:7::1",
    "2001::1",
    "2001:db8::1",
    "3fff::1",
    "fc00::1",
    "fd00:ec2::254",
    "fe80::1",
    "fe80::1%eth0",
    "fec0::1",
    "ff02::1",
    "100::1",
]
PUBLIC = ["93.184.215.14", "8.8.8.8", "2606:4700::1111", "::ffff:8.8.8.8", "64:ff9b::808:808", "2002:808:808::1"]


@pytest.mark.parametrize("ip", PRIVATE)
def test_private_addresses(ip: str) -> None:
    with pytest.raises(InvalidUrl, match="not public"):
        check_public(ip)


@pytest.mark.parametrize("ip", PUBLIC)
def test_public_addresses(ip: str) -> None:
    check_public(ip)


FORMS = [
    "127.0.0.1",
    "127.1",
    "2130706433",
    "0x7f000001",
    "0x7f.1",
    "0177.0.0.1",
    "017700000001",
    "0.0.0.0",
    "0",
    "localhost",
    "LOCALHOST",
    "[::1]",
    "[::ffff:127.0.0.1]",
    "[::ffff:7f00:1]",
    "[0:0:0:0:0:ffff:7f00:1]",
    "user:pass@127.0.0.1",
    "93.184.215.14@127.0.0.1",
]


@pytest.mark.parametrize("sinks", [None, ["webhook://*"], ["webhook://10.0.0.7", "webhook://*"]])
@pytest.mark.parametrize("host", FORMS)
def test_no_way_of_writing_leads_to_this_machine(host: str, sinks: list[str] | None) -> None:
    with NastyServer([READ, OK]) as server:
        raised = outcome(hooks(sinks=sinks), delivery(), f"http://{host}:{server.port}/")
        assert isinstance(raised, Bury), raised
        assert "it leads to an address that is not public; to try hooks on a machine of your own" in raised.reason
        assert "sinks=['webhook://" in raised.reason
        assert "pass" not in raised.reason
        assert server.connections == 0


@pytest.mark.parametrize("host", ["2130706433", "127.1", "localhost", "[::ffff:127.0.0.1]"])
def test_a_private_host_is_named_as_the_url_has_it(host: str) -> None:
    with NastyServer([READ, OK]) as server:
        raised = outcome(hooks(), delivery(), f"http://{host}:{server.port}/")
        assert isinstance(raised, Bury)
        assert "none of the engine's sinks= names that" in raised.reason
        assert server.connections == 0
        assert outcome(hooks(), delivery(), f"http://127.0.0.1:{server.port}/") is None
        own = hooks(sinks=[LOOPBACK, f"webhook://localhost:{server.port}"])
        assert outcome(own, delivery(), f"http://localhost:{server.port}/") is None


def test_a_name_that_has_one_private_address_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if the public one comes first, and when it changes between two look-ups."""
    looked_up: list[Any] = []

    def answers(host: str, port: int, *rest: Any, **how: Any) -> list[Any]:
        if how.get("flags"):
            raise socket.gaierror(socket.EAI_NONAME, "not a number")
        looked_up.append(host)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (ip, port)) for ip in ("93.184.215.14", "127.0.0.1")]

    with NastyServer([READ, OK]) as server:
        monkeypatch.setattr(socket, "getaddrinfo", answers)
        raised = outcome(hooks(sinks=None), delivery(), f"http://rebound.example:{server.port}/")
        assert server.connections == 0
    assert isinstance(raised, Bury)
    assert "not public" in raised.reason
    assert looked_up == ["rebound.example"], "what was checked is what is connected to"


def test_a_link_local_address_needs_its_own_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def answers(host: str, port: int, *rest: Any, **how: Any) -> list[Any]:
        if how.get("flags"):
            raise socket.gaierror(socket.EAI_NONAME, "not a number")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("169.254.169.254", port))]

    monkeypatch.setattr(socket, "getaddrinfo", answers)
    raised = outcome(hooks(sinks=["webhook://meta.example"]), delivery(), "http://meta.example/")
    assert isinstance(raised, Bury)
    assert "link-local" in raised.reason


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("", "not understood"),
        ("customer.example", "not understood"),
        ("//customer.example/", "not understood"),
        ("ftp://customer.example/", "not understood"),
        ("file:///etc/passwd", "not understood"),
        ("unix:///run/docker.sock", "not understood"),
        ("https://", "not understood"),
        ("https:///in", "not understood"),
        ("https://h:port/", "not understood"),
        ("https://h:0/", "not understood"),
        ("https://h:70000/", "not understood"),
        ("https://h/a b", "not understood"),
        ("https://h/\r\nX:y", "not understood"),
        ("https://h/\tx", "not understood"),
        (" https://h/", "not understood"),
        ("https://h\\@127.0.0.1/", "not understood"),
        ("https://①②⑦.⓪.⓪.①/", "not understood"),
        ("https://h%2eexample/", "not understood"),
        ("https://[::1/", "not understood"),
        ("https://[fe80::1%25eth0]/", "not understood"),
        ("https://[v1.x]/", "not understood"),
        ("https://h/" + "x" * 2000, "2000 characters at most"),
        (7, "not understood"),
        (None, "not understood"),
        ("http://h/", "begins with https://; for http:// make Webhooks(engine, http=True)"),
        ("https://%0d%0aX@h/", "control characters"),
        ("https://%C3%A9@h/", "not ASCII"),
    ],
)
def test_urls_that_can_never_be_right(url: Any, text: str) -> None:
    raised = outcome(hooks(sinks=None, http=False), delivery(), url)
    assert isinstance(raised, Bury)
    assert text in raised.reason


@pytest.mark.parametrize(
    ("sinks", "host", "is_allowed"),
    [
        (["webhook://*"], "a.example", True),
        (["webhook://*.example"], "a.example", True),
        (["webhook://*.example"], "example", False),
        (["webhook://*.example"], "a.example.org", False),
        (["webhook://a.example"], "A.example", True),
        (["webhook://a.example:443"], "a.example", True),
        (["webhook://a.example:8443"], "a.example", False),
        (["https://*.example", "webhook://b.example"], "a.example", False),
    ],
)
def test_the_sinks_of_the_engine(sinks: list[str], host: str, is_allowed: bool) -> None:
    egress = Egress.given(sinks, None)
    if is_allowed:
        found = destination(f"https://{host}/in?x=1", egress, http=False)
        assert found.server == ("https", host.lower(), 443)
        assert found.target == "/in?x=1"
        assert found.is_named == ("*" not in sinks[0])
    else:
        with pytest.raises(InvalidUrl, match=rf"this process may not send to webhook://{host}: .* webhook://\*"):
            destination(f"https://{host}/", egress, http=False)


def test_sinks_without_webhooks_are_told_at_once() -> None:
    with pytest.raises(InvalidOption, match=r"allows no webhooks; add webhook://\* for all public hosts"):
        hooks(sinks=["https://*.example"])


@pytest.mark.parametrize("pattern", ["https://*", "redis://*", "webhook://", "webhook://*:443", "webhook://*/in"])
def test_only_webhooks_may_go_anywhere(pattern: str) -> None:
    with pytest.raises(InvalidOption, match="not a pattern of servers"):
        Egress.given([pattern], None)


def test_a_redirect_is_not_followed() -> None:
    with NastyServer([READ, OK]) as inner:
        there = f"Location: http://127.0.0.1:{inner.port}/"
        for status in ("301 Moved", "302 Found", "307 Temporary Redirect", "308 Permanent Redirect"):
            with NastyServer(answering(status, there)) as server:
                raised = outcome(hooks(), delivery(), f"http://127.0.0.1:{server.port}/")
            assert isinstance(raised, Retry)
            assert raised.reason == f"HTTP {status}; give the URL to which this one redirects"
        assert inner.connections == 0


def test_the_certificate_is_verified_for_the_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = certificates.made(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files / "server.pem", files / "server.key")  # it is for 127.0.0.1
    monkeypatch.setattr(sockets, "_made", {})
    with NastyServer([READ, OK], tls=context) as server:
        webhooks = hooks(sinks=[LOOPBACK, "webhook://localhost"], http=False)
        unknown = outcome(webhooks, delivery(), f"https://127.0.0.1:{server.port}/")
        assert isinstance(unknown, Retry)
        assert "certificate" in unknown.reason
        monkeypatch.setattr(sockets, "_made", {})
        monkeypatch.setenv("SSL_CERT_FILE", str(files / "ca.pem"))
        assert outcome(webhooks, delivery(), f"https://127.0.0.1:{server.port}/") is None
        other = outcome(webhooks, delivery(), f"https://localhost:{server.port}/")
        assert isinstance(other, Retry)
        assert "localhost" in other.reason
        assert len(server.requests) == 1
