"""The node router of the asyncio driver: ``routing`` with the connections to each node. The twin is ``router``."""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from shardq.core import forks
from shardq.core.calls.request import pack
from shardq.core.drivers.aioconnection import AsyncConnection, open_async_connection, probe
from shardq.core.drivers.discover import ASK_TIMEOUT_S, LOOK_TIMEOUT_S, Locate, Probe, Question
from shardq.core.drivers.faults import OVERDUE, Fault, dropped, unconnected
from shardq.core.drivers.generators import adrive
from shardq.core.drivers.retry import RetryingCall, RetryStep
from shardq.core.drivers.router import ConnectionCounts
from shardq.core.drivers.routing import CLOSED, FORKED, Routing
from shardq.core.drivers.settings import Settings
from shardq.errors import EngineClosed

OTHER_LOOP = (
    "this engine is open in another event loop: make one for this loop, or close() it there before you open() it here"
)
LOOP_ENDED = "the event loop that this engine was opened in has ended: open() it again in this one"


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
        self.bound = min(MAX_CONNECTIONS, bound)
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
        if self._connecting is None:
            self._connecting = asyncio.create_task(self._connect())
        return self._best() or await self._wait_for(self._connecting, max(0.0, deadline - time.monotonic()))

    def ready(self) -> AsyncConnection | None:
        """The least busy connection. None if there is none yet, or another is wanted."""
        best = self._best()
        return best if best is not None and (best.load < BUSY or self.open >= self.bound) else None

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

    def __repr__(self) -> str:
        return f"AsyncConnectionPool({self.address}: {self.open} of {self.bound} open)"


class AsyncNodeRouter(Routing):
    """The slot map, and the connections to each node, of one loop."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self._loop: asyncio.AbstractEventLoop | None = None
        """The loop that it is open in."""
        self._nodes: dict[str, AsyncConnectionPool] = {}
        self._learner = asyncio.Lock()
        """Held while the slot map is learnt: a task that waits for it shares what was learnt."""
        forks.watch(self, AsyncNodeRouter._forked)

    # ---- opening and closing

    async def open(self, deadline: float = math.inf) -> None:
        """Learns the slot map and checks the servers; waits for those that are not there yet."""
        self._closed, self._loop = None, asyncio.get_running_loop()
        begun, tries = time.monotonic(), 0
        try:
            while (fault := await adrive(self._opening(), partial(self._ask, deadline))) is not None:
                tries += 1
                await asyncio.sleep(self._pause_s(fault, tries, begun, deadline))
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Closes every connection; callers that wait are told at once. Cancelled, it closes them all the same."""
        self._closed = CLOSED
        nodes, self._nodes = self._nodes, {}
        for node in nodes.values():
            node.abort()
        await asyncio.shield(asyncio.gather(*(node.close() for node in nodes.values())))

    def _forked(self) -> None:
        """Gives all descriptors back. Sends nothing: the connections are the parent's."""
        self.abandon(FORKED)

    def abandon(self, why: str = LOOP_ENDED) -> None:
        """Closes every connection without its loop."""
        if self._closed is None:
            self._closed = why
        nodes, self._nodes = self._nodes, {}
        for node in nodes.values():
            node.abandon()

    # ---- connections

    def check_open(self) -> None:
        """Raises unless the driver is open, in this loop."""
        super().check_open()
        if self._loop is not asyncio.get_running_loop():
            raise EngineClosed(LOOP_ENDED if self._loop is None or self._loop.is_closed() else OTHER_LOOP)

    def target(self, retrying: RetryingCall[Any]) -> str | None:
        """The node for the next try of a call; None if no node serves its slot."""
        return retrying.address or self.map.node(retrying.request.slot)

    def node(self, address: str) -> AsyncConnectionPool:
        """The connections to a node."""
        node = self._nodes.get(address)
        if node is None:
            self.check_open()
            node = self._nodes[address] = AsyncConnectionPool(
                address, bound=self.settings.connections, connect=self._connect
            )
        return node

    async def _connect(self, address: str) -> AsyncConnection | Fault:
        return self._missing or await open_async_connection(
            self.settings, address, within=self.settings.connect_timeout
        )

    def connections(self) -> dict[str, ConnectionCounts]:
        """The number of open connections, by node."""
        return {address: ConnectionCounts(node.open, node.bound, 0) for address, node in sorted(self._nodes.items())}

    # ---- the slot map

    async def act(self, step: RetryStep, deadline: float = math.inf) -> None:
        """Does what a retry step says about the slot map, as far as there is time. The caller pauses."""
        if step.refresh and time.monotonic() < deadline:
            with contextlib.suppress(TimeoutError):
                # Another task may learn it, and take its time.
                async with asyncio.timeout_at(None if deadline == math.inf else deadline):
                    await self._learner.acquire()
                try:
                    if not self._just_learned:
                        await self._learn(step.doubted, deadline)
                finally:
                    self._learner.release()
        self._correct(step.moved)

    async def refresh(self, doubted: str = "") -> None:
        """Learns the slot map now, whenever it was learnt last. Raises if no node can tell."""
        self.check_open()
        async with self._learner:
            fault = await self._learn(doubted)
        if fault is not None:
            raise self._error(fault, "the slot map was not learnt", ASK_TIMEOUT_S) from fault.cause

    async def _learn(self, doubted: str, deadline: float = math.inf) -> Fault | None:
        fault = await adrive(self._learning(doubted), partial(self._ask, deadline))
        if fault is None:
            for node in [self._nodes.pop(address) for address in [*self._nodes] if address not in self.map.nodes]:
                await node.close()
        return fault

    async def _ask(self, deadline: float, ask: Question) -> Any:
        """Answers a question of ``routing``, on a connection of its own: open ones may be dead."""
        self.check_open()
        now = time.monotonic()
        if now >= deadline:
            return b"" if isinstance(ask, Probe) else OVERDUE
        left = deadline - now
        if isinstance(ask, Probe):
            return await probe(ask.address, ask.data, within=min(LOOK_TIMEOUT_S, left))
        if isinstance(ask, Locate):
            located = asyncio.wrap_future(ask.begun())
            done, _ = await asyncio.wait((located,), timeout=None if left == math.inf else left)
            return located.result() if done else unconnected(left)
        within = min(ASK_TIMEOUT_S, self._share_s(left))
        connection = await open_async_connection(self.settings, ask.address, within=within, sentinel=ask.sentinel)
        if isinstance(connection, Fault):
            return connection
        try:
            until = min(deadline, time.monotonic() + ASK_TIMEOUT_S)
            return await connection.exchange(pack(*ask.words), deadline=until)
        finally:
            await connection.close()
