"""The results of tasks, and the permissions on dead ones, which have no table."""

from __future__ import annotations

from typing import ClassVar

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies: ClassVar = [("shardq", "0001_outbox")]
    operations: ClassVar = [
        migrations.CreateModel(
            name="DeadTask",
            fields=[("id", models.CharField(max_length=330, primary_key=True, serialize=False))],
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
            options={
                "verbose_name": "task result",
                "db_table": "shardq_result",
                "default_permissions": ("view",),
            },
        ),
    ]
