"""The pages, by subject: the ``routes`` of each module are its addresses. Here are the answers that are no pages."""

from __future__ import annotations

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute

from shardq.dashboard.pages import bulk, overview, shards, tasks, topics
from shardq.dashboard.web import HERE, PROBES, STATIC, page

TYPES = {
    "style.css": "text/css",
    "live.js": "text/javascript",
    "sign_in.js": "text/javascript",
    "icon.svg": "image/svg+xml",
}


async def static(request: Request) -> Response:
    name = request.path_params["name"]
    if name not in TYPES:
        raise HTTPException(404, f"There are {', '.join(TYPES)}.")
    # its address has the version in it
    headers = {"Cache-Control": "public, max-age=31536000, immutable"}
    return Response((HERE / "static" / name).read_bytes(), media_type=TYPES[name], headers=headers)


async def alive(request: Request) -> Response:
    """It does not ask the servers: a restart would not bring them back, and the pages say that they are away."""
    return PlainTextResponse("ok\n")


def routes() -> list[BaseRoute]:
    own = [page(STATIC + "{name}", static), *(page(path, alive) for path in sorted(PROBES))]
    return [*overview.routes, *tasks.routes, *bulk.routes, *shards.routes, *topics.routes, *own]
