"""Dead tasks: why they died, grouped by reason, and the way to requeue or remove them."""

from __future__ import annotations

import datetime as dt

from starlette.requests import Request
from starlette.responses import Response

from shardq.dashboard.asked import Asked, topic_of_word
from shardq.dashboard.reasons import read_reasons
from shardq.dashboard.rendering import rendered
from shardq.dashboard.routing import page
from shardq.dashboard.visit import dashboard_of

TOPICS = 3
"""Topics that are named for a reason."""


async def dead(request: Request) -> Response:
    dashboard = dashboard_of(request)
    word, now = Asked.of(request.query_params.get).topic, dt.datetime.now(dt.UTC)
    found = await read_reasons(dashboard.ask, dashboard.engine.name, topic_of_word(word), now)
    return rendered(request, "dead.html", topic=word, found=found, named=TOPICS)


routes = [page("/dead", dead)]
