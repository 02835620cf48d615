"""The outbox's tables, and on PostgreSQL the trigger that tells relays of new rows; the results of tasks, and the
permissions on dead ones, which have no table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, ClassVar

from django.apps.registry import Apps
from django.db import migrations, models
from django.db.backends.base.schema import BaseDatabaseSchemaEditor

from shardq.outbox.rows import drop_trigger, make_owner, make_trigger

TABLE = "shardq_outbox"


def execute(statements: Callable[[str, str], Iterable[str]], _: Apps, editor: BaseDatabaseSchemaEditor) -> None:
    for statement in statements(editor.connection.vendor, TABLE):
        editor.execute(statement, params=None)


def owner(vendor: str, table: str) -> Iterable[str]:
    return [make_owner(vendor, f"{table}_engine")]


class Migration(migrations.Migration):
    initial = True
    dependencies: ClassVar[list[tuple[str, str]]] = []
    operations: ClassVar[list[Any]] = [
        migrations.CreateModel(
            name="OutboxTask",
            fields=[
                ("seq", models.BigAutoField(primary_key=True, serialize=False)),
                ("id", models.CharField(max_length=466)),
                ("kind", models.CharField(default="push", max_length=10)),
                ("due", models.BigIntegerField()),
                ("record", models.BinaryField()),
                ("on_conflict", models.CharField(max_length=8)),
                ("dedup", models.BigIntegerField()),
                ("nonce", models.BigIntegerField(default=0)),
                ("created", models.BigIntegerField()),
                ("claimed", models.BigIntegerField(null=True)),
                ("moved", models.BigIntegerField(null=True)),
                ("attempts", models.IntegerField(default=0)),
                ("retry_at", models.BigIntegerField(null=True)),
                ("failed", models.BigIntegerField(null=True)),
                ("reason", models.TextField(null=True)),
            ],
            options={
                "db_table": TABLE,
                "verbose_name": "outbox task",
                "indexes": [
                    models.Index(
                        fields=["seq"],
                        name=f"{TABLE}_waiting",
                        condition=models.Q(
                            ("claimed__isnull", True), ("moved__isnull", True), ("reason__isnull", True)
                        ),
                    ),
                    models.Index(
                        fields=["claimed"],
                        name=f"{TABLE}_claims",
                        condition=models.Q(("claimed__isnull", False), ("moved__isnull", True)),
                    ),
                    models.Index(
                        fields=["id", "seq"],
                        name=f"{TABLE}_ids",
                        condition=models.Q(("failed__isnull", True), ("moved__isnull", True)),
                    ),
                    models.Index(fields=["moved"], name=f"{TABLE}_moved", condition=models.Q(("moved__isnull", False))),
                    models.Index(
                        fields=["seq"],
                        name=f"{TABLE}_refused",
                        condition=models.Q(("moved__isnull", True), ("reason__isnull", False)),
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="OutboxEngine",
            fields=[
                ("one", models.IntegerField(primary_key=True, serialize=False)),
                ("name", models.CharField(max_length=64)),
                ("embedded", models.BooleanField()),
                ("outbox", models.CharField(max_length=32)),
                ("beat", models.BigIntegerField()),
                ("shards", models.TextField(null=True)),
                ("older", models.TextField(null=True)),
            ],
            options={"db_table": f"{TABLE}_engine", "verbose_name": "engine of the outbox", "default_permissions": ()},
        ),
        migrations.RunPython(partial(execute, owner), migrations.RunPython.noop),
        migrations.RunPython(partial(execute, make_trigger), partial(execute, drop_trigger)),
        migrations.CreateModel(
            name="DeadTask",
            fields=[("id", models.CharField(max_length=466, primary_key=True, serialize=False))],
            options={
                "verbose_name": "dead task",
                "managed": False,
                "default_permissions": ("view", "change", "delete"),
            },
        ),
        migrations.CreateModel(
            name="StoredResult",
            fields=[
                ("id", models.CharField(max_length=128, primary_key=True, serialize=False)),
                ("path", models.CharField(max_length=500, verbose_name="task")),
                ("args", models.JSONField()),
                ("kwargs", models.JSONField()),
                ("queue_name", models.CharField(max_length=64, verbose_name="queue")),
                ("priority", models.SmallIntegerField()),
                ("run_after", models.DateTimeField(null=True)),
                ("backend", models.CharField(max_length=255)),
                ("status", models.CharField(max_length=10)),
                ("enqueued_at", models.DateTimeField(null=True, verbose_name="enqueued")),
                ("started_at", models.DateTimeField(null=True, verbose_name="started")),
                ("last_attempted_at", models.DateTimeField(null=True, verbose_name="last attempt")),
                ("finished_at", models.DateTimeField(db_index=True, null=True, verbose_name="finished")),
                ("return_value", models.JSONField(null=True)),
                ("errors", models.JSONField()),
                ("worker_ids", models.JSONField(verbose_name="workers")),
            ],
            options={"verbose_name": "task result", "db_table": "shardq_result", "default_permissions": ("view",)},
        ),
    ]
