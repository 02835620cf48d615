"""Serves the dashboard in a thread of its own, so that the main thread is free for signals. Called by the command."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import uvicorn
from starlette.applications import Starlette

from shardq.dashboard.snapshots import SharedSnapshots
from shardq.dashboard.web import Dashboard
from shardq.metrics.http import listening, url_of

ANSWER_S = 2
"""Requests under way have so long to end."""


class _Server(uvicorn.Server):
    """A server whose start and end can be waited for from another thread."""

    def __init__(self, config: uvicorn.Config, snapshots: SharedSnapshots | None, close: Callable[[], None]) -> None:
        super().__init__(config)
        self.snapshots = snapshots
        self.close = close
        self.up = threading.Event()
        self.failure: BaseException | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.up.set()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        if self.snapshots is not None:
            self.snapshots.end()
        await asyncio.to_thread(self.close)
        await super().shutdown(sockets)

    def life(self, listener: socket.socket) -> None:
        try:
            asyncio.run(self.serve(sockets=[listener]))
        except BaseException as exc:  # noqa: BLE001  raised again where the start is waited for
            self.failure = exc
        finally:
            self.up.set()


@contextmanager
def served(app: Starlette, host: str, port: int, *, close: Callable[[], None] = lambda: None) -> Iterator[str]:
    """Serves a dashboard, or a program that has it mounted, within the block; port 0 takes a free one. Gives the URL
    for a browser on this machine.

    ``close``: the engine's, which ends what waits for a silent server.
    """
    advice = "another host, or port (0 takes a free one)"
    with listening(host.strip("[]"), port, advice=advice) as listener:
        config = uvicorn.Config(
            app,
            lifespan="off",
            access_log=False,  # it would have the token in it
            log_config=None,
            log_level="warning",
            server_header=False,
            timeout_graceful_shutdown=ANSWER_S,
        )
        dashboard: Dashboard | None = getattr(app.state, "dashboard", None)
        server = _Server(config, dashboard.snapshots if dashboard else None, close)
        thread = threading.Thread(target=server.life, args=(listener,), name="shardq-dashboard", daemon=True)
        thread.start()
        server.up.wait()
        if server.failure is not None:
            raise server.failure
        try:
            name, port = listener.getsockname()[:2]
            yield url_of({"0.0.0.0": "127.0.0.1", "::": "::1"}.get(name, name), port)
        finally:
            server.should_exit = True
            thread.join()
