"""Connections of the asyncio driver, each shared by any number of coroutines, and the pool of those to one node.

Calls made in one turn of the loop leave in one write, and answers are matched to calls by their order. A caller that is
cancelled or stops waiting keeps its place in that order: its answer is read and dropped.
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import time
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from typing import Any, TypeVar, cast

from hiredis import HiredisError

from shardq.core.drivers.connection import CHUNK, READ_TIMEOUT_S
from shardq.core.drivers.conversations import Exchange, adrive, handshake, renewal
from shardq.core.drivers.credentials import NOBODY, Credentials, Provided
from shardq.core.drivers.faults import (
    OVERDUE,
    Fault,
    dropped,
    of_connecting,
    of_exception,
    of_provider,
    of_resolving,
    of_tls,
    timed_out,
    unasked,
    unconnected,
)
from shardq.core.drivers.settings import Settings
from shardq.core.drivers.sockets import (
    INCOMPLETE,
    Address,
    CheckIp,
    context_of,
    known,
    look_up,
    new_socket,
    reader,
    server_name,
)

T = TypeVar("T")

# A connection carries any number of calls; more than one keeps small calls from waiting behind big ones.
MAX_CONNECTIONS = 4
# So many unanswered calls on the least busy connection are a reason to open another.
BUSY = 64


class AsyncConnection(asyncio.Protocol):
    """Raises nothing for what happens on it: ``exchange`` returns an answer, an ``ErrorReply`` or a ``Fault``."""

    def __init__(self, address: str, provided: Provided | None = None) -> None:
        self.address = address
        self.login: Credentials = NOBODY  # the credentials that it was given last
        self.provided: Provided | None = provided  # gives the newer credentials, where they run out
        self.open: bool = True
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport
        self._reader = reader()
        self._waiting: deque[asyncio.Future[Any] | None] = deque()
        """In the order of their answers. None: an answer to skip, of ASKING."""
        self._out: list[bytes] = []
        self._unsent = 0  # the number of calls at the end of _waiting whose bytes are still in _out
        self._heard = 0.0
        self._watch: asyncio.TimerHandle | None = None
        self._closed: asyncio.Future[None] = self._loop.create_future()
        self._why = of_exception(ConnectionResetError("the connection is closed"), sent=False)
        """The fault that ended it."""

    @property
    def load(self) -> int:
        """The number of calls without an answer."""
        return len(self._waiting)

    def renew(self) -> None:
        """Gives it the newest credentials, if it has others, before all that is sent from now on. It is closed where
        they are refused.
        """
        newest = None if self.provided is None else self.provided.newer(self.login)
        if newest is None:
            return
        self.login = newest
        trip = renewal(newest)
        answer = self.send(trip.data, deadline=self._loop.time() + READ_TIMEOUT_S)
        answer.when_received(lambda said: None if said == b"OK" else self.abort())

    async def exchange(self, data: bytes, *, deadline: float, answers: int = 1) -> Any:
        """Sends, and waits for the last of ``answers`` answers."""
        return await self.send(data, deadline=deadline, answers=answers).received()

    def send(self, data: bytes, *, deadline: float, answers: int = 1) -> Answer:
        """Sends at the end of this turn of the loop, or with ``flush``. The holder of the answer waits for it."""
        answer: asyncio.Future[Any] = self._loop.create_future()
        if not self.open:
            answer.set_result(self._why)
            return Answer(answer, None)
        now = self._loop.time()
        if now >= deadline:
            answer.set_result(OVERDUE)
            return Answer(answer, None)
        # First what needs the deepest stack, of which a caller may have little left: a place in the order of answers
        # must not be without its bytes, nor bytes without a call of ``flush``.
        expiry = self._loop.call_at(deadline, _expire, answer, deadline - now)
        if self._watch is None:
            self._watch = self._loop.call_later(READ_TIMEOUT_S, self._check_silence)
        if not self._out:
            self._loop.call_soon(self.flush)
        if not self._waiting:
            self._heard = now
        self._waiting.extend([None] * (answers - 1))
        self._waiting.append(answer)
        self._unsent += answers
        self._out.append(data)
        return Answer(answer, expiry)

    async def converse(self, conversation: Generator[Exchange, Any, T], *, deadline: float) -> T:
        """Holds a conversation. Returns its result."""
        return await adrive(
            conversation, lambda trip: self.exchange(trip.data, deadline=deadline, answers=trip.answers)
        )

    def abort(self) -> None:
        """Gives up what is under way; the loop closes the socket."""
        self._break(of_exception(ConnectionResetError("the connection was closed here"), sent=True))

    async def close(self) -> None:
        """Gives up what is under way, and waits until the socket is closed."""
        self.abort()
        await asyncio.shield(self._closed)

    def abandon(self) -> None:
        """Closes the descriptor where the loop can't be asked to: it has ended, or it is the parent's of a fork.

        The null device takes the descriptor's number until the transport forgets it. Whatever is still done to that
        number then harms no other file, and the parent's selector, which a child shares, does not lose the connection.
        """
        self.open = False
        sock = self._transport.get_extra_info("socket")
        if sock is None:  # uvloop closes its descriptors as it ends
            return
        null = os.open(os.devnull, os.O_RDWR)
        try:
            os.dup2(null, sock.fileno(), inheritable=False)
        finally:
            os.close(null)

    # ---- called by the loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def flush(self) -> None:
        """Writes what was sent until now."""
        out, self._out = self._out, []
        self._unsent = 0
        if out and self.open:
            self._transport.write(out[0] if len(out) == 1 else b"".join(out))

    def data_received(self, data: bytes) -> None:
        self._heard = self._loop.time()
        try:
            self._reader.feed(data)
            while (reply := self._reader.gets()) is not INCOMPLETE:
                if not self._waiting:  # an answer to no call
                    self._break(unasked(reply, self.address))
                    return
                answer = self._waiting.popleft()
                if answer is not None and not answer.done():
                    answer.set_result(reply)
        except HiredisError as exc:
            self._break(of_exception(exc, sent=True))

    def connection_lost(self, exc: Exception | None) -> None:
        self._break(of_exception(exc or ConnectionResetError("the server closed the connection"), sent=True))
        if not self._closed.done():
            self._closed.set_result(None)

    def _check_silence(self) -> None:
        """Breaks the connection to a server that is silent for too long."""
        self._watch = None
        if not self._waiting:
            return
        silent = self._loop.time() - self._heard
        if silent >= READ_TIMEOUT_S:
            self._break(timed_out(silent))
        else:
            self._watch = self._loop.call_later(READ_TIMEOUT_S - silent, self._check_silence)

    def _break(self, fault: Fault) -> None:
        """Closes, and tells everyone who waits. What was not written was not executed."""
        if self.open:
            self.open, self._why = False, fault.before_sending()
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None
        self._transport.abort()
        waiting, self._waiting = self._waiting, deque()
        unsent = len(waiting) - self._unsent
        for place, answer in enumerate(waiting):
            if answer is not None and not answer.done():
                answer.set_result(fault if place < unsent else fault.before_sending())
        self._out, self._unsent = [], 0


class Answer:
    """The answer to what was sent, once."""

    __slots__ = ("_answer", "_expiry")

    def __init__(self, answer: asyncio.Future[Any], expiry: asyncio.TimerHandle | None) -> None:
        self._answer = answer
        self._expiry = expiry

    def when_received(self, heard: Callable[[Any], object]) -> None:
        """Calls ``heard`` with it, in the place of a holder who waits."""

        def over(answer: asyncio.Future[Any]) -> None:
            if self._expiry is not None:
                self._expiry.cancel()
            if not answer.cancelled():
                heard(answer.result())

        self._answer.add_done_callback(over)

    async def received(self) -> Any:
        """Waits for it: a value, an ``ErrorReply``, or a ``Fault``."""
        try:
            return await self._answer
        finally:
            if self._expiry is not None:
                self._expiry.cancel()


def _expire(answer: asyncio.Future[Any], waited: float) -> None:
    if not answer.done():
        answer.set_result(timed_out(waited))


async def open_async_connection(
    settings: Settings, address: str, *, within: float, sentinel: bool = False, node_id: str | None = None
) -> AsyncConnection | Fault:
    """Connects and shakes hands within so many seconds, or returns why that failed. Raises InvalidUrl for TLS files
    only. ``node_id``: see ``conversations.handshake``.
    """
    deadline = asyncio.get_running_loop().time() + within
    login, provided = settings.access(sentinel=sentinel)
    if provided is not None:
        try:
            async with asyncio.timeout_at(deadline):
                login = await asyncio.shield(asyncio.wrap_future(provided.ask()))
        except Exception as exc:  # noqa: BLE001  that of the user's own code, or a TimeoutError
            return of_provider(exc)
    try:
        context = context_of(settings.tls) if settings.tls is not None else None
    except OSError as exc:  # no descriptor for its files
        return of_connecting(exc)
    sock = await connect_async(address, deadline=deadline)
    if isinstance(sock, Fault):
        return sock
    try:
        async with asyncio.timeout_at(deadline):
            connection = await _served(sock, address, context, provided)
    except (OSError, ValueError) as exc:  # ValueError: a name that can't be in a certificate
        return of_connecting(exc) if context is None and isinstance(exc, OSError) else of_tls(exc)
    connection.login = login
    steps = handshake(settings, login, protocol=settings.protocol, sentinel=sentinel, node_id=node_id)
    try:
        fault = await connection.converse(steps, deadline=deadline)
    except BaseException:
        await connection.close()
        raise
    if fault is None:
        return connection
    await connection.close()
    return fault


async def probe(address: str, data: bytes, *, within: float) -> bytes:
    """The first answer to some bytes on a bare connection; empty if none comes in time."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + within
    sock = await connect_async(address, deadline=deadline)
    if isinstance(sock, Fault):
        return b""
    with sock:
        try:
            async with asyncio.timeout_at(deadline):
                await loop.sock_sendall(sock, data)
                return await loop.sock_recv(sock, CHUNK)
        except OSError:
            return b""


async def connect_async(address: str, *, deadline: float) -> socket.socket | Fault:
    """A connected socket, with nothing sent on it yet."""
    try:
        addresses = await resolve_async(address, deadline=deadline)
    except OSError as exc:
        return of_resolving(exc, address)
    try:
        return await connect_to_async(addresses, deadline=deadline)
    except OSError as exc:
        return of_connecting(exc)


async def _served(
    sock: socket.socket, address: str, context: ssl.SSLContext | None, provided: Provided | None
) -> AsyncConnection:
    """The loop's connection on a socket, which is closed if that fails or is cancelled."""
    loop = asyncio.get_running_loop()
    try:
        if sock.family == socket.AF_UNIX:
            _, connection = await loop.create_unix_connection(lambda: AsyncConnection(address, provided), sock=sock)
        else:
            name = None if context is None else server_name(address)
            _, connection = await loop.create_connection(
                lambda: AsyncConnection(address, provided), sock=sock, ssl=context, server_hostname=name
            )
    except BaseException:
        sock.close()
        raise
    return connection


async def resolve_async(address: str, *, deadline: float, check_ip: CheckIp | None = None) -> list[Address]:
    """All addresses of a host. ``check_ip`` raises for one that must not be connected to."""
    addresses = known(address)
    if addresses is None:
        async with asyncio.timeout_at(deadline):
            addresses = await asyncio.wrap_future(look_up(address))
    for family, where in addresses:
        if check_ip is not None and family != socket.AF_UNIX:
            check_ip(where[0])
    return addresses


async def connect_to_async(addresses: list[Address], *, deadline: float) -> socket.socket:
    """A socket connected to the first address that accepts. Each try leaves time for those after it."""
    loop = asyncio.get_running_loop()
    last: OSError | None = None
    for place, (family, where) in enumerate(addresses):
        sock = new_socket(family)
        sock.setblocking(False)
        share = (deadline - loop.time()) / (len(addresses) - place)
        try:
            async with asyncio.timeout(share):
                await loop.sock_connect(sock, where)
            return sock
        except OSError as exc:
            sock.close()
            last = exc
        except BaseException:
            sock.close()
            raise
    raise last or OSError("the name has no address")


class AsyncConnectionPool:
    """The connections to one node: few, each shared by any number of calls. One attempt to connect at a time, in a
    task of its own; all who wait share its outcome.
    """

    def __init__(
        self, address: str, *, bound: int, connect: Callable[[str], Coroutine[Any, Any, AsyncConnection | Fault]]
    ) -> None:
        self.address = address
        self.bound: int = min(MAX_CONNECTIONS, bound)
        self._new_connection = connect
        self._connections: list[AsyncConnection] = []
        self._connecting: asyncio.Task[AsyncConnection | Fault] | None = None
        self._closed = False

    @property
    def open(self) -> int:
        return sum(connection.open for connection in self._connections)

    async def connection(self, deadline: float) -> AsyncConnection | Fault:
        """Returns the least busy connection, or waits for the first one. When all are busy another is made
        meanwhile.
        """
        ready = self.ready()
        if ready is not None:
            return ready
        if self._closed:
            return dropped(self.address)
        within = deadline - time.monotonic()
        if within <= 0:
            return self._best() or OVERDUE
        if self._connecting is None:
            self._connecting = asyncio.create_task(self._connect())
        return self._best() or await self._wait_for(self._connecting, within)

    def ready(self) -> AsyncConnection | None:
        """The least busy connection. None if there is none yet, or another is wanted."""
        best = self._best()
        if best is None or (best.load >= BUSY and self.open < self.bound):
            return None
        if best.provided is not None:
            best.renew()
        return best

    async def _wait_for(
        self, connecting: asyncio.Task[AsyncConnection | Fault], within: float
    ) -> AsyncConnection | Fault:
        """Waits for an attempt to connect. Others may wait for it, too: giving up does not end it."""
        await asyncio.wait((connecting,), timeout=within)
        if not connecting.done():
            return unconnected(within)
        return dropped(self.address) if connecting.cancelled() else connecting.result()

    async def _connect(self) -> AsyncConnection | Fault:
        try:
            connection = await self._new_connection(self.address)
        finally:
            self._connecting = None
        if isinstance(connection, AsyncConnection):
            self._connections.append(connection)
        return connection

    async def close(self) -> None:
        """Closes every connection; a caller that waits for one is told at once."""
        self._closed = True
        connecting = self._connecting
        if connecting is not None:
            connecting.cancel()
            await asyncio.wait((connecting,))
        for connection in self._connections:
            await connection.close()

    def _best(self) -> AsyncConnection | None:
        self._connections = [connection for connection in self._connections if connection.open]
        return min(self._connections, key=lambda connection: connection.load, default=None)

    def abort(self) -> None:
        """Closes every connection, and waits for none."""
        self._closed = True
        if self._connecting is not None:
            self._connecting.cancel()
        for connection in self._connections:
            connection.abort()

    def abandon(self) -> None:
        """Closes the descriptors of every connection, without its loop."""
        self._closed, self._connecting = True, None
        for connection in self._connections:
            connection.abandon()
