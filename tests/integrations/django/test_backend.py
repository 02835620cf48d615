"""The backend does what Django's task framework asks of one: pushing, priorities, results."""

from __future__ import annotations

import asyncio
import datetime as dt
from typing import Any

import pytest

import shardq
from tests.integrations.django.conftest import Site, ended
from tests.support.waiting import wait_until


def test_results_tell_how_tasks_ended(site: Site) -> None:
    from tests.integrations.django.project.shop import tasks

    with site.settings() as backend, site.worker(backend):
        added, told = tasks.add.enqueue(1, second=2), tasks.tell.enqueue("hi")
        awaited = asyncio.run(tasks.aadd.aenqueue(4))
        failed, buried, odd = tasks.fail_first.enqueue(), tasks.bury.enqueue(), tasks.unstorable.enqueue()
        assert (added.status, added.attempts, added.enqueued_at is not None) == ("READY", 0, True)
        ended(added, told, awaited, failed, buried, odd)
        assert (added.status, added.return_value, added.args, added.kwargs) == ("SUCCESSFUL", 3, [1], {"second": 2})
        assert added.enqueued_at <= added.started_at <= added.last_attempted_at <= added.finished_at
        assert (told.return_value, told.id.partition("/")[0]) == ([1, told.id], "mail")
        assert awaited.return_value == 5
        assert (failed.return_value, failed.attempts, len(failed.errors)) == ("attempt 2", 2, 1)
        assert failed.errors[0].exception_class is shardq.Retry
        assert (buried.status, buried.errors[0].exception_class) == ("FAILED", shardq.Bury)
        assert "in bury" in buried.errors[0].traceback
        assert "executor.py" not in buried.errors[0].traceback
        assert (odd.status, odd.attempts) == ("FAILED", 1), "a return value that is no JSON is not tried again"
        again = tasks.add.get_result(added.id)
        assert (again, again.return_value) == (added, 3)
        assert asyncio.run(tasks.add.aget_result(added.id)) == added


@pytest.mark.parametrize("kind", ["fail", "afail"])
def test_a_task_without_attempts_left_has_failed(site: Site, kind: str) -> None:
    from shardq.integrations.django import engine
    from tests.integrations.django.project.shop import tasks

    with site.settings(max_attempts=1) as backend, site.worker(backend):
        result = getattr(tasks, kind).enqueue("no luck")
        ended(result)
        assert (result.status, result.errors[0].exception_class, result.attempts) == ("FAILED", ValueError, 1)
        with pytest.raises(ValueError, match="Task failed"):
            _ = result.return_value
        [dead] = engine().tasks(state="dead")
        assert (dead.id, dead.topic) == (result.id, "default")


def test_a_snooze_is_no_attempt(site: Site) -> None:
    from tests.integrations.django.project.shop import tasks

    with site.settings(max_attempts=1) as backend, site.worker(backend):
        result = tasks.snooze_first.enqueue("snoozed")
        ended(result)
        assert (result.status, result.return_value, result.attempts) == ("SUCCESSFUL", "attempt 1", 1)
        assert result.errors == []


def test_signals_are_sent_once_for_a_task(site: Site) -> None:
    from shardq.integrations.django.contract import task_enqueued, task_finished, task_started
    from tests.integrations.django.project.shop import tasks

    seen: list[tuple[str, str]] = []
    signals = {"enqueued": task_enqueued, "started": task_started, "finished": task_finished}
    receivers = {
        name: lambda sender, task_result, name=name, **_: seen.append((name, str(task_result.status)))
        for name in signals
    }
    for name, signal in signals.items():
        signal.connect(receivers[name], weak=False)
    try:
        with site.settings() as backend:
            result = tasks.fail_first.enqueue()
            # only now: a worker can be faster than the program on its way from the push to the signal
            with site.worker(backend):
                ended(result)
    finally:
        for name, signal in signals.items():
            signal.disconnect(receivers[name])
    begun = ("started", "RUNNING")
    assert seen == [("enqueued", "READY"), begun, begun, ("finished", "SUCCESSFUL")]


def test_priorities_are_steps_of_a_queue(site: Site) -> None:
    from tests.integrations.django.project.shop import tasks
    from tests.integrations.django.project.shop.models import Note

    with site.settings() as backend:
        priorities = [0, -100, 100, -1, 50]
        pushed = [tasks.note.using(priority=each).enqueue(f"{site.name} {each}") for each in priorities]
        backend.engine.start()
        wait_until(lambda: backend.engine.stats().ready == len(pushed), "all are ready")
        with site.worker(backend, concurrency=1):
            ended(*pushed)
        ran = Note.objects.filter(text__startswith=site.name).order_by("pk").values_list("text", flat=True)
        assert [int(text.split()[1]) for text in ran] == [100, 50, 0, -1, -100]
        assert [each.task.priority for each in (backend.get_result(result.id) for result in pushed)] == priorities


def test_a_task_runs_after_its_time(site: Site) -> None:
    from django.test import override_settings
    from django.utils import timezone

    from shardq.integrations.django.contract import InvalidTask
    from tests.integrations.django.project.shop import tasks

    with site.settings() as backend:
        later = timezone.now() + dt.timedelta(days=1)
        result = tasks.add.using(run_after=later).enqueue(1)
        info = backend.engine.get(result.id)
        assert info is not None
        assert info.due is not None
        assert abs(info.due - later) < dt.timedelta(seconds=1)
        read = backend.get_result(result.id)
        assert (read.status, abs(read.task.run_after - later) < dt.timedelta(seconds=1)) == ("READY", True)
        naive = dt.datetime(2040, 1, 1, 12)
        with pytest.raises(InvalidTask, match="aware"):
            tasks.add.using(run_after=naive)
        with override_settings(USE_TZ=False, TIME_ZONE="America/New_York"):
            result = tasks.add.using(run_after=naive).enqueue(1)
            assert backend.get_result(result.id).task.run_after == naive
        info = backend.engine.get(result.id)
        assert info is not None
        assert info.due == dt.datetime(2040, 1, 1, 17, tzinfo=dt.UTC), "a naive datetime is of Django's time zone"


def test_a_result_while_redis_is_away(site: Site) -> None:
    """It is neither there nor not there."""
    away = "'default/a': the database has no result of its success, and Redis can't tell"
    with (
        site.settings(url="redis://127.0.0.1:1", timeout=0.2) as backend,
        pytest.raises(shardq.Unavailable, match=away),
    ):
        backend.get_result("default/a")


def test_results_of_unknown_cancelled_and_lost_tasks(site: Site) -> None:
    from shardq.integrations.django import TaskDied
    from shardq.integrations.django.contract import TaskResultDoesNotExist
    from tests.integrations.django.project.shop import tasks

    with site.settings(max_attempts=1) as backend:
        for id in ("default/nobody", "", "a b", "x" * 500):
            with pytest.raises(TaskResultDoesNotExist):
                backend.get_result(id)
        for payload in ("text", [1], {"task": 5}, {"task": "no.such.task"}):
            foreign = backend.engine.push(payload, topic="default", delay=60)
            with pytest.raises(TaskResultDoesNotExist, match=f"'{foreign}' is not a task of Django: "):
                backend.get_result(foreign)
        cancelled, lost = tasks.add.enqueue(1), tasks.add.enqueue(2)
        assert backend.engine.cancel(cancelled.id)
        with pytest.raises(TaskResultDoesNotExist):
            cancelled.refresh()
        # Dead without a word of its function, as one whose workers were killed.
        backend.engine.start()
        consumer = backend.engine.consumer("default")
        [delivery] = consumer.claim(1, wait=30)
        assert (backend.get_result(lost.id).status, lost.is_finished) == ("READY", False), "claimed, and not begun"
        consumer.bury(delivery, "lost with its worker")
        lost.refresh()
        assert (lost.status, lost.errors[0].exception_class) == ("FAILED", TaskDied)
        assert (lost.errors[0].traceback, lost.finished_at is not None) == ("lost with its worker", True)


def test_a_task_whose_ack_was_lost_is_not_repeated(site: Site) -> None:
    from shardq.integrations.django.executor import TaskHandler
    from tests.integrations.django.project.shop import tasks
    from tests.integrations.django.project.shop.models import Note

    with site.settings() as backend:
        result = tasks.note.enqueue(site.name)
        backend.engine.start()
        consumer = backend.engine.consumer("default")
        handler = TaskHandler(backend)
        [delivery] = consumer.claim(1, wait=30)
        handler(delivery)
        consumer.retry(delivery, delay=0)  # as when its lease runs out
        [delivery] = consumer.claim(1, wait=30)
        assert delivery.attempt == 2
        handler(delivery)
        consumer.ack(delivery)
        result.refresh()
        assert (result.status, Note.objects.filter(text=site.name).count()) == ("SUCCESSFUL", 1)


def test_an_attempt_that_was_overtaken_leaves_the_result_alone(site: Site) -> None:
    """Its worker stood still until its lease was over, and another had done the task when it went on."""
    from django.utils import timezone

    from shardq.integrations.django.contract import TaskResultStatus, new_result, put
    from tests.integrations.django.project.shop import tasks

    with site.settings() as backend:
        store = backend.store
        assert store is not None
        attempts = [
            new_result(
                tasks.add, site.name, backend="default", args=[1], kwargs={}, status=TaskResultStatus.RUNNING,
                started_at=timezone.now(), last_attempted_at=timezone.now(), worker_ids=["w"] * number,
            )
            for number in (1, 2)
        ]  # fmt: skip
        first, second = attempts
        assert all(store.begin(each) for each in attempts)
        put(first, status=TaskResultStatus.READY)
        store.end(first)
        row = store.find(site.name)
        assert row is not None
        assert row.status == "RUNNING"
        put(second, status=TaskResultStatus.SUCCESSFUL, _return_value=2, finished_at=timezone.now())
        store.end(second)
        put(first, status=TaskResultStatus.FAILED, finished_at=timezone.now())
        store.end(first)
        row = store.find(site.name)
        assert row is not None
        assert (row.status, row.return_value, row.worker_ids) == ("SUCCESSFUL", 2, ["w", "w"])


def test_an_unknown_task_waits_for_a_worker_that_knows_it(site: Site) -> None:
    from shardq.delivery.handler import UNKNOWN_S, UnknownTask
    from shardq.integrations.django.executor import TaskHandler

    with site.settings() as backend:
        backend.engine.push({"task": "shop.tasks.newer", "args": [], "kwargs": {}}, topic="default")
        backend.engine.push("no call", topic="default")
        backend.engine.push({"task": "os.getcwd", "args": [], "kwargs": {}}, topic="default")
        backend.engine.start()
        deliveries: list[Any] = []
        consumer, handler = backend.engine.consumer("default"), TaskHandler(backend)
        while len(deliveries) < 3:
            deliveries += consumer.claim(3, wait=30)
        for delivery in deliveries:
            assert not handler.is_coroutine(delivery)
            with pytest.raises(UnknownTask, match="deploy it") as caught:
                handler(delivery)
            assert caught.value.delay == UNKNOWN_S
            assert caught.value.task == handler.title(delivery)


def test_without_results_nothing_is_stored(site: Site) -> None:
    from shardq.integrations.django.models import StoredResult
    from tests.integrations.django.project.shop import tasks
    from tests.integrations.django.project.shop.models import Note

    before = StoredResult.objects.count()
    with site.settings(keep_results=None) as backend, site.worker(backend):
        assert not backend.supports_get_result
        result = tasks.tell.enqueue(site.name)
        wait_until(lambda: Note.objects.filter(text=site.name).exists(), "the task has run")
        with pytest.raises(NotImplementedError):
            result.refresh()
    assert StoredResult.objects.count() == before


def test_what_cannot_be_pushed_is_refused_at_once(site: Site) -> None:
    from django.test import override_settings

    from shardq.integrations.django.contract import InvalidTask, task_backends
    from tests.integrations.django.project.shop import tasks

    with site.settings() as backend:
        with pytest.raises(TypeError):
            tasks.add.enqueue(object())
        with pytest.raises(shardq.BadInput, match="keep large content elsewhere"):
            tasks.note.enqueue("x" * (2 << 20))
        with pytest.raises(InvalidTask, match="not valid"):
            tasks.add.using(queue_name="other")
        params = {"BACKEND": "shardq.integrations.django.ShardqBackend", "QUEUES": [], "OPTIONS": backend.options}
    with override_settings(TASKS={"default": params}):
        assert task_backends["default"].queues == set()
        with pytest.raises(InvalidTask, match="letters, digits"):
            tasks.add.using(queue_name="two words")
        with pytest.raises(InvalidTask, match="priorities of a queue"):
            tasks.add.using(queue_name="mail.high")
