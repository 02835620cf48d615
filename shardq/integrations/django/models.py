"""The app's tables: those of ``shardq.outbox``, so that ``shardq outbox run`` moves the rows, and the results of tasks.
Dead tasks are in Redis; their model has no table, and carries the permissions on them.
"""

from __future__ import annotations

from typing import ClassVar

from django.db import models

from shardq.outbox.rows import NAME


class OutboxTask(models.Model):
    """A task that waits to be moved to the engine. ``outbox.push`` makes it."""

    seq = models.BigAutoField(primary_key=True)
    id = models.CharField(max_length=330)
    kind = models.CharField(max_length=10, default="push")
    due = models.BigIntegerField()
    record = models.BinaryField()
    on_conflict = models.CharField(max_length=8)
    dedup = models.BigIntegerField()
    created = models.BigIntegerField()
    moved = models.BigIntegerField(null=True)
    attempts = models.IntegerField(default=0)
    retry_at = models.BigIntegerField(null=True)
    failed = models.BigIntegerField(null=True)
    reason = models.TextField(null=True)

    class Meta:
        db_table = NAME
        verbose_name = "outbox task"
        indexes: ClassVar = [
            models.Index(
                fields=["seq"], name=f"{NAME}_waiting", condition=models.Q(moved__isnull=True, reason__isnull=True)
            ),
            models.Index(
                fields=["id", "seq"], name=f"{NAME}_ids", condition=models.Q(moved__isnull=True, failed__isnull=True)
            ),
            models.Index(
                fields=["seq"], name=f"{NAME}_refused", condition=models.Q(moved__isnull=True, reason__isnull=False)
            ),
        ]

    def __str__(self) -> str:
        return self.id


class OutboxEngine(models.Model):
    """The engine that the tasks of the outbox belong to, in one row. The first relay writes it."""

    one = models.IntegerField(primary_key=True)
    name = models.CharField(max_length=64)
    embedded = models.BooleanField()

    class Meta:
        db_table = f"{NAME}_engine"
        verbose_name = "engine of the outbox"
        default_permissions = ()

    def __str__(self) -> str:
        return self.name


class StoredResult(models.Model):
    """The result of a task whose first attempt has begun. Workers write it, ``manage.py shardq_prune`` removes it."""

    id = models.CharField(primary_key=True, max_length=128)
    path = models.CharField("task", max_length=500)
    args = models.JSONField()
    kwargs = models.JSONField()
    queue_name = models.CharField("queue", max_length=64)
    priority = models.SmallIntegerField()
    run_after = models.DateTimeField(null=True)
    backend = models.CharField(max_length=255)
    status = models.CharField(max_length=10)
    enqueued_at = models.DateTimeField("enqueued", null=True)
    started_at = models.DateTimeField("started", null=True)
    last_attempted_at = models.DateTimeField("last attempt", null=True)
    finished_at = models.DateTimeField("finished", null=True, db_index=True)
    return_value = models.JSONField(null=True)
    errors = models.JSONField()
    worker_ids = models.JSONField("workers")

    class Meta:
        db_table = "shardq_result"
        verbose_name = "task result"
        default_permissions = ("view",)

    def __str__(self) -> str:
        return self.id


class DeadTask(models.Model):
    """A dead task, for the admin: "change" allows to requeue, "delete" to remove. There is no table of it."""

    id = models.CharField(primary_key=True, max_length=330)

    class Meta:
        managed = False
        verbose_name = "dead task"
        default_permissions = ("view", "change", "delete")

    def __str__(self) -> str:
        return self.id
