"""A client of HTTP/1.1 on asyncio, for many short requests at a time: connections that stay open, a bound for each host
and one for all, an answer of which little is read.

It connects to addresses that ``check_ip`` lets pass, and has the certificate verified for the name in the URL, so a
name that leads elsewhere at the next look-up leads nowhere. It follows no redirect, asks for no compression and undoes
none, and takes no cookie and no proxy.

A request ends within its timeout, whatever the other side does. It is sent once; and once more on a new connection if
the other side has closed a connection that was idle before any byte of an answer: it has not read the request then, or
died of it.

``connection`` carries a request, ``answer`` reads what comes back.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections import deque
from collections.abc import Callable, Mapping
from typing import NamedTuple

from shardq.core.drivers.aioconnection import connect_to_async, resolve_async
from shardq.core.drivers.settings import bracketed
from shardq.core.drivers.sockets import CheckIp, server_name
from shardq.errors import ShardqError
from shardq.features.sinks.answer import Answer
from shardq.features.sinks.connection import BUFFER, Connection, NoAnswer, TlsConnection

IDLE_S = 30.0
"""An idle connection is closed after so long: many servers and firewalls forget it soon after."""


class Server(NamedTuple):
    """The place of an endpoint. Connections are shared by what has the same."""

    scheme: str
    """``http`` or ``https``."""
    host: str
    """Without brackets."""
    port: int

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    @property
    def authority(self) -> str:
        """The header Host."""
        shown = bracketed(self.address)
        return shown.rpartition(":")[0] if self.port == (443 if self.scheme == "https" else 80) else shown


class Unreached(Exception):
    """No connection was made, so nothing was sent."""

    def __init__(self, why: OSError) -> None:
        super().__init__(str(why))
        self.why: OSError = why


class _Host:
    """The connections to one server."""

    __slots__ = ("busy", "idle", "server", "waiting")

    def __init__(self, server: Server) -> None:
        self.server = server
        self.busy = 0
        """The requests under way."""
        self.idle: list[Connection] = []
        """The one that was used last is the last."""
        self.waiting: deque[asyncio.Future[None]] = deque()
        """Those who wait for a place, one each."""


class Client:
    """Sends requests, over connections that it keeps open. For one event loop."""

    def __init__(
        self, *, most: int, most_of_host: int, check_ip: CheckIp, context: Callable[[], ssl.SSLContext]
    ) -> None:
        """``most``: connections, to all hosts together, and ``most_of_host`` to one. A request beyond either waits.
        ``check_ip`` raises for an address that must not be connected to. ``context``: for a new connection with TLS.
        """
        self._most, self._most_of_host = most, most_of_host
        self._check_ip, self._context = check_ip, context
        self._hosts: dict[Server, _Host] = {}
        self._waiting: dict[_Host, None] = {}
        """Those for which requests wait."""
        self._busy = 0
        self._buffer = memoryview(bytearray(BUFFER))
        self._connections: set[Connection] = set()
        self._idle: dict[Connection, _Host] = {}
        """The one that is idle for the longest time is the first."""
        self._sweep: asyncio.TimerHandle | None = None
        self._closed = False

    async def request(
        self,
        server: Server,
        method: str,
        target: str,
        headers: Mapping[str, str],
        body: bytes | None,
        *,
        timeout_s: float,
    ) -> Answer:
        """Sends a request, and returns its answer. Raises Unreached, NoAnswer, or what the two functions of the client
        raise.

        ``timeout_s`` is for all of it together but the wait for a place. A cancelled request closes its connection.
        """
        data = _request(server, method, target, headers, body)
        host = self._hosts.get(server)
        if host is None:
            host = self._hosts[server] = _Host(server)
        await self._take_place(host)
        try:
            return await self._answered(server, host, data, asyncio.get_running_loop().time() + timeout_s)
        finally:
            self._leave_place(host)

    async def close(self) -> None:
        """Closes all connections, and returns when they are closed. A request that is under way fails."""
        self._closed = True
        if self._sweep is not None:
            self._sweep.cancel()
        connections = list(self._connections)
        for connection in connections:
            connection.abort()
        for connection in connections:
            await connection.closed

    # ---- one request

    async def _answered(self, server: Server, host: _Host, data: bytes, deadline: float) -> Answer:
        connection = host.idle.pop() if host.idle else None
        if connection is not None:
            del self._idle[connection]
            try:
                answer = await connection.ask(data, deadline)
            except NoAnswer as exc:
                if isinstance(exc.why, TimeoutError) or not connection.is_unanswered:
                    raise
            else:
                self._keep(connection, host)
                return answer
        try:
            connection = await self._connect(server, deadline)
        except OSError as exc:
            raise Unreached(exc) from exc
        answer = await connection.ask(data, deadline)
        self._keep(connection, host)
        return answer

    def _keep(self, connection: Connection, host: _Host) -> None:
        if connection.is_open:
            connection.idle_since = now = asyncio.get_running_loop().time()
            host.idle.append(connection)
            self._idle[connection] = host
            if self._sweep is None:
                self._sweep = asyncio.get_running_loop().call_at(now + IDLE_S, self._close_idle)

    async def _connect(self, server: Server, deadline: float) -> Connection:
        while self._idle and self._busy + len(self._idle) > self._most:
            next(iter(self._idle)).abort()
        connection = self._new_connection(server)
        addresses = await resolve_async(server.address, deadline=deadline, check_ip=self._check_ip)
        sock = await connect_to_async(addresses, deadline=deadline)
        try:
            await asyncio.get_running_loop().create_connection(lambda: connection, sock=sock)
        except BaseException:
            sock.close()
            raise
        self._connections.add(connection)
        connection.closed.add_done_callback(lambda _: self._connections.discard(connection))
        if self._closed:
            connection.abort()
        if isinstance(connection, TlsConnection):
            try:
                async with asyncio.timeout_at(deadline):
                    await connection.shaken
            except BaseException:
                connection.abort()
                raise
        return connection

    def _new_connection(self, server: Server) -> Connection:
        if server.scheme != "https":
            return Connection(self._buffer, self._lost)
        try:
            return TlsConnection(self._buffer, self._lost, self._context(), server_name(server.address))
        except ValueError as exc:
            if isinstance(exc, ShardqError):
                raise
            raise OSError(f"its name can't be in a certificate: {exc}") from exc

    # ---- places and connections

    async def _take_place(self, host: _Host) -> None:
        if host.busy < self._most_of_host and self._busy < self._most:
            host.busy += 1
            self._busy += 1
            return
        turn = asyncio.get_running_loop().create_future()
        host.waiting.append(turn)
        self._waiting[host] = None
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                with contextlib.suppress(ValueError):
                    host.waiting.remove(turn)
                if not host.waiting:
                    self._waiting.pop(host, None)
                self._tidy(host)
            else:  # it had just got the place
                self._leave_place(host)
            raise

    def _leave_place(self, host: _Host) -> None:
        """Gives the place to the next request that may have it. Hosts for which requests wait take turns."""
        host.busy -= 1
        self._busy -= 1
        # at most ``most`` ÷ ``most_of_host`` of them have no place left
        while (next_host := next((each for each in self._waiting if each.busy < self._most_of_host), None)) is not None:
            del self._waiting[next_host]
            turn = next_host.waiting.popleft()
            if next_host.waiting:
                self._waiting[next_host] = None
            if not turn.done():  # else it was cancelled
                next_host.busy += 1
                self._busy += 1
                turn.set_result(None)
                break
        self._tidy(host)

    def _tidy(self, host: _Host) -> None:
        if not host.busy and not host.idle and not host.waiting and self._hosts.get(host.server) is host:
            del self._hosts[host.server]

    def _lost(self, connection: Connection) -> None:
        host = self._idle.pop(connection, None)
        if host is not None:
            host.idle.remove(connection)
            self._tidy(host)

    def _close_idle(self) -> None:
        now = asyncio.get_running_loop().time()
        while self._idle and (first := next(iter(self._idle))).idle_since <= now - IDLE_S:
            first.abort()
        self._sweep = None
        if self._idle:
            self._sweep = asyncio.get_running_loop().call_at(first.idle_since + IDLE_S, self._close_idle)


def _request(server: Server, method: str, target: str, headers: Mapping[str, str], body: bytes | None) -> bytes:
    """The bytes of a request. Raises ValueError for what would be read as something else."""
    head = f"{method} {target} HTTP/1.1\r\nHost: {server.authority}\r\nAccept-Encoding: identity\r\n"
    if body is not None:
        head += f"Content-Length: {len(body)}\r\n"
    head += "".join([f"{name}: {value}\r\n" for name, value in headers.items()]) + "\r\n"
    lines = 4 + len(headers) + (body is not None)
    if head.count("\n") != lines or head.count("\r") != lines:
        raise ValueError("a line break in a header or in the target of a request")
    data = head.encode("latin-1")
    return data if body is None else data + body
