"""The driver for threads: carries calls to the node that serves their slot, whatever that takes.

``router`` has the calls that are carried one at a time, ``pipelines`` those that are carried together, and ``owned``
the connections of pollers and subscribers, and those on loan. The asyncio twin is ``aio``.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

from shardq.core.calls.request import Call, Command
from shardq.core.drivers.connection import Connection, ConnectionPool
from shardq.core.drivers.conversations import drive
from shardq.core.drivers.faults import ErrorReply, Fault, of_connecting, of_reply
from shardq.core.drivers.owned import BegunCall, BorrowedConnections, DedicatedConnection, PubSubConnection
from shardq.core.drivers.pipelines import Pipelines
from shardq.core.drivers.replica_tracker import CONVERSATION_S, Confirmation
from shardq.core.drivers.retry import Deadline, RetryingCall, Spare, explained
from shardq.core.drivers.router import NodeRouter
from shardq.core.drivers.together import converse_together
from shardq.errors import ShardqError, Unavailable

K = TypeVar("K")
T = TypeVar("T")


class Driver(NodeRouter):
    """Calls, from any thread, to one server, the master of a service, or the masters of a cluster."""

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
        hold back the calls of another. An iterator that has none left is asked again after an answer. ``timeout`` is
        for all of them, and ends at the ``deadline`` if there is one. ``spare``: when to give up calls although they
        have time.
        """
        self.check_open()
        timeout_s = self.settings.timeout if timeout is None else timeout
        if deadline is None:
            deadline = time.monotonic() + timeout_s
        return Pipelines(calls, self, timeout=timeout_s, deadline=deadline, spare=self.spare(spare)).run()

    def begin(self, call: Command[T]) -> BegunCall[T] | None:
        """Sends a call now, for ``finish`` to read its answer. None: no connection is idle, nothing was sent.

        The calls begun of all callers have a quarter of a node's connections.
        """
        self.check_open()
        permit, sent = self.begun.take(), None
        if permit is None:
            return None
        try:
            retrying = RetryingCall(call, timeout=self.settings.timeout)
            sent = self._sent(retrying)
        finally:
            if sent is None:
                self.begun.give(permit)
        return None if sent is None else BegunCall(retrying, *sent, partial(self.begun.give, permit))

    def finish(self, begun: BegunCall[T], deadline: float | None = None) -> T:
        """Reads the answer of a call that was begun, and decodes it; carries the call out like any other if it met a
        fault. ``deadline``: the end of the command that needs it.
        """
        if deadline is not None:
            begun.retrying.bound(deadline)
        return self.carry(begun.retrying, self._trip, first=(begun.address, begun.receive()))

    def confirm(
        self, seals: Sequence[Call[None]], deadline: float = math.inf, *, disk: bool = False
    ) -> dict[int, str | None]:
        """Asks if replicas have all that was written until now. Returns answers by slot, see ``operation.Confirm``."""
        self.check_open()
        return drive(self._replica_tracker.confirm(seals, self.node_of, disk=disk), partial(self._confirmed, deadline))

    def dedicated(self, slot: int, *, dispatches: bool = False) -> DedicatedConnection:
        """A connection of the caller's own to the master of this slot, wherever it moves. ``dispatches``: it is a
        poller's.
        """
        return DedicatedConnection(self, slot, dispatches=dispatches)

    @contextmanager
    def borrow(self, deadline: float) -> Iterator[BorrowedConnections]:
        """Shared connections for several calls in a row, at most one to each node.

        At most half of a node's connections are borrowed at a time: a borrower may wait for another one, and always
        gets it. Raises Unavailable when others keep theirs until the ``deadline``, which is that of all calls.
        """
        self.check_open()
        permit = self.borrowers.take_until(deadline)
        if permit is None:
            raise Unavailable(
                f"half of the {self.settings.connections} shared connections to a node are on loan, and none came back "
                f"within {self.settings.timeout:g} s; push durably from fewer threads at a time"
            )
        borrow = BorrowedConnections(self, deadline)
        try:
            yield borrow
        finally:
            borrow.close()
            self.borrowers.give(permit)

    def pubsub(self, node: str) -> PubSubConnection:
        """A connection of the caller's own, for a subscriber. Raises a ServerFault when it fails."""
        timeout = self.settings.connect_timeout
        connected = self.connect(node, time.monotonic() + timeout, protocol=2)
        if isinstance(connected, Connection):
            try:
                return PubSubConnection(connected)
            except OSError as exc:
                connected.close()
                connected = of_connecting(exc)
        raise connected.error(
            explained(connected, node, "the subscriber could not connect", timeout)
        ) from connected.cause

    def _confirmed(self, deadline: float, asked: Sequence[Confirmation]) -> list[str | Fault | None]:
        deadline = min(deadline, time.monotonic() + CONVERSATION_S)
        taken: list[tuple[ConnectionPool, Connection]] = []
        told: dict[str, str | Fault | None] = {}
        try:
            # in one order by all threads: so no two of them wait for a connection that the other one has
            for address in sorted(each.address for each in asked):
                pool = self.pool(address)
                connection = pool.take(deadline)
                if isinstance(connection, Fault):
                    told[address] = connection
                else:
                    taken.append((pool, connection))
            conversations = {each.address: each.conversation for each in asked}
            talks = [(connection, conversations[connection.address]) for _, connection in taken]
            results = converse_together(talks, deadline)
        except BaseException:
            for pool, connection in taken:
                pool.abandon(connection)
            raise
        for (pool, connection), result in zip(taken, results, strict=True):
            told[connection.address] = result
            pool.give(connection)
        return [told[each.address] for each in asked]

    def _with_connection(self, address: str, deadline: float, talk: Callable[[Connection], T | Fault]) -> T | Fault:
        """Talks to a node over a connection of its pool, which takes it back unless it failed."""
        pool = self.pool(address)
        connection = pool.take(deadline)
        if isinstance(connection, Fault):
            return connection
        try:
            answer = talk(connection)
        except BaseException:
            pool.abandon(connection)
            raise
        pool.give(connection)
        return answer

    def _sent(self, retrying: RetryingCall[Any]) -> tuple[str, ConnectionPool, Connection] | None:
        """Sends a call over an idle connection. None: there is none, and nothing was executed."""
        address = self.target(retrying)
        if address is None or (connection := (pool := self.pool(address)).take_idle()) is None:
            return None
        try:
            fault = connection.send(retrying.packed(), deadline=retrying.deadline)
        except BaseException:
            pool.abandon(connection)
            raise
        if fault is None:
            return address, pool, connection
        pool.drop(connection)
        return None

    def ask(self, address: str, command: Command[T], timeout: float) -> T | Fault:
        """Sends one plain command to a node, whatever it serves, and only once."""
        self.check_open()
        deadline = time.monotonic() + timeout
        packed = command.packed()
        answer: Any = self._with_connection(
            address, deadline, lambda connection: connection.exchange(packed, deadline=deadline)
        )
        if isinstance(answer, Fault):
            return answer
        return of_reply(answer.text, asked=address) if isinstance(answer, ErrorReply) else command.decode(answer)
