"""The payload and the topic of a task. No I/O.

    {"task": "shop.tasks.send", "args": […], "kwargs": {…}, "enqueued": MS, "priority": 7, "run_after": MS}

The payload names the function and has its arguments, as ``@engine.task`` pushes them; the last two are left out where
they say nothing. The queue and the priority are in the topic. Topics are served in a strict order, so priorities are
steps and not a hundred shades: ``mail.highest`` before ``mail.high`` before ``mail``, and so on. Within a step tasks
come by their due time.
"""

from __future__ import annotations

import datetime as dt
import functools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from django.conf import settings
from django.utils import timezone
from django.utils.module_loading import import_string

from shardq.core.model.checks import check_topic
from shardq.errors import InvalidTopic
from shardq.integrations.django.contract import InvalidTask, Task, new_result
from shardq.worker.named import call_of

STEPS: tuple[tuple[str, int], ...] = (("highest", 51), ("high", 1), ("", 0), ("low", -50), ("lowest", -100))
"""The name of each step and its least priority, the first ones first."""

_SUFFIXES = tuple(f".{name}" for name, _ in STEPS if name)

LONGEST = 64 - max(map(len, _SUFFIXES))
"""The characters of a queue's name: its topics have more."""


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
            raise InvalidTask("the payload is not a call of a task")
        after, enqueued = _instant(payload.get("run_after")), _instant(payload.get("enqueued"))
        return cls(payload["task"], args, kwargs, queue_of(topic), priority, after, enqueued)

    def result(self, id: str, backend: str, **fields: Any) -> Any:
        """A result of this call, of a task with the queue, priority and time that it was enqueued with. Raises
        InvalidTask.
        """
        using = task_at(self.path).using
        task = using(queue_name=self.queue, priority=self.priority, backend=backend, run_after=self.run_after)
        fields |= {"backend": backend, "args": self.args, "kwargs": self.kwargs, "enqueued_at": self.enqueued_at}
        return new_result(task, id, **fields)


def payload_of(task: Any, args: list[Any], kwargs: Mapping[str, Any], now: dt.datetime) -> dict[str, Any]:
    payload: dict[str, Any] = call_of(task.module_path) | {"args": args, "kwargs": kwargs, "enqueued": _ms(now)}
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
        raise InvalidTask(f"{path!r:.200} is not a task: nothing of that name has the decorator @task")
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


# ---- topics


def topic_of(queue: str, priority: int) -> str:
    """
    >>> topic_of("mail", 0), topic_of("mail", 100), topic_of("mail", -1)
    ('mail', 'mail.highest', 'mail.low')
    """
    step = next(name for name, least in STEPS if priority >= least)
    return f"{queue}.{step}" if step else queue


def queue_of(topic: str) -> str:
    """
    >>> queue_of("mail.highest"), queue_of("mail")
    ('mail', 'mail')
    """
    for suffix in _SUFFIXES:
        if topic.endswith(suffix):
            return topic.removesuffix(suffix)
    return topic


def topics_of(queues: Iterable[str]) -> list[str]:
    """The topics of queues in the order in which they are served: by priority, and then by the order of the queues.

    >>> topics_of(["mail", "news"])[:3]
    ['mail.highest', 'news.highest', 'mail.high']
    """
    names = list(dict.fromkeys(queues))
    return [topic_of(queue, least) for _, least in STEPS for queue in names]


def wrong_queue(name: object) -> str | None:
    """The error in the name of a queue, and what to do; None: there is none."""
    if not isinstance(name, str) or not name:
        return f"the queue name {name!r} is not possible: give a str that is not empty"
    try:
        check_topic(name)
    except InvalidTopic:
        return f"the queue name {name!r} is not possible: use letters, digits and _ . - only"
    if len(name) > LONGEST:
        return f"the queue name {name!r} is too long: {LONGEST} characters are possible"
    if name.endswith(_SUFFIXES):
        return (
            f"the queue name {name!r} is not possible: {', '.join(_SUFFIXES)} at the end are the priorities of a "
            "queue; give it another end"
        )
    return None
