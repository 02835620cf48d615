"""Tasks over HTTP, one at a time: what is stored, what is answered, and what is refused before anything is sent."""

from __future__ import annotations

import base64
import datetime as dt
import logging
from typing import Any

import msgspec
import pytest

from shardq import AsyncEngine, Engine, Task
from shardq.core.model.task_options import OPTIONS
from tests.http.calling import Program, calling
from tests.support.states import FAR_S
from tests.support.waiting import wait_until


def test_a_push_stores_what_the_engine_would(program: Program, engine: Engine) -> None:
    answer = program.push({"order": 42}, topic="mail", delay="1h", headers={"a": "b"}, tags=["x"], max_attempts=3)
    assert answer.status_code == 201
    told = answer.json()
    assert (told["outcome"], told["state"]) == ("pushed", None)
    assert (info := engine.get(told["id"]))
    assert (info.payload, info.topic, info.state, info.tags) == ({"order": 42}, "mail", "scheduled", ("x",))
    assert (info.headers, info.max_attempts) == ({"a": "b"}, 3)


def test_ids_of_the_caller_make_a_push_safe_to_repeat(program: Program, engine: Engine) -> None:
    task = {"id": "order-1", "topic": "mail", "delay": 60}
    assert program.push(1, **task).status_code == 201
    again = program.push(2, **task)
    assert (again.status_code, again.json()) == (200, {"id": "mail/order-1", "outcome": "kept", "state": "scheduled"})
    replaced = program.push(3, on_conflict="replace", **task)
    assert (replaced.status_code, replaced.json()["outcome"]) == (201, "replaced")
    refused = program.push(4, on_conflict="reject", **task)
    told = refused.json()
    assert refused.status_code == 409
    assert (told["code"], told["id"], told["state"]) == ("Conflict", "mail/order-1", "scheduled")
    assert (info := engine.get("mail/order-1"))
    assert info.payload == 3


def test_a_seen_id_is_no_failure(program: Program, engine: Engine) -> None:
    program.push(1, id="once", dedup=600, delay=60)
    engine.cancel("once")
    answer = program.push(1, id="once", dedup=600)
    assert (answer.status_code, answer.json()["outcome"]) == (200, "seen")


def test_a_whole_id_has_its_topic_and_its_key(program: Program, engine: Engine) -> None:
    assert program.push(1, id="hook/customer-7/order-1", delay=60).json()["id"] == "hook/customer-7/order-1"
    refused = program.push(1, id="hook/customer-7/order-2", topic="mail")
    assert refused.status_code == 400
    assert "another topic" in refused.json()["detail"]


UNREADABLE = (
    b"1e999",
    b"[1, -1e400]",
    b"1" + b"0" * 5000,
    b"NaN",
    b"-Infinity",
    b'"\\ud800"',
    b'"\\udc00 \\u0041"',
    b'{"\\ud800": 1}',
    b"01",
    b"[" * 5000 + b"]" * 5000,
)
READABLE = (b'{"a": 1, "a": 2}', b"1" + b"0" * 400, b"1e-999", b"-0", b'"\\u0000"', b"[0.1000000000000000055]")


def test_what_a_worker_could_not_read_is_refused_and_all_else_is_stored_byte_for_byte(
    program: Program, engine: Engine
) -> None:
    for text in UNREADABLE:
        line = b'{"payload": %b, "delay": 60}' % text
        alone = program.post("/v1/tasks", content=line, headers={"Content-Type": "application/json"})
        assert (alone.status_code, alone.headers["content-type"]) == (400, "application/problem+json"), text[:30]
        bad, _ = program.batch(line)
        assert (bad["status"], bad["error"]) == (400, alone.json()["detail"].replace("body", "line")), text[:30]
    restored = engine.restore(b'{"payload": %b, "delay": 60}' % text for text in UNREADABLE)
    assert (restored.bad, restored.pushed) == (len(UNREADABLE), 0)
    assert engine.stats().scheduled == 0
    for n, text in enumerate(READABLE):
        line = b'{"payload": %b, "delay": 60, "id": "n-%d"}' % (text, n)
        assert program.post("/v1/tasks", content=line, headers={"Content-Type": "application/json"}).status_code == 201
        assert (info := engine.get(f"n-{n}", decode=False))
        assert info.payload == text
        assert (info := engine.get(f"n-{n}"))
        assert info.payload == msgspec.json.decode(text)


def test_payloads_become_those_of_the_engines_codec(url: str, engine: Engine, name: str) -> None:
    """The text of JSON is nothing that MessagePack could read."""
    with calling(AsyncEngine(url, name=name, codec="msgpack")) as program:
        assert program.push({"n": 1}, id="alone", delay=60).status_code == 201
        assert program.batch([{"payload": {"n": 1}, "id": "many", "delay": 60}])[-1]["done"] == 1
        with Engine(url, name=name, codec="msgpack") as other:
            assert other.restore([b'{"payload": {"n": 1}, "id": "restored", "delay": 60}']).pushed == 1
    found = [engine.get(id) for id in ("alone", "many", "restored")]
    assert [info and (info.payload, info.codec) for info in found] == [({"n": 1}, "msgpack")] * 3


def test_payloads_are_stored_byte_for_byte(program: Program, engine: Engine) -> None:
    text = b'{"payload": {"b": 1.50, "a": "\xc3\xbc"}, "id": "exact", "delay": 60}'
    assert program.post("/v1/tasks", content=text, headers={"Content-Type": "application/json"}).status_code == 201
    assert (info := engine.get("exact", decode=False))
    assert info.payload == b'{"b": 1.50, "a": "\xc3\xbc"}'
    data = bytes(range(256))
    answer = program.post(
        "/v1/tasks", json={"payload_base64": base64.b64encode(data).decode(), "id": "bytes", "delay": 60}
    )
    assert answer.status_code == 201
    shown = program.get("/v1/task", params={"id": "bytes"}).json()
    assert (shown["codec"], base64.b64decode(shown["payload_base64"])) == ("raw", data)


WRONG = [
    (b"", "not JSON"),
    (b"[]", "object"),
    (b'{"payload": 1, "topik": "mail"}', "topik"),
    (b'{"payload": 1, "delay": -1}', "0 to"),
    (b'{"payload": 1, "delay": 1, "at": 1e10}', "only one of them"),
    (b'{"payload": 1, "delay": "soon"}', "soon"),
    (b'{"payload": 1, "topic": "a b"}', "a b"),
    (b'{"payload": 1, "dedup": 5}', '"id"'),
    (b'{"payload": 1, "payload_base64": "AA=="}', "one of them"),
    (b'{"topic": "mail"}', "payload"),
    (b'{"payload": "\xff"}', "UTF-8"),
    (b'{"payload": "\\ud800"}', "JSON"),
    (b'{"payload": ' + b"[" * 5000 + b"]" * 5000 + b"}", "deep"),
]


@pytest.mark.parametrize(("body", "why"), WRONG, ids=[why for _, why in WRONG])
def test_what_is_wrong_is_said_and_nothing_is_stored(program: Program, engine: Engine, body: bytes, why: str) -> None:
    answer = program.post("/v1/tasks", content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code == 400, answer.text
    assert why in answer.json()["detail"]
    assert engine.stats().scheduled == engine.stats().ready == 0


def test_a_payload_that_is_too_large(program: Program) -> None:
    assert program.push("x" * (1 << 20)).status_code == 413
    answer = program.post(
        "/v1/tasks", content=b'{"payload": "' + b"x" * (4 << 20), headers={"Content-Type": "application/json"}
    )
    assert answer.status_code == 413


def test_a_task_is_shown_cancelled_and_moved_by_its_id(program: Program, engine: Engine) -> None:
    engine.push({"n": 1}, topic="mail", id="a..b", delay=60)
    id = "mail/a..b"
    shown = program.get("/v1/task", params={"id": id}).json()
    assert (shown["id"], shown["state"], shown["payload"]) == (id, "scheduled", {"n": 1})
    moved = program.patch("/v1/task", params={"id": id}, json={"delay": "2h"})
    assert moved.json() == {"id": id, "outcome": "moved"}
    assert (info := engine.get(id))
    assert info.due
    assert info.due - dt.datetime.now(dt.UTC) > dt.timedelta(hours=1)
    assert program.patch("/v1/task", params={"id": id}, json={}).status_code == 400
    assert program.patch("/v1/task", params={"id": id}, json={"at": "yesterday"}).status_code == 400
    assert program.delete("/v1/task", params={"id": id}).json() == {"id": id, "outcome": "cancelled"}
    for answer in (
        program.get("/v1/task", params={"id": id}),
        program.delete("/v1/task", params={"id": id}),
        program.patch("/v1/task", params={"id": id}, json={"delay": 1}),
    ):
        assert (answer.status_code, answer.json()["code"]) == (404, "gone")


def test_a_task_that_runs_is_left_alone(program: Program, engine: Engine) -> None:
    id = engine.push(1, topic="mail")
    engine.start()
    consumer = engine.consumer("mail")
    wait_until(lambda: consumer.claim(1, wait=1.0), "it is claimed")
    answer = program.delete("/v1/task", params={"id": id})
    assert (answer.status_code, answer.json()["code"], answer.json()["state"]) == (409, "running", "leased")
    consumer.close()


@pytest.mark.parametrize("id", ["a//b", "a/b/c/d", "", "\n"])
def test_ids_that_are_none(program: Program, id: str) -> None:
    assert program.get("/v1/task", params={"id": id}).status_code == 400


@pytest.mark.parametrize("id", ["mail/../../etc", "a%2Fb", "über:x;y", "..", "mail/.", "x?y#z&w"])
def test_ids_that_proxies_would_change_in_a_path(program: Program, engine: Engine, id: str) -> None:
    topic, _, unique = id.rpartition("/") if id.count("/") == 1 else ("", "", id)
    if id.count("/") > 1:
        assert program.get("/v1/task", params={"id": id}).status_code in (400, 404)
        return
    pushed = engine.push(1, topic=topic, id=unique, delay=60)
    assert program.get("/v1/task", params={"id": pushed}).json()["id"] == pushed


def test_lists_come_page_by_page(program: Program, engine: Engine) -> None:
    engine.push_many([Task(n, topic="mail", delay=FAR_S + n) for n in range(5)])
    first = program.get("/v1/tasks", params={"topic": "mail", "limit": 3}).json()
    second = program.get("/v1/tasks", params={"topic": "mail", "limit": 3, "cursor": first["cursor"]}).json()
    assert [task["payload"] for task in first["tasks"] + second["tasks"]] == [0, 1, 2, 3, 4]
    assert (
        program.get("/v1/tasks", params={"state": "scheduled", "due": "2100-01-01T00:00:00Z.."}).json()["tasks"] == []
    )
    for wrong in (
        {"state": "done", "tag": "x"},
        {"limit": "0"},
        {"limit": "x"},
        {"cursor": "x"},
        {"due": "1h.."},
        {"x": "y"},
    ):
        assert program.get("/v1/tasks", params=wrong).status_code == 400, wrong


def test_queries_that_are_none(program: Program) -> None:
    for query in ("id=a&id=b", "id", "%ff=1", "id=%ff", "=", "a=1"):
        assert program.get(f"/v1/task?{query}").status_code == 400, query
    assert program.get("/v1?x=1").status_code == 400


def test_a_trace_goes_on_in_the_tasks(program: Program, engine: Engine) -> None:
    trace = {"traceparent": f"00-{'a' * 32}-{'b' * 16}-01", "tracestate": "x=y"}
    id = program.post("/v1/tasks", json={"payload": 1, "delay": 60}, headers=trace).json()["id"]
    assert (info := engine.get(id))
    assert info.headers == trace
    own = program.post("/v1/tasks", json={"payload": 1, "delay": 60, "headers": {"traceparent": "own"}}, headers=trace)
    assert (info := engine.get(own.json()["id"]))
    assert info.headers["traceparent"] == "own"
    for wrong in ("", "x", "00-zz"):
        id = program.post("/v1/tasks", json={"payload": 1, "delay": 60}, headers={"traceparent": wrong}).json()["id"]
        assert (info := engine.get(id))
        assert info.headers == {}


def test_a_line_for_each_request_without_anything_secret(program: Program, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "shardq.http.access")
    answer = program.post(
        "/v1/tasks?x=hidden",
        json={"payload": "hidden"},
        headers={"Authorization": "Bearer hidden", "X-Request-Id": "r-1"},
    )
    assert answer.headers["x-request-id"] == answer.json()["request_id"] == "r-1"
    (record,) = wait_until(  # it comes after the answer
        lambda: [each for each in caplog.records if each.name == "shardq.http.access"], "the line is written"
    )
    fields: dict[str, Any] = vars(record)
    assert (fields["path"], fields["status"], fields["request_id"]) == ("/v1/tasks", 400, "r-1")
    assert "hidden" not in str(fields)
    assert len(program.get("/v1", headers={"X-Request-Id": "a b"}).headers["x-request-id"]) == 16


EVIL: tuple[Any, ...] = (
    *(None, True, -1, 0, 10**30, 1e308, "", " ", "\x00", "\u202e", "a/b/c/d", "x" * 3000, [], [[]], {}, {"a": 1}),
    *("1e400", "-5m", "9999-12-31T23:59:59Z", "NaN", "webhook://", "https://[", "../..", "{}", "%s%n"),
)


@pytest.mark.slow
def test_whatever_stands_in_a_field_is_no_fault_of_the_door(
    program: Program, engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    names = [option.name for option in OPTIONS] + ["payload", "payload_base64", "durability"]
    lines = [{"payload": 1, "delay": 60} | {name: evil} for name in names for evil in EVIL]
    *said, end = program.batch([{k: v for k, v in line.items() if k != "durability"} for line in lines])
    assert end["is_whole"]
    assert not [each for each in said if each.get("status", 0) >= 500]
    for path, fields, others in (
        ("/v1/tasks", names[-4:], {"payload": 1}),
        ("/v1/tasks:cancel", ["ids"], {}),
        ("/v1/tasks:cancel", ["topic", "state", "due", "tag", "key", "failed", "reason", "dry_run"], {"topic": "mail"}),
        ("/v1/tasks:reschedule", ["delay", "at"], {"topic": "mail"}),
    ):
        for name in fields:
            for evil in EVIL:
                answer = program.post(path, json=others | {name: evil})
                assert answer.status_code < 500, (path, name, evil, answer.text)
    for name in ("topic", "state", "due", "tag", "key", "holder", "limit", "cursor"):
        for evil in EVIL:
            answer = program.get("/v1/tasks", params={name: str(evil)})
            assert answer.status_code < 500, (name, evil, answer.text)
    assert not [record for record in caplog.records if record.levelname == "ERROR"]
