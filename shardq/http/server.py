"""Serves the door in a thread of its own, so that the main thread is free for signals. Called by the command.

uvicorn and httptools speak HTTP. What they do not bound is bounded here: heads, the time of heads and bodies, and the
time for which connections are kept.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import uvicorn
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from shardq.http.listener import KEPT_S, Listener, listening, url_of

if TYPE_CHECKING:
    from starlette.types import ASGIApp

ANSWER_S = 2
"""Requests under way have so long to end."""

TAKEN_S = 10.0
"""A loop that takes no connection for so long is at its end."""

MOST_CLIENTS = 4096
"""Connections at once: 1,000 that wait for tasks, 200 pages with a stream each, and those that clients keep."""

MOST_HEAD = 32 << 10
"""The bytes of a head: its first line and its headers. httptools has no bound of its own."""

PART = 64 << 10
"""The bytes of a body for which a client has ``listener.REQUEST_S``."""

READ = 32 << 10
"""The bytes of a body that are read at once; no more are read while so many wait for their handler."""

KEEP_ALIVE = (b"keep-alive", b"timeout=60")
"""Told to clients, whose pools then let a connection go before we do."""


class _TooLarge(Exception):
    """The head is too large. Ends the parsing."""


class _Flow(FlowControl):
    """Tells when reading is paused: as long as it is, the client is not late."""

    def __init__(self, transport: asyncio.Transport, changed: Callable[[], None]) -> None:
        super().__init__(transport)
        self._changed = changed

    def pause_reading(self) -> None:
        if not self.read_paused:
            super().pause_reading()
            self._changed()

    def resume_reading(self) -> None:
        if self.read_paused:
            super().resume_reading()
            self._changed()


class _Connection(HttpToolsProtocol):
    """A connection of uvicorn's, which tells the listener whose turn it is."""

    def __init__(self, server: _Server, listener: Listener, client: socket.socket) -> None:
        super().__init__(server.config, server.server_state, server.lifespan.state)
        self._listener = listener
        self._socket = client
        self._passed = False
        """True if a head is complete since the last bytes came."""
        self._in_head = True
        """True from the end of a request until the next one's head is there."""
        self._head = 0
        """The bytes that came while a head was not complete."""
        self._parsed = 0
        """Those of the address and the headers of it that are complete."""
        self._part = 0
        """The bytes of the present part of a body."""
        self._too_large = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.flow = _Flow(transport, self._tell)
        transport.set_write_buffer_limits(0)  # who waits for what was sent waits for all of it
        transport.max_size = READ  # type: ignore[attr-defined]  # 256 KiB by itself, of each connection

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._listener.left(self._socket)

    def data_received(self, data: bytes) -> None:
        self._passed = not self._in_head
        super().data_received(data)
        if self._in_head and not self._passed and not self.transport.is_closing():
            # what came in one piece with the end of another request is not counted: it is little
            self._head += len(data)
            if self._head > MOST_HEAD:
                self._too_large = True
                self.send_400_response("")
                return
        self._tell()

    # ---- what the parser calls

    def on_url(self, url: bytes) -> None:
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count(len(name) + len(value) + 4)
        super().on_header(name, value)

    def _count(self, size: int) -> None:
        self._parsed += size
        if self._parsed > MOST_HEAD:
            self._too_large = True
            raise _TooLarge

    def on_message_begin(self) -> None:
        self._in_head, self._parsed = True, 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._in_head, self._passed, self._head, self._part = False, True, 0, 0
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._part += len(body)
        if self._part >= PART:
            self._part = 0
            self._listener.answered(self._socket)  # its time begins anew
        super().on_body(body)
        if len(self.cycle.body) >= READ and self.cycle.more_body:
            self.flow.pause_reading()

    def on_message_complete(self) -> None:
        self._in_head, self._head = True, 0
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        if not self._too_large:
            super().send_400_response(msg)
            return
        told = f"the head of a request may have {MOST_HEAD >> 10} KiB; send fewer headers, or a shorter address\n"
        self.transport.write(
            STATUS_LINE[431]
            + b"content-type: text/plain; charset=utf-8\r\nconnection: close\r\n"
            + f"content-length: {len(told)}\r\n\r\n{told}".encode()
        )
        self.transport.close()

    # ---- whose turn it is

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._tell()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._tell()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._tell()

    def _tell(self) -> None:
        cycle = self.cycle
        is_taken = cycle is not None and cycle.response_complete and not self.flow.write_paused
        if is_taken and self._in_head and not self._head:
            self._listener.kept(self._socket)
        elif (
            cycle is None
            or cycle.response_complete
            or self.flow.write_paused
            or (cycle.more_body and not self.flow.read_paused)
        ):
            self._listener.awaited(self._socket)
        else:
            self._listener.answered(self._socket)


class _Server(uvicorn.Server):
    """A server whose start and end can be waited for from another thread. It listens nowhere by itself."""

    def __init__(self, config: uvicorn.Config, end: Callable[[], None], close: Callable[[], Awaitable[None]]) -> None:
        super().__init__(config)
        self._end = end
        self._close = close
        self.up = threading.Event()
        self.failure: BaseException | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.loop = asyncio.get_running_loop()
        self.up.set()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Has requests end: first those that wait by themselves, in time all that can, and then those that wait for a
        silent server.
        """
        self._end()
        for connection in list(self.server_state.connections):
            connection.shutdown()
        with suppress(TimeoutError):
            async with asyncio.timeout(ANSWER_S):
                while self.server_state.tasks:
                    await asyncio.wait(self.server_state.tasks)
        await self._close()
        await super().shutdown(sockets)

    def life(self) -> None:
        try:
            asyncio.run(self.serve(sockets=[]))
        except BaseException as exc:  # noqa: BLE001  raised again where the start is waited for
            self.failure = exc
        finally:
            self.up.set()

    async def take(self, listener: Listener, client: socket.socket) -> None:
        try:
            await self.loop.connect_accepted_socket(lambda: _Connection(self, listener, client), client)
        except OSError:  # it has gone by itself
            listener.left(client)
            client.close()


def bound_at(host: str, port: int) -> socket.socket:
    """Listens there; port 0 takes a free one."""
    return listening(host.strip("[]"), port, advice="another host, or port (0 takes a free one)")


def url_at(bound: socket.socket) -> str:
    """The URL for a browser on this machine."""
    name, port = bound.getsockname()[:2]
    return url_of({"0.0.0.0": "127.0.0.1", "::": "::1"}.get(name, name), port)


async def nothing() -> None:
    """Starts and closes nothing."""


@contextmanager
def served(
    app: ASGIApp,
    host: str | socket.socket,
    port: int = 0,
    *,
    proxies: Iterable[str] = (),
    start: Callable[[], Awaitable[object]] = nothing,
    close: Callable[[], Awaitable[None]] = nothing,
) -> Iterator[str]:
    """Serves an application within the block: the door, or a program that has it mounted. Gives its URL. ``host``: an
    address, or a socket that listens.

    ``proxies``: the addresses and networks whose ``X-Forwarded-For`` is believed. ``start`` and ``close``: of the
    engine, in the loop that serves; the second ends what waits for a silent server. If the application has an ``end``,
    that is called first: it ends what waits for nothing but time.
    """
    with bound_at(host, port) if isinstance(host, str) else host as bound:
        config = uvicorn.Config(
            app,
            http=HttpToolsProtocol,
            loop="asyncio",
            ws="none",
            lifespan="off",
            access_log=False,  # the door has its own
            log_config=None,
            log_level="error",  # a request that is not understood is no event of ours
            server_header=False,
            proxy_headers=bool(proxies := list(proxies)),
            forwarded_allow_ips=proxies,
            headers=[(KEEP_ALIVE[0].decode(), KEEP_ALIVE[1].decode())],
            timeout_keep_alive=int(KEPT_S) + 5,  # the listener ends them
            timeout_graceful_shutdown=ANSWER_S,
        )
        end: Callable[[], Any] = getattr(app, "end", lambda: None)
        server = _Server(config, end, close)
        thread = threading.Thread(target=server.life, name="shardq-door", daemon=True)
        thread.start()
        server.up.wait()
        if server.failure is not None:
            raise server.failure

        def serve(client: socket.socket) -> None:
            # no faster than the loop: or new clients would end those that it has not even read
            asyncio.run_coroutine_threadsafe(server.take(listener, client), server.loop).result(TAKEN_S)

        listener = Listener(bound, serve, most=MOST_CLIENTS, name="shardq-door-listener")
        try:
            asyncio.run_coroutine_threadsafe(_awaited(start), server.loop).result()
            listener.start()
            yield url_at(bound)
        finally:
            if listener.is_started:
                listener.close()
            server.should_exit = True
            thread.join()


async def _awaited(call: Callable[[], Awaitable[object]]) -> None:
    await call()
