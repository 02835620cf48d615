"""The outbox's table as a model: the same table as ``shardq.outbox`` makes, so ``shardq outbox run`` moves its rows."""

from __future__ import annotations

from typing import ClassVar

from django.db import models

from shardq.outbox.rows import NAME


class OutboxTask(models.Model):
    """A task that waits to be moved to the engine. ``outbox.push`` makes it."""

    seq = models.BigAutoField(primary_key=True)
    id = models.CharField(max_length=330)
    due = models.BigIntegerField()
    record = models.BinaryField()
    on_conflict = models.CharField(max_length=8)
    dedup = models.BigIntegerField()
    created = models.BigIntegerField()
    moved = models.BigIntegerField(null=True)

    class Meta:
        db_table = NAME
        verbose_name = "outbox task"
        indexes: ClassVar = [
            models.Index(fields=["seq"], name=f"{NAME}_waiting", condition=models.Q(moved__isnull=True))
        ]

    def __str__(self) -> str:
        return self.id
