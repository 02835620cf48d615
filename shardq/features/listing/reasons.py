"""The reasons of dead tasks, grouped: those of one cause are one group, also where they differ in a number or an id.

Every view that groups reasons does it here: ``health()``, ``shardq top`` and the dashboard.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from shardq.core.model.task import TaskInfo

_VARYING = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}|0x[0-9a-fA-F]+|[0-9]+")
"""UUIDs, addresses and numbers."""

_LENGTH = 160


@dataclass(slots=True)
class Group:
    """Dead tasks of one cause."""

    cause: str
    count: int = 0
    topics: set[str] = field(default_factory=set)
    first: dt.datetime | None = None
    last: dt.datetime | None = None
    example: str = ""
    """The id of the one that died last."""


def cause_of(reason: str | None) -> str:
    """The error of a traceback, without what differs from task to task.

    >>> cause_of("Traceback …\\n  File x\\nKeyError: 'order-4711'")
    "KeyError: 'order-#'"
    """
    lines = (reason or "").strip().rpartition("\n")
    return _VARYING.sub("#", lines[2][:_LENGTH].strip()) or "no reason was given"


def grouped(tasks: Iterable[TaskInfo]) -> list[Group]:
    """The groups of dead tasks, that of the latest death first."""
    groups: dict[str, Group] = {}
    for task in sorted(tasks, key=lambda task: task.died or dt.datetime.min.replace(tzinfo=dt.UTC)):
        cause = cause_of(task.reason)
        group = groups.pop(cause, None) or Group(cause, first=task.died)
        group.count += 1
        group.topics.add(task.topic)
        group.last, group.example = task.died, task.id
        groups[cause] = group
    return [*reversed(groups.values())]
