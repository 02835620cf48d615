"""The first page: if all is well or why not, and totals."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from shardq.dashboard.rendering import rendered
from shardq.dashboard.routing import page
from shardq.dashboard.visit import dashboard_of


async def overview(request: Request) -> Response:
    health = await dashboard_of(request).ask(lambda engine: engine.health())
    return rendered(request, "overview.html", health=health, stats=health.stats)


routes = [page("/", overview)]
