"""``url=`` of a push: what is one, the key that it makes, the ways by which it comes to a handler, and where it never
goes.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from shardq import AsyncEngine, Delivery, Engine, Every, Task
from shardq.core.model.checks import MAX_HEADERS
from shardq.core.model.record import JSON, decode_record
from shardq.core.producer.packing import Packer
from shardq.errors import InvalidOption, InvalidUrl
from shardq.outbox.rows import RowPacker
from tests.support.engines import SHARDS, Engines

URL = "https://customer.example/in"
KEY = "customer.example~b7eccf85"

SINGLE = pytest.mark.parametrize("url", ["single"], indirect=True)


def packed(task: Task) -> str:
    return Packer(JSON, max_payload=100).one(task).ids[0]


@pytest.mark.parametrize(
    ("url", "said"),
    [
        (7, "url can't be 7; give a str: https://HOST/PATH"),
        ("", "not understood"),
        ("customer.example/in", "not understood"),
        ("ftp://customer.example/in", "not understood"),
        ("https:///in", "not understood"),
        ("https://customer.example:0/in", "not understood"),
        ("https://customer.example:port/in", "not understood"),
        ("https://customer.example/with blank", "not understood"),
        ("https://kunde.example/ä", "not understood"),
        ("https://[fe80::1%25eth0]/", "not understood"),
        (f"https://customer.example/{'x' * 2000}", "2000 characters at most"),
        ("https://user:password@customer.example/in", "login"),
        ("https://token@customer.example/in", "login"),
        ("https://customer.example/in#part", "fragment"),
        ("https://customer.example/in#", "fragment"),
    ],
)
def test_what_is_no_url(url: str, said: str) -> None:
    with pytest.raises(InvalidUrl, match=said) as caught:
        packed(Task("x", topic="hooks", url=url))
    assert "password" not in str(caught.value)
    assert "token" not in str(caught.value)


@pytest.mark.parametrize("url", ["http://127.0.0.1:8080", "HTTPS://A/?x=1&y=%20", f"https://a/{'x' * 1990}"])
def test_what_is_one(url: str) -> None:
    assert packed(Task("x", url=url)).count("/") == 2


def test_the_key() -> None:
    assert packed(Task("x", topic="hooks", url=URL, id="7")) == f"hooks/{KEY}/7"
    assert packed(Task("x", topic="hooks", url=URL, id="7", key="customer-7")) == "hooks/customer-7/7"
    assert packed(Task("x", url="https://[2606:4700::1111]:8443/in", id="7")).startswith("/2606:4700::1111~")
    longest = f"https://{'.'.join(['x' * 49] * 5)}/"
    assert len(packed(Task("x", url=longest, id="7")).split("/")[1]) < 200
    a, b = (packed(Task("x", url=f"https://hooks.example/{each}")).split("/")[1] for each in "ab")
    assert a != b, "each URL of a host has a lane of its own"


@pytest.mark.parametrize("name", ["shardq-url", "Shardq-Url", "SHARDQ-anything"])
def test_headers_of_ours_are_not_given_by_hand(name: str) -> None:
    with pytest.raises(InvalidOption, match=f"{name}.*give url="):
        packed(Task("x", headers={name: URL}))


def test_it_counts_among_the_headers() -> None:
    fits = {"h": "x" * (MAX_HEADERS - len(URL) - 30)}
    packed(Task("x", headers=fits, url=URL))
    with pytest.raises(InvalidOption, match="the headers have"):
        packed(Task("x", headers={"h": fits["h"] + "x" * 20}, url=URL))


@SINGLE
def test_each_way_to_push_brings_it(engine: Engine, engines: Engines, url: str, tmp_path: Path) -> None:
    headers = {"a": "b"}
    ids = [
        engine.push(0, topic="hooks", url=URL, headers=headers),
        *engine.push_many([Task(1, topic="hooks", url=URL, headers=headers), Task(2, topic="hooks", url=URL, id="2")]),
        *next(iter(engine.push_iter([Task(3, topic="hooks", url=URL)]))),
    ]

    @engine.task(topic="hooks")
    def send(number: int) -> None: ...

    ids += engine.push_many([send.options(url=URL).call(5)])
    engine.every("often", interval=3600, topic="hooks", url=URL)
    ids.append(engine.schedule("often").run())
    with engines.opened(url, name=engine.name, spool=tmp_path / "spool") as spooling:
        ids.append(spooling.push(6, topic="hooks", url=URL))
    assert {id.split("/")[1] for id in ids} == {KEY}
    for id in ids:
        task = engine.get(id)
        assert task is not None
        assert (task.url, task.key) == (URL, KEY)
        assert task.headers == (headers if task.payload in (0, 1) else {})

    engine.start()
    seen: list[Delivery] = []
    consumer = engine.consumer("hooks")
    while len(seen) < len(ids):
        for each in consumer.claim(1, wait=5):
            seen.append(each)
            consumer.ack(each)
    assert {each.url for each in seen} == {URL}
    assert {name for each in seen for name in each.headers} == {"a"}, "a handler may push on with the headers it got"


def test_the_outbox_and_a_recurring_task_bring_it() -> None:
    row = RowPacker().pack(Task("x", topic="hooks", url=URL))
    assert row["id"].split("/")[1] == KEY
    assert decode_record(row["record"]).content.url == URL
    with pytest.raises(InvalidUrl):
        Every(interval=5, url="nowhere")


@SINGLE
def test_pushes_that_go_together_bring_it(engines: Engines, url: str, name: str) -> None:
    async def push() -> list[str]:
        async with AsyncEngine(url, name=name, shards=SHARDS) as engine:
            pushes = [engine.push(n, topic="hooks", url=f"{URL}/{n % 5}") for n in range(100)]
            ids: list[str] = list(await asyncio.gather(*pushes))
            tasks = [await engine.get(id) for id in ids]
            assert [task and task.url for task in tasks] == [f"{URL}/{n % 5}" for n in range(100)]
            await engine.forward("mail", to="elsewhere")
            pushes = [engine.push(n, topic="mail", url=URL if n == 50 else None) for n in range(100)]
            outcomes = await asyncio.gather(*pushes, return_exceptions=True)
            assert [n for n, each in enumerate(outcomes) if isinstance(each, InvalidOption)] == [50]
            return ids

    engines.opened(url, name=name, shards=SHARDS)
    assert len({id.split("/")[1] for id in asyncio.run(push())}) == 5


@SINGLE
@pytest.mark.parametrize("engines", ["sync"], indirect=True)
def test_a_buffer_brings_it_and_refuses_it_at_once(engine: Engine) -> None:
    engine.forward("mail", to="elsewhere")
    with engine.buffered() as buffer:
        id = buffer.push(4, topic="hooks", url=URL).id
        with pytest.raises(InvalidOption, match="url= can't be given"):
            buffer.push(1, topic="mail", url=URL)
        others = [buffer.push(1, topic="mail") for _ in range(10)]
    assert all(each.result() for each in others)
    task = engine.get(id)
    assert (id.split("/")[1], task and task.url) == (KEY, URL)


@SINGLE
@pytest.mark.parametrize("to", ["list", "stream:mail", "nats://127.0.0.1:1#mail"])
def test_a_topic_that_goes_elsewhere_takes_none(engines: Engines, url: str, name: str, to: str) -> None:
    engine = engines.opened(url, name=name, shards=SHARDS)
    engine.forward("mail", to=to)
    said = "url= can't be given: topic 'mail' is forwarded to .*; leave it out, or push to a topic that is forwarded"
    task = Task(1, topic="mail", url=URL)
    with pytest.raises(InvalidOption, match=said):
        engine.push(1, topic="mail", url=URL)
    with pytest.raises(InvalidOption, match=said):
        engine.push_many([Task(0, topic="other", url=URL), task])
    with pytest.raises(InvalidOption, match=said):
        list(engine.push_iter([task]))
    with pytest.raises(InvalidOption, match=said):
        engine.every("often", interval=5, topic="mail", url=URL)
    stats = engine.stats()
    assert (stats.scheduled, stats.ready, stats.schedules and stats.schedules.count) == (0, 0, 0)
