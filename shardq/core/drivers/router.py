"""The node router of the sync driver: ``routing`` with the connection pool of each node, for threads.

``sync`` and ``pipelines`` ask it where a call goes, take connections from its pools, and have it act on retry steps.
The asyncio twin is ``aiorouter``.
"""

from __future__ import annotations

import dataclasses
import math
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

from shardq.core import forks
from shardq.core.calls.request import pack
from shardq.core.drivers.connection import Connection, open_connection, probe
from shardq.core.drivers.discover import ASK_TIMEOUT_S, LOOK_TIMEOUT_S, Locate, Probe, Question
from shardq.core.drivers.faults import OVERDUE, Fault, unconnected
from shardq.core.drivers.generators import drive
from shardq.core.drivers.outages import Outages
from shardq.core.drivers.pool import ConnectionPool
from shardq.core.drivers.retry import RetryStep
from shardq.core.drivers.routing import CLOSED, FORKED, Routing
from shardq.core.drivers.settings import Settings


@dataclasses.dataclass(frozen=True, slots=True)
class ConnectionCounts:
    """The number of connections to one node: shared ones, their bound, and those with one owner."""

    shared: int
    bound: int
    own: int
    """The connections of pollers and subscribers, one each."""


class NodeRouter(Routing):
    """The slot map, the pool of each node, and every connection that was opened."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        forks.watch(self, NodeRouter._forked)

    def _set_up(self) -> None:
        super()._set_up()
        self._nodes: dict[str, ConnectionPool] = {}
        self.borrowers = threading.BoundedSemaphore(self.settings.borrowers)
        self.begun = threading.BoundedSemaphore(max(1, self.settings.connections // 4))
        """Calls that are sent, and whose answers nobody reads yet."""
        self._connections: weakref.WeakSet[Connection] = weakref.WeakSet()
        self._changing = threading.Lock()
        self._learner = threading.Lock()
        """Held while the slot map is learnt: whoever waits for it shares what was learnt."""
        self.outages = Outages()

    # ---- opening and closing

    def open(self, deadline: float = math.inf) -> None:
        """Learns the slot map and checks the servers; waits for those that are not there yet."""
        self._closed = None
        begun, tries = time.monotonic(), 0
        try:
            while (fault := drive(self._opening(), partial(self._ask, deadline))) is not None:
                tries += 1
                time.sleep(self._pause_s(fault, tries, begun, deadline))
        except BaseException:
            self.close()
            raise

    def close(self, why: str = CLOSED) -> None:
        """Closes every connection; whoever is blocked on one is told at once."""
        with self._changing:
            self._closed = why
            nodes, self._nodes = self._nodes, {}
            connections = list(self._connections)
        for node in nodes.values():
            node.close()
        for connection in connections:
            if connection.open:
                connection.interrupt()

    def _forked(self) -> None:
        """Gives all descriptors back. Sends nothing: the connections are the parent's."""
        if self._closed is None:
            self._closed = FORKED
        connections, nodes = list(self._connections), list(self._nodes.values())
        self._set_up()
        for node in nodes:
            node.forked()
        for connection in connections:
            connection.close()

    # ---- connections

    def node(self, address: str) -> ConnectionPool:
        """The connection pool of a node."""
        node = self._nodes.get(address)
        if node is None:
            with self._changing:
                self.check_open()
                node = self._nodes.get(address)
                if node is None:
                    node = ConnectionPool(address, bound=self.settings.connections, connect=self.connect)
                    self._nodes[address] = node
        return node

    def connect(self, address: str, deadline: float, *, protocol: int | None = None) -> Connection | Fault:
        """A new connection, counted and closed with all the others."""
        self.check_open()
        if self._missing is not None:
            return self._missing
        timeout = max(0.001, min(self.settings.connect_timeout, deadline - time.monotonic()))
        connection = open_connection(self.settings, address, timeout=timeout, protocol=protocol)
        if isinstance(connection, Connection):
            with self._changing:
                self._connections.add(connection)
            if self._closed is not None:
                connection.close()
                self.check_open()
        return connection

    def connections(self) -> dict[str, ConnectionCounts]:
        """The number of open connections, by node."""
        with self._changing:
            total = Counter(connection.address for connection in self._connections if connection.open)
            nodes = dict(self._nodes)
        bound = self.settings.connections
        return {
            address: ConnectionCounts(shared, bound, max(0, total[address] - shared))
            for address in sorted({*total, *nodes})
            for shared in [nodes[address].open if address in nodes else 0]
        }

    # ---- the slot map

    def act(self, step: RetryStep, deadline: float = math.inf) -> None:
        """Does what a retry step says about the slot map, as far as there is time. The caller pauses."""
        if step.refresh:
            left = min(deadline - time.monotonic(), threading.TIMEOUT_MAX)
            # Another thread may learn it, and take its time.
            if left > 0 and self._learner.acquire(timeout=left):
                try:
                    if not self._just_learned:
                        self._learn(step.doubted, deadline)
                finally:
                    self._learner.release()
        self._correct(step.moved)

    def refresh(self, doubted: str = "") -> None:
        """Learns the slot map now, whenever it was learnt last. Raises if no node can tell."""
        self.check_open()
        with self._learner:
            fault = self._learn(doubted)
        if fault is not None:
            raise self._error(fault, "the slot map was not learnt", ASK_TIMEOUT_S) from fault.cause

    def on_new_map(self, follower: Callable[[], object]) -> Callable[[], None]:
        """Calls ``follower`` whenever a slot map was learnt. Returns a function that ends this.

        Followers are called with locks held: they must not block, nor call anything here.
        """
        with self._changing:
            self._followers = (*self._followers, follower)

        def stop() -> None:
            with self._changing:
                self._followers = tuple(each for each in self._followers if each != follower)

        return stop

    def _learn(self, doubted: str, deadline: float = math.inf) -> Fault | None:
        fault = drive(self._learning(doubted), partial(self._ask, deadline))
        if fault is None:
            with self._changing:
                gone = [self._nodes.pop(address) for address in [*self._nodes] if address not in self.map.nodes]
            for node in gone:
                node.close()
        return fault

    def _ask(self, deadline: float, ask: Question) -> Any:
        """Answers a question of ``routing``, on a connection of its own: the pool may be full or dead."""
        self.check_open()
        now = time.monotonic()
        if now >= deadline:
            return b"" if isinstance(ask, Probe) else OVERDUE
        left = deadline - now
        if isinstance(ask, Probe):
            return probe(ask.address, ask.data, timeout=min(LOOK_TIMEOUT_S, left))
        if isinstance(ask, Locate):
            try:
                return ask.answer() if left == math.inf else ask.begun().result(left)
            except TimeoutError:
                return unconnected(left)
        timeout = min(ASK_TIMEOUT_S, self._share_s(left))
        connection = open_connection(self.settings, ask.address, timeout=timeout, sentinel=ask.sentinel)
        if isinstance(connection, Fault):
            return connection
        try:
            until = min(deadline, time.monotonic() + ASK_TIMEOUT_S)
            return connection.exchange(pack(*ask.words), deadline=until)
        finally:
            connection.close()
