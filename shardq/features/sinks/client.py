"""A client of HTTP/1.1 on asyncio, for many short requests at a time: connections that stay open, a bound for each host
and one for all, an answer of which little is read.

It connects to addresses that ``check_ip`` lets pass, and has the certificate verified for the name in the URL, so a
name that leads elsewhere at the next look-up leads nowhere. It follows no redirect, asks for no compression and undoes
none, and takes no cookie and no proxy.

A request ends within its timeout, whatever the other side does. It is sent once; and once more on a new connection if
the other side has closed a connection that was idle before any byte of an answer: it has not read the request then, or
died of it.

``answer`` reads what comes back.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections import deque
from collections.abc import Callable, Mapping
from typing import NamedTuple, cast

from shardq.core.drivers.aioconnection import connect_to_async, resolve_async
from shardq.core.drivers.settings import bracketed
from shardq.core.drivers.sockets import CheckIp, server_name
from shardq.features.sinks.answer import Answer, AnswerReader, NotHttp

BUFFER = 16 << 10
"""Bytes that one read takes. With asyncio's own buffers, of 256 KiB for each read, a request takes twice the CPU."""
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


class NoAnswer(Exception):
    """The request was sent, and may have been executed, but no whole answer came."""

    def __init__(self, why: OSError | NotHttp) -> None:
        super().__init__(str(why))
        self.why: OSError | NotHttp = why
        """A TimeoutError if the time was over."""


class _Connection(asyncio.BufferedProtocol):
    """One connection, which carries one request at a time."""

    def __init__(self, buffer: memoryview, lost: Callable[[_Connection], object]) -> None:
        """``buffer`` may be that of others, too: what is read into it is taken at once."""
        self.is_open: bool = True
        self.idle_since: float = 0.0
        self._buffer = buffer
        self._lost = lost
        self._loop = asyncio.get_running_loop()
        self.closed: asyncio.Future[None] = self._loop.create_future()
        self._transport: asyncio.Transport
        self._reader = AnswerReader()
        self._answer: asyncio.Future[Answer] | None = None
        self._deadline = 0.0
        self._watch: asyncio.TimerHandle | None = None
        """Looks at the deadline. A timer for each request would cost more than what it watches."""
        self._why: OSError | NotHttp = ConnectionResetError("the other side has closed it")
        """Why it is not open any more."""

    @property
    def is_unanswered(self) -> bool:
        """True if no byte has come since the last request was sent."""
        return not self._reader.has_begun

    async def ask(self, request: bytes, deadline: float) -> Answer:
        """Sends a request. Raises NoAnswer. It is closed unless another one may follow."""
        self._reader = AnswerReader()
        if not self.is_open:
            raise NoAnswer(self._why)
        self._answer = self._loop.create_future()
        self._deadline = deadline
        if self._watch is None or self._watch.when() > deadline:
            self._look()
        self._transport.write(request)
        try:
            answer = await self._answer
            # a server that answers before it has all of a request seldom reads the rest
            if self._reader.is_last or self._transport.get_write_buffer_size():
                self.abort()
            return answer
        except (OSError, NotHttp) as exc:
            raise NoAnswer(exc) from exc
        except asyncio.CancelledError:
            self.abort()
            raise
        finally:
            self._answer = None

    def abort(self) -> None:
        self._end(self._why)

    # ---- called by the loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        if self._answer is None or self._answer.done():
            self._end(NotHttp("it speaks without being asked"))
        else:
            self._feed(bytes(self._buffer[:nbytes]))

    def eof_received(self) -> None:
        """The transport closes itself."""
        if self._answer is not None and not self._answer.done():
            self._feed(b"")
        self._end(self._why)

    def connection_lost(self, exc: Exception | None) -> None:
        self._end(exc if isinstance(exc, OSError) else self._why)
        self.closed.set_result(None)

    def _look(self) -> None:
        """Ends a request that is overdue, or looks again at its deadline."""
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None
        if self._answer is None or not self.is_open:
            return
        if self._loop.time() >= self._deadline:
            self._end(TimeoutError("no answer in time"))
        else:
            self._watch = self._loop.call_at(self._deadline, self._look)

    def _feed(self, data: bytes) -> None:
        assert self._answer is not None, "it is waited for"
        try:
            answer = self._reader.feed(data)
        except (OSError, NotHttp) as exc:
            self._end(exc)
        else:
            if answer is not None:
                self._answer.set_result(answer)

    def _end(self, why: OSError | NotHttp) -> None:
        if self.is_open:
            self.is_open, self._why = False, why
            self._lost(self)
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(why)
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None
        self._transport.abort()


class _Host:
    """The connections to one server."""

    __slots__ = ("busy", "idle", "server", "waiting")

    def __init__(self, server: Server) -> None:
        self.server = server
        self.busy = 0
        """The requests under way."""
        self.idle: list[_Connection] = []
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
        self._connections: set[_Connection] = set()
        self._idle: dict[_Connection, _Host] = {}
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

    def _keep(self, connection: _Connection, host: _Host) -> None:
        if connection.is_open:
            connection.idle_since = now = asyncio.get_running_loop().time()
            host.idle.append(connection)
            self._idle[connection] = host
            if self._sweep is None:
                self._sweep = asyncio.get_running_loop().call_at(now + IDLE_S, self._close_idle)

    async def _connect(self, server: Server, deadline: float) -> _Connection:
        while self._idle and self._busy + len(self._idle) > self._most:
            next(iter(self._idle)).abort()
        context = self._context() if server.scheme == "https" else None
        addresses = await resolve_async(server.address, deadline=deadline, check_ip=self._check_ip)
        sock = await connect_to_async(addresses, deadline=deadline)
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout_at(deadline):
                _, connection = await loop.create_connection(
                    lambda: _Connection(self._buffer, self._lost),
                    sock=sock,
                    ssl=context,
                    server_hostname=None if context is None else server_name(server.address),
                    ssl_handshake_timeout=None if context is None else max(0.1, deadline - loop.time()),
                )
        except ValueError as exc:
            sock.close()
            if isinstance(exc, OSError):  # what is wrong with a certificate is both
                raise
            raise OSError(f"its name can't be in a certificate: {exc}") from exc
        except BaseException:
            sock.close()
            raise
        self._connections.add(connection)
        connection.closed.add_done_callback(lambda _: self._connections.discard(connection))
        if self._closed:
            connection.abort()
        return connection

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

    def _lost(self, connection: _Connection) -> None:
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
