"""Room for ids with keys: TOPIC/KEY/UNIQUE."""

from __future__ import annotations

from typing import Any, ClassVar

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies: ClassVar[list[tuple[str, str]]] = [("shardq", "0001_initial")]
    operations: ClassVar[list[Any]] = [
        migrations.AlterField("outboxtask", "id", models.CharField(max_length=466)),
        migrations.AlterField("deadtask", "id", models.CharField(max_length=466, primary_key=True, serialize=False)),
    ]
