"""The driver for threads: carries calls to the node that serves their slot, whatever that takes.

Engines, producers and consumers use ``Driver``. A poller has a ``DedicatedConnection``, and a durable push
``BorrowedConnections``: shared ones, for several calls in a row. ``retry`` decides about retries, ``router`` learns the
slot map; this module sends and waits. The asyncio twin is ``aio``.
"""

from __future__ import annotations

import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

from shardq.core.calls.request import Call, Command
from shardq.core.drivers.base import DriverBase
from shardq.core.drivers.begun import BegunCall
from shardq.core.drivers.connection import FINISH_S, Connection
from shardq.core.drivers.faults import OVERDUE, ErrorReply, Fault, of_connecting, of_reply, unconnected, unserved
from shardq.core.drivers.generators import drive
from shardq.core.drivers.outages import Outages
from shardq.core.drivers.pipelines import Deadline, Pipelines, Spare
from shardq.core.drivers.pool import ConnectionPool
from shardq.core.drivers.pubsub import PubSubConnection
from shardq.core.drivers.replicas import CONVERSATION_S, Confirmation
from shardq.core.drivers.retry import RetryingCall, RetryStep, explained
from shardq.core.drivers.router import ConnectionCounts, NodeRouter
from shardq.core.drivers.settings import Settings
from shardq.errors import EngineClosed, ShardqError, TooManyOpenFiles, Unanswered, Unavailable

K = TypeVar("K")
T = TypeVar("T")

HELD_LOOK_S = 0.005
"""The time between two looks of a poller whose node is held."""


class Driver(DriverBase):
    """Calls, from any thread, to one server, the master of a service, or the masters of a cluster."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self._router: NodeRouter = NodeRouter(settings)

    def open(self, deadline: float = math.inf) -> None:
        """Connects, learns the slot map, and checks the servers' versions; also again after ``close()``.

        Raises Unavailable within ``connect_timeout`` when nothing listens; waits out a server that loads.
        ``deadline``: the end of both.
        """
        self._router.open(deadline)

    def close(self) -> None:
        """Closes every connection, also those in use: their calls end at once."""
        self._router.close()

    @property
    def outages(self) -> Outages:
        """The log of nodes that fail."""
        return self._router.outages

    # ---- calls

    def call(self, call: Command[T], timeout: float | None = None, deadline: float | None = None) -> T:
        """Carries one call out and decodes its answer. Raises a ServerFault when that can't be done in time.

        ``deadline``: the end of a ``timeout`` that began before, with the command that this call is a part of.
        """
        self._router.check_open()
        return carry(call, self._router, self._trip, time.sleep, timeout, deadline)

    def call_all(
        self,
        calls: Iterable[tuple[K, Command[T]]],
        *,
        timeout: float | None = None,
        deadline: Deadline[K] = None,
        spare: Spare | None = None,
    ) -> Iterator[tuple[K, T | ShardqError]]:
        """Carries many calls out, given with a key each. Yields keys with results or errors as they come, in no order.

        Calls are pulled one by one, and packed while the servers work on earlier ones. A slow node does not
        hold back the calls of another. ``timeout`` is for all of them, and ends at the ``deadline`` if there is one.
        ``spare``: when to give up calls although they have time.
        """
        self._router.check_open()
        timeout_s = self.settings.timeout if timeout is None else timeout
        if deadline is None:
            deadline = time.monotonic() + timeout_s
        return Pipelines(calls, self._router, timeout=timeout_s, deadline=deadline, spare=self.spare(spare)).run()

    def begin(self, call: Command[T]) -> BegunCall[T] | None:
        """Sends a call now, for ``finish`` to read its answer. None: no connection is idle, nothing was sent.

        The calls begun of all callers have a quarter of a node's connections.
        """
        self._router.check_open()
        begun = self._router.begun
        if not begun.acquire(blocking=False):
            return None
        try:
            retrying = RetryingCall(call, timeout=self.settings.timeout)
            sent = self._sent(retrying)
        except BaseException:
            begun.release()
            raise
        if sent is None:
            begun.release()
            return None
        return BegunCall(retrying, *sent, begun.release)

    def finish(self, begun: BegunCall[T], deadline: float | None = None) -> T:
        """Reads the answer of a call that was begun, and decodes it; carries the call out like any other if it met a
        fault. ``deadline``: the end of the command that needs it.
        """
        if deadline is not None:
            begun.retrying.bound(deadline)
        return _carried(begun.retrying, self._router, self._trip, time.sleep, begun)

    def confirm(self, seals: Sequence[Call[None]], deadline: float = math.inf) -> dict[int, str | None]:
        """Asks if replicas have all that was written until now. Returns answers by slot, see ``operation.Confirm``."""
        self._router.check_open()
        return drive(self._replica_tracker.confirm(seals, self.node_of), partial(self._confirmed, deadline))

    def dedicated(self, slot: int) -> DedicatedConnection:
        """A connection of the caller's own to the master of this slot, wherever it moves."""
        return DedicatedConnection(self._router, slot)

    @contextmanager
    def borrow(self, deadline: float) -> Iterator[BorrowedConnections]:
        """Shared connections for several calls in a row, at most one to each node.

        At most half of a node's connections are borrowed at a time: a borrower may wait for another one, and always
        gets it. Raises Unavailable when others keep theirs until the ``deadline``, which is that of all calls.
        """
        self._router.check_open()
        borrowers = self._router.borrowers
        if not borrowers.acquire(timeout=max(0.0, deadline - time.monotonic())):
            raise Unavailable(
                f"half of the {self.settings.connections} shared connections to a node are on loan, and none came back "
                f"within {self.settings.timeout:g} s; push durably from fewer threads at a time"
            )
        borrow = BorrowedConnections(self._router, deadline)
        try:
            yield borrow
        finally:
            borrow.close()
            borrowers.release()

    def pubsub(self, node: str) -> PubSubConnection:
        """A connection of the caller's own, for a subscriber. Raises a ServerFault when it fails."""
        timeout = self.settings.connect_timeout
        connected = self._router.connect(node, time.monotonic() + timeout, protocol=2)
        if isinstance(connected, Connection):
            try:
                return PubSubConnection(connected)
            except OSError as exc:
                connected.close()
                connected = of_connecting(exc)
        raise connected.error(
            explained(connected, node, "the subscriber could not connect", timeout)
        ) from connected.cause

    def _confirmed(self, deadline: float, asked: Confirmation) -> str | Fault | None:
        deadline = min(deadline, time.monotonic() + CONVERSATION_S)
        return self._with_connection(
            asked.address, deadline, lambda connection: connection.converse(asked.conversation, deadline=deadline)
        )

    def _with_connection(self, address: str, deadline: float, talk: Callable[[Connection], T | Fault]) -> T | Fault:
        """Talks to a node over a connection of its pool, which takes it back unless it failed."""
        node = self._router.node(address)
        connection = node.take(deadline)
        if isinstance(connection, Fault):
            return connection
        try:
            answer = talk(connection)
        except BaseException:
            node.drop(connection)
            raise
        if isinstance(answer, Fault):
            node.drop(connection)
        else:
            node.give(connection)
        return answer

    def _trip(self, retrying: RetryingCall[Any], address: str) -> Any:
        node = self._router.node(address)
        connection = node.take(retrying.deadline)
        if isinstance(connection, Fault):
            return connection
        try:
            answer = connection.exchange(retrying.packed(), deadline=retrying.deadline, answers=retrying.answers)
        except BaseException:
            if retrying.call.finish_on_interrupt and retrying.answers == 1:
                retrying.finished(connection.receive(FINISH_S))
            node.drop(connection)
            raise
        if isinstance(answer, Fault):
            node.drop(connection)
        else:
            node.give(connection)
        return answer

    def _sent(self, retrying: RetryingCall[Any]) -> tuple[str, ConnectionPool, Connection] | None:
        """Sends a call over an idle connection. None: there is none, and nothing was executed."""
        address = self._router.target(retrying)
        if address is None:
            return None
        pool = self._router.node(address)
        connection = pool.take_idle()
        if connection is None:
            return None
        try:
            fault = connection.send(retrying.packed(), deadline=retrying.deadline)
        except BaseException:
            pool.drop(connection)
            raise
        if fault is None:
            return address, pool, connection
        pool.drop(connection)
        return None

    def ask(self, address: str, command: Command[T], timeout: float) -> T | Fault:
        """Sends one plain command to a node, whatever it serves, and only once."""
        self._router.check_open()
        deadline = time.monotonic() + timeout
        packed = command.packed()
        answer: Any = self._with_connection(
            address, deadline, lambda connection: connection.exchange(packed, deadline=deadline)
        )
        if isinstance(answer, Fault):
            return answer
        return of_reply(answer.text, asked=address) if isinstance(answer, ErrorReply) else command.decode(answer)

    # ---- who serves what

    def refresh(self, doubted: str = "") -> None:
        """Learns the slot map now, from the node ``doubted`` last. Raises a ServerFault if no node can tell."""
        self._router.refresh(doubted)

    def on_new_map(self, follower: Callable[[], object]) -> Callable[[], None]:
        """Calls ``follower`` whenever a slot map was learnt; it must not block. Returns a function that ends this."""
        return self._router.on_new_map(follower)

    def connections(self) -> dict[str, ConnectionCounts]:
        """The number of connections open to each node, and their bound."""
        return self._router.connections()


class DedicatedConnection:
    """A poller's own connection. ``call`` is for one thread; ``interrupt`` for any, and for good."""

    def __init__(self, router: NodeRouter, slot: int) -> None:
        self.slot = slot
        self._router = router
        self._connection: Connection | None = None
        self._connected_at = 0.0
        self.connects = 0
        """The number of times it has connected. The same before and after two calls: they went over one connection."""
        self._interrupted = threading.Event()

    def call(self, call: Command[T], timeout: float | None = None, deadline: float | None = None) -> T:
        """Like ``Driver.call``, on this connection, which follows the call's slot."""
        self._check()
        try:
            return carry(call, self._router, self._trip, self._sleep, timeout, deadline)
        except TooManyOpenFiles:
            raise
        except (Unanswered, Unavailable):
            # A node that hangs takes all the time a call has: the next call must not go there again if another node
            # serves.
            self._check()
            step = RetryStep(refresh=True, doubted=self._router.map.node(call.slot) or "")
            self._router.act(step, math.inf if deadline is None else deadline)
            raise

    def interrupt(self) -> None:
        """Ends the call in flight, and refuses all others with EngineClosed."""
        self._interrupted.set()
        connection = self._connection
        if connection is not None:
            connection.interrupt()

    def close(self) -> None:
        """Closes the connection; for the thread that calls."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _trip(self, retrying: RetryingCall[Any], address: str) -> Any:
        connection = self._connection
        if connection is None or connection.address != address or connection.dead(time.monotonic()):
            self.close()
            connected = self._router.connect(address, retrying.deadline)
            if isinstance(connected, Fault):
                self._check()
                return connected
            self._connection = connection = connected
            self._connected_at = time.monotonic()
            self.connects += 1
        while self._router.is_held(address, self._connected_at):
            if time.monotonic() >= retrying.deadline:
                return unconnected(time.monotonic() - self._connected_at)
            self._sleep(HELD_LOOK_S)
        self._check()  # After the connection is in place: interrupt() sees it, or we see the interrupt.
        try:
            answer = connection.exchange(retrying.packed(), deadline=retrying.deadline, answers=retrying.answers)
        except BaseException:
            self.close()
            raise
        if isinstance(answer, Fault):
            self.close()
            self._check()
        return answer

    def _sleep(self, seconds: float) -> None:
        self._interrupted.wait(seconds)
        self._check()

    def _check(self) -> None:
        self._router.check_open()
        if self._interrupted.is_set():
            raise EngineClosed("this connection was interrupted because its poller stops")

    def __repr__(self) -> str:
        connection = self._connection
        where = connection.address if connection is not None and connection.open else "not connected"
        return f"DedicatedConnection(slot {self.slot}, {where})"


class BorrowedConnections:
    """One user's connections for several calls in a row, for one thread. Made by ``Driver.borrow``."""

    def __init__(self, router: NodeRouter, deadline: float) -> None:
        self._router = router
        self.deadline = deadline
        """The end of all calls."""
        self._connections: dict[str, tuple[ConnectionPool, Connection]] = {}
        self.connects: Counter[str] = Counter()
        """The number of connections it has had to each node. The same after two calls: they went over one."""
        self.address = ""
        """The node of the last answer."""

    def call(self, call: Command[T]) -> T:
        """Like ``Driver.call``, always on the same connection to a node while that is open."""
        self._router.check_open()
        return carry(call, self._router, self._trip, time.sleep, deadline=self.deadline)

    def close(self) -> None:
        """Gives all connections back."""
        connections, self._connections = self._connections, {}
        for node, connection in connections.values():
            node.give(connection)

    def _trip(self, retrying: RetryingCall[Any], address: str) -> Any:
        connection = self._connection(address, retrying.deadline)
        if isinstance(connection, Fault):
            return connection
        try:
            answer = connection.exchange(retrying.packed(), deadline=retrying.deadline, answers=retrying.answers)
        except BaseException:
            self._drop(address)
            raise
        if isinstance(answer, Fault):
            self._drop(address)
        self.address = address
        return answer

    def _connection(self, address: str, deadline: float) -> Connection | Fault:
        if time.monotonic() >= deadline:
            return OVERDUE
        if address in self._connections:
            connection = self._connections[address][1]
            if not connection.dead(time.monotonic()):
                return connection
            self._drop(address)
        node = self._router.node(address)
        taken = node.take(deadline)
        if isinstance(taken, Connection):
            self._connections[address] = node, taken
            self.connects[address] += 1
        return taken

    def _drop(self, address: str) -> None:
        node, connection = self._connections.pop(address)
        node.drop(connection)


def carry(
    call: Command[T],
    router: NodeRouter,
    trip: Callable[[RetryingCall[Any], str], Any],
    sleep: Callable[[float], object],
    timeout: float | None = None,
    deadline: float | None = None,
) -> T:
    """Sends a call until it is answered or its time is over. ``trip`` makes one try at a node."""
    timeout_s = router.settings.timeout if timeout is None else timeout
    return _carried(RetryingCall(call, timeout=timeout_s, deadline=deadline), router, trip, sleep)


def _carried(
    retrying: RetryingCall[T],
    router: NodeRouter,
    trip: Callable[[RetryingCall[Any], str], Any],
    sleep: Callable[[float], object],
    begun: BegunCall[T] | None = None,
) -> T:
    while True:
        address: str | None
        if begun is not None:
            address, answer, begun = begun.address, begun.receive(), None
        else:
            address = router.target(retrying)
            answer = unserved(retrying.request.slot) if address is None else trip(retrying, address)
        if not isinstance(answer, (ErrorReply, Fault)):
            return router.result(retrying, answer, address or "")
        step = router.failed_with(answer, retrying, address)
        router.act(step, retrying.deadline)
        if step.backoff_s:
            sleep(step.backoff_s)
