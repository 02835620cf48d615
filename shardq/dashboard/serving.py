"""Serves the dashboard in a thread of its own, so that the main thread is free for signals. Called by the command."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import uvicorn
from starlette.applications import Starlette
from uvicorn.protocols.http.h11_impl import H11Protocol

from shardq.dashboard.snapshots import SharedSnapshots
from shardq.dashboard.web import Dashboard
from shardq.metrics.listener import Listener, listening, url_of

ANSWER_S = 2
"""Requests under way have so long to end."""

TAKEN_S = 10.0
"""A loop that takes no connection for so long is at its end."""

MOST_CLIENTS = 512
"""Connections at once: 200 pages with a stream each, and those that browsers keep."""


class _Connection(H11Protocol):
    """A connection of uvicorn's, which tells the listener whose turn it is."""

    def __init__(self, server: _Server, listener: Listener, client: socket.socket) -> None:
        super().__init__(server.config, server.server_state, server.lifespan.state)
        self._listener = listener
        self._socket = client
        self._kept = False
        """True from the end of an answer until the next request begins."""

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._listener.left(self._socket)

    def data_received(self, data: bytes) -> None:
        if self._kept:  # the time of a request begins with it
            self._kept = False
            self._listener.answered(self._socket)
        super().data_received(data)
        self._tell()

    def on_response_complete(self) -> None:
        self._kept = True
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
        if cycle is None or cycle.more_body or cycle.response_complete or self.flow.write_paused:
            self._listener.awaited(self._socket)
        else:
            self._listener.answered(self._socket)


class _Server(uvicorn.Server):
    """A server whose start and end can be waited for from another thread. It listens nowhere by itself."""

    def __init__(self, config: uvicorn.Config, snapshots: SharedSnapshots | None, close: Callable[[], None]) -> None:
        super().__init__(config)
        self.snapshots = snapshots
        self.close = close
        self.up = threading.Event()
        self.failure: BaseException | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.loop = asyncio.get_running_loop()
        self.up.set()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        if self.snapshots is not None:
            self.snapshots.end()
        await asyncio.to_thread(self.close)
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


@contextmanager
def served(
    app: Starlette,
    host: str,
    port: int,
    *,
    proxies: Iterable[str] = (),
    close: Callable[[], None] = lambda: None,
) -> Iterator[str]:
    """Serves a dashboard, or a program that has it mounted, within the block; port 0 takes a free one. Gives the URL
    for a browser on this machine.

    ``proxies``: the addresses and networks whose ``X-Forwarded-For`` is believed. ``close``: the engine's, which ends
    what waits for a silent server.
    """
    advice = "another host, or port (0 takes a free one)"
    with listening(host.strip("[]"), port, advice=advice) as bound:
        config = uvicorn.Config(
            app,
            http="h11",
            ws="none",
            lifespan="off",
            access_log=False,  # it would have the token in it
            log_config=None,
            log_level="error",  # a request that is not understood is no event of ours
            server_header=False,
            proxy_headers=bool(proxies := list(proxies)),
            forwarded_allow_ips=proxies,
            timeout_graceful_shutdown=ANSWER_S,
        )
        dashboard: Dashboard | None = getattr(app.state, "dashboard", None)
        server = _Server(config, dashboard.snapshots if dashboard else None, close)
        thread = threading.Thread(target=server.life, name="shardq-dashboard", daemon=True)
        thread.start()
        server.up.wait()
        if server.failure is not None:
            raise server.failure

        def serve(client: socket.socket) -> None:
            # no faster than the loop: or new clients would end those that it has not even read
            asyncio.run_coroutine_threadsafe(server.take(listener, client), server.loop).result(TAKEN_S)

        listener = Listener(bound, serve, most=MOST_CLIENTS, name="shardq-dashboard-listener")
        listener.start()
        try:
            name, port = bound.getsockname()[:2]
            yield url_of({"0.0.0.0": "127.0.0.1", "::": "::1"}.get(name, name), port)
        finally:
            listener.close()
            server.should_exit = True
            thread.join()
