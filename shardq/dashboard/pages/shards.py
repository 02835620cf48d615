"""The shards: how late each was at the last looks, as a map, and their counts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from shardq.core.fleet.serving import servers
from shardq.dashboard import drawing
from shardq.dashboard.live import live, seen
from shardq.dashboard.rendering import rendered
from shardq.dashboard.routing import page
from shardq.dashboard.sampler import COLUMNS
from shardq.dashboard.visit import dashboard_of
from shardq.engine.snapshot import behind
from shardq.engine.stats import ShardStats

PART = "part_shards.html"

PAGE = 100
"""Rows of the table at once."""

SORTS: dict[str, Callable[[ShardStats], float]] = {
    "shard": lambda shard: shard.shard,
    "scheduled": lambda shard: -(shard.scheduled or 0),
    "ready": lambda shard: -(shard.ready or 0),
    "leased": lambda shard: -(shard.leased or 0),
    "dead": lambda shard: -(shard.dead or 0),
    "per s": lambda shard: -(shard.dispatched_per_s or 0),
    "behind": lambda shard: -(behind(shard.head_age) or 0),
}


def _behind_ms(shard: ShardStats) -> float | None:
    late = behind(shard.head_age)
    return None if late is None else 1000 * late


async def _context(request: Request) -> dict[str, Any]:
    found = await seen(request)
    sort = request.query_params.get("sort", "")
    sort = sort if sort in SORTS else "shard"
    begin = request.query_params.get("begin", "")
    start = int(begin) if begin.isascii() and begin.isdigit() and len(begin) < 6 else 0
    context = found | {"sort": sort, "sorts": list(SORTS), "start": start, "per_page": PAGE}
    context["live_query"] = {"sort": sort, "begin": start}
    snapshot = found["snapshot"]
    if snapshot is None:
        return context
    rows = sorted(snapshot.stats.shards, key=lambda shard: (not shard.error, SORTS[sort](shard)))
    topology = await dashboard_of(request).ask(lambda engine: engine.topology)
    return context | {
        "rows": rows[start : start + PAGE],
        "count": len(rows),
        "served_by": servers(snapshot.fleet),
        "behind_ms": _behind_ms,
        "heat": drawing.heat(list(dashboard_of(request).sampler.columns), COLUMNS),
        "levels": drawing.LEVELS,
        "topology": topology,
    }


async def shards(request: Request) -> Response:
    return rendered(request, "shards.html", live="shards", part=PART, **await _context(request))


routes = [page("/shards", shards), live("shards", PART, _context)]
