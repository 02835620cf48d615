"""Requests to the dashboard and to the probes: whatever is asked, the answer is not that of a fault, has nothing raw in
it, and changes nothing that it was not entitled to change.
"""

from __future__ import annotations

import asyncio
import re
import socket
import time
import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from urllib.parse import quote_from_bytes, urlencode

import pytest
from hypothesis import given
from hypothesis import strategies as st

import shardq
from cluster.server import Server
from shardq import Engine, Task
from shardq.core.layout.keys import control_keys, shard_keys
from shardq.http import Door, app
from tests.fuzz.asgi import Answer, Request, ask
from tests.fuzz.nasty import EVIL, MARKUP, OBEYED, few, texts, words
from tests.metrics.scraping import got
from tests.support.servers import Servers
from tests.support.tokens import write_tokens
from tests.support.waiting import wait_until

TOKEN = "a-token-for-these-tests"

_FIELDS = re.compile(r"<input [^<>]*>")
"""The values of fields come back from the browser as they are."""

PATHS = (
    *("/", "/tasks", "/tasks/one", "/dead", "/future", "/schedules", "/shards", "/nodes", "/topics", "/topics/one"),
    *("/fleet", "/changes", "/shards/number", "/tasks/bulk", "/sign-in", "/static/style.css", "/livez", "/live/topics"),
)
ACTIONS = (
    *("/tasks/cancel", "/tasks/requeue", "/tasks/reschedule", "/tasks/bulk/count", "/tasks/bulk/confirm"),
    *("/tasks/bulk/stop", "/topics/pause", "/topics/resume", "/topics/limit", "/schedules/pause", "/schedules/run"),
    *("/schedules/remove", "/schedules/resume", "/shards/number", "/sign-in"),
)
NAMES = (
    *(
        "id",
        "topic",
        "state",
        "due",
        "holder",
        "cursor",
        "name",
        "sort",
        "horizon",
        "capacity",
        "shards",
        "rate",
        "csrf",
    ),
    *(
        "concurrency",
        "verb",
        "to",
        "reason",
        "key",
        "sure",
        "word",
        "schedule",
        "back",
        "token",
        "from",
        "begin",
        "span",
    ),
)

_words = st.one_of(
    texts.map(lambda text: text.encode(errors="replace")),
    words,
    st.sampled_from(
        [b"mail", b"mail/one", b"dead", b"0..1h", b"..0", b"0001-01-01T00:00:00+14:00..", b"1e9", b"500/s"]
    ),
    st.sampled_from(
        [b"cancel", b"requeue", b"hour", b"yes", b"nightly", b"(default)", b"30s", b"9999-12-31T23:59:59-14:00"]
    ),
)
_queries = st.dictionaries(st.one_of(st.sampled_from(NAMES), texts.map(ascii)), _words, max_size=4)
_paths = st.one_of(
    st.sampled_from(PATHS),
    st.sampled_from(ACTIONS),
    st.builds("{}/{}".format, st.sampled_from(PATHS), _words.map(quote_from_bytes)),
    _words.map(lambda word: f"/{quote_from_bytes(word)}"),
)


def _clean(value: bytes) -> bytes:
    """As a server passes it on: it reads lines."""
    return re.sub(rb"[\r\n\x00]", b"", value)[:8000]


_headers = st.lists(
    st.tuples(
        st.sampled_from(
            [b"cookie", b"authorization", b"origin", b"referer", b"accept", b"content-type", b"x-forwarded-for"]
        ),
        st.one_of(
            words.map(_clean),
            st.just(EVIL.encode()).map(_clean),
            st.sampled_from(
                [b"Bearer x", b"shardq_form=x; shardq_notice=%00%1b%3Cscript", b"null", b"http://[::1", b"a=b;c"]
            ),
            words.map(lambda word: b"shardq_notice=" + quote_from_bytes(word).encode()),
        ),
    ),
    max_size=3,
).map(tuple)

_methods = st.sampled_from(
    ["GET", "GET", "GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "TRACE", "PATCH", "BREW", "get"]
)


def query_of(fields: dict[str, bytes]) -> str:
    return urlencode(fields)


@contextmanager
def shop(server: Server) -> Iterator[tuple[Engine, Servers]]:
    """An engine with a task in each state, a schedule, and texts of others."""
    name = f"t{uuid.uuid4().hex[:12]}"
    with Engine(server.url, name=name, shards=2, timeout=5.0) as engine, Servers(server.url) as servers:
        engine.start()
        engine.push_many([Task({"a": EVIL}, topic="mail", id=f"n-{n}", headers={"h": EVIL}) for n in range(4)])
        consumer = engine.consumer("mail", name="me")
        claimed = consumer.claim(2, wait=10.0)
        consumer.bury(claimed[0], f"Traceback\n{EVIL}")
        engine.push(EVIL, delay=3600, topic="mail", id="one")
        engine.every("nightly", cron="0 3 * * *", topic="mail")
        servers.ask(0, "HSET", shard_keys(name, 0).topics, EVIL.encode(), "1")
        servers.ask(
            0, "LPUSH", control_keys(name).changes, b'{"at":"2030-01-01T00:00:00Z","by":"\\u001b[0m","what":"<b>"}'
        )
        engine.stop()
        yield engine, servers
    with Servers(server.url) as servers:
        for key in servers.held(name):
            servers.ask(0, "DEL", key)


def stored(engine: Engine, servers: Servers) -> dict[bytes, bytes]:
    """What only an action changes: a look at the shards leaves notes in ``looks`` and ``meta``."""
    return {key: text for key, text in servers.held(engine.name).items() if not key.endswith((b"looks", b"meta"))}


def harmless(answer: Answer) -> None:
    """No fault, nothing raw, and no header that a browser reads in another way."""
    assert 200 <= answer.status < 500, answer
    for name, value in answer.headers:
        assert not re.search(rb"[\r\n\x00]", name + value), answer.headers
    if answer.header(b"content-type").startswith(b"text/html"):
        page = _FIELDS.sub("", answer.text)
        assert MARKUP not in page
        assert "{{7*7}}" in page or "7*7" not in page
        assert not OBEYED.search(page), ascii(page)
        assert b"default-src 'none'" in answer.header(b"content-security-policy")


def form_of(runner: asyncio.Runner, made: Door) -> tuple[bytes, str]:
    """The cookie and the hidden field of a browser that has opened a page."""
    answer = ask(runner, made, Request("GET", "/topics"))
    found = re.search(r'name="csrf" value="([0-9a-f]+)"', answer.text)
    assert found
    return answer.header(b"set-cookie").partition(b";")[0], found[1]


@pytest.mark.slow
def test_pages(single: Server) -> None:
    with shop(single) as (engine, servers), asyncio.Runner() as runner:
        made = app(engine)

        @few(120)
        @given(_methods, _paths, _queries, _headers, _queries)
        def answers(
            method: str,
            path: str,
            query: dict[str, bytes],
            headers: tuple[tuple[bytes, bytes], ...],
            form: dict[str, bytes],
        ) -> None:
            before = stored(engine, servers)
            body = query_of(form).encode()
            answer = ask(runner, made, Request(method, f"{path}?{query_of(query)}", headers, body))
            harmless(answer)
            assert stored(engine, servers) == before, "without the field of a page of ours nothing is changed"

        answers()


def test_forms(single: Server) -> None:
    """Of a browser that has opened a page: what is wrong in a form is told on a page."""
    with shop(single) as (engine, _), asyncio.Runner() as runner:
        made = app(engine)
        cookie, csrf = form_of(runner, made)

        @few(120)
        @given(st.sampled_from(ACTIONS), _queries, st.booleans())
        def answers(path: str, form: dict[str, bytes], sure: bool) -> None:
            fields = form | {"csrf": csrf.encode()} | ({"sure": b"yes"} if sure else {})
            answer = ask(runner, made, Request("POST", path, ((b"cookie", cookie),), query_of(fields).encode()))
            harmless(answer)
            if answer.status == 303:
                assert answer.header(b"location").startswith(b"/")
                assert not answer.header(b"location").startswith(b"//")

        @few(20)
        @given(st.binary(max_size=60))
        def reads_forms(body: bytes) -> None:
            harmless(ask(runner, made, Request("POST", "/topics/pause", ((b"cookie", cookie),), body)))

        answers()
        reads_forms()


def test_hosts_origins_and_tokens(single: Server, tmp_path: Path) -> None:
    with shop(single) as (engine, servers), asyncio.Runner() as runner:
        tokens = write_tokens(tmp_path / "tokens", ops=(TOKEN, "operator", "*"))
        guarded, plain = app(engine, tokens=tokens), app(engine)
        cookie, csrf = form_of(runner, plain)

        @few(40)
        @given(words.map(_clean).filter(lambda host: host.partition(b":")[0] not in (b"localhost", b"127.0.0.1")))
        def knows_its_hosts(host: bytes) -> None:
            answer = ask(runner, plain, Request("GET", "/topics", host=host))
            harmless(answer)
            assert answer.status == 403
            assert "mail" not in answer.text

        @few(40)
        @given(words.map(_clean))
        def knows_its_origins(origin: bytes) -> None:
            before = stored(engine, servers)
            body = query_of({"csrf": csrf.encode(), "topic": b"mail"}).encode()
            headers = ((b"cookie", cookie), (b"origin", b"http://" + origin))
            answer = ask(runner, plain, Request("POST", "/topics/pause", headers, body))
            harmless(answer)
            assert answer.status == 403
            assert stored(engine, servers) == before

        @few(40)
        @given(_methods, _paths, _headers, _queries)
        def keeps_strangers_out(
            method: str, path: str, headers: tuple[tuple[bytes, bytes], ...], form: dict[str, bytes]
        ) -> None:
            before = stored(engine, servers)
            answer = ask(runner, guarded, Request(method, path, headers, query_of(form).encode()))
            harmless(answer)
            assert "n-1" not in answer.text
            assert stored(engine, servers) == before

        knows_its_hosts()
        knows_its_origins()
        keeps_strangers_out()


_lines = st.one_of(
    st.builds(
        lambda method, path, version: b"%b %b %b" % (method, path, version),
        st.one_of(st.sampled_from([b"GET", b"HEAD", b"POST", b"BREW", b"__init__", b""]), words),
        st.one_of(st.sampled_from([b"/livez", b"/readyz?x=1", b"/metrics", b"/", b"//x/../livez", b"*"]), words),
        st.one_of(
            st.sampled_from([b"HTTP/1.1", b"HTTP/1.0", b"HTTP/9.9", b"HTTP/2.0", b"HTTP/x", b"HTTP/1.1 x", b""]), words
        ),
    ),
    words,
)


def test_probes(single: Server) -> None:
    name = f"t{uuid.uuid4().hex[:12]}"
    with Engine(single.url, name=name, shards=1) as engine, shardq.metrics.serve(engine, "127.0.0.1:0") as server:
        host, _, port = server.url.removeprefix("http://").rpartition(":")
        engine.start()
        wait_until(lambda: got(f"{server.url}/readyz")[0] == 200, "it is ready")

        @few(60)
        @given(_lines, st.lists(st.one_of(words, words.map(lambda word: b"Cookie: " + word)), max_size=3))
        def answers(line: bytes, headers: list[bytes]) -> None:
            began = time.monotonic()
            with closing(socket.create_connection((host, int(port)), timeout=10.0)) as connection:
                answer = b""
                with suppress(OSError):  # it has answered what it has read, and closed
                    connection.sendall(b"\r\n".join([line, *headers, b"", b""]))
                    connection.shutdown(socket.SHUT_WR)
                    while more := connection.recv(65536):
                        answer += more
            assert time.monotonic() - began < 4.0
            head, _, body = answer.partition(b"\r\n\r\n")
            if told := re.match(rb"HTTP/1\.0 (\d{3}) ", head):
                assert int(told[1]) < 500, answer
                assert not OBEYED.search(head.decode("latin-1").replace("\r\n", "")), answer
            assert MARKUP.encode() not in body
            if b"shardq_up" not in body:
                assert not OBEYED.search(body.decode(errors="replace")), answer

        answers()
        assert got(f"{server.url}/livez") == (200, "ok\n")
        engine.purge(everything=True)
    with Servers(single.url) as servers:
        for key in servers.held(name):
            servers.ask(0, "DEL", key)
