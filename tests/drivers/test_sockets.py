"""Connecting: names with several addresses or none, one deadline for all of them, and the socket options."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from cluster.server import Server
from shardq.core.drivers import sockets
from shardq.core.drivers.settings import Settings
from shardq.core.drivers.sockets import open_socket
from shardq.errors import Unavailable
from tests.drivers.calls import store
from tests.drivers.carriers import Carriers
from tests.support.stalls import Stopwatch

Names = dict[str, Callable[[int], list[Any]]]


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> Names:
    """Names that the system does not know, each with what a look-up for a port finds."""
    made: Names = {}
    asked = socket.getaddrinfo

    def getaddrinfo(host: str, port: int, **options: Any) -> list[Any]:
        if host in made and not options.get("flags"):
            return made[host](port)
        return asked(host, port, **options)

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    return made


def inet(host: str, port: int) -> tuple[Any, ...]:
    return socket.AF_INET, socket.SOCK_STREAM, 6, "", (host, port)


@pytest.fixture
def hanging(own_server: Server) -> Iterator[str]:
    """An address with the port of the server, where connections are neither taken nor refused."""
    with socket.socket() as listener, socket.socket() as first, socket.socket() as second:
        listener.bind(("127.0.0.9", own_server.port))
        listener.listen(0)
        for client in (first, second):  # as many as wait in the queue of the listener
            client.setblocking(False)
            client.connect_ex(listener.getsockname())
        yield "127.0.0.9"


def test_an_address_that_refuses_is_passed_over(
    carriers: Carriers, own_server: Server, names: Names, name: str
) -> None:
    names["both.test"] = lambda port: [inet("127.0.0.8", port), inet("127.0.0.1", port)]
    carrier = carriers.opened(f"redis://both.test:{own_server.port}")
    assert carrier.call(store(name, "f")) == 1


def test_an_address_that_hangs_leaves_time_for_the_others(
    carriers: Carriers, own_server: Server, hanging: str, names: Names, name: str
) -> None:
    names["both.test"] = lambda port: [inet(hanging, port), inet("127.0.0.1", port)]
    carrier = carriers.opened(f"redis://both.test:{own_server.port}", connect_timeout=8.0)
    assert carrier.call(store(name, "f")) == 1


def test_the_last_address_is_not_the_end_of_time(
    carriers: Carriers, own_server: Server, hanging: str, names: Names
) -> None:
    names["both.test"] = lambda port: [inet(hanging, port)] * 3
    carrier = carriers.make(f"redis://both.test:{own_server.port}", connect_timeout=0.2)
    with pytest.raises(Unavailable, match="nobody took the connection in time"):
        carrier.open()


def test_a_name_that_is_unknown(carriers: Carriers, names: Names) -> None:
    def none(_: int) -> list[Any]:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    names["none.test"] = none
    carrier = carriers.make("redis://:pw9@none.test", connect_timeout=0.2)
    with pytest.raises(Unavailable, match=r"the host none\.test was not found: Name or service not known"):
        carrier.open()


def test_name_servers_that_are_silent(carriers: Carriers, own_server: Server, names: Names, name: str) -> None:
    answered = threading.Event()
    asked: list[int] = []

    def late(port: int) -> list[Any]:
        asked.append(port)
        answered.wait()
        return [inet("127.0.0.1", port)]

    names["late.test"] = late
    carrier = carriers.make(f"redis://late.test:{own_server.port}", connect_timeout=0.2)
    try:
        with Stopwatch() as watch, pytest.raises(Unavailable, match="name servers did not answer in time"):
            carrier.open()
        assert watch.took < 30
        with pytest.raises(Unavailable):
            carrier.open()
        assert asked == [own_server.port]  # one look-up, however many wait
    finally:
        answered.set()
    carrier = carriers.opened(f"redis://late.test:{own_server.port}", connect_timeout=60.0)
    assert carrier.call(store(name, "f")) == 1


def test_a_server_that_hangs_is_left_in_time(own_server: Server) -> None:
    own_server.pause()
    for scheme in ("redis", "rediss"):
        settings = Settings.from_url(f"{scheme}://{own_server.address}")
        begun = time.monotonic()
        sock = open_socket(settings, own_server.address, deadline=begun + 0.1)
        if isinstance(sock, socket.socket):
            sock.close()  # without TLS the kernel takes the connection for the server
        assert time.monotonic() - begun < 30


def test_what_needs_no_look_up() -> None:
    assert sockets.known("/run/redis.sock") == [(socket.AF_UNIX, "/run/redis.sock")]
    assert sockets.known("127.0.0.1:7") == [(socket.AF_INET, ("127.0.0.1", 7))]
    assert sockets.known("::1:7") == [(socket.AF_INET6, ("::1", 7, 0, 0))]
    assert sockets.known("localhost:7") is None
    assert sockets.known(f"{'x' * 70}.test:7") is None


def test_small_packets_leave_at_once_and_a_peer_that_is_gone_is_noticed(single: Server) -> None:
    sock = open_socket(Settings.from_url(single.url), single.address, deadline=time.monotonic() + 60)
    assert isinstance(sock, socket.socket)
    with sock:
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 30


def test_redis_py_is_not_imported(single: Server, name: str) -> None:
    """Its version is the service's own affair."""
    script = (
        "import sys, asyncio, shardq\n"
        f"with shardq.Engine({single.url!r}, name={name!r}, shards=1) as engine: engine.push('x', delay=60)\n"
        "async def main():\n"
        f"    async with shardq.AsyncEngine({single.url!r}, name={name!r}, shards=1) as engine:\n"
        "        await engine.push('x', delay=60)\n"
        "asyncio.run(main())\n"
        "assert 'redis' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=100)
