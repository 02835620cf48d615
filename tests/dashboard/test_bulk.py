"""Commands on all tasks that match: counted, confirmed, followed, stopped; and the reasons of dead tasks."""

from __future__ import annotations

import datetime as dt
import re
import threading
from collections.abc import Callable

import httpx
import pytest

from shardq import BulkResult, Engine, Task
from shardq.dashboard.bulk import AT_ONCE
from shardq.dashboard.tasks import LATEST
from tests.dashboard.browsing import Browser
from tests.support.states import FAR_S
from tests.support.waiting import wait_until

_KEY = re.compile(r'name="key" value="([\w-]+)"')
_LINK = re.compile(r'href="(/tasks/bulk/[\w-]+)"')


def shown(client: Browser, place: str, *words: str) -> str:
    """The page of a command as soon as it says one of these words."""

    def text() -> str:
        page = client.get(place).text
        return page if any(word in page for word in words) else ""

    return wait_until(text, f"{place} says {' or '.join(words)}")


def counted(client: Browser, page: str, **fields: str) -> str:
    """Gives a command, and returns the address of its page when it is counted."""
    answer = client.post("/tasks/bulk/count", data={"csrf": client.form_of(page), **fields})
    assert answer.status_code == 303, answer.text
    place = answer.headers["location"]
    shown(client, place, "tasks match", "No task matches")
    return str(place)


def confirm(client: Browser, place: str) -> httpx.Response:
    key = place.rpartition("/")[2]
    return client.submit(place, "/tasks/bulk/confirm", key=key)


def bury(engine: Engine, reasons: list[str], topic: str = "mail") -> None:
    """Pushes tasks and buries them for these reasons."""
    engine.push_many([Task(n, topic=topic) for n in range(len(reasons))])
    engine.start()
    left, consumer = list(reasons), engine.consumer(topic)
    while left:
        for delivery in consumer.claim(min(100, len(left)), wait=30):
            consumer.bury(delivery, left.pop())
    consumer.close()
    engine.stop()


@pytest.mark.parametrize("kind", ["client", "asynchronous"])
def test_nothing_is_cancelled_before_it_is_confirmed(engine: Engine, kind: str, request: pytest.FixtureRequest) -> None:
    engine.push_many([Task(n, delay=FAR_S, topic="mail") for n in range(1500)])
    engine.push("x", delay=FAR_S, topic="other")
    either: Browser = request.getfixturevalue(kind)
    place = counted(either, "/tasks", verb="cancel", topic="mail", due="1m..")
    page = either.get(place).text
    assert "1,500 tasks match" in page
    assert "scheduled tasks of the topic mail" in page
    assert engine.stats(shards=False).scheduled == 1501
    fields = {"csrf": either.form_of(place), "key": place.rpartition("/")[2]}
    either.post("/tasks/bulk/confirm", data=fields)
    assert "1,500 of 1,500 cancelled" in shown(either, place, "<strong>done")
    assert engine.stats(shards=False).scheduled == 1
    either.post("/tasks/bulk/confirm", data=fields)
    assert "1,500 of 1,500 cancelled" in either.get(place).text


def test_dead_tasks_are_grouped_by_reason_and_requeued(engine: Engine, client: Browser) -> None:
    bury(engine, [f"Traceback\n  File 'x', line {n}\nKeyError: 'order-{n}'" for n in range(30)] + ["<i>late</i>"] * 10)
    page = client.get("/dead").text
    assert "All 40 dead tasks" in page
    assert page.index("KeyError: &#39;order-#&#39;") < page.index("&lt;i&gt;late&lt;/i&gt;")
    place = counted(client, "/dead", verb="requeue", state="dead", topic="mail")
    assert "Requeue dead tasks of the topic mail" in client.get(place).text
    confirm(client, place)
    assert "40 of 40 requeued" in shown(client, place, "<strong>done")
    assert engine.stats(shards=False).dead == 0
    assert "No task is dead" in client.get("/dead").text


def test_the_newest_outage_is_not_hidden_behind_an_old_one(engine: Engine, client: Browser) -> None:
    bury(engine, [f"old outage {n}" for n in range(LATEST + 100)])
    bury(engine, ["new outage"] * 3)
    page = client.get("/dead").text
    assert page.index("new outage") < page.index("old outage #")
    assert f"The {LATEST} tasks that died last" in page
    place = counted(client, "/dead", verb="requeue", state="dead")
    confirm(client, place)
    assert f"{LATEST + 103} of {LATEST + 103} requeued" in shown(client, place, "<strong>done")


class Gate:
    """Holds commands up after their first page, until it is opened."""

    def __init__(self, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
        self.entered, self.opened = threading.Event(), threading.Event()
        cancel_all = engine.cancel_all

        def held(*, progress: Callable[[BulkResult], object], **arguments: object) -> BulkResult:
            def noted(so_far: BulkResult) -> None:
                progress(so_far)
                self.entered.set()
                assert self.opened.wait(60)

            return cancel_all(progress=noted, **arguments)  # type: ignore[arg-type]  # as they came

        monkeypatch.setattr(engine, "cancel_all", held)


def test_a_command_is_stopped_between_two_pages(
    engine: Engine, client: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine.push_many([Task(n, delay=FAR_S, topic="mail") for n in range(3000)])
    place = counted(client, "/tasks", verb="cancel", topic="mail")
    gate = Gate(engine, monkeypatch)
    confirm(client, place)
    assert gate.entered.wait(60)
    page = client.get(place).text
    assert "working" in page
    assert "1,000 of 3,000 cancelled" in page
    client.submit(place, "/tasks/bulk/stop", key=place.rpartition("/")[2])
    gate.opened.set()
    text = shown(client, place, "<strong>stopped")
    done = int(re.search(r"([\d,]+) of 3,000 cancelled", text)[1].replace(",", ""))  # type: ignore[index]  # it is there
    assert 1000 <= done < 3000
    assert engine.stats(shards=False).scheduled == 3000 - done


def test_a_count_is_stopped_and_what_matches_is_cancelled_all_the_same(
    engine: Engine, client: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine.push_many([Task(n, delay=FAR_S, topic="mail") for n in range(3000)])
    gate = Gate(engine, monkeypatch)
    fields = {"csrf": client.form_of("/tasks"), "verb": "cancel", "topic": "mail"}
    place = client.post("/tasks/bulk/count", data=fields).headers["location"]
    assert gate.entered.wait(60)
    client.submit(place, "/tasks/bulk/stop", key=place.rpartition("/")[2])
    gate.opened.set()
    assert "More than " in shown(client, place, "tasks match")
    assert engine.stats(shards=False).scheduled == 3000
    confirm(client, place)
    assert "3,000 cancelled" in shown(client, place, "<strong>done")


def test_only_so_many_commands_are_under_way_at_once(
    engine: Engine, client: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine.push("x", delay=FAR_S, topic="mail")
    gate = Gate(engine, monkeypatch)
    fields = {"csrf": client.form_of("/tasks"), "verb": "cancel", "topic": "mail"}
    places = [client.post("/tasks/bulk/count", data=fields).headers["location"] for _ in range(AT_ONCE)]
    answer = client.post("/tasks/bulk/count", data=fields)
    assert (answer.status_code, "are under way" in answer.text) == (400, True)
    assert len(_LINK.findall(client.get("/tasks/bulk").text)) == AT_ONCE
    gate.opened.set()
    for place in places:
        shown(client, place, "task matches")


def test_commands_that_make_no_sense_are_refused(engine: Engine, client: Browser) -> None:
    csrf = client.form_of("/tasks?due=1m..") if engine.push("x", delay=FAR_S) else ""
    for fields, said in (
        ({"verb": "drop"}, "verb="),
        ({"verb": "cancel", "state": "leased"}, "leased tasks can&#39;t be cancelled"),
        ({"verb": "cancel", "holder": "w"}, "leave the holder out"),
        ({"verb": "requeue", "state": "ready"}, "dead tasks are requeued"),
        ({"verb": "remove", "state": "ready"}, "dead tasks are removed"),
        ({"verb": "reschedule", "to": ""}, "the new due time"),
    ):
        answer = client.post("/tasks/bulk/count", data={"csrf": csrf, **fields})
        if answer.status_code == 303:
            assert said in shown(client, answer.headers["location"], "<strong>failed")
        else:
            assert (answer.status_code, said in answer.text) == (400, True)
    assert client.get("/tasks/bulk/nothing").status_code == 404


def test_a_forged_form_cancels_nothing(engine: Engine, client: Browser) -> None:
    id = engine.push("x", delay=FAR_S)
    client.get("/tasks")
    for path, fields in (("/tasks/cancel", {"id": id}), ("/tasks/bulk/count", {"verb": "cancel"})):
        assert client.post(path, data=fields).status_code == 403
        assert client.post(path, data={**fields, "csrf": "0" * 64}).status_code == 403
    assert engine.get(id) is not None


def test_the_dead_of_one_reason_are_requeued_or_removed(engine: Engine, client: Browser) -> None:
    """Numbers in a reason count as equal; tasks of another reason, or of another topic, stay dead."""
    timeouts = [f"Traceback\n  File x\nTimeoutError: no answer in {n} s" for n in range(30)]
    bury(engine, [*timeouts, *["bad address"] * 20])
    bury(engine, timeouts[:5], topic="other")
    assert 'name="reason" value="TimeoutError: no answer in # s"' in client.get("/dead?topic=mail").text
    place = counted(client, "/dead", verb="requeue", topic="mail", reason="TimeoutError: no answer in # s")
    assert "30" in client.get(place).text
    confirm(client, place)
    shown(client, place, "30 of 30 requeued")
    left = [(task.topic, task.reason) for task in engine.dead()]
    assert sorted(topic for topic, _ in left) == ["mail"] * 20 + ["other"] * 5
    place = counted(client, "/dead", verb="remove", state="dead", reason="TimeoutError: no answer in # s")
    assert "Remove 5 tasks" in client.get(place).text
    confirm(client, place)
    shown(client, place, "5 of 5 removed")
    assert [task.topic for task in engine.dead()] == ["mail"] * 20
    assert engine.changes()[1].what == "requeued 30 tasks: topic mail, died of TimeoutError: no answer in # s"


def test_the_tasks_of_a_tag_are_requeued_and_cancelled(engine: Engine, client: Browser) -> None:
    engine.push_many([Task(n, topic="mail", tags=["a" if n < 3 else "b"]) for n in range(5)])
    engine.start()
    consumer, left = engine.consumer("mail"), 5
    while left:
        found = consumer.claim(left, wait=30)
        consumer.bury(found, "bad")
        left -= len(found)
    engine.stop()
    place = counted(client, "/tasks?state=dead", verb="requeue", state="dead", tag="a")
    assert "Requeue dead tasks with the tag a" in client.get(place).text
    confirm(client, place)
    shown(client, place, "3 of 3 requeued")
    place = counted(client, "/tasks", verb="cancel", tag="b")
    confirm(client, place)
    shown(client, place, "2 of 2 cancelled")
    assert engine.stats().dead == 0


def test_retries_are_grouped_by_reason_run_now_and_cancelled(engine: Engine, client: Browser) -> None:
    assert "No task waits for a retry" in client.get("/retries").text
    engine.push("x", delay=FAR_S, topic="mail")
    engine.push_many([Task(n, topic="mail") for n in range(30)])
    engine.start()
    consumer = engine.consumer("mail")
    left = list(range(30))
    while left:
        for delivery in consumer.claim(min(30, len(left)), wait=30):
            number = left.pop()
            reason = f"Traceback\nKeyError: 'order-{number}'" if number < 20 else "<i>no route</i>"
            consumer.retry(delivery, delay=FAR_S + (number >= 20), reason=reason)
    engine.stop()
    page = client.get("/retries?topic=mail").text
    assert "All 30 tasks that wait for a retry" in page
    assert page.index("KeyError: &#39;order-#&#39;") < page.index("&lt;i&gt;no route&lt;/i&gt;")
    assert "No task waits for a retry in this topic" in client.get("/retries?topic=other").text
    listed = client.get("/tasks?failed=1&topic=mail").text
    assert "KeyError: &#39;order-" in listed
    task = next(each for each in engine.tasks(failed=True) if each.reason == "<i>no route</i>")
    one = client.get(f"/tasks/one?id={task.id}").text
    assert "Why the last attempt failed" in one
    assert "&lt;i&gt;no route&lt;/i&gt;" in one
    place = counted(client, "/retries", verb="cancel", failed="1", topic="mail", reason="KeyError: 'order-#'")
    assert (
        "Cancel scheduled tasks that wait for a retry of the topic mail that failed of KeyError"
        in client.get(place).text
    )
    confirm(client, place)
    shown(client, place, "20 of 20 cancelled")
    place = counted(client, "/retries", verb="reschedule", failed="1", to="0", reason="<i>no route</i>")
    confirm(client, place)
    shown(client, place, "10 of 10 rescheduled")
    wait_until(lambda: len(engine.tasks(failed=True, due=(None, dt.datetime.now(dt.UTC)))) == 10, "they run now")
    assert engine.stats(shards=False).scheduled == 11
    assert [change.what for change in engine.changes()[:2]] == [
        "rescheduled 10 tasks: waiting for a retry, failed of <i>no route</i>",
        "cancelled 20 tasks: topic mail, waiting for a retry, failed of KeyError: 'order-#'",
    ]
