"""The fleet: the dispatchers and workers that live, and what each says of itself."""

from __future__ import annotations

import time
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from shardq.core.fleet.lateness import Lateness
from shardq.core.fleet.member import Member
from shardq.dashboard.live import live, seen
from shardq.dashboard.rendering import rendered
from shardq.dashboard.routing import page

PART = "part_fleet.html"

MOST = 100
"""Processes of a kind that are listed."""


def late(member: Member) -> Lateness:
    """The lateness of dispatch or of pick-up, whatever it does, since it started."""
    return Lateness.total((*member.dispatch_lateness.values(), *member.pickup_lateness.values()))


async def _context(request: Request) -> dict[str, Any]:
    found = await seen(request)
    fleet = found["snapshot"].fleet if found["snapshot"] else []
    kinds = {kind: [member for member in fleet if member.kind == kind] for kind in ("dispatcher", "worker")}
    return found | {"kinds": kinds, "most": MOST, "late": late, "now": time.time()}


async def fleet(request: Request) -> Response:
    return rendered(request, "fleet.html", live="fleet", part=PART, **await _context(request))


routes = [page("/fleet", fleet), live("fleet", PART, _context)]
