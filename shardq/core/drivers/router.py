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
from typing import Any, TypeVar

from shardq.core import forks
from shardq.core.calls.request import pack
from shardq.core.drivers.connection import Connection, open_connection, probe
from shardq.core.drivers.discover import ASK_TIMEOUT_S, LOOK_TIMEOUT_S, Locate, Probe, Question
from shardq.core.drivers.faults import OVERDUE, ErrorReply, Fault, dropped, exhausted, unconnected, unserved
from shardq.core.drivers.generators import drive
from shardq.core.drivers.outages import Outages
from shardq.core.drivers.retry import RetryingCall, RetryStep
from shardq.core.drivers.routing import CLOSED, FORKED, Routing
from shardq.core.drivers.settings import Settings
from shardq.errors import EngineClosed

T = TypeVar("T")


@dataclasses.dataclass(frozen=True, slots=True)
class ConnectionCounts:
    """The number of connections to one node: shared ones, their bound, and those with one owner."""

    shared: int
    bound: int
    own: int
    """The connections of pollers and subscribers, one each."""


CONNECTING = 8
"""The threads that connect at a time. Others wait for them, or for a connection that is given back: where a hundred
threads connected at once, all were so slow on a busy machine that their time ran out, and they began again.
"""


class ConnectionPool:
    """The shared connections to one node: last in, first out, and bounded. Every ``take`` is followed by one ``give``
    or ``drop``.

    A node that hangs takes a connection and says nothing for as long as ``connect_timeout``. So while it is not known
    if the node answers, one thread connects, and the others wait for the outcome and share its fault.
    """

    def __init__(self, address: str, *, bound: int, connect: Callable[[str, float], Connection | Fault]) -> None:
        self.address = address
        self.bound = bound
        self.open = 0
        """The number of connections, idle and in use. Never above ``bound``."""
        self._new_connection = connect
        self._closed = False
        self._idle: list[Connection] = []
        self._answers = False
        """True if the last attempt to connect succeeded and no connection has failed since. Some threads may connect at
        once then.
        """
        self._connecting = 0
        self._refused: tuple[int, Fault | None] = 0, None
        """The number of failed attempts to connect, and the fault of the last one."""
        self._free = threading.Condition(threading.Lock())

    def take(self, deadline: float, *, wait: bool = True) -> Connection | Fault:
        """Returns an idle connection, a new one, or the next one that another thread gives back in time.

        A caller that holds connections to other nodes must not ``wait``: two such threads could wait for each other.
        """
        began = now = time.monotonic()
        if now >= deadline:
            return OVERDUE
        with self._free:
            failures, _ = self._refused
            while True:
                if (connection := self._live_idle(now)) is not None:
                    return connection
                if self._closed:
                    return dropped(self.address)
                failed, fault = self._refused
                if fault is not None and failed != failures:
                    return fault
                room = self.open < self.bound
                if room and (not wait or self._connecting < (CONNECTING if self._answers else 1)):
                    self.open += 1
                    self._connecting += 1
                    break
                if wait:
                    self._free.wait(deadline - now)
                now = time.monotonic()
                if not wait or now >= deadline:
                    return unconnected(now - began) if room else exhausted(self.address, self.bound)
        connected = self._connect(deadline)
        if isinstance(connected, Connection) and time.monotonic() >= deadline:
            self.give(connected)
            return OVERDUE
        return connected

    def take_idle(self) -> Connection | None:
        """Returns an idle connection, if there is one."""
        with self._free:
            return self._live_idle(time.monotonic())

    def _live_idle(self, now: float) -> Connection | None:
        while self._idle:
            connection = self._idle.pop()
            if not connection.dead(now):
                return connection
            connection.close()
            self.open -= 1
        return None

    def _connect(self, deadline: float) -> Connection | Fault:
        """Makes a new connection, for which there is room, and tells those who wait."""
        connected: Connection | Fault | None = None
        try:
            connected = self._new_connection(self.address, deadline)
        finally:
            with self._free:
                self._connecting -= 1
                self._answers = isinstance(connected, Connection)
                if isinstance(connected, Fault):
                    self._refused = self._refused[0] + 1, connected
                if not self._answers:
                    self.open -= 1
                self._free.notify_all()
        return connected

    def give(self, connection: Connection) -> None:
        """Takes back a connection that is in step: every answer it was sent for has been read."""
        with self._free:
            if not self._closed:
                self._idle.append(connection)
                self._free.notify()
                return
        self.drop(connection)

    def forked(self) -> None:
        """Called in the child of a fork: a holder of a connection of the parent's can still hand it back."""
        self._free = threading.Condition(threading.Lock())

    def drop(self, connection: Connection) -> None:
        """Closes a connection that is out of step, or dead. Idle ones have most likely died with it."""
        connection.close()
        with self._free:
            self.open -= 1
            self._answers = False
            self._free.notify()
        self.drop_idle()

    def drop_idle(self) -> None:
        """Closes the idle connections."""
        with self._free:
            idle, self._idle = self._idle, []
            self.open -= len(idle)
            self._free.notify(len(idle))
        for connection in idle:
            connection.close()

    def close(self) -> None:
        """Closes the idle connections, and each of the others when it comes back. No thread waits for more."""
        with self._free:
            self._closed = True
            self._free.notify_all()
        self.drop_idle()

    def __repr__(self) -> str:
        return f"ConnectionPool({self.address}: {self.open} of {self.bound} open, {len(self._idle)} idle)"


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
        """Calls that are sent, and whose answers are not read yet."""
        self._connections: weakref.WeakSet[Connection] = weakref.WeakSet()
        self._changing = threading.Lock()
        self._learner = threading.Lock()
        """Held while the slot map is learnt: a thread that waits for it shares what was learnt."""
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
        """Closes every connection; a thread that is blocked on one is told at once."""
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

    # ---- calls

    def carry(
        self,
        retrying: RetryingCall[T],
        trip: Callable[[RetryingCall[Any], str], Any],
        sleep: Callable[[float], object] = time.sleep,
        *,
        first: tuple[str, Any] | None = None,
    ) -> T:
        """Sends a call until it is answered or its time is over. ``trip`` makes one try at a node; ``first``: the node
        and the answer of a try that was made before.
        """
        while True:
            address: str | None
            if first is not None:
                (address, answer), first = first, None
            else:
                address = self.target(retrying)
                answer = unserved(retrying.request.slot) if address is None else trip(retrying, address)
            if not isinstance(answer, (ErrorReply, Fault)):
                return retrying.result(answer, address or "", self.journal)
            step = self.failed_with(answer, retrying, address)
            self.act(step, retrying.deadline)
            if step.backoff_s:
                sleep(step.backoff_s)

    def target(self, retrying: RetryingCall[Any]) -> str | None:
        """The node for the next try of a call; None if no node serves its slot. Raises EngineClosed unless open."""
        if self._closed is not None:
            raise EngineClosed(self._closed)
        slot = retrying.request.slot
        return retrying.address or (self.map.owners[slot] if slot >= 0 else self.map.node(slot))

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
