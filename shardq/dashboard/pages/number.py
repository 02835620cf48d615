"""Another number of shards: what it would move, its beginning, and how far it is."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from shardq.core.layout.slots import MAX_SHARDS
from shardq.core.model.checks import check_shards
from shardq.core.model.quantities import rate as read_rate
from shardq.dashboard.live import live
from shardq.dashboard.rendering import rendered
from shardq.dashboard.routing import Form, action, done, page
from shardq.dashboard.visit import dashboard_of
from shardq.errors import InvalidOption, InvalidShardCount

PART = "part_number.html"

LIVE_S = 1.0


async def _context(request: Request) -> dict[str, Any]:
    resizing = dashboard_of(request).resizing
    progress = await resizing.progress()
    snapshot = (await dashboard_of(request).sampler.newest()).newest
    members = snapshot.fleet if snapshot else []
    return {
        "progress": progress,
        "asked": resizing.asked,
        "is_beginning": resizing.is_beginning,
        "moved": resizing.moved(progress),
        "busy": snapshot.stats.ready + snapshot.stats.leased if snapshot else 0,
        "dispatchers": sum(member.kind == "dispatcher" for member in members),
        "seen_at": None,
    }


async def number(request: Request) -> Response:
    """With ``?shards=N`` it also shows what that would move."""
    wanted, rate = request.query_params.get("shards", "").strip(), request.query_params.get("rate", "").strip()
    preview = None
    if wanted:
        shards = _shards(wanted)
        _rate(rate)
        preview = await dashboard_of(request).ask(lambda engine: engine.preview(shards))
    context = await _context(request)
    return rendered(
        request,
        "number.html",
        live="number",
        part=PART,
        preview=preview,
        wanted=wanted,
        rate=rate,
        most=MAX_SHARDS,
        **context,
    )


async def change(request: Request, form: Form) -> Response:
    shards, rate = _shards(form.text("shards")), _rate(form.text("rate"))
    await dashboard_of(request).resizing.begin(shards, rate)
    return done(request, f"the change to {shards} shards has begun", back="/shards/number")


def _shards(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 6):
        raise InvalidShardCount(f"{text!r:.80} is no number of shards; give 1 to {MAX_SHARDS}")
    check_shards(int(text))
    return int(text)


def _rate(text: str) -> float | None:
    try:
        return read_rate(text) if text else None
    except ValueError as exc:
        raise InvalidOption(f"{exc}; leave it empty to move tasks as fast as possible") from None


routes = [
    page("/shards/number", number),
    live("number", PART, _context, every_s=LIVE_S),
    action("/shards/number", change),
]
