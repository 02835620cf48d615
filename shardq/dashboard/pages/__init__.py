"""The pages, one module each; its ``routes`` are its addresses."""

from __future__ import annotations

from starlette.routing import BaseRoute

from shardq.dashboard.pages import bulk, dead, overview, static, task, tasks

_MODULES = (overview, tasks, task, bulk, dead, static)


def routes() -> list[BaseRoute]:
    return [route for module in _MODULES for route in module.routes]
