"""The last changes of operators: who, when and what."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from shardq.dashboard.rendering import rendered
from shardq.dashboard.routing import page
from shardq.dashboard.visit import dashboard_of
from shardq.engine.changes import KEPT


async def changes(request: Request) -> Response:
    found = await dashboard_of(request).ask(lambda engine: engine.changes())
    return rendered(request, "changes.html", changes=found, kept=KEPT)


routes = [page("/changes", changes)]
