"""``python -m bench.gateway URL NAME PLACE`` is a process that serves an engine as ``shardq serve`` does, and at
``/bare`` a POST of Starlette that decodes its body and stores nothing. The http suite starts it. It writes its address
into the file PLACE.
"""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from bench.children import taking_part
from shardq import AsyncEngine
from shardq.http import app
from shardq.http.server import served

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send


async def bare(request: Request) -> Response:
    msgspec.json.decode(await request.body())
    return Response(b'{"id":"0000000000000","outcome":"pushed","state":null}', 201, media_type="application/json")


class Both:
    """The door, and the bare POST beside it on the same server."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._door = app(engine)
        self._bare = Starlette(routes=[Route("/bare", bare, methods=["POST"])])

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await (self._bare if scope.get("path") == "/bare" else self._door)(scope, receive, send)


def serve(url: str, name: str, place: Path) -> None:
    engine = AsyncEngine(url, name=name)

    def work(ending: threading.Event) -> None:
        with served(Both(engine), "127.0.0.1", start=engine.open, close=engine.close) as address:
            place.write_text(address)
            ending.wait()

    taking_part(work)


if __name__ == "__main__":
    serve(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
