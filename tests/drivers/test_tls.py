"""TLS with a client certificate. The wheels' servers are built without TLS; the system's Redis has it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from http.server import ThreadingHTTPServer
from pathlib import Path

import pytest

from cluster.server import Server
from shardq.core.drivers.settings import Settings
from shardq.core.drivers.sync import Driver
from shardq.errors import InvalidUrl, Unavailable
from tests.drivers.calls import command, keys_of, script_call, store
from tests.drivers.carriers import Carriers
from tests.drivers.not_redis import Web, serving
from tests.drivers.refusals import SECRET, told_at_once
from tests.support import certificates


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return certificates.made(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def server(files: Path) -> Iterator[Server]:
    with certificates.serving(files) as server:
        yield server


def url(server: Server, files: Path, *, client: bool = True) -> str:
    shown = f"&cert={files}/client.pem&key={files}/client.key" if client else ""
    return f"rediss://{server.address}?ca={files}/ca.pem{shown}"


def test_calls(carriers: Carriers, server: Server, files: Path, name: str) -> None:
    carrier = carriers.opened(url(server, files))
    assert carrier.call(store(name, "f")) == 1
    text = "x" * 3_000_000
    carrier.call(command(name, "SET", f"{name}:big", text))
    assert carrier.call(command(name, "GET", f"{name}:big")) == text.encode()


def test_many_calls(carriers: Carriers, server: Server, files: Path, name: str) -> None:
    carrier = carriers.opened(url(server, files))
    keys = keys_of(name, 5)
    payload = "x" * 300_000
    calls = [script_call("return {ARGV[1], ARGV[1]}", keys[n % 5], words=(payload,)) for n in range(50)]
    assert [answer for _, answer in carrier.call_all(enumerate(calls))] == [[payload.encode()] * 2] * 50


def test_a_subscription_and_a_dedicated_connection(server: Server, files: Path, name: str) -> None:
    driver = Driver(Settings.from_url(url(server, files)))
    driver.open()
    pubsub = driver.pubsub(server.address)
    pubsub.send("SSUBSCRIBE", name)
    assert pubsub.read(5) == [b"ssubscribe", name.encode(), 1]
    dedicated = driver.dedicated(0)
    many = "for n = 1, 200 do redis.call('SPUBLISH', KEYS[1], string.rep('y', 1000)) end"
    dedicated.call(script_call(many, name))
    assert all(pubsub.read(5) == [b"smessage", name.encode(), b"y" * 1000] for _ in range(200))
    assert pubsub.read(0.01) is None
    pubsub.close()
    dedicated.close()
    driver.close()


def test_an_authority_that_is_not_trusted(carriers: Carriers, server: Server) -> None:
    with pytest.raises(Unavailable, match="certificate is not trusted"):
        carriers.make(f"rediss://{server.address}").open()


def test_a_name_that_is_not_the_servers(carriers: Carriers, server: Server, files: Path) -> None:
    elsewhere = url(server, files).replace("127.0.0.1", "localhost")
    with pytest.raises(Unavailable, match="certificate is not trusted"):
        carriers.make(elsewhere).open()
    carriers.opened(f"{elsewhere}&check_hostname=no")


# ---- what is wrong is told at once


@pytest.mark.parametrize("shown", [False, True])
def test_a_client_that_is_not_accepted(carriers: Carriers, server: Server, files: Path, shown: bool) -> None:
    """It shows no certificate, or one of another authority."""
    pair = f"&cert={files}/other.pem&key={files}/other.key" if shown else ""
    told = told_at_once(carriers, url(server, files, client=False) + pair, Unavailable)
    assert "it does not accept our certificate, or misses one" in told
    assert "with cert= and key= in the URL" in told


@pytest.mark.parametrize("protocol", [2, 3])
@pytest.mark.parametrize("scheme", ["redis", "redis+cluster"])
def test_a_port_for_tls(carriers: Carriers, server: Server, scheme: str, protocol: int) -> None:
    told = told_at_once(carriers, f"{scheme}://:{SECRET}@{server.address}", InvalidUrl, protocol=protocol)
    assert server.address in told
    assert f"its port is for TLS; write {scheme.replace('redis', 'rediss')}:// for {scheme}://" in told


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["rediss", "rediss+cluster"])
def test_a_port_without_tls(carriers: Carriers, single: Server, scheme: str) -> None:
    told = told_at_once(carriers, f"{scheme}://:{SECRET}@{single.address}", InvalidUrl)
    assert single.address in told
    assert f"its port is not for TLS; write {scheme.replace('rediss', 'redis')}:// for {scheme}://" in told


def test_a_web_server(carriers: Carriers) -> None:
    for address in serving(ThreadingHTTPServer(("127.0.0.1", 0), Web)):
        told = told_at_once(carriers, f"rediss://{address}", Unavailable)
        assert "it does not speak TLS" in told


@pytest.fixture(scope="module")
def broken(files: Path) -> Path:
    """Beside the good files: some that can't be used."""
    (files / "text").write_text("no PEM at all\n")
    certificates.openssl(files, "pkey", "-in", "client.key", "-out", "secret.key", "-aes256", "-passout", "pass:x")
    return files


@pytest.mark.parametrize(
    ("query", "told"),
    [
        ("ca=@/none", "ca=@/none in the URL can't be read: No such file"),
        ("ca=@/", "ca=@/ in the URL can't be read: Is a directory"),
        ("ca=@/text", "ca=@/text in the URL holds no certificate"),
        ("cert=@/none&key=@/client.key", "cert=@/none in the URL can't be read"),
        ("cert=@/client.pem&key=@/none", "key=@/none in the URL can't be read"),
        ("cert=@/text&key=@/client.key", "cert=@/text in the URL holds no certificate"),
        ("cert=@/client.pem&key=@/text", "key=@/text in the URL holds no private key"),
        ("cert=@/client.pem", "cert=@/client.pem in the URL, without key=, holds no private key"),
        ("cert=@/client.pem&key=@/server.key", "key=@/server.key in the URL is not the key of the certificate cert="),
        ("cert=@/client.pem&key=@/secret.key", "key=@/secret.key in the URL holds a key with a pass phrase"),
    ],
)
def test_files_that_cannot_be_used(carriers: Carriers, server: Server, broken: Path, query: str, told: str) -> None:
    query, told = (text.replace("@", str(broken)) for text in (query, told))
    assert told in told_at_once(carriers, f"rediss://{server.address}?{query}", InvalidUrl)


def test_files_that_are_renewed(carriers: Carriers, server: Server, files: Path, tmp_path: Path, name: str) -> None:
    for file in ("ca.pem", "client.pem", "client.key"):
        shutil.copy(files / file, tmp_path)
    carrier = carriers.opened(url(server, tmp_path), connect_timeout=60.0)

    def again() -> None:
        """Every connection anew."""
        carrier.close()
        carrier.open()
        carrier.call(store(name, "f"))

    (tmp_path / "client.key").write_text("half of it")  # in the middle of being written
    again()
    (tmp_path / "client.key").unlink()
    again()
    for kind in ("pem", "key"):
        shutil.copy(files / f"other.{kind}", tmp_path / f"client.{kind}")
    with pytest.raises(Unavailable, match="it does not accept our certificate"):
        again()
