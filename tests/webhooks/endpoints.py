"""Many endpoints, each a server on a port of its own, in one event loop of a thread."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import defaultdict
from types import TracebackType
from typing import NamedTuple, Self

from tests.support.waiting import wait_until


class Received(NamedTuple):
    """A request that an endpoint has got."""

    id: str
    body: str
    at: float


class Endpoints:
    """So many endpoints, of which the first few leave each request without an answer. Enter it to start them."""

    def __init__(self, count: int, *, hanging: int = 0) -> None:
        self._count, self._hanging = count, hanging
        self.received: defaultdict[int, list[Received]] = defaultdict(list)
        """The number of an endpoint → its requests."""
        self.ports: list[int] = []
        self.most_open: defaultdict[int, int] = defaultdict(int)
        """The most requests of an endpoint that were open at a time."""
        self._open: defaultdict[int, int] = defaultdict(int)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    @property
    def requests(self) -> int:
        """The number of all requests."""
        return sum(len(each) for each in list(self.received.values()))

    def __enter__(self) -> Self:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._start(), self._loop).result(30)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.end()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def end(self) -> None:
        """Closes all connections: what hangs has an end."""
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(30)

    async def _start(self) -> None:
        self._over = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._servers = []
        for number in range(self._count):

            def begun(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int = number) -> None:
                task = asyncio.ensure_future(self._serve(number, reader, writer))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

            server = await asyncio.start_server(begun, "127.0.0.1", 0)
            self._servers.append(server)
            self.ports.append(server.sockets[0].getsockname()[1])

    async def _end(self) -> None:
        self._over.set()
        for server in self._servers:
            server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, number: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                headers = dict(line.lower().split(": ", 1) for line in head.decode().split("\r\n")[1:-2])
                body = await reader.readexactly(int(headers["content-length"]))
                self.received[number].append(Received(headers["webhook-id"], body.decode(), time.monotonic()))
                self._open[number] += 1
                self.most_open[number] = max(self.most_open[number], self._open[number])
                try:
                    if number < self._hanging:
                        await self._over.wait()
                        return
                    await asyncio.sleep(0.002)
                finally:
                    self._open[number] -= 1
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    def wait_for(self, requests: int, what: str) -> None:
        wait_until(lambda: self.requests >= requests, what, timeout=120)
