"""A TCP proxy in front of a real server: it passes bytes on, refuses commands, stalls, and breaks connections."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Collection
from types import TracebackType
from typing import Self

CHUNK = 1 << 16


class Proxy:
    """On a port of its own, as a context manager. ``refused``: commands that the server is asked under a name that it
    does not know, so that its error comes in its turn."""

    def __init__(self, address: str, *, refused: Collection[str] = ()) -> None:
        host, _, port = address.rpartition(":")
        self._server = (host, int(port))
        self._refused = {command.upper().encode() for command in refused}
        self._pairs: list[_Pair] = []
        self._lock = threading.Lock()
        self._socket = socket.create_server(("127.0.0.1", 0))
        self._thread = threading.Thread(target=self._accept, name="proxy", daemon=True)
        self.cut_after: int | None = None
        """After so many bytes more of answers each connection that gets one is reset."""
        self.passing = threading.Event()
        """Cleared, answers stay where they are."""
        self.delay_s = 0.0
        """Answers come later by this, as from far away."""
        self.passing.set()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._socket.getsockname()[1]}"

    @property
    def url(self) -> str:
        return f"redis://{self.address}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._socket.close()
        self.passing.set()
        self.drop()
        for pair in self._pairs:
            pair.join()

    def drop(self) -> int:
        """Resets all connections, as a proxy does with idle ones; how many there were."""
        with self._lock:
            live = [pair for pair in self._pairs if pair.live]
        for pair in live:
            pair.reset()
        return len(live)

    def mend(self) -> None:
        """Ends all disturbances of connections."""
        self.cut_after = None
        self.delay_s = 0.0

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._socket.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(self._server)
            except OSError:
                client.close()
                continue
            with self._lock:
                self._pairs.append(_Pair(self, client, server, self._refused))


class _Pair:
    """One connection and its counterpart."""

    def __init__(self, proxy: Proxy, client: socket.socket, server: socket.socket, refused: Collection[bytes]) -> None:
        self._proxy = proxy
        self._client, self._server = client, server
        self._refused = refused
        self.live = True
        self._threads = [threading.Thread(target=work, daemon=True) for work in (self._ask, self._answer)]
        for thread in self._threads:
            thread.start()

    def reset(self) -> None:
        """RST to the client, what was on its way is lost."""
        self.live = False
        with contextlib.suppress(OSError):
            self._client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")
        for end in (self._client, self._server):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def join(self) -> None:
        for thread in self._threads:
            thread.join()
        self._client.close()
        self._server.close()

    def _ask(self) -> None:
        buffered = b""
        with contextlib.suppress(OSError):
            while data := self._client.recv(CHUNK):
                if self._refused:
                    data, buffered = self._renamed(buffered + data)
                self._server.sendall(data)
        self.reset()

    def _answer(self) -> None:
        with contextlib.suppress(OSError):
            while data := self._server.recv(CHUNK):
                self._proxy.passing.wait()
                time.sleep(self._proxy.delay_s)
                left = self._proxy.cut_after
                if left is not None:
                    self._proxy.cut_after = max(0, left - len(data))
                self._client.sendall(data[:left])
                if left is not None and left <= len(data):
                    break
        self.reset()

    def _renamed(self, data: bytes) -> tuple[bytes, bytes]:
        """Whole commands, those that are refused under another name; and what is left of one that is not whole."""
        out = b""
        while (command := _first(data)) is not None:
            words, data = command
            if words[0].upper() in self._refused:
                words = [b"NO-" + words[0]]
            out += b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in words)
        return out, data


def _first(data: bytes) -> tuple[list[bytes], bytes] | None:
    """The words of the first command, and what follows; None when it is not whole."""
    head, found, rest = data.partition(b"\r\n")
    if not found:
        return None
    words = []
    for _ in range(int(head[1:])):
        size, found, rest = rest.partition(b"\r\n")
        length = int(size[1:]) if found else 0
        if not found or len(rest) < length + 2:
            return None
        words.append(rest[:length])
        rest = rest[length + 2 :]
    return words, rest
