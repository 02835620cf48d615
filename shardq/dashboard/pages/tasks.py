"""The lists of tasks: by topic, state, due time and holder, page by page."""

from __future__ import annotations

import datetime as dt

from starlette.requests import Request
from starlette.responses import Response

from shardq.dashboard.asked import Asked
from shardq.dashboard.rendering import rendered
from shardq.dashboard.routing import page
from shardq.dashboard.visit import dashboard_of
from shardq.errors import BadInput
from shardq.features.listing.bulk import STATES as ALLOWED
from shardq.features.listing.query import STATES, TaskPage

LIMIT = 40
"""Tasks of a page: 80 kB are enough for them, whatever is in them."""

_WHEN = {"scheduled": "due", "leased": "lease ends", "dead": "died"}


async def tasks(request: Request) -> Response:
    asked = Asked.of(request.query_params.get)
    try:
        asked, found = await _read(request, asked)
    except BadInput as exc:
        return _rendered(request, asked, TaskPage(), 400, wrong=str(exc))
    return _rendered(request, asked, found)


async def _read(request: Request, asked: Asked) -> tuple[Asked, TaskPage]:
    ask = dashboard_of(request).ask
    asked = await asked.dated(ask)
    query = asked.arguments() | {"newest": asked.state == "dead"}
    cursor = request.query_params.get("cursor")
    return asked, await ask(lambda engine: engine.tasks(**query, limit=LIMIT, cursor=cursor))


def _rendered(request: Request, asked: Asked, found: TaskPage, status: int = 200, *, wrong: str = "") -> Response:
    state = found[0].state if found else asked.state
    return rendered(
        request,
        "tasks.html",
        status,
        asked=asked,
        tasks=found,
        states=STATES,
        when=_WHEN.get(state, "when"),
        now=dt.datetime.now(dt.UTC),
        is_first="cursor" not in request.query_params,
        verbs=[] if wrong else _verbs(asked),
        wrong=wrong,
    )


def _verbs(asked: Asked) -> list[str]:
    """The commands that can be given for all tasks of the list."""
    state = asked.state or ("scheduled" if asked.due else "")
    verbs = [verb for verb, states in ALLOWED.items() if not state or state in states]
    if asked.holder:
        return []
    return [verb for verb in verbs if verb != "requeue" or state == "dead"]


routes = [page("/tasks", tasks)]
