"""What clients may do to the door, on sockets: each of these could take memory, time or tasks from others."""

from __future__ import annotations

import base64
import gzip
import json
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import httpx
import pytest

from shardq import AsyncEngine, Engine
from shardq.http import app, batch, bounds, guard, listener, server
from shardq.http.tokens import Caller, Tokens
from tests.http.calling import Program, calling
from tests.http.conftest import TOKENS
from tests.support.slow_clients import ended, place_of
from tests.support.tokens import write_tokens
from tests.support.waiting import wait_until

POST = b"POST /v1/tasks HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"


@contextmanager
def connected(program: Program) -> Iterator[socket.socket]:
    with socket.create_connection(place_of(str(program.base_url).rstrip("/")), timeout=30) as client:
        yield client


def answered(client: socket.socket) -> tuple[int, bytes]:
    """The status of the next answer, and all of it."""
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        more = client.recv(1)
        assert more, head
        head += more
    length = next(int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
    body = b""
    while len(body) < length:
        body += client.recv(length - len(body))
    return int(head.split()[1]), head + body


def test_a_client_that_sends_all_before_it_reads_is_answered(
    program: Program, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch, "CHUNK", 500)
    body = b"".join(b'{"payload": %d, "delay": 60, "id": "n-%d"}\n' % (n, n) for n in range(2000))
    with connected(program) as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        head = b"POST /v1/tasks:batch HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/x-ndjson\r\n"
        client.sendall(head + b"Content-Length: %d\r\n\r\n" % len(body) + body)
        status, text = answered(client)
    assert status == 200
    assert json.loads(text.splitlines()[-1])["done"] == 2000


@pytest.mark.parametrize(
    "head",
    [
        b"GET /v1 HTTP/1.1\r\nHost: 127.0.0.1\r\n" + b"".join(b"X-%d: y\r\n" % n for n in range(20_000)),
        b"GET /v1 HTTP/1.1\r\nHost: 127.0.0.1\r\nX: " + b"y" * (1 << 20),
        b"GET /v1?" + b"y" * (1 << 20),
        b"GET /v1 HTTP/1.1\r\nHost: 127.0.0.1\r\nX: " + b"y" * 40_000 + b"\r\n\r\n",
    ],
    ids=["many headers", "a header without end", "an address without end", "a whole one"],
)
def test_a_head_is_bounded(program: Program, head: bytes) -> None:
    with connected(program) as client:
        with suppress(OSError):  # it is ended meanwhile
            client.sendall(head)
        text = b""
        with suppress(OSError):
            while more := client.recv(65536):
                text += more
        assert text.startswith(b"HTTP/1.1 431 ") or not text
    assert program.get("/v1").status_code == 200


def test_a_head_of_the_size_that_is_allowed_is_read(program: Program) -> None:
    with connected(program) as client:
        for _ in range(2):
            client.sendall(b"GET /v1 HTTP/1.1\r\nHost: 127.0.0.1\r\nX: " + b"y" * 30_000 + b"\r\n\r\n")
            assert answered(client)[0] == 200
        body = b'{"payload": "%s", "delay": 60}' % (b"x" * 100_000)
        client.sendall(2 * (POST + b"Content-Length: %d\r\n\r\n" % len(body) + body))
        assert [answered(client)[0] for _ in range(2)] == [201, 201]


def test_a_slow_body_has_its_time_for_each_part(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "REQUEST_S", 0.4)
    monkeypatch.setattr(server, "PART", 1000)
    body = b'{"payload": "%s", "delay": 60}' % (b"x" * 6000)
    with connected(program) as client:
        client.sendall(POST + b"Content-Length: %d\r\n\r\n" % len(body))
        for at in range(0, len(body), 1500):
            client.sendall(body[at : at + 1500])
            time.sleep(0.2)  # the client is slow
        assert answered(client)[0] == 201, "it took twice as long as one part may take"
    with connected(program) as client:
        client.sendall(POST + b"Content-Length: %d\r\n\r\n" % len(body) + body[:100])
        wait_until(lambda: ended(client, b""), "a part that does not come ends it")


def test_a_connection_is_kept_for_longer_than_clients_keep_theirs(
    program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener, "REQUEST_S", 0.2)
    with connected(program) as client:
        client.sendall(b"GET /v1 HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        status, text = answered(client)
        assert status == 200
        assert b"keep-alive: timeout=60" in text.lower()
        time.sleep(0.5)  # longer than a request may take
        client.sendall(b"GET /v1 HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        assert answered(client)[0] == 200
        monkeypatch.setattr(listener, "KEPT_S", 0.2)
        wait_until(lambda: ended(client, b""), "it is ended when its time is over")
    assert listener.KEPT_S < 60 < 75


def test_an_answer_waits_for_no_acknowledgement_of_its_head(program: Program) -> None:
    """Head and body are two packets: with Nagle's algorithm the second would wait 40 ms for the client."""
    took = []
    with connected(program) as client:
        for _ in range(20):
            began = time.monotonic()
            client.sendall(b"GET /v1 HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            assert answered(client)[0] == 200
            took.append(time.monotonic() - began)
    assert min(took[5:]) < 0.035  # a client confirms the first packets of a connection at once


def test_a_wrong_token_of_one_program_makes_no_other_wait(
    of: Callable[[str], Program], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guard, "FIRST_S", 30.0)
    shop = of("shop")
    for _ in range(10):
        answer = shop.get("/v1", headers={"Authorization": "Bearer wrong"})
        assert answer.status_code == 401
        assert answer.headers["www-authenticate"].startswith("Bearer")
    assert shop.get("/v1").status_code == 200
    assert httpx.get(shop.base_url.join("/v1")).status_code == 401


def test_web_pages_can_do_nothing_at_an_open_door(program: Program, engine: Engine) -> None:
    task = {"payload": 1, "delay": 60}
    for headers in ({"Host": "evil.example"}, {"Origin": "http://evil.example"}, {"Origin": "null"}, {"Origin": ""}):
        assert program.post("/v1/tasks", json=task, headers=headers).status_code == 403, headers
        assert program.get("/v1/tasks", headers=headers).status_code == 403, headers
    assert program.get("/v1", headers={"Origin": str(program.base_url).rstrip("/")}).status_code == 403
    assert program.get("/metrics", headers={"Host": "evil.example"}).status_code == 403
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", ""):
        answer = program.post("/v1/tasks", content=json.dumps(task).encode(), headers={"Content-Type": kind})
        assert answer.status_code == 415, kind
    answer = program.options("/v1/tasks")
    assert answer.status_code == 405
    assert not any(name.startswith("access-control") for name in answer.headers)
    assert engine.stats().scheduled == 0


def test_a_body_that_is_compressed_is_refused_in_words(program: Program) -> None:
    body = gzip.compress(b'{"payload": 1, "delay": 60}')
    headers = {"Content-Type": "application/json", "Content-Encoding": "gzip"}
    answer = program.post("/v1/tasks", content=body, headers=headers)
    assert (answer.status_code, "Content-Encoding" in answer.json()["detail"]) == (415, True)
    assert program.post("/v1/tasks", json={"payload": 1}, headers={"Content-Encoding": "identity"}).status_code == 201


def test_a_door_behind_a_proxy_is_known_by_its_name(served_engine: AsyncEngine) -> None:
    with calling(served_engine, hosts=["queue.example.org"]) as program:
        assert program.get("/v1", headers={"Host": "Queue.example.org"}).status_code == 200


def test_a_key_of_a_header_is_no_id(program: Program, engine: Engine) -> None:
    ids = set()
    for topic in ("one", "two"):
        for _ in range(2):
            told = program.post(
                "/v1/tasks", json={"payload": topic, "topic": topic, "delay": 60}, headers={"Idempotency-Key": "1"}
            )
            ids.add(told.json()["id"])
    assert len(ids) == engine.stats().scheduled == 4


def test_what_others_stored_is_shown_as_json_or_in_base64(
    program: Program, engine: Engine, url: str, name: str
) -> None:
    with Engine(url, name=name, codec="raw") as raw:
        raw.push(b"\xff\xfe", id="broken", delay=60)
        raw.push(b'{"half": ', id="half", delay=60)
    engine.push({"text": "\u202e"}, id="steering", delay=60)
    broken = program.get("/v1/task", params={"id": "broken"}).json()
    assert base64.b64decode(broken["payload_base64"]) == b"\xff\xfe"
    assert "payload" not in broken
    assert program.get("/v1/task", params={"id": "half"}).json()["payload"] == '{"half": '
    assert len(program.get("/v1/tasks").json()["tasks"]) == 3


def test_bodies_are_bounded_together(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    room = 200_000
    with ExitStack() as stack:
        clients = [stack.enter_context(connected(program)) for _ in range(4)]
        door = _ROOMS[-1]
        monkeypatch.setattr(door, "most", room)
        for client in clients:
            client.sendall(POST + b"Content-Length: 100000\r\n\r\n" + b"x" * 60_000)
        wait_until(lambda: door.held >= 180_000, "three of them are held")
        refused = wait_until(lambda: _refused(clients), "one is answered")
        assert refused is not None
        status, text = answered(refused)
        assert status == 429
        assert b"retry-after: 1" in text
    wait_until(lambda: door.held == 0, "what has gone is not held")
    assert program.push(1).status_code == 201


_ROOMS: list[bounds.Room] = []


@pytest.fixture(autouse=True)
def _rooms(monkeypatch: pytest.MonkeyPatch) -> None:
    init = bounds.Room.__init__

    def noted(self: bounds.Room, *args: int) -> None:
        init(self, *args)
        _ROOMS.append(self)

    monkeypatch.setattr(bounds.Room, "__init__", noted)


def _refused(clients: list[socket.socket]) -> socket.socket | None:
    """The one that has its answer already."""
    for client in clients:
        client.setblocking(False)
        try:
            client.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            continue
        finally:
            client.settimeout(30)
        return client
    return None


def test_a_body_without_end_is_ended(program: Program) -> None:
    with connected(program) as client:
        client.sendall(POST + b"Transfer-Encoding: chunked\r\n\r\n")
        piece, sent = b"x" * (1 << 20), 0
        with suppress(OSError):
            while sent < 64:
                client.sendall(b"%x\r\n%s\r\n" % (len(piece), piece))
                sent += 1
        assert sent < 64
    assert program.push(1).status_code == 201


def test_requests_under_way_end_with_their_answer(served_engine: AsyncEngine, engine: Engine) -> None:
    door = app(served_engine)
    statuses: list[int] = []
    with (
        httpx.Client(timeout=30) as client,
        server.served(door, "127.0.0.1", start=served_engine.open, close=served_engine.close) as url,
    ):
        pushing = threading.Thread(
            target=lambda: statuses.extend(
                client.post(f"{url}/v1/tasks", json={"payload": n, "delay": 60, "id": f"n-{n}"}).status_code
                for n in range(20)
            )
        )
        client.get(f"{url}/v1")
        pushing.start()
        pushing.join()
    assert statuses == [201] * 20
    assert engine.stats().scheduled == 20
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{url}/livez")


def test_no_producer_has_the_door_send_anywhere(of: Callable[[str], Program], engine: Engine) -> None:
    shop, ops = of("shop"), of("ops")
    hook = {"payload": 1, "topic": "order-hooks", "url": "https://example.org/in", "delay": 60}
    answer = shop.post("/v1/tasks", json=hook)
    assert answer.status_code == 403
    assert "webhook://" in answer.json()["detail"]
    *lines, _ = shop.batch([hook])
    assert lines[0]["status"] == 403
    assert ops.patch("/v1/topics/order-hooks", json={"forward": "webhook://"}).status_code == 400
    engine.forward("order-hooks", to="webhook://")

    told = wait_until(lambda: shop.post("/v1/tasks", json=hook).json().get("id"), "the door knows the route")
    assert (task := engine.get(told))
    assert task.url == "https://example.org/in"


# ---- tokens


def test_tokens_are_replaced_without_a_restart(
    of: Callable[[str], Program], tokens: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("shardq.http.tokens.LOOK_S", 0.0)
    shop = of("shop")
    assert shop.get("/v1").status_code == 200
    good = tokens.read_text()
    time.sleep(1.1)  # the next look
    for wrong in ("", "shop producer *\n", "shop king * sha256:" + "0" * 64, good.replace("order-*", "a b")):
        tokens.write_text(wrong)
        assert shop.get("/v1").status_code == 200, "a wrong file keeps the tokens of before"
    tokens.unlink()
    assert shop.get("/v1").status_code == 200
    assert {record.levelname for record in caplog.records if record.name == "shardq.http"} == {"ERROR"}
    assert not any(secret in caplog.text for secret, _, _ in TOKENS.values())
    write_tokens(tokens, ops=("ops-secret", "operator", "*"))
    wait_until(lambda: shop.get("/v1").status_code == 401, "it is not known any more")
    tokens.write_text(good)
    wait_until(lambda: shop.get("/v1").status_code == 200, "it is known again")


def test_a_file_that_holds_a_secret_is_refused_without_a_word_of_it(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    path.write_text("shop producer * shop-secret\n")
    with pytest.raises(Exception, match=r"line 1 of .* is not NAME ROLES TOPICS sha256:HASH") as found:
        Tokens(path)
    assert "shop-secret" not in str(found.value)


@pytest.mark.parametrize(
    ("pattern", "topic", "fits"),
    [
        ("*", "", True),
        ("*", "mail", True),
        ("mail", "mail", True),
        ("mail", "mail-eu", False),
        ("mail*", "mail-eu", True),
        ("*-eu", "mail-eu", True),
        ("m*-eu", "mail-us", False),
        ("m.il", "mail", False),
        ("(default)", "", True),
        ("(default)", "mail", False),
        ("a*", None, False),
    ],
)
def test_patterns_of_topics(pattern: str, topic: str | None, fits: bool) -> None:
    assert Caller("x", frozenset(["producer"]), (pattern,)).may("producer", topic) is fits


def test_no_secret_is_in_the_log(of: Callable[[str], Program], caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    shop = of("shop")
    shop.push("a-payload", id="an-id")
    shop.get("/v1/task", params={"id": "order-1/x"})
    shop.post("/sign-in", data={"token": "shop-secret"})
    ours = [record for record in caplog.records if record.name.startswith("shardq")]
    assert any(record.name == "shardq.http.access" for record in ours)
    assert not any("shop-secret" in str(vars(record)) or "a-payload" in str(vars(record)) for record in ours)
