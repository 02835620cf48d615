"""The app's tables: those of ``shardq.outbox``, so that ``shardq outbox run`` moves the rows, and the results of tasks.
Dead tasks are in Redis; their model has no table, and carries the permissions on them.
"""

from __future__ import annotations

import datetime as dt
from typing import Any, ClassVar

from django.db import models

from shardq.outbox.rows import LONGEST_ID, NAME


class OutboxTask(models.Model):
    """A task that waits to be moved to the engine. ``outbox.push`` makes it."""

    seq: int = models.BigAutoField(primary_key=True)
    id: str = models.CharField(max_length=LONGEST_ID)
    kind: str = models.CharField(max_length=10, default="push")
    due: int = models.BigIntegerField()
    record: bytes = models.BinaryField()
    on_conflict: str = models.CharField(max_length=8)
    dedup: int = models.BigIntegerField()
    nonce: int = models.BigIntegerField(default=0)
    created: int = models.BigIntegerField()
    claimed: int | None = models.BigIntegerField(null=True)
    moved: int | None = models.BigIntegerField(null=True)
    attempts: int = models.IntegerField(default=0)
    retry_at: int | None = models.BigIntegerField(null=True)
    failed: int | None = models.BigIntegerField(null=True)
    reason: str | None = models.TextField(null=True)

    class Meta:
        db_table = NAME
        verbose_name = "outbox task"
        indexes: ClassVar[list[Any]] = [
            models.Index(
                fields=["seq"],
                name=f"{NAME}_waiting",
                condition=models.Q(moved__isnull=True, reason__isnull=True, claimed__isnull=True),
            ),
            models.Index(
                fields=["claimed"],
                name=f"{NAME}_claims",
                condition=models.Q(moved__isnull=True, claimed__isnull=False),
            ),
            models.Index(
                fields=["id", "seq"], name=f"{NAME}_ids", condition=models.Q(moved__isnull=True, failed__isnull=True)
            ),
            models.Index(fields=["moved"], name=f"{NAME}_moved", condition=models.Q(moved__isnull=False)),
            models.Index(
                fields=["seq"], name=f"{NAME}_refused", condition=models.Q(moved__isnull=True, reason__isnull=False)
            ),
        ]

    def __str__(self) -> str:
        return self.id


class OutboxEngine(models.Model):
    """The engine that the tasks of the outbox belong to, in one row. The first relay writes its name."""

    one: int = models.IntegerField(primary_key=True)
    name: str = models.CharField(max_length=64)
    embedded: bool = models.BooleanField()
    outbox: str = models.CharField(max_length=32)
    beat: int = models.BigIntegerField()
    shards: str | None = models.TextField(null=True)
    older: str | None = models.TextField(null=True)

    class Meta:
        db_table: ClassVar[str] = f"{NAME}_engine"
        verbose_name = "engine of the outbox"
        default_permissions: ClassVar[tuple[str, ...]] = ()

    def __str__(self) -> str:
        return self.name


class StoredResult(models.Model):
    """The result of a task whose first attempt has begun. Workers write it, ``manage.py shardq_prune`` removes it."""

    id: str = models.CharField(primary_key=True, max_length=128)
    path: str = models.CharField("task", max_length=500)
    args: Any = models.JSONField()
    kwargs: Any = models.JSONField()
    queue_name: str = models.CharField("queue", max_length=64)
    priority: int = models.SmallIntegerField()
    run_after: dt.datetime | None = models.DateTimeField(null=True)
    backend: str = models.CharField(max_length=255)
    status: str = models.CharField(max_length=10)
    enqueued_at: dt.datetime | None = models.DateTimeField("enqueued", null=True)
    started_at: dt.datetime | None = models.DateTimeField("started", null=True)
    last_attempted_at: dt.datetime | None = models.DateTimeField("last attempt", null=True)
    finished_at: dt.datetime | None = models.DateTimeField("finished", null=True, db_index=True)
    return_value: Any = models.JSONField(null=True)
    errors: Any = models.JSONField()
    worker_ids: Any = models.JSONField("workers")

    class Meta:
        db_table = "shardq_result"
        verbose_name = "task result"
        default_permissions: ClassVar[tuple[str, ...]] = ("view",)

    def __str__(self) -> str:
        return self.id


class DeadTask(models.Model):
    """A dead task, for the admin: "change" allows to requeue, "delete" to remove. There is no table of it."""

    id: str = models.CharField(primary_key=True, max_length=LONGEST_ID)

    class Meta:
        managed = False
        verbose_name = "dead task"
        default_permissions: ClassVar[tuple[str, ...]] = ("view", "change", "delete")

    def __str__(self) -> str:
        return self.id
