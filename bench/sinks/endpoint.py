"""An HTTP endpoint that does as little as it can: ``python -m bench.sinks.endpoint PORT``. Its result is the number of
different tasks that it got, and how late those came that tell when they were due.
"""

from __future__ import annotations

import asyncio
import re
import sys
import threading
import time
from typing import Any, cast

from bench.children import taking_part
from cluster.ports import HOST

_LENGTH = re.compile(rb"\r\nContent-Length: (\d+)")
_KEY = re.compile(rb"\r\nIdempotency-Key: ([^\r]+)")
_DUE = re.compile(rb'"due":([\d.]+)')


class _Requests(asyncio.Protocol):
    """The requests of one connection, whole ones as they come."""

    def __init__(self, keys: set[bytes], late_ms: list[float]) -> None:
        self._keys, self._late_ms = keys, late_ms
        self._data = b""
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._data += data
        while (end := self._data.find(b"\r\n\r\n") + 4) > 3:
            head = self._data[:end]
            length, key = _LENGTH.search(head), _KEY.search(head)
            whole = end + (int(length[1]) if length is not None else 0)
            if len(self._data) < whole:
                return
            body, self._data = self._data[end:whole], self._data[whole:]
            if key is not None:
                self._keys.add(key[1])
            if (due := _DUE.search(body)) is not None:
                self._late_ms.append((time.time() - float(due[1])) * 1000)
            self._transport.write(b"HTTP/1.1 204 No Content\r\nServer: bench\r\n\r\n")


def main(port: str) -> None:
    keys, late_ms = set[bytes](), list[float]()
    loop = asyncio.new_event_loop()
    loop.run_until_complete(loop.create_server(lambda: _Requests(keys, late_ms), HOST, int(port), backlog=512))
    threading.Thread(target=loop.run_forever, daemon=True).start()

    def serve(ending: threading.Event) -> dict[str, Any]:
        ending.wait()
        return {"tasks": len(keys), "late_ms": late_ms}

    taking_part(serve)


if __name__ == "__main__":
    main(*sys.argv[1:])
