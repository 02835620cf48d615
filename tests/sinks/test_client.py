"""The client of HTTP, beside servers that do what no server should."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import socket
import ssl
import threading
from collections import defaultdict
from collections.abc import AsyncIterator, Coroutine, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardq.errors import InvalidUrl
from shardq.features.sinks import client as module
from shardq.features.sinks.answer import Answer, AnswerReader, NotHttp
from shardq.features.sinks.client import Client, Server, Unreached
from shardq.features.sinks.connection import NoAnswer
from tests.sinks.nasty import CLOSE, DRIP, FLOOD, HANG, READ, RESET, Connection, NastyServer, Step, slowly
from tests.support import certificates

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"
HELLO = (200, b"hello")
SHORT_S = 0.3


def anywhere(_: str) -> None:
    pass


def no_tls() -> ssl.SSLContext:
    raise AssertionError("it is not https")


@contextlib.asynccontextmanager
async def opened(*, most: int = 8, most_of_host: int = 8, **how: Any) -> AsyncIterator[Client]:
    client = Client(most=most, most_of_host=most_of_host, **{"check_ip": anywhere, "context": no_tls} | how)
    try:
        yield client
    finally:
        await client.close()


def post(
    client: Client, server: NastyServer, body: bytes = b"{}", *, timeout_s: float = 10.0
) -> Coroutine[Any, Any, Answer]:
    return client.request(
        Server("http", "127.0.0.1", server.port), "POST", "/in", {"X": "y"}, body, timeout_s=timeout_s
    )


async def until(predicate: Any, sentence: str) -> None:
    """Waits in the loop, which goes on meanwhile."""
    try:
        async with asyncio.timeout(10):
            while not predicate():  # noqa: ASYNC110  another thread changes it
                await asyncio.sleep(0.005)
    except TimeoutError:
        raise AssertionError(f"10 s were not enough until {sentence}") from None


# ---- answers


def chunked(*lines: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"\r\n".join(lines)


def long(count: int) -> bytes:
    return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % count + b"z" * count


ANSWERS: dict[str, tuple[Sequence[Step], tuple[int, bytes], int]] = {
    "a body of a known length": ([READ, OK], HELLO, 1),
    "byte by byte": ([READ, slowly(OK)], HELLO, 1),
    "no body": ([READ, b"HTTP/1.1 204 No Content\r\n\r\n"], (204, b""), 1),
    "no body, with the length of another": ([READ, b"HTTP/1.1 304 X\r\nContent-Length: 5\r\n\r\n"], (304, b""), 1),
    "an empty body": ([READ, b"HTTP/1.1 500 X\r\nContent-Length: 0\r\n\r\n"], (500, b""), 1),
    "no phrase": ([READ, b"HTTP/1.1 204\r\n\r\n"], (204, b""), 1),
    "the same length twice": ([READ, OK.replace(b"\r\n\r\n", b"\r\ncontent-length:5\r\n\r\n")], HELLO, 1),
    "lines that end by LF": ([READ, OK.replace(b"\r\n", b"\n")], HELLO, 1),
    "headers in any case": ([READ, OK.replace(b"Content-Length: ", b"CONTENT-length :")], HELLO, 1),
    "chunks and trailers": (
        [READ, chunked(b"2;a=b", b"he", b"03", b"llo", b"0", b"X: y", b"Content-Length: 7", b"", b"")],
        HELLO,
        1,
    ),
    "chunks byte by byte": ([READ, slowly(chunked(b"2", b"he", b"3", b"llo", b"0", b"", b""))], HELLO, 1),
    "chunks and a length": (
        [READ, chunked(b"5", b"hello", b"0", b"", b"").replace(b"Tr", b"Content-Length: 3\r\nTr")],
        HELLO,
        2,
    ),
    "up to the end of the connection": ([READ, b"HTTP/1.1 200 OK\r\n\r\nhello", CLOSE], HELLO, 2),
    "HTTP/1.0": ([READ, OK.replace(b"1.1", b"1.0")], HELLO, 2),
    "HTTP/1.0, kept": ([READ, OK.replace(b"1.1 200 OK", b"1.0 200 OK\r\nConnection: Keep-Alive")], HELLO, 1),
    "it closes": ([READ, OK.replace(b"\r\n\r\n", b"\r\nConnection: Close\r\n\r\n")], HELLO, 2),
    "interim answers": (
        [READ, b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nContent-Length: 9\r\n\r\n", OK],
        HELLO,
        1,
    ),
    "another protocol": ([READ, b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n"], (101, b""), 2),
    "a redirect": ([READ, b"HTTP/1.1 302 Found\r\nLocation: /\r\nContent-Length: 0\r\n\r\n"], (302, b""), 1),
    "gzip": ([READ, OK.replace(b"\r\n\r\n", b"\r\nContent-Encoding: gzip\r\n\r\n")], HELLO, 1),
    "a body of which the rest is read": ([READ, long(60_000)], (200, b"z" * 2048), 1),
    "a body that is not read to its end": ([READ, long(70_000)], (200, b"z" * 2048), 2),
    "a body without an end": ([READ, b"HTTP/1.1 200 OK\r\n\r\n", FLOOD], (200, b"z" * 2048), 2),
    "chunks without an end": ([READ, chunked(b"ffffffff", b""), FLOOD], (200, b"z" * 2048), 2),
    "many chunks": ([READ, chunked(*[b"4000", b"z" * 0x4000] * 5, b"0", b"", b"")], (200, b"z" * 2048), 2),
    "more than was asked for": ([READ, OK + b"HTTP/1.1 500 X"], HELLO, 2),
}
"""The script of each connection → the answer, and the connections that two requests take."""


@pytest.mark.parametrize("name", ANSWERS)
def test_answers(name: str) -> None:
    script, expected, connections = ANSWERS[name]

    async def ask(server: NastyServer) -> None:
        async with opened() as client:
            for _ in range(2):
                answer = await post(client, server)
                assert (answer.status, answer.body) == expected
            await until(lambda: server.open == (connections == 1), "it has closed what it can't use again")

    with NastyServer(script) as server:
        asyncio.run(ask(server))
        assert (server.connections, len(server.requests)) == (connections, 2)


def test_the_headers_that_count() -> None:
    async def ask(server: NastyServer) -> Answer:
        async with opened() as client:
            return await post(client, server)

    head = b"HTTP/1.1 429 Slow Down\r\nX-Retry-After: 1\r\nretry-after:  Wed, 21 Oct 2015 07:28:00 GMT \r\n"
    with NastyServer([READ, head + b"Content-Length: 0\r\n\r\n"]) as server:
        assert asyncio.run(ask(server)) == Answer(429, "Slow Down", "Wed, 21 Oct 2015 07:28:00 GMT", b"")


SOUND = [
    OK,
    b"HTTP/1.1 204 No Content\n\n",
    b"HTTP/1.1 100 Continue\r\n\r\n" + OK,
    chunked(b"2;a=b", b"he", b"3", b"llo", b"0", b"X: y", b"", b""),
    b"HTTP/1.0 500\r\nRetry-After: 5\r\n\r\nhello",
]


@given(st.sampled_from(SOUND), st.lists(st.integers(1, 80)))
def test_it_does_not_matter_how_the_bytes_come(data: bytes, cuts: list[int]) -> None:
    whole, parts = AnswerReader(), AnswerReader()
    expected = whole.feed(data) or whole.feed(b"")
    ends = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    found = None
    for start, end in itertools.pairwise(ends):
        assert found is None, "it is whole only now"
        found = parts.feed(data[start:end])
    assert (found or parts.feed(b"")) == expected
    assert whole.is_last == parts.is_last


@given(st.sampled_from(SOUND), st.integers(0, 100), st.binary(max_size=20))
def test_bytes_of_any_kind_are_an_answer_or_none(data: bytes, at: int, other: bytes) -> None:
    reader = AnswerReader()
    with contextlib.suppress(NotHttp, ConnectionResetError):
        if reader.feed(data[:at] + other + data[at + len(other) :]) is None:
            assert reader.feed(b"") is not None, "it ends"


HEADER = b"X: " + b"y" * 1000 + b"\r\n"
NOT_HTTP: dict[str, Sequence[Step]] = {
    "another protocol": [READ, b"220 inner.example.org ready\r\n", HANG],
    "it speaks first": [b"220 inner.example.org ready\r\n\r\n", HANG],
    "no status": [READ, b"HTTP/1.1 OK\r\n\r\n", HANG],
    "HTTP/2": [READ, b"HTTP/2 200\r\n\r\n", HANG],
    "a huge head": [READ, b"HTTP/1.1 200 OK\r\n" + HEADER * 70, HANG],
    "a huge head that is whole": [READ, b"HTTP/1.1 200 OK\r\n" + HEADER * 70 + b"\r\n", HANG],
    "a line without an end": [READ, b"HTTP/1.1 200 OK\r\nX: ", FLOOD],
    "interim answers without an end": [READ, (b"HTTP/1.1 100 Continue\r\n" + HEADER + b"\r\n") * 70, HANG],
    "huge trailers": [READ, chunked(b"0", HEADER * 70), HANG],
    "two lengths": [READ, OK.replace(b"\r\n\r\n", b"\r\nContent-Length: 6\r\n\r\n"), HANG],
    "a length that is none": [READ, OK.replace(b"5", b"-5"), HANG],
    "a chunk whose length is none": [READ, chunked(b"five", b"hello", b""), HANG],
    "a chunk that is longer": [READ, chunked(b"5", b"hello world", b""), HANG],
    "a line of a chunk without an end": [READ, chunked(b""), FLOOD],
}


@pytest.mark.parametrize("name", NOT_HTTP)
def test_what_is_not_http(name: str) -> None:
    check_failing(NOT_HTTP[name], NotHttp, timeout_s=10.0)


CUT: dict[str, Sequence[Step]] = {
    "no answer": [READ, CLOSE],
    "half a head": [READ, b"HTTP/1.1 200 OK\r\nContent-Le", CLOSE],
    "half a body": [READ, OK[:-1], CLOSE],
    "half a chunk": [READ, chunked(b"5", b"hell"), CLOSE],
    "chunks without the last one": [READ, chunked(b"5", b"hello", b""), CLOSE],
    "trailers without their end": [READ, chunked(b"0", b"X: y", b""), CLOSE],
    "an interim answer alone": [READ, b"HTTP/1.1 100 Continue\r\n\r\n", CLOSE],
    "a reset": [READ, RESET],
    "a reset in the body": [READ, OK[:-1], RESET],
}


@pytest.mark.parametrize("name", CUT)
def test_an_answer_that_is_cut_is_none(name: str) -> None:
    check_failing(CUT[name], ConnectionResetError, timeout_s=10.0)


LATE: dict[str, Sequence[Step]] = {
    "no answer": [READ, HANG],
    "nothing is read": [HANG],
    "half a head": [READ, b"HTTP/1.1 200 OK\r\n", HANG],
    "half a body": [READ, OK[:-1], HANG],
    "half a chunk": [READ, chunked(b"5", b"he"), HANG],
    "a byte now and then": [READ, DRIP],
}


@pytest.mark.parametrize("name", LATE)
def test_a_request_ends_with_its_time(name: str) -> None:
    check_failing(LATE[name], TimeoutError, timeout_s=SHORT_S)


def check_failing(script: Sequence[Step], kind: type[Exception], *, timeout_s: float) -> None:
    """A new connection is tried once, and closed."""

    async def ask(server: NastyServer) -> None:
        async with opened() as client:
            began = asyncio.get_running_loop().time()
            with pytest.raises(NoAnswer) as caught:
                await post(client, server, timeout_s=timeout_s)
            assert type(caught.value.why) is kind, repr(caught.value.why)
            assert asyncio.get_running_loop().time() - began < timeout_s + 5
            await until(lambda: server.open == 0, "it is closed")

    with NastyServer(script) as server:
        asyncio.run(ask(server))
        assert server.connections == 1
        assert len(server.requests) <= 1


@pytest.mark.parametrize("host", ["127.0.0.1", "no.such.host.invalid"])
def test_no_connection(host: str) -> None:
    async def ask() -> None:
        async with opened() as client:
            with pytest.raises(Unreached) as caught:
                await client.request(Server("http", host, 1), "POST", "/", {}, b"", timeout_s=10)
            assert isinstance(caught.value.why, socket.gaierror if "host" in host else ConnectionRefusedError)

    asyncio.run(ask())


def test_an_early_answer_ends_a_long_request() -> None:
    """The rest of the body stays unsent: the connection can't carry another request."""

    async def ask(server: NastyServer) -> None:
        async with opened() as client:
            answer = await post(client, server, b"x" * (16 << 20))
            assert answer.status == 413
            answered.set()  # the server reads the rest from now on
            await until(lambda: server.open == 0, "it is closed")

    answered = threading.Event()
    early = b"HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\n\r\n"
    with NastyServer([early, lambda _: answered.wait(10), HANG]) as server:
        asyncio.run(ask(server))


# ---- a connection that was idle

AGAIN: dict[str, tuple[Sequence[Step], bool]] = {
    "closed by the next request": ([READ, OK, READ, CLOSE], True),
    "reset by the next request": ([READ, OK, READ, RESET], True),
    "closed in an answer": ([READ, OK, READ, b"HTTP/1.1 200", CLOSE], False),
    "another protocol by now": ([READ, OK, READ, b"220 ready\r\n", CLOSE], False),
    "silent by now": ([READ, OK, READ, HANG], False),
}
"""The script of the first connection, and if the request is sent again on another one."""


@pytest.mark.parametrize("name", AGAIN)
def test_a_request_is_sent_again_if_an_idle_connection_ends_without_a_byte(name: str) -> None:
    script, again = AGAIN[name]

    async def ask(server: NastyServer) -> None:
        async with opened() as client:
            await post(client, server, b"1")
            if again:
                assert (await post(client, server, b"2")).status == 200
            else:
                with pytest.raises(NoAnswer):
                    await post(client, server, b"2", timeout_s=1.0)

    with NastyServer(script, [READ, OK]) as server:
        asyncio.run(ask(server))
        assert [request[-1:] for request in server.requests] == [b"1", b"2", b"2"][: 2 + again]
        assert server.connections == 1 + again


def test_it_is_sent_again_once() -> None:
    async def ask(server: NastyServer) -> None:
        async with opened() as client:
            await post(client, server)
            with pytest.raises(NoAnswer):
                await post(client, server)

    with NastyServer([READ, OK, READ, CLOSE], [READ, CLOSE]) as server:
        asyncio.run(ask(server))
        assert len(server.requests) == 3


@pytest.mark.parametrize("last", [b"", b"HTTP/1.1 408 Request Timeout\r\nConnection: close\r\n\r\n"])
def test_a_connection_that_ends_while_it_is_idle_is_not_used(last: bytes) -> None:
    async def ask(server: NastyServer) -> None:
        async with opened() as client:
            for _ in range(2):
                assert (await post(client, server)).status == 200
                await until(lambda: server.open == 0, "the server has closed it")

    with NastyServer([READ, OK, last, CLOSE]) as server:
        asyncio.run(ask(server))
        assert (server.connections, len(server.requests)) == (2, 2)


def test_idle_connections_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "IDLE_S", 0.2)

    async def ask(server: NastyServer) -> None:
        async with opened() as client:
            await asyncio.gather(*(post(client, server) for _ in range(3)))
            assert server.open == 3
            await until(lambda: server.open == 0, "they are closed")
            assert (await post(client, server)).status == 200

    with NastyServer([READ, OK]) as server:
        asyncio.run(ask(server))


# ---- bounds


def test_connections_of_a_host() -> None:
    async def ask(server: NastyServer) -> None:
        async with opened(most_of_host=2) as client:
            answers = await asyncio.gather(*(post(client, server, b"%d" % n) for n in range(20)))
            assert [answer.status for answer in answers] == [200] * 20

    got = defaultdict[Connection, list[int]](list)
    """The threads of the server note what comes, each at its own pace: only the order on one connection is known."""

    def note(connection: Connection) -> None:
        got[connection].append(int(connection.read().rpartition(b"\n")[2]))

    with NastyServer([note, OK]) as server:
        asyncio.run(ask(server))
        assert server.connections == server.most_open == len(got) == 2
        assert sorted(n for each in got.values() for n in each) == list(range(20))
        assert all(each == sorted(each) for each in got.values()), "those that wait longest go first"


def test_connections_of_all_hosts_and_a_host_that_hangs() -> None:
    """One that hangs has its own places only, and those that wait for it stand in nobody's way."""

    async def ask(first: NastyServer, second: NastyServer, hangs: NastyServer) -> None:
        async with opened(most=3, most_of_host=2) as client:
            stuck = [asyncio.ensure_future(post(client, hangs)) for _ in range(5)]
            await until(lambda: len(hangs.requests) == 2, "two of them hang")
            for _ in range(3):  # an idle connection to one makes room for one to the other
                for server in (first, second):
                    answers = await asyncio.gather(*(post(client, server) for _ in range(4)))
                    assert [answer.status for answer in answers] == [200] * 4
                    await until(lambda: first.open + second.open <= 1, "the other one is closed")
            assert hangs.most_open == 2
            for each in stuck[:2]:
                each.cancel()
            await until(lambda: len(hangs.requests) == 4, "the next two have their places")
            for each in stuck:
                each.cancel()
            await asyncio.gather(*stuck, return_exceptions=True)
            await until(lambda: hangs.open == 0, "a cancelled request closes its connection")
            assert {(await post(client, server)).status for server in (first, second)} == {200}

    with NastyServer([READ, OK]) as first, NastyServer([READ, OK]) as second, NastyServer([READ, HANG]) as hangs:
        asyncio.run(ask(first, second, hangs))


def test_one_that_is_cancelled_as_it_gets_its_place_gives_it_on() -> None:
    async def ask(server: NastyServer) -> None:
        async with opened(most=1) as client:
            first, second, third = (asyncio.ensure_future(post(client, server)) for _ in range(3))
            first.add_done_callback(lambda _: second.cancel())
            assert (await third).status == (await first).status == 200
            assert second.cancelled()

    with NastyServer([READ, OK]) as server:
        asyncio.run(ask(server))


def test_closing_ends_what_is_under_way() -> None:
    async def ask(server: NastyServer) -> None:
        async with opened() as client:
            under_way = asyncio.ensure_future(post(client, server))
            await until(lambda: server.requests, "it is under way")
        with pytest.raises(NoAnswer):
            await under_way
        await until(lambda: server.open == 0, "it is closed")

    with NastyServer([READ, HANG]) as server:
        asyncio.run(ask(server))


# ---- requests and addresses


def test_the_bytes_of_a_request() -> None:
    async def ask(server: NastyServer) -> None:
        async with opened() as client:
            where = Server("http", "127.0.0.1", server.port)
            await client.request(where, "PUT", "/a?b", {"X": "y", "Z": "é"}, b"{}", timeout_s=10)
            await client.request(where, "OPTIONS", "*", {}, None, timeout_s=10)
            for target, headers in (("/\r\nX: y", {}), ("/", {"X": "y\nZ: z"}), ("/", {"X\r": "y"}), ("/", {"X": "ж"})):
                with pytest.raises(ValueError, match=r"line break|latin-1"):
                    await client.request(where, "POST", target, headers, b"", timeout_s=10)

    with NastyServer([READ, OK]) as server:
        asyncio.run(ask(server))
        host = f"Host: 127.0.0.1:{server.port}\r\nAccept-Encoding: identity\r\n"
        assert [request.decode("latin-1") for request in server.requests] == [
            f"PUT /a?b HTTP/1.1\r\n{host}Content-Length: 2\r\nX: y\r\nZ: é\r\n\r\n{{}}",
            f"OPTIONS * HTTP/1.1\r\n{host}\r\n",
        ]


def test_the_header_host() -> None:
    assert Server("https", "::1", 443).authority == "[::1]"
    assert Server("http", "::1", 443).authority == "[::1]:443"
    assert Server("http", "h", 80).authority == "h"


def test_each_address_is_checked_before_it_is_connected_to(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the name has another one by now."""
    answers = ["127.0.0.2"]
    look_up = socket.getaddrinfo

    def getaddrinfo(host: Any, *args: Any, **options: Any) -> Any:
        return look_up(answers[-1] if host == "sink.test" else host, *args, **options)

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)

    def check(ip: str) -> None:
        if ip == "127.0.0.1":
            raise InvalidUrl("not there")

    async def ask(server: NastyServer) -> None:
        async with opened(check_ip=check) as client:
            where = Server("http", "sink.test", server.port)
            assert (await client.request(where, "POST", "/", {}, b"", timeout_s=10)).status == 200
            answers.append("127.0.0.1")
            await until(lambda: server.open == 0, "the connection is closed")
            for each in (where, Server("http", "127.0.0.1", server.port)):
                with pytest.raises(InvalidUrl):
                    await client.request(each, "POST", "/", {}, b"", timeout_s=10)

    with NastyServer([READ, OK, CLOSE], host="127.0.0.2") as server:
        asyncio.run(ask(server))
        assert server.connections == 1


# ---- TLS


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return certificates.made(tmp_path_factory.mktemp("tls"))


def of_server(files: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files / "server.pem", files / "server.key")
    return context


def of_client(files: Path) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=files / "ca.pem")


def secure(client: Client, server: NastyServer, host: str = "127.0.0.1", *, timeout_s: float = 10.0) -> Any:
    return client.request(Server("https", host, server.port), "POST", "/", {}, b"x" * 300_000, timeout_s=timeout_s)


TLS_ANSWERS = {
    **{name: ANSWERS[name] for name in ("a body of a known length", "byte by byte", "chunks and trailers")},
    **{name: ANSWERS[name] for name in ("up to the end of the connection", "a body of which the rest is read")},
    **{name: ANSWERS[name] for name in ("a body without an end", "more than was asked for", "it closes")},
}


@pytest.mark.parametrize("name", TLS_ANSWERS)
def test_answers_behind_tls(name: str, files: Path) -> None:
    script, expected, connections = TLS_ANSWERS[name]

    async def ask(server: NastyServer) -> None:
        async with opened(context=lambda: of_client(files)) as client:
            for _ in range(2):
                answer = await secure(client, server)
                assert (answer.status, answer.body) == expected
            await until(lambda: server.open == (connections == 1), "it has closed what it can't use again")

    with NastyServer(script, tls=of_server(files)) as server:
        asyncio.run(ask(server))
        assert (server.connections, len(server.requests)) == (connections, 2)


@pytest.mark.parametrize("name", ["half a body", "a reset", "half a head"])
def test_an_answer_behind_tls_that_is_cut_is_none(name: str, files: Path) -> None:
    async def ask(server: NastyServer) -> None:
        async with opened(context=lambda: of_client(files)) as client:
            with pytest.raises(NoAnswer):
                await secure(client, server)
            await until(lambda: server.open == 0, "it is closed")

    with NastyServer(CUT[name], tls=of_server(files)) as server:
        asyncio.run(ask(server))
        assert len(server.requests) == 1


def test_the_certificate_is_that_of_the_name(files: Path) -> None:
    """The address is checked, and the name is verified."""
    names: list[str | None] = []
    context = of_server(files)
    context.sni_callback = lambda _, name, __: names.append(name)

    async def ask(server: NastyServer) -> None:
        async with opened(context=lambda: of_client(files)) as client:
            for host in ("localhost", "127.0.0.1"):
                if host == "127.0.0.1":
                    assert (await secure(client, server, host)).status == 200
                    continue
                with pytest.raises(Unreached) as caught:
                    await secure(client, server, host)
                assert isinstance(caught.value.why, ssl.SSLCertVerificationError)

    with NastyServer([READ, OK], tls=context) as server:
        asyncio.run(ask(server))
    assert names == ["localhost", None], "an address is sent in no SNI"


@pytest.mark.parametrize("script", [[HANG], [CLOSE], [RESET], [b"HTTP/1.1 400 Bad Request\r\n\r\n", HANG]])
def test_a_handshake_that_comes_to_nothing(script: Sequence[Step], files: Path) -> None:
    async def ask(server: NastyServer) -> None:
        async with opened(context=lambda: of_client(files)) as client:
            with pytest.raises(Unreached) as caught:
                await secure(client, server, timeout_s=SHORT_S if script == [HANG] else 10.0)
            if script == [HANG]:
                assert isinstance(caught.value.why, TimeoutError)
            await until(lambda: server.open == 0, "it is closed")

    with NastyServer(script) as server:
        asyncio.run(ask(server))


def test_a_cancelled_handshake_leaves_nothing(files: Path) -> None:
    async def ask(server: NastyServer) -> None:
        async with opened(context=lambda: of_client(files)) as client:
            under_way = asyncio.ensure_future(secure(client, server))
            await until(lambda: server.open, "it is under way")
            under_way.cancel()
            with pytest.raises(asyncio.CancelledError):
                await under_way
            await until(lambda: server.open == 0, "it is closed")

    with NastyServer([HANG]) as server:
        asyncio.run(ask(server))
