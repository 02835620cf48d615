"""Connections of the sync driver that have one owner for a while: a poller's ``DedicatedConnection``, a subscriber's
``PubSubConnection``, the ``BorrowedConnections`` of a durable push, and that of a ``BegunCall``, whose answer is read
later. Made by ``sync``.
"""

from __future__ import annotations

import math
import select
import socket
import ssl
import threading
import time
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from shardq.core.calls.request import Command, pack
from shardq.core.drivers.connection import CHUNK, FINISH_S, READ_TIMEOUT_S, Connection, ConnectionPool
from shardq.core.drivers.conversations import Exchange
from shardq.core.drivers.faults import OVERDUE, ErrorReply, Fault, of_reply, unconnected
from shardq.core.drivers.retry import RetryingCall, RetryStep, explained
from shardq.core.drivers.router import NodeRouter
from shardq.core.drivers.sockets import INCOMPLETE
from shardq.core.locks import raised_by_handler
from shardq.errors import EngineClosed, TooManyOpenFiles, Unanswered, Unavailable

T = TypeVar("T")

HELD_LOOK_S = 0.005  # the time between two looks of a poller whose node is held


@dataclass(slots=True, eq=False)
class BegunCall(Generic[T]):
    """A call that was sent; the server works, and the caller does something else. The connection is its own until the
    answer is read, so few may be begun at a time. The answer is read in any thread, and exactly once: else the
    connection is lost to the pool.
    """

    retrying: RetryingCall[T]
    address: str
    _pool: ConnectionPool
    _connection: Connection
    _read: Callable[[], None]  # called when the answer was read

    def receive(self) -> Any:
        """Returns the answer, an ``ErrorReply`` or a ``Fault``. One that has come is read, however late it is."""
        left = min(self.retrying.deadline, self.silent_at) - time.monotonic()
        try:
            answer = self._connection.receive(left)
        except BaseException:
            self.leave()
            raise
        self._read()
        self._pool.give(self._connection)
        return answer

    @property
    def number(self) -> int:
        """Its file descriptor; -1 if it is closed."""
        return self._connection.sock.fileno()

    @property
    def silent_at(self) -> float:
        """The time at which its server is taken for dead."""
        return self.retrying.sent_at + READ_TIMEOUT_S

    def leave(self) -> None:
        """Takes the answer for a caller who was interrupted: it says what the caller was given."""
        if not self._connection.in_step:
            self.retrying.finished(self._connection.receive(FINISH_S))
        self._pool.abandon(self._connection)
        self._read()


def answered(calls: Sequence[BegunCall[Any]], until: float) -> Sequence[BegunCall[Any]]:
    """Waits for an answer to one of them. Returns those that have one, or all when the time is over."""
    poll = select.poll()
    by_number = {call.number: call for call in calls}
    if -1 in by_number:
        return calls
    for number in by_number:
        poll.register(number, select.POLLIN)
    left = min(until, *(call.silent_at for call in calls)) - time.monotonic()
    try:
        found = poll.poll(max(0.0, left) * 1000)
    except BaseException:
        for call in calls:
            call.leave()
        raise
    return [by_number[number] for number, _ in found] or calls


class DedicatedConnection:
    """A connection of one user's own. ``call`` is for one thread; ``interrupt`` for any, and for good."""

    def __init__(self, router: NodeRouter, slot: int, *, dispatches: bool) -> None:
        """``dispatches``: it is a poller's, which waits while its node is held."""
        self.slot = slot
        self._router = router
        self._dispatches = dispatches
        self._connection: Connection | None = None
        self._connected_at = 0.0
        self.connects: int = 0
        """The number of times it has connected. The same before and after two calls: they went over one connection."""
        self._interrupted = threading.Event()

    def call(self, call: Command[T], timeout: float | None = None, deadline: float | None = None) -> T:
        """Like ``Driver.call``, on this connection, which follows the call's slot."""
        self._check()
        try:
            timeout_s = self._router.settings.timeout if timeout is None else timeout
            retrying = RetryingCall(call, timeout=timeout_s, deadline=deadline)
            return self._router.carry(retrying, self._trip, self._sleep)
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
        if (
            connection is None
            or connection.address != address
            or connection.dead(time.monotonic())
            or (connection.provided is not None and not connection.renewed())
        ):
            self.close()
            connected = self._router.connect(address, retrying.deadline)
            if isinstance(connected, Fault):
                self._check()
                return connected
            self._connection = connection = connected
            self._connected_at = time.monotonic()
            self.connects += 1
        while self._dispatches and self._router.is_held(address, self._connected_at):
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
        self.deadline = deadline  # the end of all calls
        self._connections: dict[str, tuple[ConnectionPool, Connection]] = {}
        self.connects: Counter[str] = Counter()
        """The number of connections it has had to each node. The same after two calls: they went over one."""
        self.address: str = ""  # the node of the last answer

    def call(self, call: Command[T]) -> T:
        """Like ``Driver.call``, always on the same connection to a node while that is open."""
        retrying = RetryingCall(call, timeout=self._router.settings.timeout, deadline=self.deadline)
        return self._router.carry(retrying, self._trip)

    def converse(self, address: str, conversation: Generator[Exchange, Any, T]) -> T | Fault:
        """Holds a conversation on the same connection to a node. Returns its result, or why there is no connection."""
        connection = self._connection(address, self.deadline)
        if isinstance(connection, Fault):
            return connection
        try:
            result = connection.converse(conversation, deadline=self.deadline)
        except BaseException:
            node, connection = self._connections.pop(address)
            node.abandon(connection)
            raise
        if isinstance(result, Fault):
            self._drop(address)
        return result

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
            node, connection = self._connections.pop(address)
            node.abandon(connection)
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
            if not connection.dead(time.monotonic()) and (connection.provided is None or connection.renewed()):
                return connection
            self._drop(address)
        node = self._router.pool(address)
        taken = node.take(deadline)
        if isinstance(taken, Connection):
            self._connections[address] = node, taken
            self.connects[address] += 1
        return taken

    def _drop(self, address: str) -> None:
        node, connection = self._connections.pop(address)
        node.drop(connection)


class PubSubConnection:
    """A subscriber's connection: ``send`` and ``read`` are for one thread, ``wake`` for any.

    It speaks RESP2, where everything that arrives in subscribed mode is a plain list. It knows no channels; the
    subscriber does, and takes ``Unavailable`` as "refresh the slot map, and subscribe anew".
    """

    def __init__(self, connection: Connection) -> None:
        self.node: str = connection.address
        self._connection = connection
        self._sock = connection.sock
        self._woken, self._waker = socket.socketpair()
        self._waker.setblocking(False)
        self._poll = select.poll()
        self._poll.register(self._sock, select.POLLIN)
        self._poll.register(self._woken, select.POLLIN)

    def send(self, *words: str | bytes) -> None:
        """Sends one command. Its answers come from ``read``."""
        try:
            self._sock.settimeout(READ_TIMEOUT_S)
            self._sock.sendall(pack(*words))
        except OSError as exc:
            raise self._lost(str(exc)) from exc

    def read(self, timeout: float) -> list[Any] | None:
        """The next message, or None: nothing came within ``timeout`` seconds, or ``wake`` was called.

        Raises ``Unavailable`` when the connection is lost, the fitting ``ServerFault`` for an error answer.
        """
        deadline = time.monotonic() + timeout
        while True:
            message = self._connection.reader.gets()
            if message is not INCOMPLETE:
                return self._checked(message)
            # TLS may hold bytes already decrypted, which poll does not see
            if not (isinstance(self._sock, ssl.SSLSocket) and self._sock.pending()):
                left = max(0.0, deadline - time.monotonic())
                ready = {fd for fd, _ in self._poll.poll(left * 1000)}
                if self._woken.fileno() in ready:
                    self._woken.recv(CHUNK)
                    return None
                if not ready:
                    return None
            try:
                chunk = self._sock.recv(CHUNK)
            except OSError as exc:
                raise self._lost(str(exc)) from exc
            if not chunk:
                raise self._lost("the server closed the connection")
            self._connection.reader.feed(chunk)

    @property
    def renews(self) -> bool:
        """True if its credentials run out some time."""
        return self._connection.provided is not None

    @property
    def outdated(self) -> bool:
        """True if there are newer credentials than it has: it can't be given them while it is subscribed."""
        return self._connection.outdated

    def wake(self) -> None:
        """Makes ``read`` return now, or the next time it is called."""
        try:
            self._waker.send(b"!")
        except OSError as exc:  # full: it will wake anyway; closed: no thread reads
            if raised_by_handler(exc):
                raise

    def close(self) -> None:
        self._connection.close()
        self._woken.close()
        self._waker.close()

    def _checked(self, message: Any) -> list[Any]:
        if isinstance(message, ErrorReply):
            fault = of_reply(message.text, asked=self.node)
            raise fault.error(explained(fault, self.node, "the subscription was refused", READ_TIMEOUT_S))
        return message if isinstance(message, list) else [message]

    def _lost(self, text: str) -> Unavailable:
        return Unavailable(f"{self.node}: the subscriber's connection is lost: {text}; connect again")

    def __repr__(self) -> str:
        return f"PubSubConnection({self.node}, {'open' if self._connection.open else 'closed'})"
