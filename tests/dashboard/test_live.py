"""The overview, and how it stays up to date: one look for all pages that are open, and none when nobody watches."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, aclosing

import httpx
import pytest
from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

import shardq
from shardq import Engine, Task
from shardq.dashboard import snapshots, web
from shardq.dashboard.snapshots import Caller, SharedSnapshots, interval_for, late_ms
from shardq.dashboard.web import page
from shardq.http import app
from tests.dashboard.browsing import Browser, browsing
from tests.support.cancelling import SOON_S, cuts, quiet
from tests.support.waiting import wait_until


def events(answer: httpx.Response) -> Iterator[str]:
    """The data of each event."""
    data: list[str] = []
    for line in answer.iter_lines():
        if line.startswith("data: "):
            data.append(line.removeprefix("data: "))
        elif not line and data:
            yield "\n".join(data)
            data = []


@pytest.mark.slow
def test_the_first_page_says_first_what_is_wrong(engine: Engine, client: Browser) -> None:
    engine.push_many(Task({"n": n}, delay=600) for n in range(12))
    text = client.get("/").text
    verdict, scheduled = text.index("no dispatcher runs"), text.index("<dd>12</dd>")
    assert verdict < scheduled
    assert '<meta http-equiv="refresh"' in text
    engine.start()
    wait_until(lambda: "<strong>ok</strong>" in client.get("/").text, "all is well", timeout=30)


@pytest.mark.slow
def test_open_pages_share_their_looks(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshots, "LINGER_S", 0.0)
    dashboard = app(engine)
    shared: SharedSnapshots = dashboard.pages.state.dashboard.snapshots
    with browsing(dashboard) as client, ExitStack() as stack:
        began = time.monotonic()
        streams = [events(stack.enter_context(client.stream("GET", "/live/overview"))) for _ in range(5)]
        for _ in range(2):
            assert all("scheduled" in next(stream) for stream in streams)
        # each page for itself would make ten
        assert shared.taken <= 2 + (time.monotonic() - began) / snapshots.LEAST_S
        assert shared.watchers == 5
        stack.close()
        wait_until(lambda: not shared.is_running, "nobody watches", timeout=30)
        assert shared.watchers == 0


@pytest.mark.slow
def test_a_page_tells_what_has_changed(engine: Engine, client: Browser) -> None:
    with client.stream("GET", "/live/overview") as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        news = events(answer)
        next(news)
        engine.push_many(Task({"n": n}, delay=600) for n in range(7))
        assert any("<dd>7</dd>" in each for each, _ in zip(news, range(20), strict=False))


def test_a_stream_ends_and_is_opened_anew(client: Browser, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web, "LASTS_S", 0.2)
    with client.stream("GET", "/live/overview") as answer:
        assert "".join(answer.iter_text()).startswith("retry: 1000\n\n")


def test_too_many_pages_are_refused(client: Browser, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web, "MOST_WATCHERS", 0)
    assert client.get("/live/overview").status_code == 503


def test_a_server_that_ends_waits_for_no_open_page(engine: Engine) -> None:
    opened, ended = threading.Event(), threading.Event()

    def watch(url: str) -> None:
        with httpx.stream("GET", url, timeout=60) as answer:
            for _ in events(answer):
                opened.set()
        ended.set()

    with browsing(app(engine)) as client:
        threading.Thread(target=watch, args=(str(client.base_url.join("/live/overview")),)).start()
        assert opened.wait(30)
    assert ended.wait(30)


@pytest.mark.slow
def test_without_a_server_the_page_says_so(name: str) -> None:
    with browsing(app(Engine("redis://127.0.0.1:1", name=name, timeout=0.2, connect_timeout=0.2))) as client:
        for path in ("/", "/shards", "/nodes", "/topics", "/topics/one?topic=mail", "/fleet"):
            answer = client.get(path)
            assert (answer.status_code, "cannot tell" in answer.text) == (200, True), path
        for path in ("/future", "/shards/number"):
            answer = client.get(path)
            assert (answer.status_code, "could not connect" in answer.text) == (503, True), path


def test_a_live_part_says_that_its_server_is_away(name: str) -> None:
    engine = Engine("redis://127.0.0.1:1", name=name, timeout=0.2, connect_timeout=0.2)
    with browsing(app(engine)) as client:
        for part in ("resize", "shards", "overview"):
            with client.stream("GET", f"/live/{part}") as answer:
                assert "cannot tell" in next(events(answer)), part


def test_an_engine_for_asyncio_is_asked_in_its_loop(url: str, name: str) -> None:
    engine = shardq.AsyncEngine(url, name=name, shards=2)

    async def close(request: Request) -> Response:
        await engine.close()
        return PlainTextResponse("closed")

    dashboard = app(engine)
    dashboard.pages.router.routes.insert(0, page("/close", close))
    with browsing(dashboard) as client:
        assert "no dispatcher runs" in client.get("/").text
        with client.stream("GET", "/live/overview") as answer:
            assert "scheduled" in next(events(answer))
        wait_until(lambda: not dashboard.pages.state.dashboard.snapshots.watchers, "the page is closed", timeout=30)
        assert client.get("/close").text == "closed"


def test_a_watcher_that_is_cancelled_ends(url: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshots, "LINGER_S", 0.0)
    monkeypatch.setattr(snapshots, "LEAST_S", 0.0)

    async def next_look(shared: SharedSnapshots) -> None:
        async with aclosing(shared.watch(for_s=SOON_S)) as series:
            await anext(series)

    async def the_end(shared: SharedSnapshots) -> None:
        asyncio.get_running_loop().call_later(0.05, shared.end)
        async for _ in shared.watch(for_s=SOON_S, every_s=SOON_S):
            pass

    async def main() -> None:
        async with shardq.AsyncEngine(url, name=name, shards=2) as engine:
            for watched in (next_look, the_end):
                async for cut in cuts():
                    shared = SharedSnapshots(Caller(engine))
                    await cut.of(watched(shared))
                    assert not shared.watchers
        await quiet()

    asyncio.run(main())


def test_looks_are_rarer_where_they_cost_more(engine: Engine) -> None:
    engine.push("one", delay=600)
    stats = engine.stats()
    assert interval_for(stats) == 1
    many = replace(stats, scheduled=25_000, leased=25_000)
    assert 2 < interval_for(many) < 3
    assert 3 < interval_for(replace(many, dead=25_000)) < 4
    assert interval_for(replace(many, scheduled=10**8, leased=10**8)) < 3


def test_a_shard_is_late_by_what_is_overdue_or_was_dispatched_late(engine: Engine) -> None:
    shard = replace(engine.stats().shards[0], late_ms=40, dispatched=10, head_age=-5.0)
    assert late_ms(shard, None) == 0
    assert late_ms(shard, 10) == 0
    assert late_ms(shard, 9) == 40
    assert late_ms(replace(shard, head_age=2.5), 9) == 2500
    assert late_ms(replace(shard, error="Unavailable: gone"), 9) is None
