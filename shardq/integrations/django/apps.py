"""The app's entry in Django's registry."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from django import VERSION
from django.apps import AppConfig, apps
from django.conf import settings
from django.core import checks


class ShardqConfig(AppConfig):
    name = "shardq.integrations.django"
    label = "shardq"
    verbose_name = "shardq"

    def ready(self) -> None:
        # Django 6, and the app of django-tasks, check all backends themselves.
        if VERSION < (6, 0) and not apps.is_installed("django_tasks") and getattr(settings, "TASKS", None):
            checks.register(_check_backends)


def _check_backends(**kwargs: Any) -> Iterable[checks.CheckMessage]:
    from shardq.integrations.django.backend import backends

    for backend in backends():
        yield from backend.check()
