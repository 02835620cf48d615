"""Dead tasks: why they died, grouped by reason, and the way to requeue or remove them."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from shardq.core.model.task import TaskInfo
from shardq.dashboard.asked import Asked, topic_of_word
from shardq.dashboard.asking import Asker
from shardq.dashboard.rendering import rendered
from shardq.dashboard.routing import page
from shardq.dashboard.visit import dashboard_of
from shardq.features.listing.query import TaskPage
from shardq.features.listing.reasons import grouped

LATEST = 600
"""Dead tasks that are looked at: those that died last."""

LOOKS = 4
"""The most pages of them that are read: one ends early where tasks are large, or of a rare topic."""

GROUPS = 40
"""Groups that are shown."""

TOPICS = 3
"""Topics that are named for a reason."""


async def dead(request: Request) -> Response:
    word = Asked.of(request.query_params.get).topic
    tasks, is_whole = await _latest(dashboard_of(request).ask, topic_of_word(word))
    groups = grouped(tasks)
    return rendered(
        request,
        "dead.html",
        topic=word,
        looked_at=len(tasks),
        is_whole=is_whole,
        groups=groups[:GROUPS],
        others=max(0, len(groups) - GROUPS),
        named=TOPICS,
    )


async def _latest(ask: Asker, topic: str | None) -> tuple[list[TaskInfo], bool]:
    """The tasks that died last, and True if these are all."""
    found: list[TaskInfo] = []
    cursor: str | None = None
    for _ in range(LOOKS):
        page = await _page(ask, topic, LATEST - len(found), cursor)
        found += page
        cursor = page.cursor
        if cursor is None or len(found) == LATEST:
            break
    return found, cursor is None


async def _page(ask: Asker, topic: str | None, limit: int, cursor: str | None) -> TaskPage:
    return await ask(lambda engine: engine.tasks(topic=topic, newest=True, limit=limit, cursor=cursor))


routes = [page("/dead", dead)]
