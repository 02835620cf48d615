"""The pages, put together with the engine they call, and the answers that are no pages. ``http/application.py`` serves
them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response

from shardq import Engine
from shardq.dashboard import bulk, overview, shards, tasks, topics
from shardq.dashboard.snapshots import Caller, SharedSnapshots
from shardq.dashboard.web import FILES, HERE, STATIC, Dashboard, page, refused
from shardq.errors import ShardqError
from shardq.http.problems import refusal_of

if TYPE_CHECKING:
    from shardq import AsyncEngine


def pages(
    engine: Engine | AsyncEngine, *, read_only: bool, behind_tls: bool, guard: Middleware | None = None
) -> Starlette:
    """Returns the pages of an engine, with a guard in front of them.

    An engine for threads is asked in threads, one for asyncio in the event loop that serves the application.
    """
    found = Starlette(
        routes=[*overview.routes, *tasks.routes, *bulk.routes, *shards.routes, *topics.routes, *_OWN],
        middleware=[guard] if guard else [],
        exception_handlers={ShardqError: _impossible, HTTPException: _not_here},
    )
    call = Caller(engine)
    found.state.dashboard = Dashboard(call, engine, read_only, behind_tls, SharedSnapshots(call))
    found.state.jobs, found.state.resizing = bulk.Jobs(call), shards.Resizing(call)
    return found


async def _impossible(request: Request, exc: Exception) -> Response:
    """Says on a page what the engine could not do."""
    return refused(request, str(exc), refusal_of(exc).status)


async def _not_here(request: Request, exc: Exception) -> Response:
    assert isinstance(exc, HTTPException)
    title = "There is no such page" if exc.status_code == 404 else ""
    reason = f"{request.method} is not for this address." if exc.status_code == 405 else exc.detail
    return refused(request, reason, exc.status_code, title, headers=exc.headers)


async def _static(request: Request) -> Response:
    name = request.path_params["name"]
    if STATIC + name not in FILES:
        raise HTTPException(404, f"There are {', '.join(each.removeprefix(STATIC) for each in FILES)}.")
    # its address has the version in it
    headers = {"Cache-Control": "public, max-age=31536000, immutable"}
    return Response((HERE / "static" / name).read_bytes(), media_type=FILES[STATIC + name], headers=headers)


_OWN = [page(STATIC + "{name}", _static)]
