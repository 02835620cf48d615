"""Hooks without a server of Redis: an engine that is not opened, deliveries as a worker gets them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from shardq import Delivery, Engine, Webhooks
from tests.sinks.nasty import READ, Step

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
LOOPBACK = "webhook://127.0.0.1"
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"


def hooks(*, sinks: Sequence[str] | None = (LOOPBACK,), codec: Any = "json", **how: Any) -> Webhooks:
    engine = Engine("redis://127.0.0.1:1", name="t", sinks=None if sinks is None else list(sinks), codec=codec)
    return Webhooks(engine, **{"timeout": 5, "http": True} | how)


def delivery(
    payload: Any = None, *, key: str | None = None, failures: int = 0, headers: dict[str, str] | None = None
) -> Delivery:
    id = "hooks/7" if key is None else f"hooks/{key}/7"
    return Delivery(
        id, "hooks", payload or {"n": 1}, failures + 1, headers or {}, token="x", shard=0, failures=failures, lapses=0
    )


def outcome(webhooks: Webhooks, task: Delivery, url: str, secret: str | None = SECRET) -> BaseException | None:
    """What is raised by a post, in a loop of its own."""

    async def post() -> None:
        try:
            await webhooks.post(task, url=url, secret=secret)
        finally:
            await webhooks.close()

    try:
        asyncio.run(post())
    except Exception as exc:  # noqa: BLE001  the test looks at it
        return exc
    return None


def answering(status: str, *headers: str, body: bytes = b"") -> list[Step]:
    """The script of a server that answers so."""
    lines = [f"HTTP/1.1 {status}", *headers, f"Content-Length: {len(body)}", "", ""]
    return [READ, "\r\n".join(lines).encode() + body]


def head_of(request: bytes) -> dict[str, str]:
    """The headers of a request, with names in lower case; ``""`` is its first line."""
    first, *lines = request.partition(b"\r\n\r\n")[0].decode().split("\r\n")
    pairs = [line.partition(": ") for line in lines]
    found = {name.lower(): value for name, _, value in pairs}
    assert len(found) == len(pairs), "no header is there twice"
    return {"": first} | found
