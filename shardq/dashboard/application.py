"""``app``: the ASGI application, put together from the pages, the guard in front of them, and the engine they call;
and the answers that are no pages.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

import shardq.errors as errors
from shardq.core.model.printable import quoted
from shardq.dashboard import bulk, overview, shards, tasks, topics
from shardq.dashboard.guard import Guard, Key
from shardq.dashboard.snapshots import Caller, SharedSnapshots
from shardq.dashboard.web import FILES, HERE, PROBES, STATIC, Dashboard, page, refused
from shardq.engine.base import EngineBase
from shardq.engine.sync import Engine
from shardq.errors import ShardqError

if TYPE_CHECKING:
    from shardq.engine.aio import AsyncEngine


def app(
    engine: Engine | AsyncEngine,
    *,
    token: str | None = None,
    read_only: bool = False,
    hosts: Iterable[str] = (),
    behind_tls: bool = False,
) -> Starlette:
    """Returns the dashboard of an engine as an ASGI application, to be served by itself or mounted under any prefix.

    ``token``: what a browser has to show once, on the page that asks for it or behind the ``#`` of its address, as
    ``sign-in#token=…``, and a program in ``Authorization: Bearer …``; at least 16 characters. Without one every
    browser that reaches the application may use it: put it behind the login of yours. ``read_only``: shows all, and
    changes nothing. ``hosts``: the names under which browsers reach it, such as ``"ops.example.org"``; needed where a
    proxy on the same machine is in front of it. ``behind_tls``: a proxy speaks https to browsers, so cookies are
    ``Secure``.

    An engine for threads is asked in threads, one for asyncio in the event loop that serves the application.

    >>> dashboard = shardq.dashboard.app(engine, token="a long secret of yours", read_only=True)
    """
    if not isinstance(engine, EngineBase):
        raise errors.InvalidOption(f"app({quoted(engine)}) is not possible; give an Engine or an AsyncEngine")
    found = Starlette(
        routes=[*overview.routes, *tasks.routes, *bulk.routes, *shards.routes, *topics.routes, *_OWN],
        middleware=[Middleware(Guard, key=Key(token), hosts=frozenset(hosts))],
        exception_handlers={ShardqError: _impossible, HTTPException: _not_here},
    )
    call = Caller(engine)
    found.state.dashboard = Dashboard(call, engine, read_only, behind_tls, SharedSnapshots(call))
    found.state.jobs, found.state.resizing = bulk.Jobs(call), shards.Resizing(call)
    return found


_STATUSES: tuple[tuple[type[ShardqError], int], ...] = (
    (errors.BadInput, 400),
    (errors.UnknownSchedule, 404),
    (errors.ChangeUnderWay, 409),
    (errors.Conflict, 409),
    (errors.ServerFault, 503),
    (errors.EngineClosed, 503),
)


async def _impossible(request: Request, exc: Exception) -> Response:
    """Says on a page what the engine could not do."""
    status = next((status for kind, status in _STATUSES if isinstance(exc, kind)), 500)
    return refused(request, str(exc), status)


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


async def _alive(request: Request) -> Response:
    """Does not ask the servers: a restart would not bring them back, and the pages say that they are away."""
    return PlainTextResponse("ok\n")


_OWN = [page(STATIC + "{name}", _static), *(page(path, _alive) for path in sorted(PROBES))]
