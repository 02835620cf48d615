"""Texts of others on the pages: nothing of a payload, a reason, a header, a tag or an id is ever markup, turns the
order of what is beside it, or makes a page fail or grow.
"""

from __future__ import annotations

import re

import pytest

from cluster.server import Server
from shardq import Engine
from shardq.dashboard.formats import MOST, PREVIEW, preview, shown
from tests.dashboard.browsing import Browser
from tests.support.states import FAR_S

SCRIPT = "<script>alert(1)</script>"
EVIL = f"{SCRIPT}\"'&<img src=x onerror=alert(1)>{{{{7*7}}}}\u202egpj.exe\u2066\u200f\x1b[31m\x00\x7f\ufeff"

_ALLOWED = re.compile(r"[^\x00-\x08\x0b-\x1f\x7f\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff]*")
"""No control characters but line ends and tabs, and none that turns the order."""

_HIDDEN = re.compile(r'<input type="hidden"[^<>]*>')

MOST_BYTES = 80_000


def checked(page: str) -> str:
    page = _HIDDEN.sub("", page)  # nobody sees it, and an id must come back as it is
    assert SCRIPT not in page
    assert "<img src=x" not in page
    assert "{{7*7}}" in page or "7*7" not in page
    assert _ALLOWED.fullmatch(page)
    assert len(page.encode()) <= MOST_BYTES
    return page


def test_evil_texts_are_only_texts(engine: Engine, client: Browser) -> None:
    headers = {EVIL: EVIL, "b" * 2000: "\u202e" * 1000}
    id = engine.push(
        {"a": EVIL, EVIL: [EVIL]}, delay=FAR_S, id="<b>\u202e'\"&%2F?#", headers=headers, tags=["<script>'\"&\u202e"]
    )
    page = checked(client.get("/tasks/one", params={"id": id}).text)
    assert "&lt;script&gt;" in page
    assert "\\u202e" in page
    assert "&lt;b&gt;" in checked(client.get("/tasks").text)
    for path in (
        "/tasks?topic=",
        "/tasks?holder=",
        "/tasks?due=",
        "/tasks?state=",
        "/tasks?cursor=",
        "/dead?topic=",
        "/tasks/one?id=",
    ):
        checked(client.get(path + "%3Cscript%3Ealert(1)%3C/script%3E%E2%80%AE%FF").text)
    checked(client.submit("/tasks", "/tasks/bulk/count", verb=SCRIPT, topic=SCRIPT, to=SCRIPT).text)
    answer = client.submit("/tasks", "/tasks/bulk/count", verb="reschedule", due="1m..", to=SCRIPT)
    assert answer.status_code == 400
    checked(answer.text)
    assert "was cancelled" in checked(client.submit("/tasks", "/tasks/cancel", id=id, sure="yes").text)


def test_evil_reasons_and_holders_are_only_texts(engine: Engine, client: Browser, single: Server) -> None:
    ids = [engine.push(n) for n in range(3)]
    engine.start()
    consumer, reasons = engine.consumer(), [EVIL, "x\n" * 100_000 + SCRIPT, "broken"]
    while reasons:
        for delivery in consumer.claim(3, wait=30):
            consumer.bury(delivery, reasons.pop())
    consumer.close()
    engine.stop()
    # other programs write what they like
    for key in single.ask("KEYS", f"*{engine.name}*why*"):
        for id in single.ask("HKEYS", key):
            if single.ask("HGET", key, id) == "broken":
                single.ask("HSET", key, id, b"\xff\xfe<script>alert(1)</script>")
    for path in ("/dead", "/tasks?state=dead", *(f"/tasks/one?id={id}" for id in ids)):
        answer = client.get(path)
        assert answer.status_code == 200, path
        checked(answer.text)


def test_large_payloads_are_cut(engine: Engine, client: Browser) -> None:
    payloads = [
        SCRIPT * 40_000,
        {SCRIPT * 40_000: [1]},
        [[SCRIPT]] * 30_000,
        "\u202e" * 300_000,
        {"a": {"b": "\U0001f980" * 200_000}},
    ]
    for payload in payloads:
        id = engine.push(payload, delay=FAR_S)
        page = checked(client.get(f"/tasks/one?id={id}").text)
        assert "this is the beginning" in page
    checked(client.get("/tasks").text)


def test_a_page_of_the_longest_ids_and_reasons_is_within_its_bound(engine: Engine, client: Browser) -> None:
    for number in range(45):
        engine.push("\"'<>&" * 100, delay=FAR_S, topic="t" * 64, id=f"{number:02d}" + "\"<&'" * 49)
    page = checked(client.get("/tasks").text)
    assert page.count("<tr>") == 31


@pytest.mark.parametrize(
    ("payload", "kind", "text"),
    [
        (b"\x00\xff", "2 bytes", "000000  00 ff"),
        (b'{"a":1}', "JSON", '{\n  "a": 1\n}'),
        (b"plain\ntext\xe2\x80\xae", "text", "plain\ntext\\u202e"),
        (b"\x1b[31m", "5 bytes", "1b 5b 33 31 6d"),
        ("\ud800\u202e", "JSON", '"\\ud800\\u202e"'),
        ({b"a": 1}, "dict", "{b'a': 1}"),
        ({"a": b"\xff"}, "JSON", '"hex ff"'),
        ({1: {2, 3}}, "JSON", "{2, 3}"),
        (None, "JSON", "null"),
    ],
)
def test_every_payload_can_be_shown(payload: object, kind: str, text: str) -> None:
    found = shown(payload)
    assert found.kind == kind
    assert text in found.text
    assert len(preview(payload)) <= PREVIEW
    found.text.encode()


def test_payloads_that_python_can_not_write_can_be_shown() -> None:
    assert "can't be shown" in shown(10**5000).text
    deep: list[object] = []
    for _ in range(100_000):
        deep = [deep]
    for payload in (deep, b"[" * 100_000):
        assert len(shown(payload).text) <= MOST
        assert len(preview(payload)) <= PREVIEW
