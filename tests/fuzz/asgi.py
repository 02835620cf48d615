"""Asks an ASGI application by hand, so that a request may have anything in it that a server passes on."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, MutableMapping
from typing import Any, NamedTuple
from urllib.parse import unquote

from starlette.types import ASGIApp

HOST = b"127.0.0.1:8080"


class Request(NamedTuple):
    """Bytes as they stand in a request; the path has its query."""

    method: str
    path: str
    headers: tuple[tuple[bytes, bytes], ...] = ()
    body: bytes = b""
    host: bytes = HOST


class Answer(NamedTuple):
    status: int
    headers: list[tuple[bytes, bytes]]
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode()

    def header(self, name: bytes) -> bytes:
        return dict(self.headers).get(name, b"")


def ask(runner: asyncio.Runner, app: ASGIApp, request: Request) -> Answer:
    """The answer; of one that streams, the first part."""
    return runner.run(_ask(app, request))


async def _ask(app: ASGIApp, request: Request) -> Answer:
    path, _, query = request.path.partition("?")
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": request.method,
        "scheme": "http",
        "path": unquote(path),
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "root_path": "",
        "headers": [(b"host", request.host), *request.headers],
        "client": ("127.0.0.1", 4711),
        "server": ("127.0.0.1", 8080),
        "state": {},
    }
    status, headers, parts = 0, list[tuple[bytes, bytes]](), list[bytes]()
    ended = asyncio.Event()
    bodies: Iterable[bytes] = iter([request.body])

    async def receive() -> MutableMapping[str, Any]:
        for body in bodies:
            return {"type": "http.request", "body": body, "more_body": False}
        await ended.wait()
        return {"type": "http.disconnect"}

    async def send(message: MutableMapping[str, Any]) -> None:
        nonlocal status, headers
        if message["type"] == "http.response.start":
            status, headers = message["status"], list(message.get("headers", ()))
            if any(b"event-stream" in value for _, value in headers):
                ended.set()
        else:
            parts.append(message.get("body", b""))

    await app(scope, receive, send)
    return Answer(status, headers, b"".join(parts))
