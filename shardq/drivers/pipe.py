"""One open connection of the asyncio driver, shared by any number of coroutines. Made by ``aioroutes``.

Calls made in one turn of the loop leave in one write, and answers are matched to them by order. A caller that
is cancelled or stops waiting leaves its place in the order behind: its answer is read and dropped.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

from hiredis import HiredisError

from shardq.drivers.dial import INCOMPLETE, NAME_COMMAND, dial_async, reader
from shardq.drivers.faults import Fault, of_exception, timed_out
from shardq.drivers.settings import Settings
from shardq.drivers.wire import READ_TIMEOUT_S


class Pipe(asyncio.Protocol):
    """Never raises for what happens on it: ``exchange`` gives an answer, an ``ErrorReply`` or a ``Fault``."""

    def __init__(self, writer: asyncio.StreamWriter, address: str) -> None:
        self.address = address
        self.open = True
        self._loop = asyncio.get_running_loop()
        self._writer = writer  # kept alive: it closes the transport when it is collected
        self._reader = reader()
        self._waiting: deque[asyncio.Future[Any] | None] = deque()
        """In the order of their answers. None: an answer to skip, of ASKING."""
        self._out: list[bytes] = []
        self._unsent = 0
        """How many of ``_waiting``, from its end, have their bytes in ``_out`` still."""
        self._heard = 0.0
        self._watch: asyncio.TimerHandle | None = None
        self._closed: asyncio.Future[None] = self._loop.create_future()
        writer.transport.set_protocol(self)

    @property
    def load(self) -> int:
        """Calls without an answer."""
        return len(self._waiting)

    async def exchange(self, data: bytes, *, deadline: float, answers: int = 1) -> Any:
        """Send, and wait for the last of ``answers`` answers."""
        if not self.open:
            return of_exception(ConnectionResetError("the connection is closed"), sent=False)
        now = self._loop.time()
        if not self._waiting:
            self._heard = now
        answer = self._loop.create_future()
        self._waiting.extend([None] * (answers - 1))
        self._waiting.append(answer)
        self._unsent += answers
        self._out.append(data)
        if len(self._out) == 1:
            self._loop.call_soon(self._flush)
        if self._watch is None:
            self._watch = self._loop.call_later(READ_TIMEOUT_S, self._look)
        expiry = self._loop.call_at(max(deadline, now + 0.001), _expire, answer, deadline - now)
        try:
            return await answer
        finally:
            expiry.cancel()

    async def close(self) -> None:
        """Give up what is under way, and wait until the socket is closed."""
        self._break(of_exception(ConnectionResetError("the connection was closed here"), sent=True))
        await asyncio.shield(self._closed)

    # ---- called by the loop

    def _flush(self) -> None:
        out, self._out = self._out, []
        self._unsent = 0
        if out and self.open:
            self._writer.transport.write(out[0] if len(out) == 1 else b"".join(out))

    def data_received(self, data: bytes) -> None:
        self._heard = self._loop.time()
        try:
            self._reader.feed(data)
            while (reply := self._reader.gets()) is not INCOMPLETE:
                answer = self._waiting.popleft()
                if answer is not None and not answer.done():
                    answer.set_result(reply)
        except (HiredisError, IndexError) as exc:  # IndexError: an answer that nobody asked for
            self._break(of_exception(exc, sent=True))

    def connection_lost(self, exc: Exception | None) -> None:
        self._break(of_exception(exc or ConnectionResetError("the server closed the connection"), sent=True))
        if not self._closed.done():
            self._closed.set_result(None)

    def _look(self) -> None:
        """A server that is silent for too long is taken for dead."""
        self._watch = None
        if not self._waiting:
            return
        silent = self._loop.time() - self._heard
        if silent >= READ_TIMEOUT_S:
            self._break(timed_out(silent))
        else:
            self._watch = self._loop.call_later(READ_TIMEOUT_S - silent, self._look)

    def _break(self, fault: Fault) -> None:
        """Close, and tell everyone who waits. What was not written was not executed."""
        self.open = False
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None
        self._writer.transport.abort()
        waiting, self._waiting = self._waiting, deque()
        unsent = len(waiting) - self._unsent
        for place, answer in enumerate(waiting):
            if answer is not None and not answer.done():
                answer.set_result(fault if place < unsent else fault.before_sending())
        self._out, self._unsent = [], 0


def _expire(answer: asyncio.Future[Any], waited: float) -> None:
    if not answer.done():
        answer.set_result(timed_out(waited))


async def open_pipe(settings: Settings, address: str, *, within: float, sentinel: bool = False) -> Pipe | Fault:
    """Connect and shake hands in so many seconds, or say why that failed."""
    writer = await dial_async(settings, address, within=within, sentinel=sentinel)
    if isinstance(writer, Fault):
        return writer
    pipe = Pipe(writer, address)
    try:
        named = await pipe.exchange(NAME_COMMAND, deadline=asyncio.get_running_loop().time() + within)
    except BaseException:
        await pipe.close()
        raise
    if isinstance(named, Fault):
        await pipe.close()
        return named.before_sending()
    return pipe
