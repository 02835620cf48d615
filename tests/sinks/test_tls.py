"""Sinks behind TLS that ask for a client's certificate: the options of an engine's URL name the files."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nats
import pytest

from cluster.nats import NatsServer
from cluster.ports import free_port
from cluster.server import Server
from shardq import Engine
from tests.sinks.seen import left, sink_stats
from tests.support import certificates
from tests.support.waiting import wait_until
from tests.support.workers import Worker


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return certificates.made(tmp_path_factory.mktemp("tls"))


def check_tls(engine: Engine, files: Path, url: Callable[[str], str]) -> None:
    """A server that is not trusted, a file that is not there, a client that is not accepted; then all is well."""
    engine.push(1, topic="mail", max_attempts=1)
    pair = f"cert={files}/client.pem&key={files}/client.key"
    for options, told in (
        (pair, "certificate"),
        (f"ca={files}/none&{pair}", f"ca={files}/none in the URL can't be read: No such file"),
        (f"ca={files}/ca.pem&cert={files}/other.pem&key={files}/other.key", ""),
    ):
        engine.forward("mail", to=url(f"{options}&timeout=5"))

        def is_told(told: str = told) -> bool:
            error = sink_stats(engine, "mail").error
            return bool(error) and told in error

        wait_until(is_told, f"it says {told!r}")
    engine.forward("mail", to=url(f"ca={files}/ca.pem&{pair}&timeout=20"))
    wait_until(lambda: sink_stats(engine, "mail").sent == 1, "it has arrived")
    wait_until(lambda: left(engine) == 0, "nothing is left here")


def test_rediss(feeding: Engine, files: Path) -> None:
    with Server(certificates.binary(), tls=certificates.of_server(files)) as sink:
        check_tls(feeding, files, lambda options: f"rediss://{sink.address}?{options}#mail")
        assert sink.ask("LRANGE", "mail", 0, -1) == ["1"]


def test_https(feeding: Engine, files: Path, tmp_path: Path) -> None:
    port, file = free_port(), tmp_path / "requests"
    with Worker("tests.sinks.endpoint", port, file, files) as endpoint:
        assert endpoint.said() == "up"
        check_tls(feeding, files, lambda options: f"https://127.0.0.1:{port}/in?a=b#{options}")
        assert '["/in?a=b", 204, 1,' in file.read_text()


@pytest.mark.slow
def test_nats_tls(feeding: Engine, files: Path) -> None:
    context = ssl.create_default_context(cafile=files / "ca.pem")
    context.load_cert_chain(files / "client.pem", files / "client.key")
    with NatsServer(certificates.of_server(files)) as sink:

        async def on(work: Callable[[Any], Any]) -> Any:
            client = await nats.connect(f"tls://{sink.address}", tls=context)
            try:
                return await work(client.jetstream(timeout=20))
            finally:
                await client.close()

        asyncio.run(on(lambda js: js.add_stream(name="orders", subjects=["orders.>"])))
        check_tls(feeding, files, lambda options: f"nats+tls://{sink.address}?{options}#orders.new")
        assert asyncio.run(on(lambda js: js.stream_info("orders"))).state.messages == 1
