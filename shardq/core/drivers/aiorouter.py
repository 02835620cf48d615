"""The node router of the asyncio driver: ``routing`` with the connections to each node. The twin is ``router``."""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from functools import partial
from typing import Any

from shardq.core import forks
from shardq.core.calls.request import pack
from shardq.core.drivers.aioconnection import AsyncConnection, open_async_connection, probe
from shardq.core.drivers.aiopool import AsyncConnectionPool
from shardq.core.drivers.discover import ASK_TIMEOUT_S, LOOK_TIMEOUT_S, Locate, Probe, Question
from shardq.core.drivers.faults import OVERDUE, Fault, unconnected
from shardq.core.drivers.generators import adrive
from shardq.core.drivers.retry import RetryStep
from shardq.core.drivers.router import ConnectionCounts
from shardq.core.drivers.routing import CLOSED, FORKED, Routing
from shardq.core.drivers.settings import Settings
from shardq.errors import EngineClosed

OTHER_LOOP = (
    "this engine is open in another event loop: make one for this loop, or close() it there before you open() it here"
)
LOOP_ENDED = "the event loop that this engine was opened in has ended: open() it again in this one"


class AsyncNodeRouter(Routing):
    """The slot map, and the connections to each node, of one loop."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self._loop: asyncio.AbstractEventLoop | None = None
        """The loop that it is open in."""
        self._nodes: dict[str, AsyncConnectionPool] = {}
        self._learner = asyncio.Lock()
        """Held while the slot map is learnt: whoever waits for it shares what was learnt."""
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
        """Closes every connection; whoever waits on one is told at once. Cancelled, it closes them all the same."""
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
