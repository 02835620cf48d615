"""Hooks from the handlers of workers, of both engines: order, retries, and an endpoint that answers 429."""

from __future__ import annotations

import base64
import json
import time
from typing import Any

import pytest

from shardq import Batch, Delivery, Engine, Task, TaskInfo, Webhooks
from shardq.codecs import encrypted
from tests.sinks.nasty import READ, Connection, NastyServer
from tests.sinks.seen import left
from tests.support.engines import SHARDS, Engines
from tests.support.states import state_of
from tests.support.waiting import wait_until
from tests.webhooks.posting import LOOPBACK, OK, SECRET, answering, head_of


@pytest.fixture
def posting(engines: Engines, url: str, name: str) -> Engine:
    """An engine that dispatches, and may send hooks to this machine."""
    engine = engines.opened(url, name=name, shards=SHARDS, timeout=10.0, sinks=[LOOPBACK])
    engine.start()
    return engine


class Sending:
    """A worker whose handler posts each task to the server of its key."""

    def __init__(self, engine: Engine, servers: dict[str | None, int]) -> None:
        # a test's asyncio engine stands before the real one
        self.hooks = Webhooks(getattr(engine, "_target", engine), timeout=5, http=True)
        self.seen: list[tuple[str | None, object]] = []
        self.worker = engine.worker(concurrency=32)

        @self.worker.on("hooks")
        async def send(delivery: Delivery) -> None:
            self.seen.append((delivery.key, delivery.payload))
            port = servers.get(delivery.key, servers[None])
            await self.hooks.post(delivery, url=f"http://127.0.0.1:{port}/{delivery.key}", secret=SECRET)

        @self.worker.on_shutdown
        async def close() -> None:
            await self.hooks.close()


def test_429_holds_a_key_alone(engines: Engines, posting: Engine) -> None:
    posting.limit("hooks", per_key=1)
    busy = answering("429 Too Many Requests", "Retry-After: 600")
    with NastyServer(busy) as full, NastyServer([READ, OK]) as fine:
        sending = Sending(posting, {"full": full.port, None: fine.port})
        ids = posting.push_many([Task(n, topic="hooks", key="full") for n in range(8)])
        posting.push_many([Task(n, topic="hooks", key=f"other-{n % 20}", id=f"{n:03}") for n in range(100)])
        with engines.working(sending.worker):
            wait_until(lambda: len(fine.requests) == 100, "the others have theirs")
            wait_until(lambda: all(state_of(posting, id) not in ("ready", "leased") for id in ids), "they are back")
        assert len(full.requests) == 1
    tasks = [posting.get(id) for id in ids]
    assert {task.attempts for task in tasks if task is not None} == {()}, "no attempt has counted"
    of_each: dict[str, list[int]] = {}
    for request in fine.requests:
        head, _, body = request.partition(b"\r\n\r\n")
        of_each.setdefault(head.split()[1].decode(), []).append(json.loads(body))
    assert all(each == sorted(each) for each in of_each.values()), "in order"
    assert len(of_each) == 20


def test_a_retry_has_the_same_id(engines: Engines, posting: Engine) -> None:
    with NastyServer([*answering("500 X", body=b"why"), READ, OK]) as server:
        sending = Sending(posting, {None: server.port})
        id = posting.push({"n": 1}, topic="hooks", id="письмо 7")
        with engines.working(sending.worker):

            def failed() -> TaskInfo | None:
                task = posting.get(id)
                return task if task is not None and task.failures and task.state == "scheduled" else None

            task = wait_until(failed, "it waits for its next attempt")
            assert task is not None
            assert task.due is not None
            assert 3 < task.due.timestamp() - time.time() < 7
            assert [each.reason for each in task.attempts] == ["HTTP 500 X: why"]
            posting.reschedule(id, delay=0)
            wait_until(lambda: state_of(posting, id) == "gone", "it is taken")
        ids = [head_of(request)["webhook-id"] for request in server.requests]
        assert ids == ["hooks/%D0%BF%D0%B8%D1%81%D1%8C%D0%BC%D0%BE%207"] * 2


def test_gone_is_dead(engines: Engines, posting: Engine) -> None:
    with NastyServer(answering("410 Gone")) as server:
        sending = Sending(posting, {None: server.port})
        id = posting.push({"n": 1}, topic="hooks")
        with engines.working(sending.worker):
            wait_until(lambda: state_of(posting, id) == "dead", "it is dead")
        task = posting.get(id)
        assert task is not None
        assert "HTTP 410 Gone" in (task.reason or "")
        assert len(server.requests) == 1


def test_in_a_batch_each_has_its_own_answer(engines: Engines, posting: Engine) -> None:
    with NastyServer(answering("410 Gone")) as gone, NastyServer([READ, OK]) as fine:
        sending = Sending(posting, {None: fine.port})

        @sending.worker.on("batches", batch=10)
        async def send(batch: Batch[Any]) -> None:
            for each in batch:
                with batch.attempt(each):
                    port = gone.port if each.payload == 3 else fine.port
                    await sending.hooks.post(each, url=f"http://127.0.0.1:{port}/", secret=None)

        ids = posting.push_many([Task(n, topic="batches") for n in range(10)])
        with engines.working(sending.worker):
            wait_until(lambda: left(posting) == 1, "the others are taken")
        assert [state_of(posting, id) for id in ids] == ["gone"] * 3 + ["dead"] + ["gone"] * 6


def test_a_killed_connection_loses_nothing(engines: Engines, posting: Engine) -> None:
    """An endpoint that closes each idle connection without a word."""

    def end(connection: Connection) -> None:
        connection.close()

    with NastyServer([READ, OK, end]) as server:
        sending = Sending(posting, {None: server.port})
        posting.push_many([Task(n, topic="hooks") for n in range(200)])
        with engines.working(sending.worker):
            wait_until(lambda: left(posting) == 0, "all are settled")
        assert {json.loads(each.partition(b"\r\n\r\n")[2]) for each in server.requests} == set(range(200))


def test_encrypted_payloads_stay_encrypted(engines: Engines, url: str, name: str) -> None:
    codec = encrypted(base64.urlsafe_b64encode(bytes(32)))
    engine = engines.opened(url, name=name, shards=SHARDS, sinks=[LOOPBACK], codec=codec)
    engine.start()
    with NastyServer([READ, OK]) as server:
        sending = Sending(engine, {None: server.port})
        id = engine.push({"card": "4711"}, topic="hooks")
        with engines.working(sending.worker):
            wait_until(lambda: state_of(engine, id) == "gone", "it is sent")
        (request,) = server.requests
        assert head_of(request)["content-type"] == "application/octet-stream"
        body = request.partition(b"\r\n\r\n")[2]
        assert b"4711" not in body
        assert codec.decode(body, id) == {"card": "4711"}
