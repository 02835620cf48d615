"""The names of Django's task framework: ``django.tasks`` of Django 6, or the package ``django-tasks`` before it.

Both have the same design. Everything else of this app takes the names from here, so nothing is written twice.
"""

from __future__ import annotations

import inspect
import traceback
from typing import Any

import django

from shardq.errors import MissingPackage

LONGEST = 16_000
"""The characters of a traceback in a result, whose end says most: a message may be of any length."""

BUILT_IN = django.VERSION >= (6, 0)
"""True if Django brings the framework itself."""

if BUILT_IN:
    from django.tasks import task_backends
    from django.tasks.backends.base import BaseTaskBackend
    from django.tasks.base import Task, TaskContext, TaskError, TaskResult, TaskResultStatus
    from django.tasks.exceptions import InvalidTask, InvalidTaskBackend, TaskResultDoesNotExist
    from django.tasks.signals import task_enqueued, task_finished, task_started
    from django.utils.json import normalize_json
else:
    try:
        from django_tasks import task_backends
        from django_tasks.backends.base import BaseTaskBackend
        from django_tasks.base import Task, TaskContext, TaskError, TaskResult, TaskResultStatus
        from django_tasks.exceptions import InvalidTaskBackendError as InvalidTaskBackend
        from django_tasks.exceptions import InvalidTaskError as InvalidTask
        from django_tasks.exceptions import TaskResultDoesNotExist
        from django_tasks.signals import task_enqueued, task_finished, task_started
        from django_tasks.utils import normalize_json
    except ModuleNotFoundError as _exc:
        if _exc.name != "django_tasks":
            raise
        raise MissingPackage(
            f"Django {django.get_version()} has no task framework of its own; the backend needs the package "
            "django-tasks: pip install 'shardq[django-tasks]'",
            name="django_tasks",
        ) from None


def new_result(task: Any, id: str, **fields: Any) -> Any:
    """A TaskResult; of what is not given it has the state before its first attempt."""
    blank: dict[str, Any] = {"status": TaskResultStatus.READY, "errors": [], "worker_ids": []}
    blank |= dict.fromkeys(("enqueued_at", "started_at", "last_attempted_at", "finished_at"))
    return TaskResult(task=task, id=id, **(blank | fields))


def put(result: Any, **fields: Any) -> None:
    """Changes fields of a result, which is frozen for all others; the framework's own backends do it so."""
    for name, value in fields.items():
        object.__setattr__(result, name, value)


def error_of(exc: BaseException, *ours: str) -> Any:
    """The exception as a TaskError. ``ours``: files whose frames are left out where the traceback begins."""
    kind, trace = type(exc), exc.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename in (*ours, inspect.getfile(Task)):
        trace = trace.tb_next
    lines = traceback.format_exception(kind, exc, trace or exc.__traceback__)
    text = "".join(lines)[-LONGEST:].replace("\0", "\ufffd")  # PostgreSQL stores no NUL
    return TaskError(exception_class_path=f"{kind.__module__}.{kind.__qualname__}", traceback=text)
