"""What becomes of a hook after each answer, and what is told of it."""

from __future__ import annotations

import asyncio
import base64
import email.utils
import json
import os
import resource
import time
from collections.abc import Sequence

import pytest

from cluster.ports import free_port
from shardq import Bury, Hold, Retry, Snooze, Webhooks
from shardq.errors import InvalidOption
from shardq.features.webhooks import poster
from shardq.features.webhooks.meaning import SCHEDULE_S
from tests.sinks.nasty import CLOSE, DRIP, FLOOD, HANG, READ, RESET, Connection, NastyServer, Step, slowly
from tests.webhooks.posting import LOOPBACK, OK, SECRET, answering, delivery, head_of, hooks, outcome


def asked(script: Sequence[Step], *, key: str | None = None, failures: int = 0, timeout: float = 5) -> object:
    with NastyServer(script) as server:
        return outcome(
            hooks(timeout=timeout), delivery(key=key, failures=failures), f"http://127.0.0.1:{server.port}/in"
        )


@pytest.mark.parametrize("status", ["200 OK", "201 Created", "202 Accepted", "204 No Content", "299 X"])
def test_it_is_taken(status: str) -> None:
    assert asked(answering(status)) is None


@pytest.mark.parametrize("status", ["429 Too Many Requests", "503 Service Unavailable"])
@pytest.mark.parametrize(
    ("after", "least", "most"),
    [("7", 7, 7), ("0", 1, 1), ("99999", 3600, 3600), (90, 80, 90), (-90, 1, 1), (10**6, 3600, 3600)],
)
def test_retry_after(status: str, after: str | int, least: float, most: float) -> None:
    """``after``: the header, or the date in so many seconds."""
    if isinstance(after, int):
        after = email.utils.formatdate(time.time() + after, usegmt=True)
    script = answering(status, f"Retry-After: {after}")
    with_key = asked(script, key="customer-7", failures=99)
    assert type(with_key) is Hold
    assert isinstance(with_key.delay, float)
    assert least <= with_key.delay <= most
    without = asked(script, failures=3)
    assert isinstance(without, Retry), "a topic is not paused for one endpoint"
    assert isinstance(without.delay, float)
    assert least <= without.delay <= most
    assert isinstance(asked(script, failures=9), Bury)


FAILED: dict[str, tuple[Sequence[Step], str]] = {
    "a redirect": (answering("302 Found"), "HTTP 302 Found; give the URL"),
    "not modified": (answering("304 Not Modified"), "HTTP 304"),
    "bad request": (answering("400 Bad Request", body=b" no such event\n"), "HTTP 400 Bad Request: no such event"),
    "unauthorized": (answering("401 Unauthorized"), "HTTP 401 Unauthorized"),
    "not found": (answering("404 Not Found"), "HTTP 404 Not Found"),
    "too many": (answering("429 Too Many Requests"), "HTTP 429"),
    "too many, until when is not understood": (answering("429 X", "Retry-After: soon"), "HTTP 429"),
    "an error with Retry-After": (answering("500 X", "Retry-After: 7"), "HTTP 500 X"),
    "bad gateway": (answering("502 Bad Gateway"), "HTTP 502"),
    "busy": (answering("503 Service Unavailable"), "HTTP 503"),
    "another protocol": ([READ, b"HTTP/1.1 101 Switching Protocols\r\n\r\n"], "HTTP 101"),
    "not HTTP": ([READ, b"SSH-2.0-OpenSSH_9.6\r\n"], "the answer is not HTTP/1.1"),
    "closed": ([READ, CLOSE], "the connection ended without an answer"),
    "reset": ([READ, RESET], "the connection ended without an answer"),
    "cut off": ([READ, OK[:-2], CLOSE], "the connection ended without an answer"),
    "silent": ([READ, HANG], "no answer within 0.4 s (timeout=)"),
    "drips": ([READ, DRIP], "no answer within 0.4 s (timeout=)"),
    "byte by byte, without an end": (
        [READ, *[slowly(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n"), HANG]],
        "no answer",
    ),
}


@pytest.mark.parametrize("name", FAILED)
def test_an_attempt_fails(name: str) -> None:
    script, reason = FAILED[name]
    raised = asked(script, timeout=0.4 if reason.startswith("no answer") else 60, key="customer-7")
    assert isinstance(raised, Retry), raised
    assert reason in raised.reason
    assert isinstance(raised.delay, float)
    assert 4 <= raised.delay <= 6


def test_an_endpoint_that_is_not_there() -> None:
    port = free_port()
    raised = outcome(hooks(), delivery(), f"http://127.0.0.1:{port}/")
    assert isinstance(raised, Retry)
    assert f"127.0.0.1:{port} can't be reached: Connection refused" in raised.reason
    raised = outcome(hooks(sinks=["webhook://*"]), delivery(), "http://nowhere.invalid/")
    assert isinstance(raised, Retry)
    assert "the host nowhere.invalid was not found" in raised.reason


def test_the_schedule() -> None:
    script = answering("500 X")
    with NastyServer(script) as server:
        for failures, pause in enumerate(SCHEDULE_S):
            raised = outcome(hooks(), delivery(failures=failures), f"http://127.0.0.1:{server.port}/")
            assert isinstance(raised, Retry)
            assert isinstance(raised.delay, float)
            assert pause * 0.8 <= raised.delay <= pause * 1.2
        raised = outcome(hooks(), delivery(failures=len(SCHEDULE_S)), f"http://127.0.0.1:{server.port}/")
    assert isinstance(raised, Bury)
    assert raised.reason == "HTTP 500 X; given up after 10 failures"


def test_an_endpoint_that_is_gone() -> None:
    raised = asked(answering("410 Gone", body=b"moved away"))
    assert isinstance(raised, Bury)
    assert raised.reason == "HTTP 410 Gone: moved away; the endpoint is gone: send it no more"


def test_a_reason_quotes_300_characters() -> None:
    raised = asked([READ, b"HTTP/1.1 500 X\r\n\r\n" + b"z" * 1000, FLOOD])
    assert isinstance(raised, Retry)
    assert raised.reason == "HTTP 500 " + f"X: {'z' * 300}"[:300]


TOKEN = "0123456789abcdefghij"


def echo(connection: Connection) -> None:
    """Answers with what it was sent, also in the phrase."""
    text = connection.server.requests[-1]
    parts = text.partition(b"\r\n\r\n")[0].split(b"\r\n")
    phrase = parts[0] + b" " + b" ".join(each for each in parts if b"uthorization" in each)
    body = b" ".join([SECRET.encode(), SECRET[6:].encode(), parts[0], b"user pa/ss", text])
    connection.sock.sendall(b"HTTP/1.1 500 %b\r\nContent-Length: %d\r\n\r\n" % (phrase, len(body)) + body)


@pytest.mark.parametrize("login", ["user:pa%2Fss@", "tok3n@", ""])
def test_a_reason_leaks_nothing(login: str) -> None:
    with NastyServer([READ, echo]) as server:
        where = f"127.0.0.1:{server.port}/in/{TOKEN}?sig=qu%65ry-secret&b=2"
        raised = outcome(hooks(), delivery(), f"http://{login}{where}")
        assert isinstance(raised, Retry)
        assert raised.reason.startswith("HTTP 500 POST /in/")
        told = raised.reason
        server_port, port = server.port, free_port()
    assert server_port
    for raised in (
        outcome(hooks(), delivery(), f"http://{login}{where}".replace(str(server_port), str(port))),
        outcome(hooks(sinks=None), delivery(), f"http://{login}{where}"),
        outcome(hooks(sinks=["webhook://10.0.0.7"]), delivery(), f"http://{login}{where}"),
        outcome(hooks(http=False), delivery(), f"http://{login}{where}"),
        outcome(hooks(), delivery(), f"http://{login}{where} "),
    ):
        assert isinstance(raised, Retry | Bury)
        told += raised.reason
    basic = base64.b64encode(b"user:pa/ss").decode()
    for secret in (SECRET, SECRET[6:], TOKEN, "query-secret", "qu%65ry", "pa/ss", "pa%2Fss", "tok3n", basic):
        if secret != "pa/ss" or "pa%2Fss" in login:
            assert secret not in told, secret


@pytest.mark.parametrize(
    ("codec", "payload", "content_type", "body"),
    [
        ("json", {"n": [1, "é"]}, "application/json", '{"n":[1,"é"]}'.encode()),
        ("msgpack", {"n": 1}, "application/msgpack", b"\x81\xa1n\x01"),
        ("raw", b"\x00\xff", "application/octet-stream", b"\x00\xff"),
    ],
)
def test_what_is_sent(codec: str, payload: object, content_type: str, body: bytes) -> None:
    headers = {
        "traceparent": "00-1",
        "X-Shop": "7",
        "shardq-url": "http://secret/",
        "Shardq-Topic": "x",
        "Host": "evil",
        "webhook-id": "mine",
        "authorization": "mine",
        "Idempotency-Key": "mine",
        "content-length": "7",
        "odd name": "x",
        "text": "é",
    }
    with NastyServer([READ, OK]) as server:
        task = delivery(payload, headers=headers)
        assert outcome(hooks(codec=codec), task, f"http://u:p@127.0.0.1:{server.port}/in?a=b#part") is None
        host = f"127.0.0.1:{server.port}"
    (request,) = server.requests
    assert request.partition(b"\r\n\r\n")[2] == body
    got = head_of(request)
    assert got.pop("webhook-timestamp").isdigit()
    assert got.pop("webhook-signature").startswith("v1,")
    assert got.pop("user-agent").startswith("shardq/")
    assert got == {
        "": "POST /in?a=b HTTP/1.1",
        "host": host,
        "accept-encoding": "identity",
        "content-length": str(len(body)),
        "content-type": content_type,
        "authorization": "Basic dTpw",
        "webhook-id": "hooks/7",
        "traceparent": "00-1",
        "x-shop": "7",
    }


@pytest.mark.slow
@pytest.mark.usefixtures("loops")
def test_a_host_that_hangs_takes_no_places_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight hooks for it are sent, the others wait for a moment, and are then put off; a hook for another goes at once.
    Once the host is known, 16 wait.
    """
    monkeypatch.setattr(poster, "WAIT_S", 0.4)
    monkeypatch.setattr(poster, "SLOW_S", 0.3)
    raised: list[BaseException | None] = []

    async def post(slow: NastyServer, quick: NastyServer) -> None:
        webhooks = hooks(sinks=[LOOPBACK, "webhook://localhost"], timeout=3.0)

        def many(count: int) -> asyncio.Future[list[BaseException | None]]:
            url = f"http://127.0.0.1:{slow.port}/"
            tasks = [delivery(n, key=f"{n}" if n % 2 else None) for n in range(1, count + 1)]
            return asyncio.gather(
                *[webhooks.post(task, url=url, secret=None) for task in tasks], return_exceptions=True
            )

        first = many(200)
        await asyncio.sleep(0.1)
        for _ in range(20):
            await webhooks.post(delivery(), url=f"http://localhost:{quick.port}/", secret=None)
        assert not first.done(), "none of them has waited for one that hangs"
        assert slow.open == poster.OF_HOST
        await asyncio.sleep(0.4)
        (host,) = webhooks._poster._loops[asyncio.get_running_loop()].hosts.values()
        assert host.under_way == poster.OF_HOST, "the others are put off"
        second = many(100)
        await asyncio.sleep(0)
        assert host.under_way == poster.AT_SLOW_HOST
        raised.extend([*await first, *await second])
        assert list(webhooks._poster._loops[asyncio.get_running_loop()].hosts.values()) == [host]
        third = many(5)
        await asyncio.sleep(0)
        assert host.under_way == 1, "one at a time, as it does not answer"
        raised.extend(await third)
        await webhooks.close()

    with NastyServer([READ, HANG]) as slow, NastyServer([READ, OK]) as quick:
        asyncio.run(post(slow, quick))
        assert slow.connections == poster.OF_HOST + 1
        assert quick.connections == 1
    assert [type(each) for each in raised].count(Retry) == poster.OF_HOST + 1
    for place, each in enumerate(raised[:300], 1):
        assert isinstance(each, Retry) or type(each) is (Hold if place % 2 else Snooze)
    pauses = [float(each.delay) for each in raised if isinstance(each, Snooze)]  # type: ignore[arg-type]
    assert len(set(pauses)) > len(pauses) * 0.9, "they do not come back together"
    assert 1 <= min(pauses) < 2 < max(pauses) <= 60


def test_a_host_that_answers_again_is_like_any_other() -> None:
    async def post(server: NastyServer) -> None:
        webhooks = hooks(timeout=0.3)
        url = f"http://127.0.0.1:{server.port}/"
        with pytest.raises(Retry):
            await webhooks.post(delivery(), url=url, secret=None)
        hosts = webhooks._poster._loops[asyncio.get_running_loop()].hosts
        assert [host.is_silent for host in hosts.values()] == [True]
        await webhooks.post(delivery(), url=url, secret=None)
        assert hosts == {}
        await asyncio.gather(*[webhooks.post(delivery(), url=url, secret=None) for _ in range(20)])
        await webhooks.close()

    with NastyServer([READ, HANG], [READ, OK]) as server:
        asyncio.run(post(server))


@pytest.mark.parametrize("key", [None, "customer-7"])
def test_without_a_descriptor_it_is_no_attempt(key: str | None) -> None:
    async def post() -> None:
        webhooks = hooks()
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        free = os.dup(0)
        os.close(free)
        resource.setrlimit(resource.RLIMIT_NOFILE, (free, hard))
        try:
            await webhooks.post(delivery(key=key), url="http://127.0.0.1:1/", secret=None)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            await webhooks.close()

    with pytest.raises(Snooze) as caught:
        asyncio.run(post())
    assert type(caught.value) is (Snooze if key is None else Hold)
    assert caught.value.delay == poster.SCARCE_S


def test_a_loop_after_another() -> None:
    with NastyServer([READ, OK]) as server:
        webhooks = hooks()
        for _ in range(3):
            assert outcome(webhooks, delivery(), f"http://127.0.0.1:{server.port}/") is None
        assert server.connections == 3
        assert json.loads(server.requests[0].partition(b"\r\n\r\n")[2]) == {"n": 1}


@pytest.mark.parametrize("timeout", [0, 0.01, 601, -1, "15", True, None, float("nan")])
def test_wrong_timeouts(timeout: object) -> None:
    with pytest.raises(InvalidOption, match=r"timeout can't be .* from 0.1 to 600"):
        hooks(timeout=timeout)


def test_wrong_arguments() -> None:
    with pytest.raises(InvalidOption, match="give an Engine or an AsyncEngine"):
        Webhooks("redis://127.0.0.1")  # type: ignore[arg-type]
    with pytest.raises(InvalidOption, match="http can't be 1"):
        hooks(http=1)
