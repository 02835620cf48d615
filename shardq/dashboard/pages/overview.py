"""The first page: if all is well or why not, totals, rates and lateness."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from shardq.dashboard.live import live, seen
from shardq.dashboard.rendering import rendered
from shardq.dashboard.routing import page
from shardq.dashboard.sampler import OVER_S

PART = "part_overview.html"


async def _context(request: Request) -> dict[str, Any]:
    found = await seen(request)
    kinds = [member.kind for member in found["look"].fleet] if found["look"] else []
    return found | {"dispatchers": kinds.count("dispatcher"), "workers": kinds.count("worker"), "over_s": OVER_S}


async def overview(request: Request) -> Response:
    return rendered(request, "overview.html", live="overview", part=PART, **await _context(request))


routes = [page("/", overview), live("overview", PART, _context)]
