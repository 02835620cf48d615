"""The Django app: ``"shardq.integrations.django"`` in INSTALLED_APPS, and a backend of Django's task framework.

    TASKS = {"default": {"BACKEND": "shardq.integrations.django.ShardqBackend", "OPTIONS": {"url": "redis://…"}}}

    >>> from shardq.integrations.django import outbox
    >>> with transaction.atomic():
    ...     order.save()
    ...     outbox.push({"order": order.pk}, delay=1800)

``README.md`` beside this file says the rest. It needs Django: ``pip install 'shardq[django]'``, and before Django 6 for
the backend ``pip install 'shardq[django-tasks]'``.
"""

from typing import TYPE_CHECKING

from shardq.core.lazy import lazily

# Django imports this package before its apps are ready, so nothing here may import a model.
if TYPE_CHECKING:
    from shardq.integrations.django import outbox
    from shardq.integrations.django.backend import ShardqBackend, TaskDied, engine
else:
    __getattr__, __dir__ = lazily(
        __name__,
        {
            "ShardqBackend": "shardq.integrations.django.backend",
            "TaskDied": "shardq.integrations.django.backend",
            "engine": "shardq.integrations.django.backend",
            "outbox": "shardq.integrations.django.outbox",
        },
        needs={"django": "shardq.integrations.django needs Django: pip install 'shardq[django]'"},
    )

__all__ = ["ShardqBackend", "TaskDied", "engine", "outbox"]
