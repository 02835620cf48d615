"""``app``: the ASGI application, put together from the API, the pages, the probes, and the guards in front of them."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import re
import secrets
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec
from starlette.middleware import Middleware

from shardq import AsyncEngine
from shardq.core.model.printable import printable, quoted
from shardq.dashboard.application import pages
from shardq.dashboard.web import Dashboard
from shardq.engine.around import EngineAccess, EngineBase
from shardq.errors import InvalidOption
from shardq.features.transfer.lines import longest
from shardq.http import looks
from shardq.http.bounds import Body, Room
from shardq.http.exchange import Answer, Ask, Gateway, body_in, client_gone, query_in, told_soon
from shardq.http.guard import ApiGuard, Hosts, PageGuard
from shardq.http.problems import AGAIN_S, RETRIED, TYPE, Refusal, form_of, refusal_of
from shardq.http.routes import find
from shardq.http.tokens import Caller, Tokens

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.types import Receive, Scope, Send

    from shardq import Engine

access: logging.Logger = logging.getLogger("shardq.http.access")

API = "/v1"

READ_ONLY = "this is read-only: it shows the engine, and changes nothing"

AT_ONCE = 16 << 10
"""An answer of so many bytes fits into the buffers of the system."""

_REQUEST_ID = re.compile(rb"[\x21-\x7e]{1,128}")


def app(
    engine: Engine | AsyncEngine,
    *,
    tokens: str | os.PathLike[str] | None = None,
    read_only: bool = False,
    hosts: Iterable[str] = (),
    behind_tls: bool = False,
) -> Door:
    """Returns an ASGI application that serves an engine: the API at ``/v1``, the dashboard at ``/``, and ``/livez``,
    ``/readyz`` and ``/metrics``. It can be mounted under any prefix.

    ``tokens``: the file that says who may do what; `shardq token` makes its lines, and it is read again when it has
    changed. Without one everybody who reaches the application may do all: put it behind the login of yours.
    ``read_only``: shows all, and changes nothing. ``hosts``: the names under which it is reached, such as
    ``"queue.example.org"``; needed where a proxy on the same machine is in front of it. ``behind_tls``: a proxy speaks
    https to browsers, so cookies are ``Secure``.

    An engine for threads has one for asyncio beside it, with the same options; it can't have ``far=`` or ``spool=``.

    >>> application = shardq.http.app(engine, tokens="/etc/shardq/tokens", hosts=["queue.example.org"])
    """
    if not isinstance(engine, EngineBase):
        raise InvalidOption(f"app({quoted(engine)}) is not possible; give an Engine or an AsyncEngine")
    return Door(
        engine,
        Tokens(tokens) if tokens is not None else None,
        read_only=read_only,
        hosts=Hosts(hosts),
        behind_tls=behind_tls,
    )


class Door:
    """The application, as ``app`` makes it."""

    def __init__(
        self, engine: Engine | AsyncEngine, tokens: Tokens | None, *, read_only: bool, hosts: Hosts, behind_tls: bool
    ) -> None:
        cookie = f"shardq_{hashlib.sha256(engine.name.encode()).hexdigest()[:8]}"  # of a name, as ports share cookies
        guard = Middleware(PageGuard, tokens=tokens, hosts=hosts, cookie=cookie)
        self.pages: Starlette = pages(engine, read_only=read_only, behind_tls=behind_tls, guard=guard)
        """The dashboard."""
        self._is_beside = not isinstance(engine, AsyncEngine)
        made = engine if isinstance(engine, AsyncEngine) else EngineAccess(engine).for_asyncio(AsyncEngine)
        self.gateway: Gateway = Gateway(made, Room())
        self._guard = ApiGuard(tokens, hosts)
        self._read_only = read_only
        self._most_bytes = longest(EngineAccess(engine).options.max_payload)
        self._probes = looks.Probes(engine, self.gateway)

    def end(self) -> None:
        """Ends what waits for nothing but time: the process is about to end."""
        self._probes.stopping = True
        dashboard: Dashboard = self.pages.state.dashboard
        dashboard.snapshots.end()
        if self.gateway.work is not None:
            self.gateway.work.end()

    async def close(self) -> None:
        """Closes what this application has opened. The engine that it was given stays open."""
        work, self.gateway.work = self.gateway.work, None
        if work is not None:
            await work.close()
        if self._is_beside:
            await self.gateway.engine.close()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            path = str(scope["path"]).removeprefix(str(scope.get("root_path", "")).rstrip("/"))
            if path == API or path.startswith(f"{API}/"):
                await self._answer(path, scope, receive, send)
            elif scope["method"] in ("GET", "HEAD") and (probe := self._probes.find(path)) is not None:
                await self._answer(path, scope, receive, send, probe)
            else:
                await self.pages(scope, receive, send)
        elif scope["type"] == "lifespan":
            await self._live(receive, send)
        else:  # a websocket
            await send({"type": "websocket.close"})

    async def _live(self, receive: Receive, send: Send) -> None:
        while True:
            message = await receive()
            if message["type"] == "lifespan.shutdown":
                self.end()
                await self.close()
            await send({"type": f"{message['type']}.complete"})
            if message["type"] == "lifespan.shutdown":
                return

    # ---- one request

    async def _answer(
        self, path: str, scope: Scope, receive: Receive, send: Send, probe: looks.Probe | None = None
    ) -> None:
        began = time.perf_counter()
        headers: dict[bytes, bytes] = dict(scope["headers"])
        given = headers.get(b"x-request-id", b"")
        request_id = given.decode() if _REQUEST_ID.fullmatch(given) else secrets.token_hex(8)
        exchange = _Exchange(scope, receive, headers, request_id)
        undo: Callable[[], Awaitable[object]] | None = None
        try:
            answer = await (self._probed(exchange, probe) if probe else self._called(exchange, path))
            status, media, more = answer.status, answer.media or exchange.media, answer.headers
            value, undo = answer.value, answer.undo
            body = value if isinstance(value, bytes) else msgspec.json.encode(value)
        except Exception as exc:  # noqa: BLE001  each has an answer, and a fault of ours is logged there
            refusal = refusal_of(exc)
            status, media, more = refusal.status, TYPE, refusal.headers
            body = msgspec.json.encode(form_of(refusal, request_id))
        sent = [
            (b"content-type", media),
            (b"content-length", str(len(body)).encode()),
            (b"cache-control", b"no-store"),
            (b"x-content-type-options", b"nosniff"),
            (b"x-request-id", request_id.encode()),
            *((name.lower().encode(), text.encode()) for name, text in more.items()),
        ]
        if status in RETRIED and "Retry-After" not in more:
            sent.append((b"retry-after", str(AGAIN_S).encode()))
        if exchange.is_cut:
            sent.append((b"connection", b"close"))
        await send({"type": "http.response.start", "status": status, "headers": sent})
        if undo is not None and len(body) > AT_ONCE:
            await send({"type": "http.response.body", "body": body, "more_body": True})
            if await _left_behind(receive, send):
                await undo()
            body_left = b""
        else:
            body_left = b"" if scope["method"] == "HEAD" else body
        await send({"type": "http.response.body", "body": body_left})
        if access.isEnabledFor(logging.INFO):
            _log(exchange, path, status, len(body), time.perf_counter() - began)

    async def _probed(self, exchange: _Exchange, probe: looks.Probe) -> Answer:
        if probe.is_guarded:
            caller = exchange.caller = self._guard.caller(exchange.scope.get("server"), exchange.headers)
            if not caller.may("viewer", None):
                raise Refusal(403, f"the token {caller.name!r} is not one of a viewer for every topic")
        return await probe.answer()

    async def _called(self, exchange: _Exchange, path: str) -> Answer:
        scope, headers = exchange.scope, exchange.headers
        caller = exchange.caller = self._guard.caller(scope.get("server"), headers)
        route, fields = find(scope["method"], path)
        if route.roles and not caller.has(route.roles):
            roles = " or ".join(route.roles)
            raise Refusal(403, f"the token {caller.name!r} is not one of a {roles}; `shardq token --role` makes one")
        if self._read_only and not route.is_read:
            raise Refusal(403, READ_ONLY)
        query = query_in(scope["query_string"], fields, route.query)
        ask = Ask(self.gateway, caller, exchange.request_id, headers, exchange.receive)
        exchange.media = route.media
        with Body(exchange.receive, headers, self.gateway.room, route.most_bytes or self._most_bytes) as body:
            exchange.body = body
            if route.body is None:
                if not body.is_empty:
                    raise Refusal(400, "this address takes no body; leave it out")
                return await route.handler(ask, None, query)
            if headers.get(b"content-encoding", b"identity").strip().lower() != b"identity":
                raise Refusal(415, "send this without Content-Encoding: bodies are read as they come")
            kind = headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
            if kind != route.media:
                raise Refusal(415, f"send this with Content-Type: {route.media.decode()}")
            if route.streams:
                ask.stream = body
                return await route.handler(ask, None, query)
            return await route.handler(ask, body_in(await body.whole(), route.body), query)


async def _left_behind(receive: Receive, send: Send) -> bool:
    """Waits until the answer is on its way. True if its client has gone before that."""
    await send({"type": "http.response.body", "body": b"", "more_body": True})  # returns when nothing is left behind
    gone = asyncio.ensure_future(client_gone(receive))
    try:
        return await told_soon(gone)
    finally:
        gone.cancel()


class _Exchange:
    """What is known of a request by now."""

    def __init__(self, scope: Scope, receive: Receive, headers: dict[bytes, bytes], request_id: str) -> None:
        self.scope = scope
        self.receive = receive
        self.headers = headers
        self.request_id = request_id
        self.caller: Caller | None = None
        self.media = b""
        self.body: Body | None = None

    @property
    def is_cut(self) -> bool:
        """True if the rest of its body is so long that nobody reads it."""
        return self.body is not None and not self.body.is_whole and self.body.is_endless


def _log(exchange: _Exchange, path: str, status: int, size: int, seconds: float) -> None:
    """A line for the request: nothing of its query, its headers and its body, which may be secret."""
    client, caller = exchange.scope.get("client"), exchange.caller
    fields: Mapping[str, Any] = {
        "method": exchange.scope["method"],
        "path": path,
        "status": status,
        "bytes": size,
        "ms": round(1000 * seconds, 1),
        "token": caller.name if caller else "",
        "request_id": exchange.request_id,
        "address": client[0] if client else "",
        "traceparent": exchange.headers.get(b"traceparent", b"").decode("latin-1")[:64],
    }
    access.info(
        "%s %s %d %.1f ms %s %s",
        fields["method"],
        printable(path),
        status,
        fields["ms"],
        fields["token"] or "-",
        fields["request_id"],
        extra=fields,
    )
