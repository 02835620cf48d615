"""The node router of the sync driver: the slot map, kept current, and the connection pool of each node.

``sync`` and ``pipelines`` ask it where a call goes, take connections from its pools, and have it act on retry steps.
The asyncio twin is ``aiorouter``.
"""

from __future__ import annotations

import dataclasses
import random
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable
from typing import Any

from shardq import forks
from shardq.drivers.connection import Connection, open_connection, pack, probe
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
from shardq.drivers.faults import ErrorReply, Fault, of_reply
from shardq.drivers.generators import drive
from shardq.drivers.outages import Outages
from shardq.drivers.pool import ConnectionPool
from shardq.drivers.retry import RetryingCall, RetryStep, backoff_s, explained
from shardq.drivers.settings import Settings
from shardq.drivers.slots import SlotMap
from shardq.errors import EngineClosed

NOT_OPEN = "the connections are not open: open the engine first"
CLOSED = "the engine is closed: make a new one, or open it again"
FORKED = (
    "this belongs to the parent process, which made it before a fork: ask the engine for another in this process "
    "(engine.consumer(), engine.growth(), …); the engine itself works here, too"
)


@dataclasses.dataclass(frozen=True, slots=True)
class ConnectionCounts:
    """The number of connections to one node: shared ones, their bound, and those with one owner."""

    shared: int
    bound: int
    own: int
    """The connections of pollers and subscribers, one each."""


class NodeRouter:
    """The slot map, the pool of each node, and every connection that was opened."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.map = SlotMap(settings.addresses)
        self.version = ""
        self._closed: str | None = NOT_OPEN
        self._set_up()
        forks.watch(self, NodeRouter._forked)

    def _set_up(self) -> None:
        self._nodes: dict[str, ConnectionPool] = {}
        self.borrowers = threading.BoundedSemaphore(max(1, self.settings.connections // 2))
        """Limits the callers of ``borrow``: each keeps a connection to each node it asks."""
        self._connections: weakref.WeakSet[Connection] = weakref.WeakSet()
        self._changing = threading.Lock()
        self._learning = threading.Lock()
        self._learned = 0.0
        self._doubted = ""
        self._missing: Fault | None = None
        """Why there is no server to connect, as the last look for it said."""
        self._followers: tuple[Callable[[], object], ...] = ()
        self.outages = Outages()

    # ---- opening and closing

    def open(self) -> None:
        """Learn the slot map and check the servers. Waits longer for a server that loads than for one that is not
        there.
        """
        self._closed = None
        try:
            self._open()
        except BaseException:
            self.close()
            raise

    def _open(self) -> None:
        start = time.monotonic()
        settings = self.settings
        tries = 0
        while True:
            fault = self._learn() or self._greet()
            if fault is None:
                return
            timeout = settings.timeout if fault.is_loading else settings.connect_timeout
            tries += 1
            pause = backoff_s(tries, random.random())
            if fault.is_final or time.monotonic() + pause >= start + timeout:
                text = explained(fault, settings.safe_url, "could not connect", timeout)
                raise fault.error(text) from fault.cause
            time.sleep(pause)

    def _greet(self) -> Fault | None:
        version = drive(greet(self.settings, self.map.nodes), self._ask)
        if isinstance(version, Fault):
            return version
        self.version = version
        return None

    def close(self, why: str = CLOSED) -> None:
        """Close every connection; whoever is blocked on one is told at once."""
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
        """Give all descriptors back. Sends nothing: the connections are the parent's."""
        if self._closed is None:
            self._closed = FORKED
        connections, nodes = list(self._connections), list(self._nodes.values())
        self._set_up()
        for node in nodes:
            node.forked()
        for connection in connections:
            connection.close()

    # ---- where to send

    def target(self, retrying: RetryingCall[Any]) -> str | None:
        """The node for the next try of a call; None if no node serves its slot."""
        return retrying.address or self.map.node(retrying.request.slot)

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

    def check_open(self) -> None:
        """Raise unless the driver is open."""
        if self._closed is not None:
            raise EngineClosed(self._closed)

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

    # ---- keeping current

    def act(self, step: RetryStep) -> None:
        """Do what a retry step says about the map. The caller pauses."""
        if step.refresh:
            with self._learning:  # Whoever waits here shares what the one before has learnt.
                if time.monotonic() - self._learned > REFRESH_EVERY_S:
                    self._learn(step.doubted)
        if step.moved is not None and self.map.node(step.moved[0]) != step.moved[1]:
            self._adopt(self.map.corrected(*step.moved))

    def refresh(self, doubted: str = "") -> None:
        """Learn the map now, whenever it was learnt last. Raises if no node can tell."""
        self.check_open()
        with self._learning:
            fault = self._learn(doubted)
        if fault is not None:
            text = explained(fault, self.settings.safe_url, "the slot map was not learnt", ASK_TIMEOUT_S)
            raise fault.error(text) from fault.cause

    def on_new_map(self, follower: Callable[[], object]) -> Callable[[], None]:
        """Call ``follower`` whenever a map was learnt. Returns a function that ends this.

        Followers are called with locks held: they must not block, nor call anything here.
        """
        with self._changing:
            self._followers = (*self._followers, follower)

        def stop() -> None:
            with self._changing:
                self._followers = tuple(each for each in self._followers if each != follower)

        return stop

    def _adopt(self, found: SlotMap) -> None:
        self.map = found
        for follower in self._followers:
            follower()

    def _learn(self, doubted: str = "") -> Fault | None:
        known = self.map.nodes if self._learned else ()
        # A node that hangs, or is cut off from the others, stays in doubt: its map is old.
        self._doubted = doubted or self._doubted
        found = drive(discover(self.settings, known, doubted=self._doubted), self._ask)
        self._learned = time.monotonic()
        if isinstance(found, Fault):
            self._missing = found if self.settings.locate is not None else None
            return found
        self._missing = None
        self._adopt(found)
        with self._changing:
            gone = [address for address in self._nodes if address not in found.nodes]
            nodes = [self._nodes.pop(address) for address in gone]
        for node in nodes:
            node.close()
        return None

    def _ask(self, ask: Question) -> Any:
        """Each question has a connection of its own: the pool may be full or dead."""
        self.check_open()
        if isinstance(ask, Probe):
            return probe(ask.address, ask.data, timeout=LOOK_TIMEOUT_S)
        if isinstance(ask, Locate):
            return ask.answer()
        connection = open_connection(self.settings, ask.address, timeout=ASK_TIMEOUT_S, sentinel=ask.sentinel)
        if isinstance(connection, Fault):
            return connection
        try:
            answer = connection.exchange(pack(ask.words), deadline=time.monotonic() + ASK_TIMEOUT_S)
        finally:
            connection.close()
        return of_reply(answer.text, asked=ask.address) if isinstance(answer, ErrorReply) else answer
