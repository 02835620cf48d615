"""The pages that only show: the overview, what falls due, the nodes, the fleet, and the changes of operators."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, cast

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from shardq.core.drivers.routing import ConnectionCounts
from shardq.core.fleet.member import Member
from shardq.dashboard import drawing
from shardq.dashboard.formats import size
from shardq.dashboard.links import link_of
from shardq.dashboard.snapshots import OVER_S
from shardq.dashboard.web import dashboard_of, drawn, live_page, newest, page, rate_of, rendered
from shardq.engine.around import KEPT, Column, NodeSnapshot, Snapshot, tables
from shardq.errors import ShardqError
from shardq.features.history import first_known
from shardq.features.listing.forecast import LABELS, NAMES, STEPS, Horizon, check_horizon, exceeded, judged

BUSIEST = 5
"""Topics that the overview names."""

TOPIC_COLUMNS = ("topic", "scheduled", "held", "ready", "dead", "taken/s", "oldest")
"""Their columns there."""

FULL = 0.9
"""The share of its memory from which on a node is shown in red."""

MOST, MOST_NODES = 100, 200
"""Processes of a kind, and nodes, that are listed."""


async def overview(request: Request) -> dict[str, Any]:
    """If all is well or why not, what was and what falls due, totals, rates and lateness."""
    found = await newest(request)
    snapshot = found["snapshot"]
    word = request.query_params.get("span")
    horizon = _horizon(word) if word else await _first_span(request, snapshot)
    kinds = [member.kind for member in snapshot.fleet] if snapshot else []
    topics = snapshot.stats.topics if snapshot else {}
    busiest = sorted(topics.items(), key=lambda row: (-(row[1].dispatched_per_s or 0), -row[1].scheduled))[:BUSIEST]
    view = tables.topics(snapshot.health) if snapshot and busiest else None
    return (
        found
        | await _timeline(request, horizon, snapshot)
        | {
            "live_query": {"span": horizon},
            "dispatchers": kinds.count("dispatcher"),
            "workers": kinds.count("worker"),
            "over_s": round(OVER_S),
            "busiest": view and drawn(view, busiest, [each for each in view.columns if each.title in TOPIC_COLUMNS]),
            "address": lambda row: link_of("/topics/one", topic=row[0]),
            "others": max(0, len(topics) - BUSIEST),
        }
    )


async def _first_span(request: Request, snapshot: Snapshot | None) -> Horizon:
    """A day, or an hour where no more than that is recorded."""
    if snapshot is None or snapshot.stats.is_blind:
        return "hour"
    try:
        past, _ = await dashboard_of(request).snapshots.timeline("day")
    except ShardqError:
        return "hour"
    return "day" if first_known(past) < len(past.points) - 2 else "hour"


async def _timeline(request: Request, horizon: Horizon, snapshot: Snapshot | None) -> dict[str, Any]:
    """The variables of ``part_timeline.html``; without a drawing where the servers do not tell."""
    names = {"span": horizon, "spans": [*STEPS], "unit": NAMES[horizon]}
    if snapshot is None or snapshot.stats.is_blind:
        return names | {"timeline": None, "untold": "no shard could be seen"}
    try:
        past, future = await dashboard_of(request).snapshots.timeline(horizon)
    except ShardqError as exc:
        return names | {"timeline": None, "untold": str(exc)}
    return names | {
        "timeline": drawing.timeline(past, future, LABELS[horizon]),
        "is_recorded": any(point.minutes for point in past.points),
        "future": future,
        "size": (drawing.WIDTH, drawing.TIMELINE_HEIGHT, drawing.LEFT, drawing.STRIP_Y, drawing.STRIP_HEIGHT),
    }


def _horizon(word: str) -> Horizon:
    check_horizon(word)
    return cast(Horizon, word)


async def future(request: Request) -> Response:
    """The chart of what will fall due, beside what workers can handle."""
    horizon = _horizon(request.query_params.get("horizon") or "hour")
    wanted = request.query_params.get("capacity", "").strip()
    capacity = rate_of(wanted, "to compare with nothing")
    found = await dashboard_of(request).snapshots.forecast(horizon)
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


async def nodes(request: Request) -> dict[str, Any]:
    """The counts of the shards on each node, its memory, CPU and replicas, and the connections to it."""
    found = await newest(request)
    if found["snapshot"] is None:
        return found
    cores, connections = found["snapshots"].cores, found["snapshot"].stats.connections

    def memory(node: NodeSnapshot) -> str:
        if node.memory is None:
            return "-"
        return size(node.memory) + (f" of {size(node.maxmemory)}" if node.maxmemory else "")

    def opened(counts: ConnectionCounts | None) -> str:
        return "-" if counts is None else f"{counts.shared + counts.own:,}"

    def silent(node: NodeSnapshot) -> str:
        return ", ".join(
            f"{replica} {'copies all' if seconds is None else f'for {tables.age(seconds)}'}"
            for replica, seconds in node.silent.items()
        )

    def is_bad(node: NodeSnapshot) -> bool:
        return view.red(node) or bool(node.silent) or (node.memory or 0) > FULL * (node.maxmemory or math.inf)

    view = tables.nodes(found["snapshot"])
    columns = (
        *view.columns,
        Column("silent", silent, text=True, optional=True),
        Column("memory", memory),
        Column("CPU", lambda node: f"{100 * cores[node.node]:.0f} %" if node.node in cores else "-"),
        Column("connections", lambda node: opened(connections.get(node.node))),
    )
    return found | {"view": dataclasses.replace(drawn(view, view.rows[:MOST_NODES], columns), red=is_bad)}


async def fleet(request: Request) -> dict[str, Any]:
    """The dispatchers and workers that live, and what each says of itself."""
    found = await newest(request)
    fleet: Sequence[Member] = found["snapshot"].fleet if found["snapshot"] else []
    kinds = {kind: [member for member in fleet if member.kind == kind] for kind in ("dispatcher", "worker")}

    def table(members: Sequence[Member]) -> tables.View[Member]:
        view = tables.fleet(members[:MOST])
        return drawn(view, view.rows, [each for each in view.columns if each.title not in ("kind", "format")])

    return found | {"kinds": kinds, "views": {kind: table(kinds[kind]) for kind in kinds}, "most": MOST}


async def changes(request: Request) -> Response:
    """The last changes of operators: who, when and what."""
    found = await dashboard_of(request).call(lambda engine: engine.changes())
    return rendered(request, "changes.html", changes=found, kept=KEPT)


routes: list[Route] = [
    *live_page("/", "overview", overview),
    page("/future", future),
    *live_page("/nodes", "nodes", nodes),
    *live_page("/fleet", "fleet", fleet),
    page("/changes", changes),
]
