"""Jobs of RQ that wait in an engine, and run in RQ's unmodified worker."""

from __future__ import annotations

import datetime as dt
import os
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any
from unittest.mock import patch

import msgspec
import pytest
import redis
import rq
from redis.credentials import UsernamePasswordCredentialProvider
from rq.job import Job
from rq.utils import as_text

from cluster.server import Server
from shardq import Engine, ShardqError
from shardq.core.layout.topology import Route
from shardq.errors import InvalidOption, InvalidUrl
from shardq.features.sinks.base import SENT, Message
from shardq.features.sinks.redis import RqSink
from shardq.features.sinks.registry import check
from shardq.integrations.delaying import url_of
from shardq.integrations.rq import RqDelaying, delay_through
from tests.integrations.examples import run_examples
from tests.integrations.rq import jobs
from tests.integrations.rq.conftest import DB, StartWorker
from tests.support.waiting import wait_until
from tests.support.workers import Worker

HOUR = dt.timedelta(hours=1)
SOON = dt.timedelta(seconds=0.4)


def ran(connection: redis.Redis) -> list[str]:
    return [as_text(id) for id in connection.lrange(jobs.RAN, 0, -1)]


def waiting(engine: Engine) -> int:
    return engine.stats().scheduled


def test_what_is_above_the_threshold_waits_in_the_engine(queue: rq.Queue, engine: Engine) -> None:
    with delay_through(queue, engine, above=60) as delaying:
        far = queue.enqueue_in(HOUR, jobs.note)
        naive = queue.enqueue_at(dt.datetime.now() + HOUR, jobs.note)
        near = queue.enqueue_in(dt.timedelta(seconds=30), jobs.note)
        past = queue.enqueue_at(dt.datetime.now(dt.UTC) - HOUR, jobs.note)
        with queue.connection.pipeline() as pipeline:
            piped = queue.enqueue_in(HOUR, jobs.note, pipeline=pipeline)
            pipeline.execute()
        assert {job.get_status() for job in (far, naive, near, past, piped)} == {"scheduled"}
        assert set(queue.scheduled_job_registry.get_job_ids()) == {near.id, past.id, piped.id}
        assert (waiting(engine), delaying.delayed) == (2, 2)
        dues = [task.due for task in engine.tasks(topic="rq")]
        assert all(
            due is not None and abs(due - dt.datetime.now(dt.UTC) - HOUR) < dt.timedelta(minutes=5) for due in dues
        )
        assert repr(delaying) == f"<RqDelaying of Queue('mail'): above 60 s through {engine.name!r}, 2 so far>"
    later = queue.enqueue_in(HOUR, jobs.note)
    assert later.id in queue.scheduled_job_registry
    assert repr(delaying) == "<RqDelaying of Queue('mail'): removed>"


@pytest.mark.slow
def test_a_job_runs_as_rq_would_have_run_it(queue: rq.Queue, engine: Engine, start_worker: StartWorker) -> None:
    engine.start()
    connection = queue.connection
    with delay_through(queue, engine, above=0):
        first = queue.enqueue_in(SOON, jobs.note, "a", ttl=600, meta={"n": 1})
        wait_until(lambda: queue.job_ids == [first.id], "it is on its queue")
        front = queue.enqueue_in(SOON, jobs.note, at_front=True)
        wait_until(lambda: queue.job_ids == [front.id, first.id], "it is at the front")
        first = Job.fetch(first.id, connection=connection)
        assert (first.get_status(), first.origin, first.timeout, first.meta) == ("queued", "mail", 180, {"n": 1})
        assert first.enqueued_at is not None
        assert abs(first.enqueued_at - dt.datetime.now(dt.UTC)) < dt.timedelta(minutes=5)
        assert 0 < connection.ttl(first.key) <= 600
        assert connection.smembers("rq:queues") == {b"rq:queue:mail"}
        assert connection.hget(first.key, "shardq") is None
        failing = queue.enqueue_in(SOON, jobs.fail, retry=rq.Retry(max=1, interval=0))
        repeated = queue.enqueue_in(SOON, jobs.note, repeat=rq.Repeat(times=1, interval=0))
        start_worker("mail")
        wanted = Counter([first.id, front.id, failing.id, failing.id, repeated.id, repeated.id])
        wait_until(lambda: Counter(ran(connection)) == wanted, "all have run")
        wait_until(lambda: failing.get_status() == "failed", "it has failed")
        wait_until(lambda: first.get_status() == "finished", "it is finished")


def test_what_was_cancelled_deleted_or_enqueued_meanwhile_is_left_alone(queue: rq.Queue, engine: Engine) -> None:
    """Also by a process that knows nothing of the engine, as these calls do."""
    with delay_through(queue, engine, above=0):
        cancelled, deleted, early, again, last = [queue.enqueue_in(HOUR, jobs.note) for _ in range(5)]
        Job.fetch(cancelled.id, connection=queue.connection).cancel()
        Job.fetch(deleted.id, connection=queue.connection).delete()
        rq.Queue("mail", connection=queue.connection).enqueue_job(Job.fetch(early.id, connection=queue.connection))
        queue.schedule_job(again, dt.datetime.now(dt.UTC) + 2 * HOUR)
        assert waiting(engine) == 6
        first_five = [task.id for task in engine.tasks(topic="rq")][:5]
    engine.start()
    for id in first_five:
        assert engine.reschedule(id, delay=0)
    wait_until(
        lambda: waiting(engine) == 1 and sum(sink.sent for sink in engine.stats().sinks) == 5, "all have been forwarded"
    )
    assert sorted(queue.job_ids) == sorted([early.id, last.id])
    assert (again.get_status(), cancelled.get_status()) == ("scheduled", "canceled")


@pytest.mark.parametrize(
    ("work", "options"),
    [
        (jobs.fail, {"retry": rq.Retry(max=3, interval=3600)}),
        (jobs.note, {"repeat": rq.Repeat(times=2, interval=3600)}),
    ],
    ids=["retry", "repeat"],
)
def test_a_job_that_rq_itself_has_scheduled_is_left_to_rq(
    queue: rq.Queue, engine: Engine, start_worker: StartWorker, work: Callable[[], None], options: dict[str, Any]
) -> None:
    """It ran before its time, by a process that knows nothing of the engine, and waits for the next time."""
    with delay_through(queue, engine, above=0) as delaying:
        job = queue.enqueue_in(HOUR, work, **options)
        rq.Queue("mail", connection=queue.connection).enqueue_job(Job.fetch(job.id, connection=queue.connection))
        start_worker("mail", "--burst")
        registry = queue.scheduled_job_registry
        wait_until(lambda: registry.get_job_ids() == [job.id], "RQ has scheduled it")
        [task] = engine.tasks(topic="rq")
        engine.start()
        assert engine.reschedule(task.id, delay=0)
        wait_until(lambda: sum(sink.sent for sink in engine.stats().sinks) == 1, "the ticket was sent")
        assert (queue.job_ids, registry.get_job_ids(), job.get_status()) == ([], [job.id], "scheduled")
        at = registry.get_scheduled_time(job)
        engine.push(task.payload, topic="rq", delay=3600)
        assert delaying.move_back() == 0
        assert registry.get_scheduled_time(job) == at


def test_an_id_that_is_to_be_unique_is_refused_the_second_time(queue: rq.Queue, engine: Engine) -> None:
    with delay_through(queue, engine):
        queue.enqueue_in(HOUR, jobs.note, job_id="once", unique=True)
        with pytest.raises(rq.exceptions.DuplicateJobError):
            queue.enqueue_in(HOUR, jobs.note, job_id="once", unique=True)
        assert waiting(engine) == 1
        assert queue.scheduled_job_registry.get_job_ids() == []


def test_a_job_whose_push_fails_is_as_it_was_before(queue: rq.Queue, engine: Engine, own_server: Server) -> None:
    kept = queue.enqueue_in(HOUR, jobs.note)
    with Engine(own_server.url, name="down", timeout=2.0) as down, delay_through(queue, down):
        queue.enqueue_in(HOUR, jobs.note)
        own_server.kill()
        before = queue.connection.keys("rq:job:*")
        with pytest.raises(ShardqError):
            queue.enqueue_in(HOUR, jobs.note)
        with pytest.raises(ShardqError):
            queue.schedule_job(kept, dt.datetime.now(dt.UTC) + HOUR)
        assert queue.connection.keys("rq:job:*") == before
        assert queue.scheduled_job_registry.get_job_ids() == [kept.id]


def test_jobs_are_moved_over_and_back(queue: rq.Queue, engine: Engine) -> None:
    jobs_before = [queue.enqueue_in(HOUR, jobs.note) for _ in range(3)]
    registry = queue.scheduled_job_registry
    times = {job.id: registry.get_scheduled_time(job) for job in jobs_before}
    delaying = delay_through(queue, engine)
    for id in registry.get_job_ids():
        queue.schedule_job(Job.fetch(id, connection=queue.connection), registry.get_scheduled_time(id))
    assert (registry.get_job_ids(), waiting(engine)) == ([], 3)
    jobs_before[0].cancel()
    assert delaying.move_back() == 2
    assert waiting(engine) == 0
    assert {id: registry.get_scheduled_time(id) for id in registry.get_job_ids()} == {
        job.id: times[job.id] for job in jobs_before[1:]
    }


def test_a_class_of_queues(connection: redis.Redis, single: Server, engine: Engine) -> None:
    class Queue(rq.Queue):
        pass

    with delay_through(Queue, engine) as delaying:
        one, two = Queue("one", connection=connection), Queue("two", connection=connection)
        one.enqueue_in(HOUR, jobs.note)
        two.enqueue_in(HOUR, jobs.note)
        rq.Queue("one", connection=connection).enqueue_in(HOUR, jobs.note)
        assert waiting(engine) == delaying.delayed == 2
        with redis.Redis.from_url(f"{single.url}/0") as elsewhere, pytest.raises(InvalidOption, match="one Redis"):
            Queue("one", connection=elsewhere).enqueue_in(HOUR, jobs.note)
        with pytest.raises(InvalidOption, match="already"):
            delay_through(one, engine)
        with pytest.raises(InvalidOption, match="connection"):
            delaying.move_back()
    assert delaying.move_back(connection) == 2
    assert "schedule_job" not in vars(Queue)


def test_the_child_of_a_fork_delays_too(queue: rq.Queue, engine: Engine) -> None:
    with delay_through(queue, engine):
        queue.enqueue_in(HOUR, jobs.note)
        child = os.fork()
        if not child:
            try:
                queue.enqueue_in(HOUR, jobs.note)
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        assert waiting(engine) == 2


def test_what_is_wrong_is_said(queue: rq.Queue, engine: Engine, single: Server, name: str) -> None:
    with pytest.raises(InvalidOption, match=r"an rq\.Queue"):
        delay_through("mail", engine)  # type: ignore[arg-type]
    with Engine(single.url, name=name, codec="msgpack") as other, pytest.raises(InvalidOption, match="codec"):
        delay_through(queue, other)
    signed = UsernamePasswordCredentialProvider("ann", "p")
    for connection in (redis.Redis(ssl=True), redis.Redis(credential_provider=signed)):
        with pytest.raises(InvalidOption, match="rq\\+rediss"):
            delay_through(rq.Queue(connection=connection), engine)
    with delay_through(queue, engine) as delaying:
        assert delay_through(queue, engine) is delaying
        with pytest.raises(InvalidOption, match="already"):
            delay_through(queue, engine, above=5)
    engine.forward("rq", to="letters")
    with delay_through(queue, engine), pytest.raises(InvalidOption, match="the list 'letters' already"):
        queue.enqueue_in(HOUR, jobs.note)
    assert queue.scheduled_job_registry.get_job_ids() == []
    for url in ("rq+redis+cluster://h:1", "rq+redis://h:1#list"):
        with pytest.raises(InvalidUrl):
            check(Route(url))


def test_the_url_of_a_connection() -> None:
    connection = redis.Redis("::1", 7, 2, "p@ss", username="ann")
    assert url_of(connection) == "redis://ann:p%40ss@[::1]:7/2"
    assert url_of(redis.Redis(unix_socket_path="/tmp/redis.sock", db=3)) == "unix:///tmp/redis.sock?db=3"


def test_the_examples_of_the_docstrings(queue: rq.Queue, single: Server, name: str) -> None:
    with Engine(single.url, name=name) as engine, redis.Redis.from_url(f"{single.url}/{DB}") as connection:
        names = {"rq": rq, "redis": redis, "dt": dt, "delay_through": delay_through, "engine": engine}
        with patch("redis.Redis", lambda: connection):
            assert run_examples(delay_through, names)
        assert run_examples(RqDelaying.move_back, names)


def test_a_task_that_is_sent_twice_enqueues_its_job_once(queue: rq.Queue, engine: Engine) -> None:
    with delay_through(queue, engine):
        job = queue.enqueue_in(HOUR, jobs.note)
        [task] = engine.tasks(topic="rq")
        payload = msgspec.json.encode(task.payload)
        message = Message(id=task.id, topic="rq", payload=payload, codec="json", headers={}, attempt=1)
        sink = RqSink(f"rq+{url_of(queue.connection)}")
        sink.open()
        assert sink.send([message, message]) == [SENT, SENT]
        assert sink.send([message]) == [SENT]
        assert sink.send([msgspec.structs.replace(message, payload=b"{}")]) != [SENT]
        sink.close()
        assert queue.job_ids == [job.id]


@pytest.mark.slow
@pytest.mark.ledger
def test_dispatchers_are_killed_while_a_worker_runs(
    queue: rq.Queue, single: Server, engine: Engine, start_worker: StartWorker
) -> None:
    """Every job runs once, also those that were sent twice, beside RQ's own scheduler, which has the retry."""
    start_worker("mail", "--with-scheduler")
    ids: list[str] = []
    with ExitStack() as stack, delay_through(queue, engine, above=0) as delaying:
        for round in range(2):
            dispatcher = stack.enter_context(Worker("tests.support.dispatching", single.url, engine.name, 4))
            assert dispatcher.said()
            for n in range(90):
                ids.append(queue.enqueue_in(dt.timedelta(seconds=n / 90), jobs.note).id)
            wait_until(lambda: len(ran(queue.connection)) > len(ids) - 40, "some have run", timeout=60)
            if round == 0:
                dispatcher.kill()
        failing = queue.enqueue_in(SOON, jobs.fail, retry=rq.Retry(max=1, interval=1)).id
        ids += [failing, failing]
        wait_until(lambda: len(ran(queue.connection)) >= len(ids), "all have run", timeout=60)
        wait_until(lambda: waiting(engine) + engine.stats().leased == 0, "nothing is left", timeout=60)
    assert Counter(ran(queue.connection)) == Counter(ids)
    assert delaying.delayed > 0
