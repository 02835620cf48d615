"""Serves the dashboard in a thread of its own, so that the main thread is free for signals. Called by the command."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import uvicorn
from starlette.applications import Starlette

from shardq.dashboard.snapshots import SharedSnapshots
from shardq.dashboard.web import Dashboard
from shardq.errors import InvalidOption

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
    with _listening(host, port) as listener:
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
            yield _url(listener)
        finally:
            server.should_exit = True
            thread.join()


@contextmanager
def _listening(host: str, port: int) -> Iterator[socket.socket]:
    host = host.strip("[]")
    try:
        listener = socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except (OSError, UnicodeError) as exc:
        why = os.strerror(exc.errno) if isinstance(exc, OSError) and exc.errno else str(exc)
        raise InvalidOption(
            f"can't listen at {host}:{port}: {why}; give another host, or port (0 takes a free one)"
        ) from exc
    with listener:
        yield listener


def _url(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
