"""The lists of tasks, a task's own page, and the commands on one task."""

from __future__ import annotations

import datetime as dt
import re
from html import unescape

import pytest

from shardq import Engine, Task
from shardq.http import app
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


def tabs(text: str) -> dict[str, str]:
    """State → its count, of the tabs above a list."""
    [found] = re.findall(r'<ul class="tabs">(.*?)</ul>', text, re.DOTALL)
    return dict(re.findall(r'>(\w+)(?: <span class="num">([^<]*)</span>)?</a>', found))


def test_every_list_has_the_states_with_their_counts(engine: Engine, client: Browser) -> None:
    engine.push_many([Task(n, delay=FAR_S, topic="mail") for n in range(3)])
    engine.push("x", delay=FAR_S, topic="other", tags=["a"])
    bury(engine, ["late"])
    every = {"all": "5", "scheduled": "4", "retrying": "0", "ready": "0", "leased": "0", "dead": "1"}
    for path in ("/tasks", "/tasks?state=ready", "/tasks?failed=1", "/dead", "/retries"):
        assert tabs(client.get(path).text) == every, path
    assert tabs(client.get("/tasks?topic=mail").text) == every | {"all": "4", "scheduled": "3"}
    assert tabs(client.get("/tasks?topic=none").text) == dict.fromkeys(every, "0")
    page = client.get("/tasks?topic=other&tag=a&state=scheduled").text
    assert tabs(page) == dict.fromkeys(every, ""), "nobody counts by tag"
    assert 'href="/tasks?state=dead&amp;topic=other&amp;tag=a"' in page
    assert re.findall(r'aria-current="page">(\w+)<', page) == ["Tasks", "scheduled"]


def test_a_list_is_filtered_by_the_name_of_a_task_and_by_a_tag(engine: Engine, client: Browser) -> None:
    calls = [{"task": f"shop.{name}", "args": [n]} for n in range(40) for name in ("resize", "mail")]
    ids = engine.push_many([Task(call, delay=FAR_S + n, tags=[f"t{n % 4}"]) for n, call in enumerate(calls)])
    page = client.get("/tasks?name=resize")
    assert listed(page.text) == ids[:60:2]
    assert "shop.resize" in page.text
    link = _NEXT.search(page.text)
    assert link is not None
    assert listed(client.get(unescape(link[1])).text) == ids[60::2]
    assert listed(client.get("/tasks?name=resize&tag=t2").text) == ids[2::4]
    assert "All that match" not in page.text, "no command knows tasks by name"
    assert (
        "no command knows tasks by name" in client.submit("/tasks", "/tasks/bulk/count", verb="cancel", name="a").text
    )


def marked(client: Browser, verb: str, ids: list[str], **fields: str) -> str:
    """Marks these in a list, and presses a button. Returns the question, or why there is none."""
    data = {"csrf": client.form_of("/tasks"), "verb": verb, "id": ids, **fields}
    return client.post("/tasks/marked", data=data).text


def test_marked_tasks_are_cancelled_run_and_requeued_after_one_question(engine: Engine, client: Browser) -> None:
    ids = [*map(str, engine.push_many([Task(n, delay=FAR_S + n, topic="mail", id=f" {n}") for n in range(5)]))]
    page = client.get("/tasks?state=scheduled&topic=mail").text
    boxes = re.findall(r'<input type="checkbox" name="id" value="([^"]+)"', page)
    assert [each.replace("%20", " ") for each in boxes] == ids
    assert re.findall(r'<button name="verb" value="(\w+)">', page) == ["run", "cancel"]
    question = marked(client, "cancel", boxes[:4])
    assert "Cancel 4 tasks? mail/ 0, mail/ 1, mail/ 2 and 1 more" in question
    assert "mark at least one in the list" in marked(client, "cancel", [])
    assert "verb=" in marked(client, "drop", boxes)
    assert engine.stats().scheduled == 5, "it asks first"
    engine.cancel(ids[3])

    def confirmed(verb: str, ids: list[str], state: str) -> str:
        data = {"csrf": client.form_of("/tasks"), "verb": verb, "id": ids, "state": state, "sure": "yes"}
        answer = client.post("/tasks/marked", data=data)
        assert answer.headers["location"] == f"/tasks?state={state}"
        return client.get(answer.headers["location"]).text

    assert "3 of 4 tasks cancelled, 1 left alone: gone." in confirmed("cancel", boxes[:4], "scheduled")
    assert "1 of 1 task due now." in confirmed("run", boxes[4:], "scheduled")
    assert engine.tasks(due=(None, dt.datetime.now(dt.UTC)))[0].id == ids[4]
    bury(engine, ["bad", "bad"], topic="other")
    dead = [task.id for task in engine.dead("other")]
    page = client.get("/tasks?state=dead").text
    assert re.findall(r'<button name="verb" value="(\w+)">', page) == ["requeue", "remove"]
    assert re.findall(r'name="verb" value="(\w+)">\n', page) == ["requeue", "remove"], "of all that match"
    assert "2 of 2 tasks requeued." in confirmed("requeue", dead, "dead")
    assert engine.stats().dead == 0


def test_leased_tasks_can_not_be_marked(engine: Engine, client: Browser) -> None:
    put_leased(engine)
    page = client.get("/tasks?state=leased").text
    assert listed(page)
    assert "checkbox" not in page


def put_leased(engine: Engine) -> None:
    engine.start()
    engine.push("x", topic="mail")
    assert engine.consumer("mail").claim(1, wait=30)
    engine.stop()


def test_a_task_tells_its_attempts_that_failed(engine: Engine, client: Browser) -> None:
    id = engine.push("x", topic="mail")
    engine.start()
    consumer = engine.consumer("mail", name="mailer")
    for reason in ("Traceback\nTimeoutError: no answer", "Traceback\nValueError: <b>"):
        [delivery] = consumer.claim(1, wait=30)
        consumer.retry(delivery, delay=0 if "Timeout" in reason else FAR_S, reason=reason)
    engine.stop()
    text = client.get("/tasks/one", params={"id": id}).text
    assert "Attempts that failed" in text
    assert text.index("ValueError: &lt;b&gt;") < text.index("TimeoutError: no answer"), "the latest first"
    assert text.count("mailer-") == 2
    assert "attempt 3 is due" in text
    assert "Run now" in text


def test_a_task_is_cancelled_from_its_page(engine: Engine, client: Browser) -> None:
    url = "https://customer.example/in"
    id = engine.push({"order": 1}, delay=FAR_S, topic="mail", tags=["user-1"], headers={"a": "b"}, url=url)
    text = client.get("/tasks/one", params={"id": id}).text
    for part in ("&#34;order&#34;: 1", "user-1", "scheduled", "mail", url):
        assert part in text
    answer = client.submit(f"/tasks/one?id={id}", "/tasks/cancel", id=id, sure="yes")
    assert f"{id} was cancelled" in answer.text
    assert engine.get(id) is None
    assert client.get("/tasks/one", params={"id": id}).status_code == 404


def test_a_dead_task_is_removed_not_cancelled(engine: Engine, client: Browser) -> None:
    bury(engine, ["bad"] * 3)
    ids = [task.id for task in engine.dead()]
    for page in (f"/tasks/one?id={ids[0]}", "/tasks?state=dead", "/dead"):
        assert "cancel" not in client.get(page).text.lower(), page
    page = f"/tasks/one?id={ids[0]}"
    assert re.findall(r'action="/tasks/(\w+)"', client.get(page).text) == ["requeue", "remove"]
    assert f"Remove the dead task {ids[0]} for good?" in client.submit(page, "/tasks/remove", id=ids[0]).text
    assert f"{ids[0]} was removed" in client.submit(page, "/tasks/remove", id=ids[0], sure="yes").text
    assert "is gone" in client.submit("/tasks?state=dead", "/tasks/remove", id=ids[0], sure="yes").text
    data = {"csrf": client.form_of("/tasks?state=dead"), "verb": "remove", "id": ids[1], "state": "dead", "sure": "yes"}
    answer = client.post("/tasks/marked", data=data)
    assert "1 of 1 task removed." in client.get(answer.headers["location"]).text
    assert [task.id for task in engine.dead()] == ids[2:]


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
