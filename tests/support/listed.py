"""All tasks that match, page by page."""

from __future__ import annotations

from typing import Any

from shardq import Engine, TaskInfo


def listed(engine: Engine, **query: Any) -> list[TaskInfo]:
    """Walks through all pages of ``engine.tasks``."""
    page = engine.tasks(**query)
    tasks = [*page]
    while page.cursor is not None:
        page = engine.tasks(**query, cursor=page.cursor)
        tasks += page
    return tasks
