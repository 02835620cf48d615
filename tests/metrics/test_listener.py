"""The rules of connections: who goes first, how long a client has, and whom nothing ends. On the listener itself, and
on a dashboard, whose connections serve several requests.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from shardq.http import listener
from shardq.http.listener import Listener, listening
from shardq.http.server import served
from tests.support.slow_clients import ended, place_of
from tests.support.waiting import wait_until


class Door:
    """A listener whose clients the test serves itself."""

    def __init__(self, most: int) -> None:
        bound = listening("127.0.0.1", 0, advice="")
        self.place = bound.getsockname()
        self.inside: dict[int, socket.socket] = {}
        """Port of the client → the socket that serves it."""
        self.listener = Listener(bound, self._serve, most=most, name="shardq-test")
        self.listener.start()

    def _serve(self, client: socket.socket) -> None:
        self.inside[client.getpeername()[1]] = client

    def enter(self, stack: ExitStack, address: str) -> socket.socket:
        client = socket.create_connection(self.place, timeout=60, source_address=(address, 0))
        return stack.enter_context(client)

    def of(self, client: socket.socket) -> socket.socket:
        port = client.getsockname()[1]
        wait_until(lambda: port in self.inside, "it is let in")
        return self.inside[port]

    def leave(self, port: int) -> None:
        self.listener.left(self.inside[port])
        self.inside[port].close()


@contextmanager
def door(most: int) -> Iterator[tuple[Door, ExitStack]]:
    made = Door(most)
    with ExitStack() as stack:
        yield made, stack
        made.listener.close()
        for each in list(made.inside):
            made.leave(each)


def gone(client: socket.socket) -> bool:
    return ended(client, b"")


def test_an_address_makes_room_for_itself() -> None:
    with door(8) as (made, stack):
        first = made.enter(stack, "127.0.0.1")
        made.of(first)
        crowd = [made.enter(stack, "127.0.0.2") for _ in range(6)]
        wait_until(lambda: [gone(each) for each in crowd] == [True] * 2 + [False] * 4, "its oldest two have gone")
        assert not gone(first), "it is older than they are, but of another address"


def test_the_one_that_is_awaited_for_longest_goes_first_and_never_one_that_is_answered() -> None:
    with door(4) as (made, stack):
        clients = [made.enter(stack, f"127.0.0.{n}") for n in range(2, 6)]
        for each in clients:
            made.of(each)
        made.listener.answered(made.of(clients[0]))
        late = made.enter(stack, "127.0.0.9")
        wait_until(lambda: gone(clients[1]), "the oldest that is awaited has gone")
        assert late.getsockname()[1] not in made.inside, "it is let in when that one has left"
        made.leave(clients[1].getsockname()[1])
        made.of(late)
        assert [gone(each) for each in (clients[0], *clients[2:], late)] == [False] * 4


def test_who_is_answered_has_all_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "REQUEST_S", 0.3)
    with door(8) as (made, stack):
        answered, awaited = made.enter(stack, "127.0.0.1"), made.enter(stack, "127.0.0.1")
        made.listener.answered(made.of(answered))
        wait_until(lambda: gone(awaited), "its time is over")
        assert not gone(answered)
        made.listener.awaited(made.of(answered))
        wait_until(lambda: gone(answered), "it did not take its answer")


def test_time_goes_on_for_those_who_are_connected_when_it_closes(monkeypatch: pytest.MonkeyPatch) -> None:
    with door(8) as (made, stack):
        answered, awaited = made.enter(stack, "127.0.0.1"), made.enter(stack, "127.0.0.1")
        made.listener.answered(made.of(answered))
        made.of(awaited)
        made.listener.close()
        with pytest.raises(ConnectionRefusedError):
            made.enter(stack, "127.0.0.1")
        assert not gone(awaited)
        monkeypatch.setattr(listener, "REQUEST_S", 0.0)
        wait_until(lambda: gone(awaited), "its time is over")
        assert not gone(answered)


# ---- a dashboard


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, int]]:
    async def echo(request: Request) -> Response:
        return PlainTextResponse(f"{request.method} {len(await request.body())}")

    async def long(request: Request) -> Response:
        await asyncio.sleep(1.5)
        return PlainTextResponse("a" * 100_000)

    async def much(request: Request) -> Response:
        return PlainTextResponse("a" * 10_000_000)

    routes = [Route("/echo", echo, methods=["GET", "POST"]), Route("/long", long), Route("/much", much)]
    monkeypatch.setattr(listener, "REQUEST_S", 0.5)
    with served(Starlette(routes=routes), "127.0.0.1", 0) as url:
        yield place_of(url)


HEAD = b"%b HTTP/1.1\r\nHost: 127.0.0.1\r\n"
GET = HEAD % b"GET /echo" + b"\r\n"


@pytest.mark.parametrize(
    "begun",
    [
        b"GET /echo HT",
        HEAD % b"GET /echo",
        HEAD % b"POST /echo" + b"Content-Length: 100\r\n\r\nx",
        HEAD % b"POST /echo" + b"Transfer-Encoding: chunked\r\n\r\nff\r\nab",
        GET,
        GET + b"GET /ec",
    ],
    ids=["a line", "a head", "a body", "a chunk", "another request", "half of another"],
)
def test_a_request_that_does_not_come_to_its_end(place: tuple[str, int], begun: bytes) -> None:
    """Though the client sends a byte now and then."""
    answer = b""
    with socket.create_connection(place, timeout=0.05) as client:
        client.sendall(begun)
        began = time.monotonic()
        with suppress(ConnectionError):
            while time.monotonic() - began < 30:
                with suppress(TimeoutError):
                    if not (more := client.recv(4096)):
                        break
                    answer += more
                client.send(b"x")
    assert time.monotonic() - began < 15, "it was held"
    assert answer.count(b"HTTP/1.1 200") == begun.count(GET)


def test_a_page_that_takes_long_is_waited_for(place: tuple[str, int]) -> None:
    with socket.create_connection(place, timeout=60) as client:
        client.sendall(HEAD % b"GET /long" + b"Connection: close\r\n\r\n")
        answer = b""
        while more := client.recv(65536):
            answer += more
    assert answer.endswith(b"a" * 100_000)


def test_who_takes_no_answer_is_ended(place: tuple[str, int]) -> None:
    with socket.create_connection(place, timeout=60) as client:
        client.sendall(HEAD % b"GET /much" + b"\r\n")
        client.recv(100)

        def sent() -> bool:
            try:
                return not client.send(b"x")
            except OSError:
                return True

        wait_until(sent, "the server has ended it")


def test_requests_of_one_connection(place: tuple[str, int]) -> None:
    """HEAD, several at once, a body in chunks, one after its head is confirmed, and a wish for another protocol."""
    requests = (
        HEAD % b"HEAD /echo" + b"\r\n",
        GET * 3,
        HEAD % b"POST /echo" + b"Transfer-Encoding: chunked\r\n\r\n5\r\nabcde\r\n3\r\nfgh\r\n0\r\n\r\n",
        HEAD % b"POST /echo" + b"Expect: 100-continue\r\nContent-Length: 4\r\n\r\n",
        b"abcd" + HEAD % b"GET /echo" + b"Connection: Upgrade, close\r\nUpgrade: websocket\r\n\r\n",
    )
    with socket.create_connection(place, timeout=60) as client:
        for each in requests:
            client.sendall(each)
            time.sleep(0.1)
        answer = b""
        while more := client.recv(65536):
            answer += more
    bodies = [each.partition(b"\r\n\r\n")[2] for each in answer.split(b"HTTP/1.1 ")[1:]]
    assert bodies == [b"", b"GET 0", b"GET 0", b"GET 0", b"POST 8", b"", b"POST 4", b"GET 0"]
