"""MONITOR shows what servers execute, and when by their own clock. A thread reads it that does nothing else.

The suites learn from it to a microsecond when a task became ready. The engine's own reports are in whole milliseconds,
and would be its own word for itself. A server stamps each command when it executes it, also those inside a script, so
the stamp of the RPUSH that makes an id ready is the instant itself. Bytes are only kept during a measurement, and read
afterwards. MONITOR costs the server some microseconds a command, after the command: a measurement on an idle machine
does not feel it, a rate would. What a server sent before it died counts.
"""

from __future__ import annotations

import contextlib
import re
import socket
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from cluster.ports import HOST
from cluster.server import Server

_LINE = re.compile(rb"\+(\d+)\.(\d{6}) \[\d+ (\S+)\] (.*)")
_WORD = re.compile(rb'"((?:[^"\\]|\\.)*)"')
_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True)
class Executed:
    """One command that a server executed."""

    at_us: int
    """In the server's clock, since the epoch."""
    in_script: bool
    """True if it ran inside the script whose EVALSHA comes before it."""
    words: list[bytes]


class Monitor:
    """Listens to some servers during its ``with`` block; ``executed`` tells afterwards."""

    def __init__(self, servers: Sequence[Server]) -> None:
        self._taps = [_Tap(server) for server in servers]

    def __enter__(self) -> Self:
        for tap in self._taps:
            tap.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for tap in self._taps:
            tap.stop()

    def executed(self) -> Iterator[Executed]:
        """Yields all commands, server by server, in the order of each."""
        for tap in self._taps:
            for line in tap.heard().split(b"\r\n"):
                if found := _LINE.match(line):
                    seconds, micros, source, rest = found.groups()
                    yield Executed(int(seconds) * 1_000_000 + int(micros), source == b"lua", _WORD.findall(rest))


class _Tap:
    """The connection to one server, and the thread that reads it."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._chunks: list[bytes] = []
        self._thread = threading.Thread(target=self._read, name=f"monitor-{server.address}", daemon=True)

    def start(self) -> None:
        self._socket = socket.create_connection((HOST, self._server.port))
        self._socket.sendall(b"MONITOR\r\n")
        # MONITOR has begun when its answer is there
        self._chunks.append(self._socket.recv(_CHUNK))
        self._thread.start()

    def stop(self) -> None:
        with contextlib.suppress(OSError):  # the server may be gone
            self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._socket.close()

    def heard(self) -> bytes:
        return b"".join(self._chunks)

    def _read(self) -> None:
        with contextlib.suppress(ConnectionError):  # the server may have been killed
            while chunk := self._socket.recv(_CHUNK):
                self._chunks.append(chunk)
