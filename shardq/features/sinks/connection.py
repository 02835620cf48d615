"""A connection of HTTP/1.1 on asyncio, with TLS or without: it carries one request at a time. ``client`` makes it.

TLS is done here, by the ``ssl`` module without sockets. asyncio's own takes 256 KiB of memory for each connection, and
closes one in another way in each version.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from typing import cast

from shardq.features.sinks.answer import Answer, AnswerReader, NotHttp

BUFFER = 16 << 10
"""Bytes that one read takes. With asyncio's own buffers, of 256 KiB for each read, a request takes twice the CPU."""


class NoAnswer(Exception):
    """The request was sent, and may have been executed, but no whole answer came."""

    def __init__(self, why: OSError | NotHttp) -> None:
        super().__init__(str(why))
        self.why: OSError | NotHttp = why
        """A TimeoutError if the time was over."""


class Connection(asyncio.BufferedProtocol):
    """One connection, which carries one request at a time."""

    def __init__(self, buffer: memoryview, lost: Callable[[Connection], object]) -> None:
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
        self._write(request)
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
        self._received(bytes(self._buffer[:nbytes]))

    def eof_received(self) -> None:
        """The transport closes itself."""
        if self._answer is not None and not self._answer.done():
            self._feed(b"")
        self._end(self._why)

    def connection_lost(self, exc: Exception | None) -> None:
        self._end(exc if isinstance(exc, OSError) else self._why)
        self.closed.set_result(None)

    def _write(self, data: bytes) -> None:
        self._transport.write(data)

    def _received(self, data: bytes) -> None:
        if self._answer is None or self._answer.done():
            self._end(NotHttp("it speaks without being asked"))
        else:
            self._feed(data)

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


class TlsConnection(Connection):
    """The same with TLS."""

    def __init__(
        self, buffer: memoryview, lost: Callable[[Connection], object], context: ssl.SSLContext, name: str
    ) -> None:
        """``name``: that of the certificate. Raises ValueError for one that can't be in any."""
        super().__init__(buffer, lost)
        self.shaken: asyncio.Future[None] = self._loop.create_future()
        """Done after the handshake; what went wrong there is its exception."""
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_hostname=name)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._shake()

    def buffer_updated(self, nbytes: int) -> None:
        self._incoming.write(self._buffer[:nbytes])
        if not self.shaken.done():
            self._shake()
        if self.shaken.done() and self.is_open:
            self._read()

    def _shake(self) -> None:
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            self._flush()
        except ssl.SSLError as exc:
            self._flush()  # an alert tells the other side
            self._end(exc)
        else:
            self._flush()
            self.shaken.set_result(None)

    def _read(self) -> None:
        try:
            while self.is_open:
                data = self._tls.read(BUFFER)
                if not data:
                    self.eof_received()
                    break
                self._received(data)
        except ssl.SSLWantReadError:
            self._flush()
        except ssl.SSLError as exc:
            self._end(exc)

    def _write(self, data: bytes) -> None:
        try:
            rest = memoryview(data)
            while rest:
                rest = rest[self._tls.write(rest) :]
        except ssl.SSLError as exc:
            self._end(exc)
        else:
            self._flush()

    def _flush(self) -> None:
        if data := self._outgoing.read():
            self._transport.write(data)

    def _end(self, why: OSError | NotHttp) -> None:
        super()._end(why)
        if not self.shaken.done():
            self.shaken.set_exception(why)
