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
import time
from collections import deque
from collections.abc import Callable, Generator
from threading import get_ident
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
from shardq.core.locks import Permit, Permits, raised_by_handler

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

    __slots__ = (
        "__weakref__", "_is_plain", "address", "in_step", "login", "place", "provided", "reader", "sock", "used",
    )  # fmt: skip

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
        self.in_step: bool = True
        """False from before anything is sent until every answer is read: what comes next may answer an earlier call."""
        self.place: Permit = Permit(is_extra=True)
        """Its place among the shared connections to its node, where it is one of them."""

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
            if raised_by_handler(exc):
                raise
            return of_exception(exc, sent=True)
        return self._received(wait, deadline, 1)

    def _sent(self, data: bytes, wait: float) -> Fault | None:
        """Sends, and leaves a socket whose reads take no longer than ``wait``."""
        sock, left, self.in_step = self.sock, data, False
        try:
            self._bound(wait)
            if self._is_plain:
                # sendall would first ask if there is room: one system call more
                with contextlib.suppress(BlockingIOError):
                    left = data[os.write(sock.fileno(), data) :]
            if left:
                sock.sendall(left)
        except (OSError, ValueError) as exc:
            if raised_by_handler(exc):
                raise
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
                    self.in_step = True
                    self.used = time.monotonic()
                    return answer
        except (OSError, ValueError, HiredisError) as exc:
            if raised_by_handler(exc):
                raise
            return timed_out(wait) if isinstance(exc, TimeoutError) else of_exception(exc, sent=True)

    def _last_word(self) -> Fault | None:
        """The server's reason for ending the connection, if it told one: perhaps while we were sending."""
        try:
            self.sock.settimeout(0)
            self.reader.feed(self.sock.recv(CHUNK))
            said = self.reader.gets()
        except ssl.SSLError as exc:
            return None if isinstance(exc, ssl.SSLWantReadError | ssl.SSLEOFError) else of_exception(exc, sent=False)
        except (OSError, ValueError, HiredisError) as exc:
            if raised_by_handler(exc):
                raise
            return None
        fault = of_reply(said.text, asked=self.address) if isinstance(said, ErrorReply) else None
        # It was no answer to us: the next connection may well be served.
        return fault if fault is not None and fault.reaction is Reaction.WAIT else None

    def dead(self, now: float) -> bool:
        """True if the server has closed it, if it is out of step, or if it holds bytes that answer nothing."""
        return not self.in_step or (now - self.used > LOOK_AFTER_S and readable(self.sock))

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
        try:
            self.sock.close()
        except OSError as exc:
            if raised_by_handler(exc):
                raise


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
        except Exception as exc:  # that of the user's own code, or a TimeoutError
            if raised_by_handler(exc):
                raise
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
        except OSError as exc:
            if raised_by_handler(exc):
                raise
            return b""


_Found = Connection | Fault | tuple[Permit, Permit]


class ConnectionPool:
    """The shared connections to one node: last in, first out, and bounded. Every ``take`` is followed by one ``give``
    or ``drop``, or by an ``abandon``; a connection whose user was interrupted before that is closed with its last
    reference.

    A node that hangs takes a connection and says nothing for as long as ``connect_timeout``. So while it is not known
    if the node answers, one thread connects, and the others wait for the outcome and share its fault. A thread that has
    a connection already waits for nobody, as it could wait for itself: the handler of a signal that interrupted it gets
    one beyond the bound if none is left, which is closed when it is given back.
    """

    def __init__(self, address: str, *, bound: int, connect: Callable[[str, float], Connection | Fault]) -> None:
        self.address = address
        self.bound = bound
        self._new_connection = connect
        self._closed = False
        self._idle: deque[Connection] = deque()
        self._answers = False
        """True if the last attempt to connect succeeded and no connection has failed since. Some threads may connect at
        once then.
        """
        self._refused: tuple[Fault] | None = None
        """The fault of the last attempt to connect that failed: each in a tuple of its own, by which it is known."""
        self._set_up()

    def _set_up(self) -> None:
        self._places = Permits(self.bound)
        """One for each connection, idle and in use, and for each that is being made."""
        self._attempts = Permits(CONNECTING)
        self._waiting = self._places.waiting

    @property
    def open(self) -> int:
        """The number of connections, idle and in use. Never above the bound."""
        return len(self._places)

    def take(self, deadline: float, *, wait: bool = True) -> Connection | Fault:
        """Returns an idle connection, a new one, or the next one that another thread gives back in time.

        A caller that holds connections to other nodes must not ``wait``: two such threads could wait for each other.
        """
        began = time.monotonic()
        if began >= deadline:
            return OVERDUE
        while True:
            connection = self._live_idle(began)
            if connection is None:
                return self._found(deadline, began, wait=wait)
            if connection.provided is None or self._renewed(connection):
                connection.place.holder = get_ident()
                return connection

    def take_idle(self) -> Connection | None:
        """Returns an idle connection, if there is one. Any thread may use it."""
        idle = self._live_idle(time.monotonic())
        return idle if idle is None or idle.provided is None or self._renewed(idle) else None

    def _found(self, deadline: float, began: float, *, wait: bool) -> Connection | Fault:
        """A connection where none is idle."""
        before, room = self._refused, True

        def found() -> _Found | None:
            """A connection, a fault, or the permits to make one."""
            nonlocal room
            if (connection := self._live_idle(time.monotonic())) is not None:
                return connection
            if self._closed:
                return dropped(self.address)
            if self._refused is not None and self._refused is not before:
                return self._refused[0]
            room = len(self._places) < self.bound
            attempt = self._attempts.take((CONNECTING if self._answers else 1) if wait else self.bound)
            if attempt is None:
                return None
            if (place := self._places.take()) is not None:
                return place, attempt
            self._attempts.give(attempt)
            return None

        it: _Found | None
        if not wait:
            it = found()
        elif not self._places.held_here:
            it = self._waiting.until(found, deadline)
        elif (it := found()) is None:
            it = Permit(is_extra=True), Permit(is_extra=True)
        if it is None:
            return unconnected(time.monotonic() - began) if room else exhausted(self.address, self.bound)
        if isinstance(it, Fault):
            return it
        if isinstance(it, Connection):
            if it.provided is not None and not self._renewed(it):
                return self.take(deadline, wait=wait)  # no idle one is left
            it.place.holder = get_ident()
            return it
        connected = self._connect(deadline, *it)
        if isinstance(connected, Connection) and time.monotonic() >= deadline:
            self.give(connected)
            return OVERDUE
        return connected

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
        while True:
            try:
                connection = self._idle.pop()
            except IndexError:
                return None
            if not connection.dead(now):
                return connection
            self.abandon(connection)

    def _connect(self, deadline: float, place: Permit, attempt: Permit) -> Connection | Fault:
        """Makes a new connection, for which there is a place, and tells those who wait."""
        connected: Connection | Fault | None = None
        try:
            connected = self._new_connection(self.address, deadline)
            if isinstance(connected, Connection):
                connected.place = place
            else:
                self._refused = (connected,)
        finally:
            self._answers = isinstance(connected, Connection)
            if not self._answers:
                self._places.give(place)
            self._attempts.give(attempt)
            self._waiting.wake_all()
        return connected

    def give(self, connection: Connection) -> None:
        """Takes a connection back. One that is out of step, after a fault or without the answers to what was sent, is
        dropped.
        """
        place = connection.place
        if not connection.in_step:
            self.drop(connection)
        elif place.is_extra:
            self.abandon(connection)
        else:
            place.holder = 0
            self._idle.append(connection)
            if self._waiting.bells:
                self._waiting.wake()
            if self._closed:
                self.drop_idle()

    def forked(self) -> None:
        """Called in the child of a fork: a holder of a connection of the parent's can still hand it back."""
        self._set_up()

    def drop(self, connection: Connection) -> None:
        """Closes a connection that is out of step, or dead. Idle ones have most likely died with it."""
        self._answers = False
        self.abandon(connection)
        self.drop_idle()

    def abandon(self, connection: Connection) -> None:
        """Closes a connection for itself alone: its user was interrupted, which says nothing of the others."""
        connection.close()
        self._places.give(connection.place)

    def drop_idle(self) -> None:
        """Closes the idle connections."""
        for _ in range(len(self._idle)):
            try:
                connection = self._idle.popleft()
            except IndexError:
                return
            self.abandon(connection)

    def close(self) -> None:
        """Closes the idle connections, and each of the others when it comes back. No thread waits for more."""
        self._closed = True
        self._waiting.wake_all()
        self.drop_idle()

    def __repr__(self) -> str:
        return f"ConnectionPool({self.address}: {self.open} of {self.bound} open, {len(self._idle)} idle)"
