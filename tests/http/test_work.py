"""Workers over HTTP: what they are given, what becomes of tasks, and what happens if either side goes."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from base64 import b64decode, b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import shardq.http.claims as claims
from shardq import AsyncEngine, Engine
from shardq.codecs import encrypted
from shardq.http.claims import NOTHING, ClaimBody, Work
from shardq.http.report import GatewayReport
from shardq.http.settling import Do, SettleItem, Wanted
from tests.http.workers import Gateway, Worker, answer_of, done, gateway_of
from tests.support.states import FAR_S, ready_of, state_of
from tests.support.waiting import wait_until


@pytest.fixture
def engine(url: str, name: str) -> Iterator[Engine]:
    with Engine(url, name=name, shards=4) as engine:
        engine.start()
        yield engine


@pytest.fixture
def gateway(engine: Engine, url: str, name: str, tmp_path: Path) -> Iterator[Gateway]:
    with gateway_of(url, name, tmp_path) as gateway:
        yield gateway


@pytest.fixture
def worker(gateway: Gateway) -> Worker:
    return gateway.worker()


def claimed(worker: Worker, engine: Engine, payload: Any = "letter", **options: Any) -> dict[str, Any]:
    """A task that is pushed, and claimed."""
    engine.push(payload, topic="mail", **options)
    [task] = worker.claim(wait=20)
    return task


# ---- what a worker is given


def test_a_task_has_all_that_it_was_pushed_with(worker: Worker, engine: Engine) -> None:
    engine.push({"n": 1}, topic="mail", key="ann", id="letter", headers={"a": "b"}, tags=["spring"])
    [task] = worker.claim(wait=20)
    assert task.pop("receipt").isascii()
    assert task.pop("fence") > 0
    assert task == {
        "id": "mail/ann/letter",
        "topic": "mail",
        "payload": {"n": 1},
        "attempt": 1,
        "failures": 0,
        "lapses": 0,
        "headers": {"a": "b"},
        "tags": ["spring"],
        "key": "ann",
        "url": None,
    }


def test_payloads_of_every_codec(worker: Worker, engine: Engine, url: str, name: str) -> None:
    cases: list[tuple[str, object, dict[str, object]]] = [
        ("json", [1, "ü"], {"payload": [1, "ü"]}),
        ("raw", b"text", {"payload": "text"}),
        ("raw", b"\xff\0", {"payload_base64": b64encode(b"\xff\0").decode()}),
        ("msgpack", {"n": 1}, {"payload": {"n": 1}, "payload_base64": b64encode(b"\x81\xa1n\x01").decode()}),
    ]
    for codec, payload, shown in cases:
        with Engine(url, name=name, codec=codec) as other:
            other.push(payload, topic="mail")
        [task] = worker.claim(wait=20)
        assert {each: value for each, value in task.items() if each.startswith("payload")} == shown


def test_payloads_of_a_codec_of_its_own_are_read_by_the_gateway(url: str, name: str) -> None:
    """An encrypting one would else give workers what they can't read, or pass on what it refuses."""

    async def payloads() -> list[bytes]:
        codec = encrypted(b64encode(bytes(32)))
        async with AsyncEngine(url, name=name, shards=1, codec=codec) as other:
            await other.start()
            await other.push({"n": 1}, topic="mail", id="a")
            async with AsyncEngine(url, name=name) as clear:
                await clear.push("in the clear", topic="mail", id="b")
            work = Work(other)
            wanted, given = ClaimBody(["mail"], wait=20), list[bytes]()
            for _ in range(2):
                given.append((await work.claim("", wanted, asyncio.Future())).body)
                wanted = ClaimBody(["mail"], wait=0.3)
            await work.close()
            refused = await other.get("mail/b", decode=False)
            assert refused is not None
            assert refused.state == "dead"
            return given

    given, nothing = asyncio.run(payloads())
    assert [task["payload"] for task in json.loads(given)["tasks"]] == [{"n": 1}]
    assert nothing == NOTHING.body


def test_json_that_others_have_stored_wrongly_is_given_as_bytes(worker: Worker, engine: Engine) -> None:
    broken = b'{"to": "\xff"}'
    line = {"id": "mail/x", "state": "scheduled", "codec": "json", "payload_base64": b64encode(broken).decode()}
    engine.restore([json.dumps(line)])
    [task] = worker.claim(wait=20)
    assert "payload" not in task
    assert b64decode(task["payload_base64"]) == broken


def test_what_passes_16_mib_is_given_back(worker: Worker, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    assert claims.MOST_BYTES == 16 << 20
    monkeypatch.setattr(claims, "MOST_BYTES", 100_000)
    for _ in range(6):
        engine.push("x" * 30_000, topic="mail")
    wait_until(lambda: ready_of(engine, "mail") == 6, "all are ready")
    answer = worker.post("/v1/claim", json={"topics": ["mail"], "max": 100})
    assert len(answer.content) < 101_000
    assert len(answer.json()["tasks"]) == 3
    assert [task["attempt"] for task in worker.claim(max=100, wait=20)] == [1, 1, 1]
    engine.push("x" * 200_000, topic="mail")
    assert len(worker.claim(max=100, wait=20)) == 1  # one is given, whatever its size


# ---- waiting


def test_the_claim_that_has_waited_longest_is_first(gateway: Gateway, engine: Engine) -> None:
    clients = [gateway.waiting(service) for service in ("mailer", "biller", "mailer")]
    for client in clients:
        id = engine.push("letter", topic="mail")
        _, answer = answer_of(client)
        assert [task["id"] for task in answer["tasks"]] == [id]


def test_a_claim_in_vain_answers_none(worker: Worker) -> None:
    assert worker.claim(wait=0.05) == []


def test_a_client_that_has_gone_while_it_waited_gets_nothing(gateway: Gateway, engine: Engine) -> None:
    gateway.waiting().close()
    wait_until(lambda: not gateway.work.waits, "the gateway has noticed")
    engine.push("letter", topic="mail")
    [task] = gateway.worker("biller").claim(wait=20)
    assert (task["attempt"], task["lapses"]) == (1, 0)


def test_a_client_that_goes_as_its_task_comes_loses_no_attempt(
    gateway: Gateway, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = gateway.waiting()
    answer = claims._answer

    def ends_first(tasks: Any) -> Any:
        client.close()
        time.sleep(0.05)  # the end is on its way, and nobody has read it
        return answer(tasks)

    monkeypatch.setattr(claims, "_answer", ends_first)
    engine.push("letter", topic="mail")
    wait_until(lambda: not gateway.work.waits, "it was claimed")
    monkeypatch.undo()
    [task] = gateway.worker("biller").claim(wait=20)
    assert (task["attempt"], task["lapses"]) == (1, 0)


def test_what_a_client_did_not_take_is_given_back(gateway: Gateway, engine: Engine) -> None:
    """One that dies, or is ended, while it reads a large answer. Its leases would else run for an hour."""
    for _ in range(12):
        engine.push("x" * 900_000, topic="mail")
    wait_until(lambda: ready_of(engine, "mail") == 12, "all are ready")
    with gateway.connected() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        gateway.ask(client, "claim", {"topics": ["mail"], "max": 100, "lease": 3600})
        assert client.recv(1000).startswith(b"HTTP/1.1 200 ")
        wait_until(lambda: engine.stats().leased == 12, "it has them")
    wait_until(lambda: engine.stats().leased == 0, "they are given back")
    tasks = gateway.worker("biller").claim(max=100, wait=20)
    assert [task["attempt"] for task in tasks] == [1] * 12


def test_what_a_client_takes_slowly_stays_its_own(gateway: Gateway, engine: Engine) -> None:
    for _ in range(12):
        engine.push("x" * 900_000, topic="mail")
    wait_until(lambda: ready_of(engine, "mail") == 12, "all are ready")
    with gateway.connected() as client:
        gateway.ask(client, "claim", {"topics": ["mail"], "max": 100, "lease": 3600})
        wait_until(lambda: engine.stats().leased == 12, "it has them")
        time.sleep(0.3)  # the client is slow
        _, answer = answer_of(client)
    assert len(answer["tasks"]) == 12
    assert gateway.worker("biller").claim(wait=0.5) == []
    assert engine.stats().leased == 12


def test_too_many_claims_are_refused(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims, "MOST_WAITS", 4)
    waiting = [gateway.waiting(service) for service in ("mailer", "mailer", "biller")]
    refused = gateway.worker().post("/v1/claim", json={"topics": ["mail"], "wait": 9})
    assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
    assert "2 claims of this service wait here, and 3 in all" in refused.json()["detail"]
    assert gateway.worker("biller").claim(wait=0.05) == []
    for each in waiting:
        each.close()
    wait_until(lambda: not gateway.work.waits, "the gateway has noticed")
    assert gateway.worker().claim() == []


def test_waits_end_with_their_gateway(engine: Engine, url: str, name: str, tmp_path: Path) -> None:
    with gateway_of(url, name, tmp_path) as gateway:
        client = gateway.waiting()
        began = time.monotonic()
    assert time.monotonic() - began < 10
    head, answer = answer_of(client)
    assert "connection: close" in head
    assert answer == {"tasks": []}


def test_claims_of_one_kind_share_consumers(gateway: Gateway) -> None:
    worker = gateway.worker()
    for _ in range(3):
        worker.claim("mail", "mail-2")
    worker.claim("mail-2", "mail")
    assert [len(some) for some in gateway.work._idle.values()] == [1, 1]


# ---- what becomes of tasks


def test_an_ack_is_done_once(worker: Worker, engine: Engine) -> None:
    task = claimed(worker, engine)
    assert worker.settle(done(task, "ack"))["done"] == 1
    assert engine.get(task["id"]) is None
    again = worker.settle(done(task, "ack"))
    assert (again["done"], again["lost"]) == (0, [task["receipt"]])


def test_every_settlement(worker: Worker, engine: Engine) -> None:
    dos = ["ack", "retry", "bury", "snooze", "back", "hold"]
    for do in dos:
        engine.push(do, topic="mail-a", id=do)
    wait_until(lambda: ready_of(engine, "mail-a") == len(dos), "all are ready")
    tasks = {task["payload"]: task for task in worker.claim("mail-a", max=10, wait=20)}
    more: dict[str, dict[str, Any]] = {
        "retry": {"delay": FAR_S, "reason": "no answer"},
        "bury": {"reason": "no such address"},
        "snooze": {"delay": FAR_S},
        "hold": {"delay": FAR_S},
    }
    answer = worker.settle(*(done(tasks[do], do, **more.get(do, {})) for do in dos))
    assert answer == {"done": 6, "lost": [], "dead": [], "failed": [], "unknown": [], "error": ""}
    # a task that is given back is dispatched anew
    wait_until(lambda: state_of(engine, "mail-a/back") == "ready", "it is ready again")
    found = {do: engine.get(f"mail-a/{do}") for do in dos}
    assert found["ack"] is None
    states = {do: (info.state, info.attempt, info.reason) for do, info in found.items() if info}
    assert states == {
        "retry": ("scheduled", 2, "no answer"),
        "bury": ("dead", 1, "no such address"),
        "snooze": ("scheduled", 1, None),
        "back": ("ready", 1, None),
        "hold": ("scheduled", 1, None),
    }
    assert engine.stats().topics["mail-a"].paused  # as the task that is held has no key


def test_a_retry_without_an_attempt_left_is_told(worker: Worker, engine: Engine) -> None:
    task = claimed(worker, engine, max_attempts=1)
    answer = worker.settle(done(task, "retry", reason="no answer"))
    assert (answer["done"], answer["dead"]) == (1, [task["receipt"]])
    info = engine.get(task["id"])
    assert info is not None
    assert (info.state, info.reason) == ("dead", "no answer")


def test_earlier_attempts_are_kept(worker: Worker, engine: Engine) -> None:
    task = claimed(worker, engine)
    for number in range(3):
        worker.settle(done(task, "retry", delay=0, reason=f"Refused: {number}"))
        [task] = worker.claim(wait=20)
    worker.settle(done(task, "bury", reason="given up"))
    info = engine.get(task["id"])
    assert info is not None
    assert [attempt.reason for attempt in info.attempts] == ["Refused: 0", "Refused: 1", "Refused: 2", "given up"]
    assert {attempt.process.rpartition("-")[0] for attempt in info.attempts} == {"http.mailer"}


def test_an_end_keeps_the_class_of_its_last_failure(worker: Worker, engine: Engine) -> None:
    engine.configure(done_age=60)
    task = claimed(worker, engine)
    worker.settle(done(task, "retry", delay=0, reason="TimeoutError: no answer"))
    [task] = worker.claim(wait=20)
    worker.settle(done(task, "ack"))
    info = engine.get(task["id"], ended=True)
    assert info is not None
    assert (info.state, info.failure, info.failures) == ("done", "TimeoutError", 1)
    assert info.pushed is not None


def test_leases_are_extended(worker: Worker, engine: Engine) -> None:
    task = claimed(worker, engine)
    assert worker.extend(task["receipt"], seconds=1000) == []
    info = engine.get(task["id"])
    assert info is not None
    assert info.deadline is not None
    assert info.deadline.timestamp() > time.time() + 900
    worker.settle(done(task, "ack"))
    assert worker.extend(task["receipt"]) == [task["receipt"]]


def test_tasks_of_clients_that_never_settle_die_in_the_end(engine: Engine, url: str, name: str) -> None:
    """Their leases are shorter here than a client may ask for."""

    async def claim_and_go() -> None:
        async with AsyncEngine(url, name=name) as other:
            work = Work(other)
            for _ in range(2):
                handed = await work.claim("", ClaimBody(["mail"], wait=20, lease=0.05), asyncio.Future())
                assert len(handed.tasks) == 1
            await work.close()

    id = engine.push("poison", topic="mail", max_attempts=2)
    asyncio.run(claim_and_go())
    wait_until(lambda: (info := engine.get(id)) is not None and info.state == "dead", "it is dead")
    info = engine.get(id)
    assert info is not None
    assert (info.lapses, info.reason) == (2, "lost with its worker")


def test_a_receipt_gives_back_its_place(worker: Worker, engine: Engine) -> None:
    engine.limit("mail", concurrency=2)
    for n in range(3):
        engine.push(n, topic="mail")
    wait_until(lambda: ready_of(engine, "mail") == 3, "all are ready")
    first, second = worker.claim(max=10, wait=20)
    assert worker.claim(max=10) == []
    assert worker.extend(first["receipt"], second["receipt"]) == []
    worker.settle(done(first, "ack"))
    [third] = worker.claim(max=10, wait=20)
    worker.settle(done(second, "ack"), done(third, "ack"))


# ---- whose receipts


def test_any_gateway_settles_what_another_gave_out(
    worker: Worker, engine: Engine, url: str, name: str, tmp_path: Path
) -> None:
    task = claimed(worker, engine)
    with gateway_of(url, name, tmp_path) as other:
        assert other.worker().settle(done(task, "ack"))["done"] == 1
    assert engine.get(task["id"]) is None


def test_receipts_are_of_the_service_that_claimed(gateway: Gateway, engine: Engine) -> None:
    task = claimed(gateway.worker(), engine)
    other = gateway.worker("biller")
    for path, body in (
        ("/v1/settle", [done(task, "ack")]),
        ("/v1/extend", {"receipts": [task["receipt"]], "seconds": 60}),
    ):
        refused = other.post(path, json=body)
        assert (refused.status_code, "another service" in refused.json()["detail"]) == (403, True)
    info = engine.get(task["id"])
    assert info is not None
    assert info.state == "leased"


def test_topics_are_those_of_the_token(gateway: Gateway) -> None:
    refused = gateway.worker().post("/v1/claim", json={"topics": ["mail", "bill"], "wait": 0})
    assert (refused.status_code, "'bill'" in refused.json()["detail"]) == (403, True)
    assert gateway.worker("looker").post("/v1/claim", json={"topics": ["mail"], "wait": 0}).status_code == 403


def test_a_task_that_was_claimed_twice_has_two_receipts(gateway: Gateway, engine: Engine) -> None:
    worker = gateway.worker()
    first = claimed(worker, engine)
    worker.settle(done(first, "back"))
    [second] = worker.claim(wait=20)
    answer = worker.settle(done(first, "ack"), done(second, "ack"))
    assert (answer["done"], answer["lost"]) == (1, [first["receipt"]])


WRONG: list[tuple[str, Any, str]] = [
    ("claim", {"topics": []}, "length >= 1"),
    ("claim", {"topics": ["mail", "mail"]}, "name one twice"),
    ("claim", {"topics": {"mail": 0}}, "weight"),
    ("claim", {"topics": ["mail"], "max": 101}, "<= 100"),
    ("claim", {"topics": ["mail"], "wait": 51}, "<= 50"),
    ("claim", {"topics": ["mail"], "lease": 4}, ">= 5"),
    ("claim", {"topics": ["mail"], "block": 4}, "block"),
    ("settle", [], "length >= 1"),
    ("settle", [{"receipt": "nonsense", "do": "ack"}], "[0]: the receipt 'nonsense' is not one"),
    ("settle", [{"receipt": "x", "do": "drop"}], "drop"),
    ("settle", [{"receipt": "$", "do": "ack", "delay": 1}], "'ack' takes no delay"),
    ("settle", [{"receipt": "$", "do": "snooze"}], "'snooze' needs a delay"),
    ("settle", [{"receipt": "$", "do": "bury"}], "'bury' needs a reason"),
    ("settle", [{"receipt": "$", "do": "retry", "delay": -1}], "-1"),
    ("extend", {"receipts": ["$"], "seconds": 1}, ">= 5"),
    ("extend", {"receipts": [], "seconds": 10}, "length >= 1"),
]


def test_what_is_wrong_is_said(worker: Worker, engine: Engine) -> None:
    task = claimed(worker, engine)
    for path, body, said in WRONG:
        sent = json.loads(json.dumps(body).replace("$", task["receipt"]))
        refused = worker.post(f"/v1/{path}", json=sent)
        assert (refused.status_code, said in refused.json()["detail"]) == (400, True), refused.text
    assert worker.settle(done(task, "ack"))["done"] == 1


# ---- what others see of it


def test_the_fleet_has_a_worker_for_topics_that_are_claimed(worker: Worker, engine: Engine) -> None:
    worker.claim("mail", "mail-2")
    members = wait_until(
        lambda: [each for each in engine.fleet() if each.kind == "worker" and each.topics], "the gateway has reported"
    )
    assert members[0].topics == ("mail", "mail-2")
    assert members[0].name.startswith("http-")


def test_a_report_counts_what_was_settled() -> None:
    report = GatewayReport(1000)
    report.note_claim(("mail",))
    dos: list[Do] = ["ack", "ack", "retry", "bury", "snooze", "back"]
    for do in dos:
        item = SettleItem("x", do, reason="no answer" if do in ("retry", "bury") else None)
        report.note_settled([Wanted("x", None, item, None)])  # type: ignore[arg-type]
    made = report.make(30.0)
    assert (made.topics, made.handled, made.failed, made.retried, made.snoozed) == (("mail",), 2, 2, 1, 1)
    assert made.error == "no answer"
