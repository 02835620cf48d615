"""The routes that are no pages: the stylesheet, the script, the icon, and the probes of a container platform."""

from __future__ import annotations

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from shardq.dashboard.rendering import HERE, PROBES, STATIC
from shardq.dashboard.routing import page

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


routes = [page(STATIC + "{name}", static), *(page(path, alive) for path in sorted(PROBES))]
