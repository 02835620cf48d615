"""The chart of what will fall due, beside what workers can handle."""

from __future__ import annotations

from typing import cast

from starlette.requests import Request
from starlette.responses import Response

from shardq.core.model.quantities import rate
from shardq.dashboard import drawing
from shardq.dashboard.rendering import rendered
from shardq.dashboard.routing import page
from shardq.dashboard.visit import dashboard_of
from shardq.errors import InvalidOption
from shardq.features.listing.capacity import LABELS, NAMES, exceeded, judged
from shardq.features.listing.forecast import STEPS, Horizon, check_horizon


async def future(request: Request) -> Response:
    horizon = request.query_params.get("horizon") or "hour"
    check_horizon(horizon)
    wanted = request.query_params.get("capacity", "").strip()
    try:
        capacity = rate(wanted) if wanted else None
    except ValueError as exc:
        raise InvalidOption(str(exc)) from None
    return await _drawn(request, cast(Horizon, horizon), wanted, capacity)


async def _drawn(request: Request, horizon: Horizon, wanted: str, capacity: float | None) -> Response:
    found = await dashboard_of(request).futures.newest(horizon)
    over = None if capacity is None else exceeded(found, capacity)
    return rendered(
        request,
        "future.html",
        found=found,
        horizon=horizon,
        horizons=list(STEPS),
        unit=NAMES[horizon],
        within=found.total - found.overdue - found.later,
        most=max(found.buckets, key=lambda bucket: bucket[1]),
        label=LABELS[horizon],
        wanted=wanted,
        capacity=capacity,
        over=over,
        judged=None if capacity is None else judged(found, horizon, capacity, over),
        chart=drawing.chart(found, LABELS[horizon], capacity),
        size=(drawing.WIDTH, drawing.HEIGHT, drawing.LEFT),
    )


routes = [page("/future", future)]
