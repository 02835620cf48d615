"""Connections of the sync driver: send bytes, read answers, close; and the pool of those to one node.

A connection raises nothing for what happens on it: an exchange returns an answer, an ``ErrorReply`` or a ``Fault``.
After a ``Fault`` it is out of step with the server and must be closed.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import ssl
import threading
import time
from collections.abc import Callable, Generator
from typing import Any, TypeVar

from hiredis import HiredisError, Reader

from shardq.core.drivers.conversations import Exchange, drive, handshake, renewal
from shardq.core.drivers.credentials import NOBODY, Credentials, Provided
from shardq.core.drivers.faults import (
    OVERDUE,
    ErrorReply,
    Fault,
    Reaction,
    dropped,
    exhausted,
    of_exception,
    of_provider,
    of_reply,
    timed_out,
    unconnected,
)
from shardq.core.drivers.settings import Settings
from shardq.core.drivers.sockets import INCOMPLETE, connect, open_socket, reader

T = TypeVar("T")

# A server that says nothing for this long is taken for dead, and the call is sent again. No script of ours
# works for more than some milliseconds; a slow disk or a big MIGRATE can stop a server for a second.
READ_TIMEOUT_S = 5.0
# Enough for most answers in one read.
CHUNK = 65536
# A connection unused for this long is checked before it is used. The check costs two microseconds; a connection found
# closed before sending leaves no doubt whether the call was executed.
LOOK_AFTER_S = 0.01
# After Ctrl-C, answers that say what the caller was given are read for this long at most: many times what a live server
# takes, and short enough for a user who waits.
FINISH_S = 0.5
# A socket's timeout may be longer than asked for by this. Changing it is a system call, and in each system call the
# interpreter goes to another thread of the process, of which a process full of consumers has many.
SLACK_S = 0.01
# A connection that can't be given newer credentials within this time is made anew.
RENEWAL_S = 1.0
# The threads that connect at a time. Others wait for them, or for a connection that is given back: where a hundred
# threads connected at once, all were so slow on a busy machine that their time ran out, and they began again.
CONNECTING = 8


class Connection:
    """An authenticated connection to one node, for one user at a time."""

    __slots__ = ("__weakref__", "_is_plain", "address", "login", "provided", "reader", "sock", "used")

    def __init__(
        self, sock: socket.socket, address: str, login: Credentials = NOBODY, provided: Provided | None = None
    ) -> None:
        self.sock: socket.socket = sock
        self.address: str = address
        self.login: Credentials = login  # the credentials that it was given last
        self.provided: Provided | None = provided  # gives the newer credentials, where they run out
        self._is_plain = not isinstance(sock, ssl.SSLSocket)
        self.reader: Reader = reader()
        self.used: float = time.monotonic()

    def exchange(self, data: bytes, *, deadline: float, answers: int = 1) -> Any:
        """Sends, and reads the last of ``answers`` answers: a value, an ``ErrorReply``, or a ``Fault``."""
        left = deadline - time.monotonic()
        wait = READ_TIMEOUT_S if left > READ_TIMEOUT_S else max(left, 0.001)
        return self._sent(data, wait) or self._received(wait, deadline, answers)

    def send(self, data: bytes, *, deadline: float) -> Fault | None:
        """Sends what ``receive`` reads the answer to."""
        return self._sent(data, max(0.001, min(READ_TIMEOUT_S, deadline - time.monotonic())))

    def converse(self, conversation: Generator[Exchange, Any, T], *, deadline: float) -> T:
        """Holds a conversation. Returns its result."""
        return drive(conversation, lambda trip: self.exchange(trip.data, deadline=deadline, answers=trip.answers))

    def receive(self, wait: float) -> Any:
        """The next answer to what was sent before."""
        wait = max(wait, 0.001)
        deadline = time.monotonic() + wait
        try:
            self._bound(wait)
        except (OSError, ValueError) as exc:
            return of_exception(exc, sent=True)
        return self._received(wait, deadline, 1)

    def _sent(self, data: bytes, wait: float) -> Fault | None:
        """Sends, and leaves a socket whose reads take no longer than ``wait``."""
        sock, left = self.sock, data
        try:
            self._bound(wait)
            if self._is_plain:
                # sendall would first ask if there is room: one system call more
                with contextlib.suppress(BlockingIOError):
                    left = data[os.write(sock.fileno(), data) :]
            if left:
                sock.sendall(left)
        except (OSError, ValueError) as exc:
            # What is sent in part is never executed: a failure here is one before sending.
            return self._last_word() or of_exception(exc, sent=False)
        return None

    def _bound(self, wait: float) -> None:
        """Sets the timeout of the socket, unless it is about that already."""
        timeout = self.sock.gettimeout()
        if timeout is None or not wait <= timeout <= wait + SLACK_S:
            self.sock.settimeout(wait)

    def _received(self, wait: float, deadline: float, answers: int) -> Any:
        """Reads the last of ``answers`` answers. The socket's timeout is that of its first read; a part of an answer
        does not put off the ``deadline``.
        """
        try:
            is_first = True
            while True:
                answer = self.reader.gets()
                while answer is INCOMPLETE:
                    if not is_first:
                        left = deadline - time.monotonic()
                        if left <= 0:
                            return timed_out(wait)
                        self._bound(min(left, wait))
                    is_first = False
                    chunk = self.sock.recv(CHUNK)
                    if not chunk:
                        return of_exception(ConnectionResetError("the server closed the connection"), sent=True)
                    self.reader.feed(chunk)
                    answer = self.reader.gets()
                answers -= 1
                if not answers:
                    self.used = time.monotonic()
                    return answer
        except TimeoutError:
            return timed_out(wait)
        except (OSError, ValueError, HiredisError) as exc:
            return of_exception(exc, sent=True)

    def _last_word(self) -> Fault | None:
        """The server's reason for ending the connection, if it told one: perhaps while we were sending."""
        try:
            self.sock.settimeout(0)
            self.reader.feed(self.sock.recv(CHUNK))
            said = self.reader.gets()
        except ssl.SSLError as exc:
            return None if isinstance(exc, ssl.SSLWantReadError | ssl.SSLEOFError) else of_exception(exc, sent=False)
        except (OSError, ValueError, HiredisError):
            return None
        fault = of_reply(said.text, asked=self.address) if isinstance(said, ErrorReply) else None
        # It was no answer to us: the next connection may well be served.
        return fault if fault is not None and fault.reaction is Reaction.WAIT else None

    def dead(self, now: float) -> bool:
        """True if the server has closed it, or if it holds bytes that answer nothing."""
        return now - self.used > LOOK_AFTER_S and readable(self.sock)

    @property
    def outdated(self) -> bool:
        """True if there are newer credentials than it has."""
        return self.provided is not None and self.provided.newer(self.login) is not None

    def renewed(self) -> bool:
        """Gives it the newest credentials, if it has others. Returns True unless that fails: then it is of no use."""
        newest = None if self.provided is None else self.provided.newer(self.login)
        if newest is None:
            return True
        trip = renewal(newest)
        try:
            answer = self.exchange(trip.data, deadline=time.monotonic() + RENEWAL_S)
        except BaseException:
            self.close()  # an answer may come that is not the next call's
            raise
        if answer != b"OK":
            return False
        self.login = newest
        return True

    def interrupt(self) -> None:
        """Makes a blocked exchange of another thread end at once."""
        with contextlib.suppress(OSError):
            # Not the TLS socket's own way, which takes its state from under the reading thread.
            socket.socket.shutdown(self.sock, socket.SHUT_RDWR)

    @property
    def open(self) -> bool:
        return self.sock.fileno() >= 0

    def close(self) -> None:
        """Gives the descriptor back. Sends nothing, so that the child of a fork can call it too."""
        with contextlib.suppress(OSError):
            self.sock.close()


def open_connection(
    settings: Settings,
    address: str,
    *,
    timeout: float,
    protocol: int | None = None,
    sentinel: bool = False,
    node_id: str | None = None,
) -> Connection | Fault:
    """Connects and shakes hands, or returns why that failed. ``node_id``: see ``conversations.handshake``."""
    deadline = time.monotonic() + timeout
    login, provided = settings.access(sentinel=sentinel)
    if provided is not None:
        try:
            login = provided.ask().result(timeout)
        except Exception as exc:  # noqa: BLE001  that of the user's own code, or a TimeoutError
            return of_provider(exc)
    sock = open_socket(settings, address, deadline=deadline)
    if isinstance(sock, Fault):
        return sock
    connection = Connection(sock, address, login, provided)
    steps = handshake(settings, login, protocol=protocol or settings.protocol, sentinel=sentinel, node_id=node_id)
    try:
        fault = connection.converse(steps, deadline=deadline)
    except BaseException:
        connection.close()
        raise
    if fault is None:
        return connection
    connection.close()
    return fault


def readable(sock: socket.socket) -> bool:
    """True if there are bytes to read, or the end. (No ``select``: it can't look at descriptors past 1,023.)"""
    poll = select.poll()
    try:
        poll.register(sock, select.POLLIN)
    except ValueError:  # closed
        return True
    return bool(poll.poll(0))


def probe(address: str, data: bytes, *, timeout: float) -> bytes:
    """The first answer to some bytes on a bare connection; empty if none comes in time."""
    deadline = time.monotonic() + timeout
    sock = connect(address, deadline=deadline)
    if isinstance(sock, Fault):
        return b""
    with sock:
        try:
            sock.settimeout(max(0.001, deadline - time.monotonic()))
            sock.sendall(data)
            return sock.recv(CHUNK)
        except OSError:
            return b""


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
