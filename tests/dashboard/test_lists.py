"""The lists of tasks, a task's own page, and the commands on one task."""

from __future__ import annotations

import re
from html import unescape

import pytest

from shardq import Engine, Task
from shardq.dashboard import app
from tests.dashboard.browsing import Browser, browsing
from tests.dashboard.test_bulk import bury
from tests.support.states import FAR_S

_IDS = re.compile(r'/tasks/one\?id=([^"&]+)"')
_NEXT = re.compile(r'rel="next" href="([^"]+)"')


def listed(text: str) -> list[str]:
    return _IDS.findall(text)


def test_a_list_goes_through_all_tasks_page_by_page(engine: Engine, client: Browser) -> None:
    ids = engine.push_many([Task(n, delay=FAR_S + n, topic="mail") for n in range(100)])
    engine.push_many([Task(n, delay=FAR_S, topic="other") for n in range(20)])
    page = client.get("/tasks", params={"topic": "mail", "due": "1m.."})
    found = listed(page.text)
    while link := _NEXT.search(page.text):
        page = client.get(unescape(link[1]))
        found += listed(page.text)
    assert [each.replace("%2F", "/") for each in found] == ids
    assert "First page" in page.text


def test_dead_tasks_are_listed_with_the_latest_death_first(engine: Engine, client: Browser) -> None:
    bury(engine, ["early"] * 45)
    bury(engine, ["late"])
    page = client.get("/tasks?state=dead")
    found = listed(page.text)
    assert "late" in page.text
    link = _NEXT.search(page.text)
    assert link is not None
    found += listed(client.get(unescape(link[1])).text)
    assert [each.replace("%2F", "/") for each in found] == [task.id for task in reversed([*engine.dead()])]
    assert 'action="/tasks/one"' in page.text


@pytest.mark.slow
def test_a_list_of_a_rare_topic_goes_on_where_it_looked_last(engine: Engine, client: Browser) -> None:
    engine.push_many([Task(n, delay=60, topic="common") for n in range(20_000)])
    rare = engine.push("x", delay=FAR_S, topic="rare")
    page = client.get("/tasks", params={"topic": "rare", "state": "scheduled"})
    assert "None among the first thousand" in page.text
    assert "Look further" in page.text
    while not listed(page.text):
        link = _NEXT.search(page.text)
        assert link is not None, page.text
        page = client.get(unescape(link[1]))
    assert listed(page.text) == [rare.replace("/", "%2F")]


def test_what_is_wrong_in_a_filter_is_said_above_it(client: Browser) -> None:
    for wrong, said in {
        "due=soon": "is not a range",
        "state=odd": "state='odd'",
        "topic=a+b": "topic",
        "cursor=x": "cursor",
    }.items():
        answer = client.get(f"/tasks?{wrong}")
        assert answer.status_code == 400
        assert said in unescape(answer.text)
        assert '<form method="get"' in answer.text


def test_the_default_topic_has_a_word(engine: Engine, client: Browser) -> None:
    [default, _] = engine.push_many([Task(1, delay=FAR_S), Task(2, delay=FAR_S, topic="mail")])
    assert listed(client.get("/tasks", params={"topic": "(default)"}).text) == [default]


def test_a_task_is_cancelled_from_its_page(engine: Engine, client: Browser) -> None:
    id = engine.push({"order": 1}, delay=FAR_S, topic="mail", tags=["user-1"], headers={"a": "b"})
    text = client.get("/tasks/one", params={"id": id}).text
    for part in ("&#34;order&#34;: 1", "user-1", "scheduled", "mail"):
        assert part in text
    answer = client.submit(f"/tasks/one?id={id}", "/tasks/cancel", id=id, sure="yes")
    assert f"{id} was cancelled" in answer.text
    assert engine.get(id) is None
    assert client.get("/tasks/one", params={"id": id}).status_code == 404


def test_a_task_is_rescheduled_and_requeued_from_its_page(engine: Engine, client: Browser) -> None:
    id = engine.push("x", delay=FAR_S)
    assert "was rescheduled" in client.submit(f"/tasks/one?id={id}", "/tasks/reschedule", id=id, due="1h").text
    answer = client.submit(f"/tasks/one?id={id}", "/tasks/reschedule", id=id, due="soon")
    assert (answer.status_code, "is not a length of time" in answer.text) == (400, True)
    answer = client.submit(f"/tasks/one?id={id}", "/tasks/requeue", id=id)
    assert "was left alone: it is scheduled" in answer.text
    assert "/tasks/reschedule" in answer.text


def test_what_nobody_can_read_is_shown_as_bytes(engine: Engine, url: str, name: str, client: Browser) -> None:
    with Engine(url, name=name, codec="raw") as other:
        raw = other.push(b"\xff\x00<b>", delay=FAR_S)
        text = other.push(b'{"a": "<b>"}', delay=FAR_S)
    assert "ff 00 3c 62 3e" in client.get(f"/tasks/one?id={raw}").text
    assert "{\n  &#34;a&#34;: &#34;&lt;b&gt;&#34;\n}" in client.get(f"/tasks/one?id={text}").text

    class Own:
        name = "own"

        def encode(self, payload: object) -> bytes:
            return b"own"

        def decode(self, data: bytes) -> object:
            return data

    with Engine(url, name=name, codec=Own()) as other:
        own = other.push("x", delay=FAR_S)
    page = client.get(f"/tasks/one?id={own}")
    assert "open the engine with the codec= that wrote it" in page.text
    assert "own" in page.text


def test_a_read_only_dashboard_changes_nothing(engine: Engine) -> None:
    id = engine.push("x", delay=FAR_S)
    with browsing(app(engine, read_only=True)) as client:
        for path in ("/tasks", f"/tasks/one?id={id}", "/dead", "/tasks/bulk"):
            page = client.get(path)
            assert page.status_code == 200
            assert 'method="post"' not in page.text
        for verb in ("cancel", "requeue", "reschedule", "bulk/count", "bulk/confirm", "bulk/stop"):
            answer = client.post(f"/tasks/{verb}", data={"id": id, "verb": "cancel", "due": "1h"})
            assert (answer.status_code, "read-only" in answer.text) == (403, True)
    assert engine.get(id) is not None


def test_an_engine_for_asyncio_has_the_same_pages(engine: Engine, asynchronous: Browser) -> None:
    id = engine.push("x", delay=FAR_S)
    for path in ("/tasks?due=1m..", f"/tasks/one?id={id}", "/dead", "/tasks/bulk"):
        assert asynchronous.get(path).status_code == 200
    assert "was cancelled" in asynchronous.submit(f"/tasks/one?id={id}", "/tasks/cancel", id=id, sure="yes").text
