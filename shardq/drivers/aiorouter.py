"""The node router of the asyncio driver: the twin of ``router`` and ``pool``."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Coroutine
from typing import Any

from shardq import forks
from shardq.drivers.aioconnection import AsyncConnection, open_async_connection, probe
from shardq.drivers.connection import pack
from shardq.drivers.discover import (
    ASK_TIMEOUT_S,
    LOOK_TIMEOUT_S,
    REFRESH_EVERY_S,
    Locate,
    Probe,
    Question,
    discover,
    greet,
)
from shardq.drivers.faults import ErrorReply, Fault, dropped, of_reply, unconnected
from shardq.drivers.generators import adrive
from shardq.drivers.retry import RetryingCall, RetryStep, backoff_s, explained
from shardq.drivers.router import CLOSED, FORKED, NOT_OPEN, ConnectionCounts
from shardq.drivers.settings import Settings
from shardq.drivers.slots import SlotMap
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
    """The connections to one node. One attempt to connect at a time, in a task of its own; all who wait share its
    outcome.
    """

    def __init__(
        self, address: str, *, bound: int, open_socket: Callable[[str], Coroutine[Any, Any, AsyncConnection | Fault]]
    ) -> None:
        self.address = address
        self.bound = min(MAX_CONNECTIONS, bound)
        self._dial_pipe = open_socket
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
        best = self._best()
        if best is not None and (best.load < BUSY or self.open >= self.bound):
            return best
        if self._closed:
            return dropped(self.address)
        if self._connecting is None:
            self._connecting = asyncio.create_task(self._connect())
        return best or await self._wait_for(self._connecting, max(0.0, deadline - time.monotonic()))

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
            connection = await self._dial_pipe(self.address)
        finally:
            self._connecting = None
        if isinstance(connection, AsyncConnection):
            self._connections.append(connection)
        return connection

    async def close(self) -> None:
        """Close every connection; whoever waits for one is told at once."""
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
        """Close every connection, and wait for none."""
        self._closed = True
        if self._connecting is not None:
            self._connecting.cancel()
        for connection in self._connections:
            connection.abort()

    def abandon(self) -> None:
        """Close the descriptors of every connection, without its loop."""
        self._closed, self._connecting = True, None
        for connection in self._connections:
            connection.abandon()

    def __repr__(self) -> str:
        return f"AsyncConnectionPool({self.address}: {self.open} of {self.bound} open)"


class AsyncNodeRouter:
    """The slot map and the nodes in it."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.map = SlotMap(settings.addresses)
        self.version = ""
        self._closed: str | None = NOT_OPEN
        self._loop: asyncio.AbstractEventLoop | None = None
        """The loop that it is open in."""
        self._nodes: dict[str, AsyncConnectionPool] = {}
        self._learning = asyncio.Lock()
        self._learned = 0.0
        self._doubted = ""
        self._missing: Fault | None = None
        """Why there is no server to connect, as the last look for it said."""
        forks.watch(self, AsyncNodeRouter._forked)

    # ---- opening and closing

    async def open(self) -> None:
        """Learn the slot map and check the servers. Waits longer for a server that loads than for one that is not
        there.
        """
        self._closed, self._loop = None, asyncio.get_running_loop()
        try:
            await self._open()
        except BaseException:
            await self.close()
            raise

    async def _open(self) -> None:
        start = time.monotonic()
        settings = self.settings
        tries = 0
        while True:
            fault = await self._learn() or await self._greet()
            if fault is None:
                return
            timeout = settings.timeout if fault.is_loading else settings.connect_timeout
            tries += 1
            pause = backoff_s(tries, random.random())
            if fault.is_final or time.monotonic() + pause >= start + timeout:
                text = explained(fault, settings.safe_url, "could not connect", timeout)
                raise fault.error(text) from fault.cause
            await asyncio.sleep(pause)

    async def _greet(self) -> Fault | None:
        version = await adrive(greet(self.settings, self.map.nodes), self._ask)
        if isinstance(version, Fault):
            return version
        self.version = version
        return None

    async def close(self) -> None:
        """Close every connection; whoever waits on one is told at once. Cancelled, it closes them all the same."""
        self._closed = CLOSED
        nodes, self._nodes = self._nodes, {}
        for node in nodes.values():
            node.abort()
        await asyncio.shield(asyncio.gather(*(node.close() for node in nodes.values())))

    def _forked(self) -> None:
        """Give all descriptors back. Sends nothing: the connections are the parent's."""
        self.abandon(FORKED)

    def abandon(self, why: str = LOOP_ENDED) -> None:
        """Close every connection without its loop."""
        if self._closed is None:
            self._closed = why
        nodes, self._nodes = self._nodes, {}
        for node in nodes.values():
            node.abandon()

    # ---- where to send

    def target(self, retrying: RetryingCall[Any]) -> str | None:
        """The node for the next try of a call; None if no node serves its slot."""
        return retrying.address or self.map.node(retrying.request.slot)

    def node(self, address: str) -> AsyncConnectionPool:
        """The connections to a node."""
        node = self._nodes.get(address)
        if node is None:
            self.check_open()
            node = self._nodes[address] = AsyncConnectionPool(
                address, bound=self.settings.connections, open_socket=self._open_socket
            )
        return node

    async def _open_socket(self, address: str) -> AsyncConnection | Fault:
        return self._missing or await open_async_connection(
            self.settings, address, within=self.settings.connect_timeout
        )

    def check_open(self) -> None:
        """Raise unless the driver is open, in this loop."""
        if self._closed is not None:
            raise EngineClosed(self._closed)
        if self._loop is not asyncio.get_running_loop():
            raise EngineClosed(LOOP_ENDED if self._loop is None or self._loop.is_closed() else OTHER_LOOP)

    def connections(self) -> dict[str, ConnectionCounts]:
        """The number of open connections, by node."""
        return {address: ConnectionCounts(node.open, node.bound, 0) for address, node in sorted(self._nodes.items())}

    # ---- keeping current

    async def act(self, step: RetryStep) -> None:
        """Do what a retry step says about the map. The caller pauses."""
        if step.refresh:
            async with self._learning:  # Whoever waits here shares what the one before has learnt.
                if time.monotonic() - self._learned > REFRESH_EVERY_S:
                    await self._learn(step.doubted)
        if step.moved is not None and self.map.node(step.moved[0]) != step.moved[1]:
            self.map = self.map.corrected(*step.moved)

    async def refresh(self, doubted: str = "") -> None:
        """Learn the map now, whenever it was learnt last. Raises if no node can tell."""
        self.check_open()
        async with self._learning:
            fault = await self._learn(doubted)
        if fault is not None:
            text = explained(fault, self.settings.safe_url, "the slot map was not learnt", ASK_TIMEOUT_S)
            raise fault.error(text) from fault.cause

    async def _learn(self, doubted: str = "") -> Fault | None:
        known = self.map.nodes if self._learned else ()
        # A node that hangs, or is cut off from the others, stays in doubt: its map is old.
        self._doubted = doubted or self._doubted
        found = await adrive(discover(self.settings, known, doubted=self._doubted), self._ask)
        self._learned = time.monotonic()
        if isinstance(found, Fault):
            self._missing = found if self.settings.locate is not None else None
            return found
        self._missing = None
        self.map = found
        gone = [address for address in self._nodes if address not in found.nodes]
        for node in [self._nodes.pop(address) for address in gone]:
            await node.close()
        return None

    async def _ask(self, ask: Question) -> Any:
        """Each question has a connection of its own: open ones may be dead."""
        self.check_open()
        if isinstance(ask, Probe):
            return await probe(ask.address, ask.data, within=LOOK_TIMEOUT_S)
        if isinstance(ask, Locate):
            return await asyncio.wrap_future(ask.begun())
        connection = await open_async_connection(
            self.settings, ask.address, within=ASK_TIMEOUT_S, sentinel=ask.sentinel
        )
        if isinstance(connection, Fault):
            return connection
        try:
            answer = await connection.exchange(pack(ask.words), deadline=time.monotonic() + ASK_TIMEOUT_S)
        finally:
            await connection.close()
        return of_reply(answer.text, asked=ask.address) if isinstance(answer, ErrorReply) else answer
