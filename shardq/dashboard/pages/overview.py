"""The first page: if all is well or why not, what was and what falls due, totals, rates and lateness."""

from __future__ import annotations

from typing import Any, cast

from starlette.requests import Request
from starlette.responses import Response

from shardq.dashboard import drawing
from shardq.dashboard.live import live, seen
from shardq.dashboard.rendering import rendered
from shardq.dashboard.routing import page
from shardq.dashboard.sampler import OVER_S
from shardq.dashboard.visit import dashboard_of
from shardq.engine.snapshot import Snapshot
from shardq.errors import ShardqError
from shardq.features.listing.capacity import LABELS, NAMES
from shardq.features.listing.forecast import STEPS, Horizon, check_horizon

PART = "part_overview.html"

BUSIEST = 5
"""Topics that are named."""


async def _context(request: Request) -> dict[str, Any]:
    horizon = request.query_params.get("span") or "day"
    check_horizon(horizon)
    found = await seen(request)
    snapshot = found["snapshot"]
    kinds = [member.kind for member in snapshot.fleet] if snapshot else []
    topics = snapshot.stats.topics if snapshot else {}
    busiest = sorted(topics, key=lambda topic: (-(topics[topic].dispatched_per_s or 0), -topics[topic].scheduled))
    return (
        found
        | await _timeline(request, cast(Horizon, horizon), snapshot)
        | {
            "dispatchers": kinds.count("dispatcher"),
            "workers": kinds.count("worker"),
            "over_s": OVER_S,
            "busiest": [(topic, topics[topic]) for topic in busiest[:BUSIEST]],
            "others": max(0, len(topics) - BUSIEST),
        }
    )


async def _timeline(request: Request, horizon: Horizon, snapshot: Snapshot | None) -> dict[str, Any]:
    """The variables of ``part_timeline.html``; without a drawing where the servers do not tell."""
    names = {"span": horizon, "spans": [*STEPS], "unit": NAMES[horizon], "levels": drawing.LEVELS}
    if snapshot is None or snapshot.stats.is_blind:
        return names | {"timeline": None, "untold": "no shard could be seen"}
    try:
        past, future = await dashboard_of(request).futures.timeline(horizon)
    except ShardqError as exc:
        return names | {"timeline": None, "untold": str(exc)}
    size = (drawing.WIDTH, drawing.TIMELINE_HEIGHT, drawing.LEFT, drawing.STRIP_Y, drawing.STRIP_HEIGHT)
    return names | {
        "timeline": drawing.timeline(past, future, LABELS[horizon]),
        "is_recorded": any(point.minutes for point in past.points),
        "future": future,
        "size": size,
    }


async def overview(request: Request) -> Response:
    found = await _context(request)
    query = {"span": found["span"]}
    return rendered(request, "overview.html", live="overview", live_query=query, part=PART, **found)


routes = [page("/", overview), live("overview", PART, _context)]
