"""The nodes: what the shards of each hold, its replicas, and the connections to it."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from shardq.dashboard.live import live, seen
from shardq.dashboard.rendering import rendered
from shardq.dashboard.routing import page

PART = "part_nodes.html"


async def _context(request: Request) -> dict[str, Any]:
    return await seen(request)


async def nodes(request: Request) -> Response:
    return rendered(request, "nodes.html", live="nodes", part=PART, **await _context(request))


routes = [page("/nodes", nodes), live("nodes", PART, _context)]
