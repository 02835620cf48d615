"""The connections of the asyncio driver to one node: few, and each shared."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any

from shardq.core.drivers.aioconnection import AsyncConnection
from shardq.core.drivers.faults import OVERDUE, Fault, dropped, unconnected

# A connection carries any number of calls; more than one keeps small calls from waiting behind big ones.
MAX_CONNECTIONS = 4
# So many unanswered calls on the least busy connection are a reason to open another.
BUSY = 64


class AsyncConnectionPool:
    """The connections to one node: few, each shared by any number of calls. One attempt to connect at a time, in a
    task of its own; all who wait share its outcome.
    """

    def __init__(
        self, address: str, *, bound: int, connect: Callable[[str], Coroutine[Any, Any, AsyncConnection | Fault]]
    ) -> None:
        self.address = address
        self.bound: int = min(MAX_CONNECTIONS, bound)
        self._new_connection = connect
        self._connections: list[AsyncConnection] = []
        self._connecting: asyncio.Task[AsyncConnection | Fault] | None = None
        self._closed = False

    @property
    def open(self) -> int:
        return sum(connection.open for connection in self._connections)

    async def connection(self, deadline: float) -> AsyncConnection | Fault:
        """Returns the least busy connection, or waits for the first one. When all are busy another is made
        meanwhile.
        """
        ready = self.ready()
        if ready is not None:
            return ready
        if self._closed:
            return dropped(self.address)
        within = deadline - time.monotonic()
        if within <= 0:
            return self._best() or OVERDUE
        if self._connecting is None:
            self._connecting = asyncio.create_task(self._connect())
        return self._best() or await self._wait_for(self._connecting, within)

    def ready(self) -> AsyncConnection | None:
        """The least busy connection. None if there is none yet, or another is wanted."""
        best = self._best()
        if best is None or (best.load >= BUSY and self.open < self.bound):
            return None
        if best.provided is not None:
            best.renew()
        return best

    async def _wait_for(
        self, connecting: asyncio.Task[AsyncConnection | Fault], within: float
    ) -> AsyncConnection | Fault:
        """Waits for an attempt to connect. Others may wait for it, too: giving up does not end it."""
        await asyncio.wait((connecting,), timeout=within)
        if not connecting.done():
            return unconnected(within)
        return dropped(self.address) if connecting.cancelled() else connecting.result()

    async def _connect(self) -> AsyncConnection | Fault:
        try:
            connection = await self._new_connection(self.address)
        finally:
            self._connecting = None
        if isinstance(connection, AsyncConnection):
            self._connections.append(connection)
        return connection

    async def close(self) -> None:
        """Closes every connection; a caller that waits for one is told at once."""
        self._closed = True
        connecting = self._connecting
        if connecting is not None:
            connecting.cancel()
            await asyncio.wait((connecting,))
        for connection in self._connections:
            await connection.close()

    def _best(self) -> AsyncConnection | None:
        self._connections = [connection for connection in self._connections if connection.open]
        return min(self._connections, key=lambda connection: connection.load, default=None)

    def abort(self) -> None:
        """Closes every connection, and waits for none."""
        self._closed = True
        if self._connecting is not None:
            self._connecting.cancel()
        for connection in self._connections:
            connection.abort()

    def abandon(self) -> None:
        """Closes the descriptors of every connection, without its loop."""
        self._closed, self._connecting = True, None
        for connection in self._connections:
            connection.abandon()
