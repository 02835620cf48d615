"""Commands on many tasks and on topics, and the looks."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable

import pytest

from shardq import Engine, Task
from shardq.http import commands
from tests.dashboard.test_bulk import bury
from tests.http.calling import Program


def test_tasks_are_cancelled_by_their_ids(program: Program, engine: Engine) -> None:
    ids = engine.push_many([Task(n, topic="mail", delay=60) for n in range(3)])
    told = program.post("/v1/tasks:cancel", json={"ids": [*ids, "mail/none"]}).json()
    assert told == {"matched": 4, "done": 3, "others": {"gone": 1}, "running": [], "more": False}
    assert program.post("/v1/tasks:cancel", json={"ids": ids, "topic": "mail"}).status_code == 400
    assert program.post("/v1/tasks:cancel", json={"ids": ["x"] * 1001}).status_code == 400
    assert program.post("/v1/tasks:cancel", json={}).status_code == 400


def test_tasks_are_cancelled_and_moved_by_a_filter(program: Program, engine: Engine) -> None:
    engine.push_many([Task(n, topic="mail", delay=60, tags=["x"] if n % 2 else None) for n in range(6)])
    counted = program.post("/v1/tasks:cancel", json={"tag": "x", "dry_run": True}).json()
    assert (counted["matched"], counted["done"]) == (3, 0)
    moved = program.post("/v1/tasks:reschedule", json={"topic": "mail", "delay": "2h"}).json()
    assert (moved["matched"], moved["done"]) == (6, 6)
    soon = dt.datetime.now(dt.UTC) + dt.timedelta(hours=1)
    due = program.post("/v1/tasks:cancel", json={"topic": "mail", "due": f"..{soon:%Y-%m-%dT%H:%M:%SZ}"}).json()
    assert due["done"] == 0
    assert program.post("/v1/tasks:cancel", json={"tag": "x"}).json()["done"] == 3
    assert program.post("/v1/tasks:reschedule", json={"topic": "mail"}).status_code == 400
    assert engine.stats().scheduled == 3


def test_dead_tasks_are_requeued(program: Program, engine: Engine) -> None:
    bury(engine, ["TimeoutError: 1", "TimeoutError: 2", "ValueError"])
    dead = program.get("/v1/tasks", params={"state": "dead"}).json()["tasks"]
    assert len(dead) == 3
    topic = dead[0]["topic"]
    assert program.post("/v1/tasks:requeue", json={"ids": [dead[0]["id"]]}).json()["done"] == 1
    told = program.post("/v1/tasks:requeue", json={"topic": topic}).json()
    assert (told["matched"], told["done"]) == (2, 2)


def test_a_long_command_ends_after_a_page(program: Program, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands, "LONGEST_S", 0.0)
    monkeypatch.setattr(commands, "AT_ONCE", 2)
    ids = engine.push_many([Task(n, topic="mail", delay=60) for n in range(5)])
    by_ids = program.post("/v1/tasks:cancel", json={"ids": ids}).json()
    assert (by_ids["matched"], by_ids["more"]) == (2, True)
    by_filter = program.post("/v1/tasks:cancel", json={"topic": "mail"}).json()
    assert (by_filter["done"], by_filter["more"]) == (3, True)


def test_settings_of_a_topic(program: Program, engine: Engine) -> None:
    told = program.patch("/v1/topics/mail", json={"pause": True, "rate": 50}).json()
    assert (told["topic"], told["changed"], told["paused"], told["rate"]) == ("mail", True, True, 50)
    assert engine.stats().topics["mail"].paused
    again = program.patch("/v1/topics/mail", json={"pause": True}).json()
    assert (again["changed"], again["rate"]) == (False, 50)
    assert program.patch("/v1/topics/mail", json={"pause": False, "rate": None}).json()["rate"] is None
    until = program.patch("/v1/topics/(default)", json={"pause": "2100-01-01T00:00:00Z"}).json()
    assert (until["topic"], until["paused_until"]) == ("", "2100-01-01T00:00:00Z")
    for wrong in ({}, {"forward": "x"}, {"rate": -1}, {"pause": "soon"}, {"on_failure": "skip"}):
        assert program.patch("/v1/topics/mail", json=wrong).status_code == 400, wrong
    assert program.patch("/v1/topics/a b", json={"pause": True}).status_code == 400


def test_a_topic_is_purged(program: Program, engine: Engine) -> None:
    engine.push_many([Task(n, topic="mail", delay=60) for n in range(5)])
    assert program.post("/v1/topics/mail:purge").json() == {"topic": "mail", "removed": 5}
    assert program.post("/v1/topics/mail:purge", json={}).status_code == 400


def test_looks(program: Program, engine: Engine) -> None:
    engine.push_many([Task(n, topic="mail", delay=60) for n in range(5)])
    assert program.get("/v1").json()["engine"] == engine.name
    assert program.get("/v1/topics").json()["topics"][0]["scheduled"] == 5
    stats = program.get("/v1/stats").json()
    assert (stats["scheduled"], stats["shards"]) == (5, [])
    assert len(program.get("/v1/stats", params={"shards": "true"}).json()["shards"]) == 4
    assert "no_dispatcher" in {each["name"] for each in program.get("/v1/health").json()["findings"]}
    assert program.get("/v1/health", params={"max_late": "-1"}).status_code == 400
    forecast = program.get("/v1/forecast", params={"horizon": "day"}).json()
    assert (forecast["total"], forecast["step_s"], len(forecast["buckets"])) == (5, 3600, 24)
    assert program.get("/v1/forecast", params={"horizon": "year"}).status_code == 400
    program.patch("/v1/topics/mail", json={"pause": True})
    assert "configured: mail" in program.get("/v1/changes").json()["changes"][0]["what"]
    engine.start()
    assert {each["kind"] for each in program.get("/v1/fleet").json()["members"]} == {"dispatcher"}


def test_who_may(of: Callable[[str], Program], engine: Engine) -> None:
    shop, mailer, ops, screen, orders = map(of, ("shop", "mailer", "ops", "screen", "orders"))
    mine, other = (engine.push(1, topic=topic, delay=60) for topic in ("order-eu", "mail"))

    def statuses(program: Program) -> dict[str, int]:
        return {
            "push": program.push(1, topic="order-eu", delay=60).status_code,
            "push elsewhere": program.push(1, topic="other", delay=60).status_code,
            "get": program.get("/v1/task", params={"id": mine}).status_code,
            "get other": program.get("/v1/task", params={"id": other}).status_code,
            "list": program.get("/v1/tasks", params={"topic": "order-eu"}).status_code,
            "list all": program.get("/v1/tasks").status_code,
            "list a tag": program.get("/v1/tasks", params={"tag": "x"}).status_code,
            "move": program.patch("/v1/task", params={"id": mine}, json={"delay": 60}).status_code,
            "move other": program.patch("/v1/task", params={"id": other}, json={"delay": 60}).status_code,
            "bulk ids": program.post("/v1/tasks:reschedule", json={"ids": [mine], "delay": 60}).status_code,
            "bulk both": program.post("/v1/tasks:reschedule", json={"ids": [mine, other], "delay": 60}).status_code,
            "filter": program.post("/v1/tasks:cancel", json={"topic": "order-eu", "dry_run": True}).status_code,
            "tag": program.post("/v1/tasks:cancel", json={"tag": "x", "dry_run": True}).status_code,
            "pause": program.patch("/v1/topics/order-eu", json={"pause": False}).status_code,
            "pause other": program.patch("/v1/topics/mail", json={"pause": False}).status_code,
            "topics": program.get("/v1/topics").status_code,
            "health": program.get("/v1/health").status_code,
            "metrics": program.get("/metrics").status_code,
            "about": program.get("/v1").status_code,
        }

    def but(**allowed: int) -> dict[str, int]:
        names = statuses_of_ops.keys()
        return {name: allowed.get(name.replace(" ", "_"), 403) for name in names}

    statuses_of_ops = statuses(ops)
    assert statuses_of_ops == {name: 403 if name.startswith("push") else 200 for name in statuses_of_ops}
    assert statuses(shop) == but(push=201, get=200, move=200, bulk_ids=200, about=200)
    assert statuses(mailer) == but(get_other=200, about=200)
    seen = but(
        get=200, get_other=200, list=200, list_all=200, list_a_tag=200, topics=200, health=200, metrics=200, about=200
    )
    assert statuses(screen) == seen
    of_orders = but(get=200, list=200, move=200, bulk_ids=200, filter=200, pause=200, topics=200, about=200)
    assert statuses(orders) == of_orders
    assert {each["topic"] for each in orders.get("/v1/topics").json()["topics"]} == {"order-eu"}
