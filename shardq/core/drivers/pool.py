"""The connections of the sync driver to one node: lent, given back, and bounded in number."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from shardq.core.drivers.connection import Connection
from shardq.core.drivers.faults import OVERDUE, Fault, dropped, exhausted, unconnected

# The threads that connect at a time. Others wait for them, or for a connection that is given back: where a hundred
# threads connected at once, all were so slow on a busy machine that their time ran out, and they began again.
CONNECTING = 8


class ConnectionPool:
    """The shared connections to one node: last in, first out, and bounded. Every ``take`` is followed by one ``give``
    or ``drop``.

    A node that hangs takes a connection and says nothing for as long as ``connect_timeout``. So while it is not known
    if the node answers, one thread connects, and the others wait for the outcome and share its fault.
    """

    def __init__(self, address: str, *, bound: int, connect: Callable[[str, float], Connection | Fault]) -> None:
        self.address = address
        self.bound = bound
        self.open: int = 0  # the number of connections, idle and in use. Never above bound.
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
                    break
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
        if connection is not None:
            if connection.provided is None or self._renewed(connection):
                return connection
            return self.take(deadline, wait=wait)  # no idle one is left
        connected = self._connect(deadline)
        if isinstance(connected, Connection) and time.monotonic() >= deadline:
            self.give(connected)
            return OVERDUE
        return connected

    def take_idle(self) -> Connection | None:
        """Returns an idle connection, if there is one."""
        with self._free:
            idle = self._live_idle(time.monotonic())
        return idle if idle is None or idle.provided is None or self._renewed(idle) else None

    def _renewed(self, taken: Connection) -> bool:
        """True if a connection has the newest credentials. Else it is dropped."""
        renewed = False
        try:
            renewed = taken.renewed()
        finally:
            if not renewed:
                self.drop(taken)
        return renewed

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

    def give(self, connection: Connection, answer: object = None) -> None:
        """Takes back a connection of which every answer has been read. ``answer``: the last one; after a fault the
        connection is dropped.
        """
        if not isinstance(answer, Fault):
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
