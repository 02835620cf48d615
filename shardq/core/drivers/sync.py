"""The driver for threads: carries calls to the node that serves their slot, whatever that takes.

Engines, producers and consumers use ``Driver``; ``owned`` has the connections of pollers, and those on loan. ``retry``
decides about retries, ``router`` learns the slot map; this module sends and waits. The asyncio twin is ``aio``.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

from shardq.core.calls.request import Call, Command
from shardq.core.drivers.connection import FINISH_S, Connection
from shardq.core.drivers.faults import ErrorReply, Fault, of_connecting, of_reply
from shardq.core.drivers.generators import drive
from shardq.core.drivers.outages import Outages
from shardq.core.drivers.owned import BegunCall, BorrowedConnections, DedicatedConnection
from shardq.core.drivers.pipelines import Pipelines
from shardq.core.drivers.pubsub import PubSubConnection
from shardq.core.drivers.replicas import CONVERSATION_S, Confirmation
from shardq.core.drivers.retry import Deadline, RetryingCall, Spare, explained
from shardq.core.drivers.router import ConnectionCounts, ConnectionPool, NodeRouter
from shardq.core.drivers.routing import DriverBase
from shardq.core.drivers.settings import Settings
from shardq.errors import ShardqError, Unavailable

K = TypeVar("K")
T = TypeVar("T")


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
        timeout_s = self.settings.timeout if timeout is None else timeout
        return self._router.carry(RetryingCall(call, timeout=timeout_s, deadline=deadline), self._trip)

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
        return self._router.carry(begun.retrying, self._trip, first=(begun.address, begun.receive()))

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
