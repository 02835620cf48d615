"""The admin's pages of dead tasks: what they show, what they do, and for whom."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from html import unescape
from typing import Any

import pytest

from tests.integrations.django.conftest import Site, ended

LIST = "/admin/shardq/deadtask/"


@contextmanager
def visitor(*permissions: str, staff: bool = True) -> Iterator[Any]:
    """A client of somebody with these permissions on dead tasks."""
    from django.contrib.auth.models import Permission, User
    from django.test import Client

    user = User.objects.create_user(f"u{User.objects.count()}", is_staff=staff)
    user.user_permissions.set(Permission.objects.filter(codename__in=[f"{each}_deadtask" for each in permissions]))
    client = Client()
    client.force_login(user)
    yield client
    user.delete()


def bury(engine: Any, count: int, *, topic: str = "default", reason: str = "no such <address>") -> list[str]:
    """Dead tasks. Returns their ids in the order of their deaths."""
    payload = {"task": "shop.tasks.send", "args": ["<script>alert(1)</script>"], "kwargs": {}}
    for _ in range(count):
        engine.push(payload, topic=topic)
    engine.start()
    consumer, buried = engine.consumer(topic), 0
    while buried < count:
        for delivery in consumer.claim(1, wait=30):
            consumer.bury(delivery, reason)
            buried += 1
    return [task.id for task in engine.dead(topic)]


def shown(answer: Any) -> list[str]:
    """The ids in a list."""
    assert answer.status_code == 200
    found = re.findall(r'name="id" value="([^"]+)" class="action-select"', answer.content.decode())
    return [unescape(each) for each in found]


def said(answer: Any) -> list[str]:
    """The messages of a page."""
    found = re.findall(r'<li class="(?:success|warning|error|info)">(.*?)</li>', answer.content.decode())
    return [unescape(each) for each in found]


def quote(id: str) -> str:
    """An id as it is in a path of the admin."""
    from django.contrib.admin.utils import quote

    return str(quote(id))


def test_dead_tasks_are_listed_filtered_found_and_paged(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    from shardq.integrations.django import admin

    monkeypatch.setattr(admin, "PAGE", 3)
    with site.settings() as backend, visitor("view") as client:
        ids, [urgent] = bury(backend.engine, 5), bury(backend.engine, 1, topic="mail.high")
        alive = backend.engine.push({}, topic="mail", delay=3600)
        first = client.get(LIST)
        assert shown(first) == ids[:3]
        assert "no such &lt;address&gt;" in first.content.decode()
        assert "<select" not in first.content.decode(), "who may only look has no actions"
        [following] = re.findall(r'<a href="([^"]+)" class="showall" id="following"', first.content.decode())
        assert shown(client.get(LIST + unescape(following))) == [*ids[3:], urgent]
        assert shown(client.get(LIST, {"queue": "mail.high"})) == [urgent]
        assert shown(client.get(LIST, {"since": "3600"})) == ids[:3]
        assert shown(client.get(LIST, {"q": urgent})) == [urgent]
        assert said(client.get(LIST, {"q": alive})) == ["The task is not dead, but scheduled."]
        assert shown(client.get(LIST, {"q": "default/nobody"})) == []
        assert len(said(client.get(LIST, {"q": "a/b/c/d"}))) == 1, "what is wrong with that id"
        assert said(client.get(LIST, {"cursor": "nonsense"}))[0].startswith("Dead tasks can't be read: the cursor")
        assert said(client.get(LIST, {"backend": "other"})) == ["TASKS has no backend “other” of shardq."]
        page = client.get(f"{LIST}{quote(ids[0])}/change/").content.decode()
        assert "&lt;script&gt;" in page
        assert "<script>alert" not in page
        assert "no such &lt;address&gt;" in page


def test_chosen_tasks_are_requeued_and_removed(site: Site) -> None:
    from django.contrib.admin.models import LogEntry

    with site.settings() as backend, visitor("view", "change", "delete") as client:
        engine = backend.engine
        ids = bury(engine, 4)
        engine.stop()
        answer = client.post(LIST, {"action": "requeue", "id": [*ids[:2], "default/gone"]}, follow=True)
        assert said(answer) == ["Requeued 2 dead tasks.", "Left alone, as they are dead no more: 1 gone."]
        assert shown(answer) == ids[2:]
        asked = client.post(LIST, {"action": "remove", "id": ids[1:]})
        assert "3 dead tasks are" in asked.content.decode()
        assert len(engine.tasks(state="dead")) == 2, "nothing is removed before that is confirmed"
        answer = client.post(LIST, {"action": "remove", "id": ids[1:3], "confirmed": "yes"}, follow=True)
        assert said(answer) == ["Removed 1 dead task.", "Left alone, as they are dead no more: 1 scheduled."]
        assert shown(answer) == ids[3:]
        page = f"{LIST}{quote(ids[3])}/change/"
        assert said(client.post(page, {"action": "requeue"}, follow=True)) == ["Requeued 1 dead task."]
        assert engine.tasks(state="dead") == []
        log = LogEntry.objects.filter(object_id__in=ids).values_list("object_id", "change_message").order_by("pk")
        assert list(log) == [(ids[0], "Requeued."), (ids[1], "Requeued."), (ids[2], "Removed."), (ids[3], "Requeued.")]


def test_permissions_say_who_may_look_requeue_and_remove(site: Site) -> None:
    with site.settings() as backend:
        [id] = bury(backend.engine, 1)
        chosen: dict[str, Any] = {"id": [id], "confirmed": "yes"}
        with visitor() as client:
            assert client.get(LIST).status_code == 403
        with visitor("view", "change", "delete", staff=False) as client:
            assert client.get(LIST).status_code == 302, "to the page where one signs in"
        with visitor("view") as client:
            assert client.post(LIST, chosen | {"action": "requeue"}).status_code == 403
            assert client.post(LIST, chosen | {"action": "remove"}).status_code == 403
        with visitor("view", "change") as client:
            assert client.post(LIST, chosen | {"action": "remove"}).status_code == 403
        with visitor("view", "delete") as client:
            assert client.post(LIST, chosen | {"action": "requeue"}).status_code == 403
            assert len(backend.engine.tasks(state="dead")) == 1
            client.post(LIST, chosen | {"action": "remove"})
        assert backend.engine.tasks(state="dead") == []


def test_the_pages_say_that_redis_is_away(site: Site) -> None:
    with site.settings(url="redis://127.0.0.1:1", timeout=0.1, connect_timeout=0.1), visitor("view") as client:
        [message] = said(client.get(LIST))
        assert message.startswith("Dead tasks can't be read: ")
        assert "127.0.0.1:1" in message


def test_results_are_shown(site: Site) -> None:
    from django.contrib.auth.models import Permission, User

    from tests.integrations.django.project.shop import tasks

    with site.settings() as backend, visitor() as client:
        with site.worker(backend):
            result = tasks.add.enqueue(1)
            ended(result)
        assert client.get("/admin/shardq/storedresult/").status_code == 403
        User.objects.latest("pk").user_permissions.add(Permission.objects.get(codename="view_storedresult"))
        listed = client.get("/admin/shardq/storedresult/", {"q": result.id}).content.decode()
        assert result.id in listed
        assert client.get(f"/admin/shardq/storedresult/{quote(result.id)}/change/", follow=True).status_code == 200
