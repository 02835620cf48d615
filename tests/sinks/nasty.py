"""An HTTP server that does what no server should, on real sockets: each connection follows a script."""

from __future__ import annotations

import contextlib
import re
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self

_LENGTH = re.compile(rb"\r\nContent-Length: (\d+)")
_PAUSE_S = 0.01
"""Between the bytes of one that drips."""

Step = bytes | Callable[["Connection"], object]
"""Bytes to send, or what to do."""


class Over(Exception):
    """The script, or the connection, has ended."""


class Connection:
    """One connection to the server, with the steps of which scripts are made."""

    def __init__(self, server: NastyServer, sock: socket.socket) -> None:
        self.server, self.sock = server, sock

    def read(self) -> bytes:
        """Reads a whole request, and returns it."""
        data = b""
        while (end := data.find(b"\r\n\r\n") + 4) < 4:
            data += self._received()
        found = _LENGTH.search(data[:end])
        while found is not None and len(data) < end + int(found[1]):
            data += self._received()
        self.server.requests.append(data)
        return data

    def hang(self) -> None:
        """Says nothing until the client has closed it."""
        while True:
            self._received()

    def drip(self) -> None:
        """Sends a head that does not end, slowly."""
        self.sock.sendall(b"HTTP/1.1 200 OK\r\nX: ")
        while not self.server.ended.wait(_PAUSE_S):
            self.sock.sendall(b"y")

    def flood(self) -> None:
        """Sends a body that does not end."""
        while not self.server.ended.is_set():
            self.sock.sendall(b"z" * 10_000)

    def close(self) -> None:
        raise Over

    def reset(self) -> None:
        """Closes it by RST."""
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        raise Over

    def _received(self) -> bytes:
        data = self.sock.recv(1 << 16)
        if not data:
            raise Over
        return data


READ, HANG, DRIP, FLOOD = Connection.read, Connection.hang, Connection.drip, Connection.flood
CLOSE, RESET = Connection.close, Connection.reset


def slowly(data: bytes) -> Step:
    """Sends each byte by itself."""

    def send(connection: Connection) -> None:
        for byte in data:
            connection.sock.sendall(bytes([byte]))

    return send


class NastyServer:
    """Repeats the script on each connection until that is closed; of several scripts, the nth connection has the nth,
    and those after it the last one.
    """

    def __init__(self, *scripts: Sequence[Step], host: str = "127.0.0.1", tls: ssl.SSLContext | None = None) -> None:
        self._scripts, self._tls = scripts, tls
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._sockets: list[socket.socket] = []
        self.requests: list[bytes] = []
        self.connections = self.open = self.most_open = 0
        """Connections that were made, that are open now, and that were at a time."""
        self.ended = threading.Event()
        self._socket = socket.create_server((host, 0))
        self.port: int = self._socket.getsockname()[1]
        self._thread = threading.Thread(target=self._accept, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.ended.set()
        self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._socket.close()
        for sock in self._sockets:
            with contextlib.suppress(OSError):  # it is closed already
                socket.socket.shutdown(sock, socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(10)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                sock, _ = self._socket.accept()
                with self._lock:
                    script = self._scripts[min(self.connections, len(self._scripts) - 1)]
                    self.connections += 1
                    self.open += 1
                    self.most_open = max(self.most_open, self.open)
                self._threads.append(threading.Thread(target=self._serve, args=(sock, script), daemon=True))
                self._threads[-1].start()

    def _serve(self, sock: socket.socket, script: Sequence[Step]) -> None:
        try:
            with sock, contextlib.suppress(OSError, Over):
                if self._tls is None:
                    self._follow(sock, script)
                else:
                    with self._tls.wrap_socket(sock, server_side=True) as wrapped:
                        self._follow(wrapped, script)
        finally:
            with self._lock:
                self.open -= 1

    def _follow(self, sock: socket.socket, script: Sequence[Step]) -> None:
        self._sockets.append(sock)
        connection = Connection(self, sock)
        while not self.ended.is_set():
            for step in script:
                if isinstance(step, bytes):
                    sock.sendall(step)
                else:
                    step(connection)
