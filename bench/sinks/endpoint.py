"""An HTTP endpoint that does as little as it can: ``python -m bench.sinks.endpoint PORT``. Its result is the number of
different idempotency keys that it has seen.
"""

from __future__ import annotations

import asyncio
import re
import sys
import threading

from bench.children import taking_part
from cluster.ports import HOST

_LENGTH = re.compile(rb"\r\ncontent-length: (\d+)\r\n", re.IGNORECASE)
_KEY = re.compile(rb"\r\nidempotency-key: ([^\r]+)\r\n", re.IGNORECASE)


class Endpoint(asyncio.Protocol):
    """Answers 204 to each request of a connection."""

    def __init__(self, keys: set[bytes]) -> None:
        self._keys = keys
        self._data = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._data += data
        while (end := self._data.find(b"\r\n\r\n")) >= 0:
            head = self._data[: end + 2]
            length, key = _LENGTH.search(head), _KEY.search(head)
            assert length is not None, "requests tell their length"
            assert key is not None, "requests have a key"
            if len(self._data) < (whole := end + 4 + int(length[1])):
                return
            self._data = self._data[whole:]
            self._keys.add(key[1])
            assert isinstance(self._transport, asyncio.Transport)
            self._transport.write(b"HTTP/1.1 204 No Content\r\n\r\n")


def main(port: int) -> None:
    keys: set[bytes] = set()
    loop = asyncio.new_event_loop()
    loop.run_until_complete(loop.create_server(lambda: Endpoint(keys), HOST, port))
    threading.Thread(target=loop.run_forever, daemon=True).start()

    def answer(ending: threading.Event) -> int:
        ending.wait()
        return len(keys)

    taking_part(answer)


if __name__ == "__main__":
    main(int(sys.argv[1]))
