"""The transactional outbox on Django's connections: tasks are stored, and rolled back, with ``transaction.atomic``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Unpack

from shardq.core.model.task import Task
from shardq.core.model.task_options import PushOptions
from shardq.core.producer.packing import each_task
from shardq.integrations.django.models import OutboxTask
from shardq.outbox.rows import Row, RowPacker

_packer = RowPacker()


def push(payload: Any, *, using: str | None = None, **options: Unpack[PushOptions]) -> str:
    """Pushes a task in the present transaction of a database (``using``: its alias). Returns the task's id.

    It takes the options of ``Engine.push`` but ``durability``. A relay pushes it once the transaction is committed.
    """
    row = _packer.pack_one(payload, options)
    _new([row], using)
    return row["id"]


def push_many(tasks: Iterable[Task], *, using: str | None = None) -> list[str]:
    """Pushes many tasks in the present transaction. Returns their ids, in order."""
    rows = _packer.pack_all(each_task(tasks))
    _new(rows, using)
    return [row["id"] for row in rows]


async def apush(payload: Any, *, using: str | None = None, **options: Unpack[PushOptions]) -> str:
    """``push`` for asynchronous views."""
    row = _packer.pack_one(payload, options)
    await OutboxTask.objects.using(using).abulk_create([OutboxTask(**row)])
    return row["id"]


def _new(rows: list[Row], using: str | None) -> None:
    OutboxTask.objects.using(using).bulk_create([OutboxTask(**row) for row in rows], batch_size=1000)
