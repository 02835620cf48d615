"""A task that is enqueued in a transaction is pushed when that is committed, or is a row of it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import sqlalchemy as sa

import shardq
from tests.integrations.django.conftest import Site, ended
from tests.support.waiting import wait_until


def rolled_back(task: Any) -> Any:
    """The result of a task that is enqueued in a savepoint which is rolled back."""
    from django.db import transaction

    with transaction.atomic():
        result = task.enqueue(2)
        transaction.set_rollback(True)
    return result


def test_a_task_of_a_transaction_is_pushed_at_its_commit(site: Site) -> None:
    from django.db import transaction

    from shardq.integrations.django.contract import TaskResultDoesNotExist, task_enqueued
    from tests.integrations.django.project.shop import tasks

    seen: list[str] = []

    def enqueued(task_result: Any, **_: Any) -> None:
        seen.append(task_result.id)

    task_enqueued.connect(enqueued)
    with site.settings() as backend:
        with transaction.atomic():
            result = tasks.add.using(priority=1).enqueue(1)
            never = rolled_back(tasks.add)
            with pytest.raises(shardq.errors.PayloadTooLarge):
                tasks.note.enqueue("x" * (2 << 20))
            assert (result.enqueued_at, backend.engine.get(result.id), seen) == (None, None, [])
            with pytest.raises(TaskResultDoesNotExist, match="not committed"):
                result.refresh()
        assert (result.enqueued_at is not None, seen) == (True, [result.id])
        assert backend.engine.get(never.id) is None
        with site.worker(backend):
            ended(result)
        assert result.return_value == 2
        seen.clear()
        with transaction.atomic():
            asyncio.run(tasks.add.aenqueue(3))  # it has a thread of its own, whose connection is in no transaction
        assert len(seen) == 1
    task_enqueued.disconnect(enqueued)


def test_a_task_in_the_outbox_is_a_row_of_its_transaction(site: Site) -> None:
    from django.conf import settings
    from django.db import transaction

    from shardq import outbox
    from shardq.integrations.django.models import OutboxTask
    from shardq.relay.database import open_database
    from tests.integrations.django.project.shop import tasks

    with site.settings(transactions="outbox") as backend:
        with transaction.atomic():
            result = tasks.add.enqueue(1)
            rolled_back(tasks.add)
        assert list(OutboxTask.objects.values_list("id", flat=True)) == [result.id]
        assert backend.engine.get(result.id) is None
        database = open_database(f"sqlite:///{settings.DATABASES['default']['NAME']}")
        assert isinstance(database, sa.Engine)
        with site.worker(backend), outbox.OutboxRelay(backend.engine, database):
            wait_until(lambda: not OutboxTask.objects.filter(moved=None).exists(), "the row was moved")
            ended(result)
        database.dispose()
        assert result.return_value == 2


def test_transactions_may_be_ignored(site: Site) -> None:
    from django.db import transaction

    from tests.integrations.django.project.shop import tasks

    with site.settings(transactions="ignore") as backend, transaction.atomic():
        result = tasks.add.enqueue(1)
        assert backend.engine.get(result.id) is not None
