"""The topics: counts, rates and what is set for each; and pausing, resuming and limiting one."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from shardq.core.fleet.lateness import Lateness
from shardq.core.model.checks import check_topic
from shardq.core.model.ids import shown_topic
from shardq.core.model.quantities import rate as read_rate
from shardq.dashboard.live import live, seen
from shardq.dashboard.rendering import rendered
from shardq.dashboard.routing import Form, action, done, page
from shardq.dashboard.visit import dashboard_of, link_of
from shardq.errors import InvalidOption

PART, PART_OF_ONE = "part_topics.html", "part_topic.html"

MOST = 75
"""Topics that are listed: those with the most tasks that wait for a consumer, and then by name."""


async def _context(request: Request) -> dict[str, Any]:
    found = await seen(request)
    topics = sorted(found["snapshot"].stats.topics.items()) if found["snapshot"] else []
    if len(topics) > MOST:
        topics = sorted(topics, key=lambda topic: (-topic[1].ready, topic[0]))
    return found | {"topics": topics[:MOST], "more": len(topics) - MOST}


async def topics(request: Request) -> Response:
    return rendered(request, "topics.html", live="topics", part=PART, **await _context(request))


async def _context_of_one(request: Request) -> dict[str, Any]:
    name = request.query_params.get("topic", "")
    check_topic(name)
    found = await seen(request)
    snapshot = found["snapshot"]
    fleet = snapshot.fleet if snapshot else []
    return found | {
        "name": name,
        "topic": snapshot.stats.topics.get(name) if snapshot else None,
        "live_query": {"topic": name},
        "dispatch": Lateness.total(each.dispatch_lateness[name] for each in fleet if name in each.dispatch_lateness),
        "pickup": Lateness.total(each.pickup_lateness[name] for each in fleet if name in each.pickup_lateness),
    }


async def topic(request: Request) -> Response:
    return rendered(request, "topic.html", live="topic", part=PART_OF_ONE, **await _context_of_one(request))


async def pause(request: Request, form: Form) -> Response:
    name = form.text("topic")
    await dashboard_of(request).changed(lambda engine: engine.pause(name))
    return _told(request, form, f"{shown_topic(name)} is paused, over the whole fleet: what runs is finished")


def _ask_to_pause(form: Form) -> tuple[str, str]:
    name = form.text("topic")
    check_topic(name)
    return f"Pause {shown_topic(name)}, over the whole fleet? No task of it is handled until it is resumed.", "Pause"


async def resume(request: Request, form: Form) -> Response:
    name = form.text("topic")
    await dashboard_of(request).changed(lambda engine: engine.resume(name))
    return _told(request, form, f"{shown_topic(name)} is given out again")


async def limit(request: Request, form: Form) -> Response:
    name, rate, concurrency = form.text("topic"), _rate(form.text("rate")), _whole(form.text("concurrency"))
    await dashboard_of(request).changed(lambda engine: engine.limit(name, rate=rate, concurrency=concurrency))
    parts = [] if rate is None else [f"{rate:,g} tasks a second"]
    parts += [] if concurrency is None else [f"{concurrency:,} at once"]
    return _told(request, form, f"{shown_topic(name)}: {' and '.join(parts) or 'no limits'}, over the whole fleet")


def _told(request: Request, form: Form, said: str) -> Response:
    back = link_of("/topics/one", topic=form.text("topic")) if form.text("from") == "one" else "/topics"
    return done(request, said, back=back)


def _rate(text: str) -> float | None:
    try:
        return read_rate(text) if text else None
    except ValueError as exc:
        raise InvalidOption(f"{exc}; leave it empty for no limit") from None


def _whole(text: str) -> int | None:
    if not text:
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= 7):
        raise InvalidOption(f"{text!r:.80} is no number of tasks; write 1 or more, or leave it empty for no limit")
    return int(text)


routes = [
    page("/topics", topics),
    live("topics", PART, _context),
    page("/topics/one", topic),
    live("topic", PART_OF_ONE, _context_of_one),
    action("/topics/pause", pause, ask=_ask_to_pause),
    action("/topics/resume", resume),
    action("/topics/limit", limit),
]
