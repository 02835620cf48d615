"""``python -m bench.endpoints COUNT HANGING PORTS`` is a process with so many endpoints of webhooks, each a port of its
own, of which the first few answer after ``HANGS_S``. The webhooks suite starts it. It writes the ports into the file
PORTS. It returns how many seconds after the instant in its body each request came, of those to endpoints that answer at
once, and the most requests that one endpoint had open at a time. Instants are those of ``time.monotonic()``.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.children import taking_part

HANGS_S = 30.0

ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"


class Endpoints:
    """All endpoints of the process, in one event loop."""

    def __init__(self, count: int, hanging: int) -> None:
        self._count, self._hanging = count, hanging
        self.late_s: list[float] = []
        self._open = Counter[int]()
        self.most_open = 0

    async def serve(self, begun: Callable[[list[int]], object]) -> None:
        servers = []
        for number in range(self._count):

            async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int = number) -> None:
                await self._serve(number, reader, writer)

            servers.append(await asyncio.start_server(serve, "127.0.0.1", 0))
        begun([server.sockets[0].getsockname()[1] for server in servers])
        await asyncio.Event().wait()

    async def _serve(self, number: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                size = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
                body = await reader.readexactly(int(size.partition(b":")[2]))
                self._open[number] += 1
                self.most_open = max(self.most_open, self._open[number])
                if number < self._hanging:
                    await asyncio.sleep(HANGS_S)
                else:
                    self.late_s.append(time.monotonic() - float(body))
                self._open[number] -= 1
                writer.write(ANSWER)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


def main(count: str, hanging: str, ports: str) -> None:
    endpoints, is_ready = Endpoints(int(count), int(hanging)), threading.Event()

    def begun(found: list[int]) -> None:
        Path(ports).write_text(" ".join(map(str, found)), encoding="utf-8")
        is_ready.set()

    threading.Thread(target=lambda: asyncio.run(endpoints.serve(begun)), daemon=True).start()
    is_ready.wait()

    def work(ending: threading.Event) -> dict[str, Any]:
        ending.wait()
        return {"late_s": endpoints.late_s, "most_open": endpoints.most_open}

    taking_part(work)


if __name__ == "__main__":
    main(*sys.argv[1:])
