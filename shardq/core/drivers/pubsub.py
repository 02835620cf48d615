"""A pub/sub connection for one subscriber thread: send a command, wait for the next message. Sync only.

It speaks RESP2, where everything that arrives in subscribed mode is a plain list. It knows no channels; the subscriber
does, and takes ``Unavailable`` as "refresh the slot map, and subscribe anew".
"""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
import time
from typing import Any

from shardq.core.calls.request import pack
from shardq.core.drivers.connection import CHUNK, READ_TIMEOUT_S, Connection
from shardq.core.drivers.faults import ErrorReply, of_reply
from shardq.core.drivers.retry import explained
from shardq.core.drivers.sockets import INCOMPLETE
from shardq.errors import Unavailable


class PubSubConnection:
    """``send`` and ``read`` are for one thread, ``wake`` for any."""

    def __init__(self, connection: Connection) -> None:
        self.node = connection.address
        self._connection = connection
        self._sock = connection.sock
        self._woken, self._waker = socket.socketpair()
        self._waker.setblocking(False)
        self._poll = select.poll()
        self._poll.register(self._sock, select.POLLIN)
        self._poll.register(self._woken, select.POLLIN)

    def send(self, *words: str | bytes) -> None:
        """Sends one command. Its answers come from ``read``."""
        try:
            self._sock.settimeout(READ_TIMEOUT_S)
            self._sock.sendall(pack(*words))
        except OSError as exc:
            raise self._lost(str(exc)) from exc

    def read(self, timeout: float) -> list[Any] | None:
        """The next message, or None: nothing came within ``timeout`` seconds, or ``wake`` was called.

        Raises ``Unavailable`` when the connection is lost, the fitting ``ServerFault`` for an error answer.
        """
        deadline = time.monotonic() + timeout
        while True:
            message = self._connection.reader.gets()
            if message is not INCOMPLETE:
                return self._checked(message)
            if not self._buffered():
                left = max(0.0, deadline - time.monotonic())
                ready = {fd for fd, _ in self._poll.poll(left * 1000)}
                if self._woken.fileno() in ready:
                    self._woken.recv(CHUNK)
                    return None
                if not ready:
                    return None
            self._receive()

    def wake(self) -> None:
        """Makes ``read`` return now, or the next time it is called."""
        with contextlib.suppress(OSError):  # full: it will wake anyway; closed: no thread reads
            self._waker.send(b"!")

    def close(self) -> None:
        self._connection.close()
        self._woken.close()
        self._waker.close()

    def _buffered(self) -> bool:
        """True if TLS holds bytes already decrypted, which poll does not see."""
        return isinstance(self._sock, ssl.SSLSocket) and self._sock.pending() > 0

    def _receive(self) -> None:
        try:
            chunk = self._sock.recv(CHUNK)
        except OSError as exc:
            raise self._lost(str(exc)) from exc
        if not chunk:
            raise self._lost("the server closed the connection")
        self._connection.reader.feed(chunk)

    def _checked(self, message: Any) -> list[Any]:
        if isinstance(message, ErrorReply):
            fault = of_reply(message.text, asked=self.node)
            raise fault.error(explained(fault, self.node, "the subscription was refused", READ_TIMEOUT_S))
        return message if isinstance(message, list) else [message]

    def _lost(self, text: str) -> Unavailable:
        return Unavailable(f"{self.node}: the subscriber's connection is lost: {text}; connect again")

    def __repr__(self) -> str:
        return f"PubSubConnection({self.node}, {'open' if self._connection.open else 'closed'})"
