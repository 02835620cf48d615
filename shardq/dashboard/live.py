"""Pages that stay up to date: a part of the page is sent again after each look, as server-sent events.

A page is complete without it. Each module of a page that is live has a function from a request to the context of its
part, and adds ``live(NAME, template, context)`` to its routes.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Any

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from shardq.dashboard.rendering import fragment
from shardq.dashboard.routing import page
from shardq.dashboard.visit import dashboard_of
from shardq.errors import ShardqError

LASTS_S = 25.0
"""A stream ends after so long, and the page opens another: a server that is told to end waits for no page longer, and
no proxy cuts a stream for being silent.
"""

MOST_WATCHERS = 200
"""Pages that are open at once."""

HEADERS = {"X-Accel-Buffering": "no"}
"""nginx would keep events back."""

Context = Callable[[Request], Awaitable[dict[str, Any]]]


def live(name: str, template: str, context: Context, *, every_s: float | None = None) -> Route:
    """The stream of a page, at /live/NAME; the page has ``data-live="{{ link('/live/NAME') }}"`` around its part.
    ``every_s``: for parts that come from no look; None: after each.
    """

    async def events(request: Request) -> AsyncGenerator[str]:
        yield "retry: 1000\n\n"
        sampler = dashboard_of(request).sampler
        ticks = sampler.watch(for_s=LASTS_S) if every_s is None else sampler.pass_time(every_s, for_s=LASTS_S)
        async with aclosing(ticks) as watching:
            async for _ in watching:
                try:
                    text = fragment(request, template, **await context(request))
                except ShardqError as exc:
                    text = fragment(request, "part_error.html", reason=str(exc))
                yield event(text)

    async def stream(request: Request) -> Response:
        if dashboard_of(request).sampler.watchers >= MOST_WATCHERS:
            return Response(f"{MOST_WATCHERS} pages are open already", 503, media_type="text/plain")
        return StreamingResponse(events(request), media_type="text/event-stream", headers=HEADERS)

    return page(f"/live/{name}", stream)


async def seen(request: Request) -> dict[str, Any]:
    """The variables of the templates of live pages: the newest look, and what became of the engine over the last ones.
    No ``snapshot`` if none has succeeded yet; then ``snapshots.trouble`` says why.
    """
    sampler = dashboard_of(request).sampler
    snapshots = await sampler.newest()
    snapshot = snapshots.newest
    age_s = time.monotonic() - snapshot.at if snapshot else None
    return {
        "snapshots": snapshots,
        "snapshot": snapshot,
        "age_s": age_s,
        "seen_at": sampler.seen_at,
        "interval_s": sampler.interval_s,
    }


def event(text: str) -> str:
    """
    >>> event("<p>one\\ntwo")
    'data: <p>one\\ndata: two\\n\\n'
    """
    return "".join(f"data: {line}\n" for line in text.splitlines()) + "\n"
