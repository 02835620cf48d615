"""What the pages show, and what their buttons change."""

from __future__ import annotations

import asyncio
import datetime as dt
import re
import threading
from collections.abc import Callable
from typing import Any
from urllib.parse import urlencode

import pytest

from cluster.ports import free_port
from shardq import Batch, Delivery, Engine, Forecast, Task
from shardq.core.fleet import report
from shardq.core.layout.topology import Limit
from shardq.dashboard import drawing, snapshots
from shardq.dashboard import shards as shards_page
from shardq.dashboard.links import PAGE_OF, PAGES, told
from shardq.dashboard.shards import Resizing
from shardq.dashboard.snapshots import Caller, Column
from shardq.engine.health import KINDS
from shardq.errors import ChangeUnderWay
from shardq.http import app
from shardq.worker import report as reporter
from tests.dashboard.browsing import Browser, browsing
from tests.dashboard.test_bulk import bury
from tests.support.waiting import wait_until

LARGEST = 80_000
"""The bytes of a page at most."""


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every page looks anew."""
    monkeypatch.setattr(snapshots, "LEAST_S", 0.0)
    monkeypatch.setattr(snapshots, "FORECAST_S", 0.0)
    monkeypatch.setattr(shards_page, "FRESH_S", 0.0)


def cells(text: str) -> list[list[str]]:
    """The words of each row of a table."""
    rows = re.findall(r"<tr.*?</tr>", text, re.DOTALL)
    return [
        [re.sub(r"<[^>]+>", "", each).strip() for each in re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row, re.DOTALL)]
        for row in rows
    ]


# ---- the future


def test_the_future_is_drawn_and_told(engine: Engine, client: Browser) -> None:
    engine.push_many(Task(n, delay=90 + n / 10) for n in range(200))
    text = client.get("/future").text
    assert "200 scheduled: 0 overdue, 200 within an hour, 0 later." in text
    bars = re.findall(r'<rect class="bar"[^>]*><title>\d\d:\d\d: (\d+)</title>', text)
    assert sum(map(int, bars)) == 200
    assert 'role="img" aria-labelledby="chart-title chart-words"' in text
    assert sum(int(row[1].replace(",", "")) for row in cells(text)[1:]) == 200
    assert len(cells(text)) == 61


def test_the_future_names_the_first_minute_with_too_many(engine: Engine, client: Browser) -> None:
    engine.push_many(Task(n, delay=600) for n in range(100))
    told = client.get("/future?capacity=1/s").text
    assert "too many" in told
    assert "1 tasks a second are 60 in a minute: the first minute with more is" in told
    assert 'class="much"' in told
    assert 'class="capacity"' in told
    assert "no minute has more" in client.get("/future?capacity=500").text
    assert "no day has more" in client.get("/future?capacity=500&horizon=month").text
    for query, why in (("capacity=x", "is not a rate above 0"), ("horizon=year", "is not possible")):
        answer = client.get(f"/future?{query}")
        assert (answer.status_code, why in answer.text) == (400, True)


def test_bars_are_in_proportion() -> None:
    start = dt.datetime(2030, 1, 1, tzinfo=dt.UTC)
    step = dt.timedelta(minutes=1)
    counts = (0, 1, 50, 100)
    found = Forecast(now=start, step=step, overdue=0, buckets=[(start, count) for count in counts], later=0)
    chart = drawing.chart(found, "%H:%M", capacity=1.0)
    room = drawing.HEIGHT - drawing.ABOVE - drawing.BELOW
    assert [bar.height for bar in chart.bars] == [0, 2, room / 2, room]
    assert [bar.is_over for bar in chart.bars] == [False, False, False, True]
    assert [count for _, count in chart.counts] == [0, 50, 100]
    assert chart.capacity_y == round(drawing.ABOVE + room * 0.4, 1)
    assert drawing.chart(found, "%H:%M", capacity=2.0).capacity_y is None


# ---- shards and nodes


def test_the_heat_map_shows_each_shard_at_each_look() -> None:
    at = dt.datetime(2030, 1, 1, tzinfo=dt.UTC)
    columns = [Column(at, {0: 0.0, 1: 20.0}), Column(at, {0: 0.0, 1: 9000.0}), Column(at, {0: None, 1: 0.0})]
    heat = drawing.heat(columns, room=3)
    assert [level for level, _ in heat.paths] == [0, 1, 5]
    assert heat.paths[0][1].count("M") == 2  # what is alike is one cell
    assert heat.unseen.count("M") == 1
    assert heat.worst == (1, 9000.0, at)
    assert [words for _, words in heat.rows] == ["0", "1"]


def test_a_row_of_many_shards_is_the_worst_of_them() -> None:
    at = dt.datetime(2030, 1, 1, tzinfo=dt.UTC)
    heat = drawing.heat([Column(at, {shard: 6000.0 if shard == 5 else 0.0 for shard in range(1024)})], room=60)
    assert heat.per_row == 16
    assert heat.rows[0][1] == "0–15"
    assert dict(heat.paths)[5].count("M") == 1
    assert dict(heat.paths)[0].count("M") == 63


def test_shards_are_listed_and_sorted(engine: Engine, client: Browser) -> None:
    engine.push_many(Task(n, delay=600) for n in range(50))
    rows = cells(client.get("/shards").text)[1:]
    assert [row[0] for row in rows] == ["0", "1", "2", "3"]
    assert sum(int(row[1]) for row in rows) == 50
    assert {row[-1] for row in rows} == {"nobody"}
    sorted_rows = [int(row[1]) for row in cells(client.get("/shards?sort=scheduled").text)[1:]]
    assert sorted_rows == sorted(sorted_rows, reverse=True)
    engine.start()
    wait_until(lambda: "nobody" not in client.get("/shards").text, "every shard is served", timeout=30)


def test_nodes_are_listed(engine: Engine, client: Browser) -> None:
    engine.push("one", delay=600)

    def look() -> dict[str, str]:
        [head, row] = cells(client.get("/nodes").text)
        return dict(zip(head, row, strict=True))

    wait_until(lambda: look()["CPU"].endswith(" %"), "the second look tells")
    found = look()
    assert found["memory"].split()[-1] in ("kB", "MB"), found
    assert found | dict.fromkeys(("per s", "memory", "CPU", "connections"), "") == {
        "node": engine.stats().shards[0].node,
        "shards": "4",
        "scheduled": "1",
        "ready": "0",
        "per s": "",
        "behind": "-",
        "memory": "",
        "CPU": "",
        "replicas": "0",
        "lag": "-",
        "connections": "",
    }


def test_a_thousand_shards_fit_on_a_page(url: str, name: str) -> None:
    with Engine(url, name=name, shards=1024) as engine, browsing(app(engine)) as client:
        text = client.get("/shards").text
        assert "1 to 100 of 1024" in text
        assert len(text.encode()) < LARGEST
        # shards that a busy server has not answered for come first
        wait_until(lambda: cells(client.get("/shards?begin=1000").text)[1][0] == "1000", "all are read", timeout=60)


# ---- the fleet


def test_the_fleet_is_listed(engine: Engine, client: Browser, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reporter, "BEAT_S", 0.2)
    monkeypatch.setattr(report, "LEAST_GAP_S", 0.1)
    assert "Start a dispatcher with" in client.get("/fleet").text
    engine.start()
    worker = engine.worker(concurrency=3)

    @worker.on("mail")
    def handle(delivery: Delivery) -> None: ...

    @worker.on("events", batch=10)
    def store(batch: Batch[object]) -> None: ...

    thread = threading.Thread(target=worker.run)
    thread.start()
    try:
        wait_until(lambda: "1 worker <small>" in client.get("/fleet").text, "the worker reports", timeout=30)
        text = client.get("/fleet").text
        assert "1 dispatcher <small>" in text
        assert "0 of 3" in text
        heads = [row for row in cells(text) if row[0] == "process"]
        assert len(heads) == 2
        assert all(len(head) == len(set(head)) and "version" in head for head in heads)
        assert "mail" in text
        assert not any("batch" in head for head in heads), "no worker has had a batch"
        engine.push("x", topic="events")

        def batch() -> list[str]:
            rows = cells(client.get("/fleet").text)
            return [dict(zip(rows[-2], rows[-1], strict=True)).get("batch", "")]

        wait_until(lambda: batch() == ["1.0"], "the batch is reported")
    finally:
        worker.stop()
        thread.join()


# ---- topics


def test_a_topic_is_paused_and_resumed(engine: Engine, client: Browser) -> None:
    engine.push("one", topic="mail", delay=600)
    text = client.submit("/topics", "/topics/pause", topic="mail", sure="yes").text
    assert "mail is paused, over the whole fleet" in text
    assert engine.stats().topics["mail"].paused
    assert ">paused<" in text
    text = client.submit("/topics/one?topic=mail", "/topics/resume", topic="mail", **{"from": "one"}).text
    assert "mail is given out again" in text
    assert "<h1>Topic mail</h1>" in text
    assert not engine.stats().topics["mail"].paused


def test_a_topic_is_limited(engine: Engine, client: Browser) -> None:
    def limit(**fields: str) -> Any:
        return client.submit("/topics/one?topic=mail", "/topics/limit", topic="mail", **{"from": "one"}, **fields)

    assert "mail: 2.5 tasks a second and 20 at once" in limit(rate="150/m", concurrency="20").text
    assert engine.stats().topics["mail"].limit == Limit(rate=2.5, concurrency=20)
    assert 'value="2.5"' in client.get("/topics/one?topic=mail").text
    for fields, why in (
        ({"rate": "fast"}, "is not a rate above 0"),
        ({"concurrency": "-1"}, "is not a number of tasks"),
        ({"concurrency": "0"}, "concurrency=0 is not possible"),
    ):
        answer = limit(**fields)
        assert (answer.status_code, why in answer.text) == (400, True)
    assert "mail: no limits" in limit().text
    assert not engine.topology.limits


def test_names_that_no_topic_has_are_refused(client: Browser) -> None:
    answer = client.submit("/topics/one?topic=mail", "/topics/pause", topic="<script>")
    assert answer.status_code == 400
    assert "<script>" not in answer.text
    assert client.get("/topics/one?topic=%3Cb%3E").status_code == 400


def test_many_topics_fit_on_a_page(engine: Engine, client: Browser) -> None:
    engine.push_many(Task(n, topic=f"topic-with-a-long-name-{n:040}", delay=600) for n in range(300))
    text = client.get("/topics").text
    assert "and 225 more, with fewer ready tasks" in text
    assert len(text.encode()) < LARGEST


# ---- the number of shards


def test_the_number_of_shards_is_changed_in_the_background(engine: Engine, client: Browser) -> None:
    engine.push_many(Task(n, delay=600) for n in range(400))
    engine.start()
    told = client.get("/shards/number?shards=8").text
    assert re.search(r"About <strong>\d+</strong> tasks would move", told)
    answer = client.submit("/shards/number?shards=8", "/shards/number", shards="8", rate="")
    assert "the change to 8 shards has begun" in answer.text
    wait_until(lambda: "every task is where it belongs" in client.get("/shards/number").text, "all moved", timeout=60)
    assert "<strong>8 shards</strong> in force" in client.get("/shards/number").text
    assert engine.stats().scheduled == 400
    assert engine.topology.shards == 8


def test_a_second_change_is_refused_while_tasks_move(engine: Engine, client: Browser) -> None:
    def moving_at() -> float | None:
        engine.resize(dry_run=True).progress()  # reads the topology anew
        return engine.topology.move_rate

    engine.push_many(Task(n, delay=600) for n in range(40))
    # no dispatcher moves them
    client.submit("/shards/number?shards=8", "/shards/number", shards="8")
    wait_until(lambda: "no process moves the tasks" in client.get("/shards/number").text, "8 are in force", timeout=30)
    assert "hold up the end" not in client.get("/shards/number").text
    answer = client.submit("/shards/number?shards=16", "/shards/number", shards="16")
    assert answer.status_code == 409
    assert "its tasks are still being moved, so there can be none to 16 now" in answer.text
    assert "has begun" in client.submit("/shards/number?shards=8", "/shards/number", shards="8", rate="500").text
    wait_until(lambda: moving_at() == 500, "it moves slower", timeout=30)
    for shards, why in (("0", "1024"), ("x", "is not a number of shards"), ("5000", "1024")):
        answer = client.get(f"/shards/number?{urlencode({'shards': shards})}")
        assert (answer.status_code, why in answer.text) == (400, True)


class SlowCaller(Caller):
    """Holds the third call up: a change asks for its progress with two before it begins."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self.calls = 0
        self.go = asyncio.Event()

    async def __call__(self, call: Callable[[Engine], Any]) -> Any:
        self.calls += 1
        if self.calls == 3:
            await self.go.wait()
        return await super().__call__(call)


def test_a_second_change_is_refused_while_the_first_begins(engine: Engine) -> None:
    async def trial() -> None:
        call = SlowCaller(engine)
        resizing = Resizing(call)
        await resizing.begin(8, None)
        with pytest.raises(ChangeUnderWay, match="a change to 8 shards is under way, so there can be none to 16 now"):
            await resizing.begin(16, None)
        call.go.set()
        await asyncio.gather(*(asyncio.all_tasks() - {asyncio.current_task()}))
        assert resizing.change is not None
        assert resizing.change.error == ""

    asyncio.run(trial())
    assert engine.topology.shards == 8


def test_a_change_that_is_there_already_is_refused(engine: Engine, client: Browser) -> None:
    answer = client.submit("/shards/number?shards=4", "/shards/number", shards="4")
    assert answer.status_code == 400
    assert "there are 4 shards already" in answer.text


# ---- verdicts


def test_a_verdict_leads_to_its_pages(engine: Engine, client: Browser) -> None:
    bury(engine, ["bad"] * 101)
    text = client.get("/").text
    [verdict] = re.findall(r'<div class="verdict bad">.*?</div>', text, re.DOTALL)
    assert '<a href="/topics/one?topic=mail">&#39;mail&#39;</a>' in verdict
    assert 'see <a href="/dead">dead tasks</a>' in verdict
    assert '<code>shardq run</code> <a href="/fleet">→ Fleet</a>' in verdict
    assert "`" not in verdict


def test_each_kind_of_reason_has_a_page_or_none_on_purpose() -> None:
    assert set(PAGE_OF) == set(KINDS)
    assert {page for page in PAGE_OF.values() if page} <= set(PAGES)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("see `shardq topics`", 'see <a href="/q/topics">Topics</a>'),
        ("`shardq list --failed --topic mail`", '<a href="/q/retries?topic=mail">retries</a>'),
        ("`shardq list --state ready --topic 'a b'`", '<a href="/q/tasks?state=ready&amp;topic=a+b">ready tasks</a>'),
        ("`shardq` `a 'b` `rm -r <b>`", "<code>shardq</code> <code>a &#39;b</code> <code>rm -r &lt;b&gt;</code>"),
        ("topic (default): late", 'topic <a href="/q/topics/one">(default)</a>: late'),
        (
            f"topic {'<x>' + chr(0x202E)!r}",
            'topic <a href="/q/topics/one?topic=%3Cx%3E%E2%80%AE">&#39;&lt;x&gt;\\u202e&#39;</a>',
        ),
        ("topic 'x\\", "topic &#39;x\\"),
    ],
)
def test_commands_and_topics_of_a_sentence_are_links(text: str, shown: str) -> None:
    assert told("/q", text) == shown


# ---- all of them

PATHS = ("/", "/future", "/shards", "/shards/number", "/nodes", "/topics", "/topics/one?topic=mail", "/fleet")


def test_a_read_only_dashboard_has_no_buttons_and_takes_no_form(engine: Engine) -> None:
    engine.push("one", topic="mail", delay=600)
    with browsing(app(engine, read_only=True)) as client:
        for path in PATHS:
            assert 'method="post"' not in client.get(path).text
        for path in ("/topics/pause", "/topics/resume", "/topics/limit", "/shards/number"):
            answer = client.post(path, data={"topic": "mail", "shards": "8"})
            assert (answer.status_code, "read-only" in answer.text) == (403, True)
    assert not engine.stats().topics["mail"].paused
    assert engine.topology.shards == 4


def test_every_page_is_whole_small_and_loads_nothing_from_elsewhere(engine: Engine, client: Browser) -> None:
    engine.push("one", topic="mail", delay=600)
    for path in PATHS:
        answer = client.get(path)
        assert answer.status_code == 200
        assert len(answer.content) < LARGEST
        assert "://" not in answer.text.replace("redis://", "")
        assert re.findall(r' style=|<style| on\w+=|<script(?! src="/static/live\.js)', answer.text) == []
        assert re.findall(r"<h1", answer.text) == ["<h1"]


def test_every_live_part_is_sent(engine: Engine, client: Browser) -> None:
    for path in PATHS:
        found = re.search(r'data-live="([^"]+)"', client.get(path).text)
        if found is not None:
            with client.stream("GET", found[1].replace("&amp;", "&")) as answer:
                assert next(line for line in answer.iter_lines() if line.startswith("data: <")), path


# ---- sinks


@pytest.mark.slow
def test_a_sink_that_is_down_is_shown(engine: Engine, client: Browser) -> None:
    engine.start()
    engine.forward("hooks", to=f"http://127.0.0.1:{free_port()}/")
    engine.push(1, topic="hooks")
    wait_until(lambda: "circuit" in client.get("/topics").text, "the list of topics tells it")

    def tiles() -> dict[str, str]:
        text = client.get("/topics/one?topic=hooks").text
        return dict(re.findall(r"<dt>(\w+)</dt><dd[^>]*>([^<]*)</dd>", text))

    shown = wait_until(lambda: (found := tiles()).get("circuit") in ("open", "half-open") and found, "so does its page")
    assert isinstance(shown, dict)
    assert (shown["sent"], shown["buried"]) == ("0", "0")
    assert "Connection refused" in client.get("/topics/one?topic=hooks").text
