"""TLS with a client certificate. The wheels' servers are built without TLS; the system's Redis has it."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.server import Server, ServerFailed, Tls
from shardq.drivers.settings import Settings
from shardq.drivers.sync import Driver
from shardq.errors import Unavailable
from tests.drivers.calls import command, keys_of, script_call, store
from tests.drivers.carriers import Carriers


def openssl(folder: Path, *words: str) -> None:
    subprocess.run(["openssl", *words], cwd=folder, check=True, capture_output=True)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """ca.pem, and a pair each of server.* and client.* that it signed."""
    if shutil.which("openssl") is None:
        pytest.skip("no openssl on the PATH to make certificates with")
    folder = tmp_path_factory.mktemp("tls")
    curve = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    openssl(folder, "req", "-x509", *curve, "-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=test ca")
    (folder / "names").write_text("subjectAltName=IP:127.0.0.1\n")
    for who in ("server", "client"):
        openssl(folder, "req", *curve, "-keyout", f"{who}.key", "-out", f"{who}.csr", "-subj", f"/CN={who}")
        signed = ("-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-extfile", "names")
        openssl(folder, "x509", "-req", "-in", f"{who}.csr", *signed, "-out", f"{who}.pem")
    return folder


@pytest.fixture(scope="module")
def server(files: Path) -> Iterator[Server]:
    binary = shutil.which("redis-server")
    if binary is None:
        pytest.skip("no redis-server on the PATH; it is the one that is built with TLS")
    tls = Tls(files / "ca.pem", files / "server.pem", files / "server.key")
    try:
        with Server(Path(binary), tls=tls) as server:
            yield server
    except ServerFailed as exc:
        pytest.skip(f"{binary} does not start with TLS: {exc}")


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
    assert [answer for _, answer in carrier.call_all(calls)] == [[payload.encode()] * 2] * 50


def test_an_ear_and_a_line(server: Server, files: Path, name: str) -> None:
    driver = Driver(Settings.from_url(url(server, files)))
    driver.open()
    ear = driver.ear(server.address)
    ear.send("SSUBSCRIBE", name)
    assert ear.read(5) == [b"ssubscribe", name.encode(), 1]
    line = driver.line(0)
    many = "for n = 1, 200 do redis.call('SPUBLISH', KEYS[1], string.rep('y', 1000)) end"
    line.call(script_call(many, name))
    assert all(ear.read(5) == [b"smessage", name.encode(), b"y" * 1000] for _ in range(200))
    assert ear.read(0.01) is None
    ear.close()
    line.close()
    driver.close()


def test_an_authority_that_is_not_trusted(carriers: Carriers, server: Server) -> None:
    with pytest.raises(Unavailable, match="certificate is not trusted"):
        carriers.make(f"rediss://{server.address}").open()


def test_a_name_that_is_not_the_servers(carriers: Carriers, server: Server, files: Path) -> None:
    elsewhere = url(server, files).replace("127.0.0.1", "localhost")
    with pytest.raises(Unavailable, match="certificate is not trusted"):
        carriers.make(elsewhere).open()
    carriers.opened(f"{elsewhere}&check_hostname=no")


def test_no_client_certificate(carriers: Carriers, server: Server, files: Path) -> None:
    with pytest.raises(Unavailable, match="could not connect"):
        carriers.make(url(server, files, client=False), connect_timeout=0.3).open()
