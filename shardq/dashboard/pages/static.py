"""The stylesheet, the script and the icon: the only files beside the pages."""

from __future__ import annotations

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from shardq.dashboard.rendering import HERE, STATIC
from shardq.dashboard.routing import page

TYPES = {"style.css": "text/css", "live.js": "text/javascript", "icon.svg": "image/svg+xml"}


async def static(request: Request) -> Response:
    name = request.path_params["name"]
    if name not in TYPES:
        raise HTTPException(404, "There are style.css, live.js and icon.svg.")
    # its address has the version in it
    headers = {"Cache-Control": "public, max-age=31536000, immutable"}
    return Response((HERE / "static" / name).read_bytes(), media_type=TYPES[name], headers=headers)


routes = [page(STATIC + "{name}", static)]
