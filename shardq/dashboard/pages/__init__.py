"""The pages, one module each; its ``routes`` are its addresses."""

from __future__ import annotations

from starlette.routing import BaseRoute

from shardq.dashboard.pages import (
    bulk,
    changes,
    dead,
    fleet,
    future,
    nodes,
    number,
    overview,
    schedules,
    shards,
    static,
    task,
    tasks,
    topics,
)

_MODULES = (overview, tasks, task, bulk, dead, future, schedules, shards, number, nodes, topics, fleet, changes, static)


def routes() -> list[BaseRoute]:
    return [route for module in _MODULES for route in module.routes]
