"""The app's entry in Django's registry."""

from __future__ import annotations

from django.apps import AppConfig


class ShardqConfig(AppConfig):
    name = "shardq.integrations.django"
    label = "shardq"
    verbose_name = "shardq"
