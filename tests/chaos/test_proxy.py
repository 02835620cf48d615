"""The proxy passes all on but for what it is told to hold, delay or cut, and knows who connects."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing

import pytest

from cluster.server import Server
from tests.chaos.proxy import HOST, Proxies


@pytest.fixture
def proxies() -> Iterator[Proxies]:
    with Proxies() as proxies:
        yield proxies


@pytest.fixture
def port(proxies: Proxies, own_server: Server) -> int:
    return proxies.open(own_server.port)


@pytest.fixture
def connect(port: int) -> Iterator[Callable[..., Client]]:
    with ExitStack() as stack:
        yield lambda host=HOST: stack.enter_context(closing(Client(port, host)))


class Client:
    """One connection from an address, with a line of the protocol a command."""

    def __init__(self, port: int, host: str = HOST) -> None:
        self.socket = socket.create_connection((HOST, port), timeout=10.0, source_address=(host, 0))

    @property
    def port(self) -> int:
        return int(self.socket.getsockname()[1])

    def close(self) -> None:
        self.socket.close()

    def send(self, line: str) -> None:
        self.socket.sendall(line.encode() + b"\r\n")

    def answer(self, timeout: float = 10.0) -> bytes:
        """What comes next, up to the end of its last line; what there is, when the connection ends; raises
        ``TimeoutError`` when nothing comes.
        """
        self.socket.settimeout(timeout)
        heard = b""
        while not heard.endswith(b"\r\n"):
            try:
                data = self.socket.recv(1 << 20)
            except ConnectionError:
                return heard
            if not data:
                return heard
            heard += data
        return heard


Connect = Callable[..., Client]


def asked(client: Client, line: str = "PING", timeout: float = 10.0) -> bytes:
    client.send(line)
    return client.answer(timeout)


def test_what_is_held_comes_later_and_others_go_on(proxies: Proxies, port: int, connect: Connect) -> None:
    ours, theirs = connect(), connect("127.0.1.7")
    assert asked(ours) == asked(theirs) == b"+PONG\r\n"
    assert proxies.hold(port, [HOST]) == 1
    with pytest.raises(TimeoutError):
        asked(ours, timeout=0.2)
    assert asked(theirs) == b"+PONG\r\n"
    late = connect()  # it connects, and hears nothing either
    with pytest.raises(TimeoutError):
        asked(late, timeout=0.2)
    proxies.flow(port)
    assert ours.answer() == late.answer() == b"+PONG\r\n"


def test_an_answer_is_cut_in_the_middle(proxies: Proxies, port: int, connect: Connect) -> None:
    client = connect()
    assert asked(client, "SET a 12345678") == b"+OK\r\n"
    proxies.cut(port, after=6)
    assert not proxies.was_cut(port)
    assert asked(client, "GET a") == b"$8\r\n12"
    assert client.answer() == b""
    assert proxies.was_cut(port)
    assert asked(connect(), "GET a") == b"$8\r\n12345678\r\n"


def test_connections_are_cut_all_or_those_of_a_program(proxies: Proxies, port: int, connect: Connect) -> None:
    one, other = connect(), connect()
    assert asked(one) == asked(other) == b"+PONG\r\n"
    assert proxies.cut_peers([one.port]) == 1
    assert one.answer() == b""
    assert asked(other) == b"+PONG\r\n"
    assert proxies.cut(port) == 1
    assert other.answer() == b""


def test_answers_to_programs_are_delayed_in_their_order(proxies: Proxies, port: int, connect: Connect) -> None:
    client, server = connect(), connect("127.0.1.7")
    proxies.delay(port, 0.3)
    began_s = time.monotonic()
    for word in ("a", "b", "c"):
        client.send(f"ECHO {word}")
    heard = b""
    while heard.count(b"$") < 3:
        heard += client.answer()
    assert time.monotonic() - began_s >= 0.3
    assert heard == b"$1\r\na\r\n$1\r\nb\r\n$1\r\nc\r\n"
    assert asked(server) == b"+PONG\r\n"
    proxies.flow(port)
    assert asked(client) == b"+PONG\r\n"


def test_a_server_that_is_away_ends_a_connection(connect: Connect, own_server: Server) -> None:
    own_server.kill()
    assert asked(connect()) == b""
    own_server.start()
    assert asked(connect()) == b"+PONG\r\n"
