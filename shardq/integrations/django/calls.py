"""The payload of a task: its function by name, and the arguments, as ``@engine.task`` pushes them. No I/O.

    {"task": "shop.tasks.send", "args": […], "kwargs": {…}, "enqueued": MS, "priority": 7, "run_after": MS}

The last two are left out where they say nothing. The queue is in the topic.
"""

from __future__ import annotations

import datetime as dt
import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from django.conf import settings
from django.utils import timezone
from django.utils.module_loading import import_string

from shardq.integrations.django.contract import InvalidTask, Task
from shardq.integrations.django.queues import queue_of
from shardq.worker.named import call_of


@dataclass(frozen=True, slots=True)
class Call:
    """The content of a payload."""

    path: str
    args: list[Any]
    kwargs: dict[str, Any]
    queue: str
    priority: int
    run_after: dt.datetime | None
    enqueued_at: dt.datetime | None

    @classmethod
    def read(cls, payload: Any, topic: str) -> Call:
        """Raises InvalidTask for a payload that is no call."""
        # exactly: whatever else a program has pushed there is not ours
        if type(payload) is not dict or type(payload.get("task")) is not str:
            raise InvalidTask("the payload names no task")
        args, kwargs = payload.get("args", []), payload.get("kwargs", {})
        priority = payload.get("priority", 0)
        if type(args) is not list or type(kwargs) is not dict or type(priority) is not int:
            raise InvalidTask("the payload is no call of a task")
        return cls(
            payload["task"],
            args,
            kwargs,
            queue_of(topic),
            priority,
            _instant(payload.get("run_after")),
            _instant(payload.get("enqueued")),
        )

    def task(self, backend: str) -> Any:
        """The task that is called, with the queue, priority and time that it was enqueued with. Raises InvalidTask."""
        changes = {"queue_name": self.queue, "priority": self.priority, "backend": backend}
        return task_at(self.path).using(**changes, run_after=self.run_after)


def payload_of(task: Any, args: list[Any], kwargs: Mapping[str, Any], now: dt.datetime) -> dict[str, Any]:
    payload: dict[str, Any] = call_of(task.module_path)
    payload |= {"args": args, "kwargs": kwargs, "enqueued": _ms(now)}
    if task.priority:
        payload["priority"] = task.priority
    if task.run_after is not None:
        payload["run_after"] = _ms(aware(task.run_after))
    return payload


def task_at(path: str) -> Any:
    """The task of that path, imported. Raises InvalidTask, which says why it can't be had."""
    try:
        found = _imported(path)
    except ImportError as exc:
        raise InvalidTask(f"the task {path!r:.200} can't be imported here: {exc}") from exc
    if not isinstance(found, Task):
        raise InvalidTask(f"{path!r:.200} is no task: nothing of that name has the decorator @task")
    return found


@functools.lru_cache(maxsize=4096)
def _imported(path: str) -> Any:
    return import_string(path)


def aware(instant: dt.datetime) -> dt.datetime:
    """The instant with a time zone: a naive one is of the current time zone, as everywhere in Django."""
    return instant if timezone.is_aware(instant) else timezone.make_aware(instant)


def _ms(instant: dt.datetime) -> int:
    return round(aware(instant).timestamp() * 1000)


def as_django(instant: dt.datetime) -> dt.datetime:
    """The aware instant as Django has it: naive where USE_TZ is off."""
    return instant if settings.USE_TZ else timezone.make_naive(instant)


def _instant(ms: Any) -> dt.datetime | None:
    return as_django(dt.datetime.fromtimestamp(ms / 1000, dt.UTC)) if type(ms) is int else None
