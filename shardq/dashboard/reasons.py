"""The reasons of dead tasks, grouped: of all of them where they are few, else of samples of their times of death."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass, field

from shardq.dashboard.asking import Asker
from shardq.engine.health import cause_of
from shardq.listing.query import Place, Query, TaskPage
from shardq.model.task import TaskInfo

WHOLE = 600
"""Dead tasks that are all looked at."""

SAMPLE = 100
"""Tasks that are looked at of each time, where there are more."""

SINCE_S = (7 * 86_400, 86_400, 3600, 300)
"""The times: the first deaths since a week ago, since a day, and so on. The earliest deaths are those of ``WHOLE``."""

GROUPS = 40
"""Groups that are shown."""


@dataclass(slots=True)
class Group:
    """Dead tasks of one reason."""

    reason: str
    count: int = 0
    topics: set[str] = field(default_factory=set)
    first: dt.datetime | None = None
    last: dt.datetime | None = None
    example: str = ""
    """The id of the last one."""


@dataclass(slots=True)
class Reasons:
    groups: list[Group]
    """The most frequent first."""
    looked_at: int
    is_whole: bool
    """True if these were all dead tasks."""
    others: int
    """Groups that are not shown."""


async def read_reasons(ask: Asker, name: str, topic: str | None, now: dt.datetime) -> Reasons:
    """Looks at 1,000 dead tasks at most, of a topic or of all."""
    page = await _page(ask, topic, None, WHOLE)
    tasks = {task.id: task for task in page}
    if page.cursor is not None:
        query = Query.checked(topic=topic, state="dead")
        for seconds in SINCE_S:
            since = int((now.timestamp() - seconds) * 1000)
            # A cursor is a place in the order of deaths: this one is before the first death since then.
            cursor = query.cursor(name, Place("dead", since))
            tasks.update((task.id, task) for task in await _page(ask, topic, cursor, SAMPLE))
    groups = grouped(list(tasks.values()))
    return Reasons(groups[:GROUPS], len(tasks), page.cursor is None, max(0, len(groups) - GROUPS))


async def _page(ask: Asker, topic: str | None, cursor: str | None, limit: int) -> TaskPage:
    return await ask(lambda engine: engine.tasks(topic=topic, state="dead", limit=limit, cursor=cursor))


def grouped(tasks: list[TaskInfo]) -> list[Group]:
    groups: dict[str, Group] = {}
    for task in sorted(tasks, key=lambda task: task.died or dt.datetime.min.replace(tzinfo=dt.UTC)):
        reason = cause_of(task.reason)
        group = groups.setdefault(reason, Group(reason))
        group.count += 1
        group.topics.add(task.topic)
        group.first, group.last = group.first or task.died, task.died
        group.example = task.id
    return sorted(groups.values(), key=lambda group: -group.count)
