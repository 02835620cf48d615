"""A broker that speaks as much AMQP 0-9-1 as a publisher needs, on a real socket: it confirms messages, refuses those
of some routing keys, and falls silent when it is told to. The tests on a real RabbitMQ are in ``tests/brokers``.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from struct import pack, unpack, unpack_from
from types import TracebackType
from typing import Literal, Self

Answer = Literal["ack", "nack", "missing", "large", "unroutable", "slow", "silent"]
SLOW_S = 0.3

START, START_OK, TUNE, TUNE_OK, OPEN, OPEN_OK = ((10, n) for n in (10, 11, 30, 31, 40, 41))
CLOSE, CLOSE_OK = (10, 50), (10, 51)
CHANNEL_OPEN, CHANNEL_OPEN_OK, CHANNEL_CLOSE = (20, 10), (20, 11), (20, 40)
PUBLISH, RETURN, ACK, NACK = (60, 40), (60, 50), (60, 80), (60, 120)
DECLARE = (50, 10)
EMPTY_ANSWERS = {(40, 10): (40, 11), (50, 20): (50, 21), (85, 10): (85, 11)}
"""exchange.declare, queue.bind and confirm.select: method → its answer, which has no arguments."""


class AmqpBroker:
    """On a port of its own, as a context manager."""

    def __init__(self, port: int = 0) -> None:
        self.answers: dict[str, Answer] = {}
        """Routing key → what becomes of its messages."""
        self.of_bodies: dict[bytes, Answer] = {}
        """Body, up to a bar → what becomes of its messages, whatever the key."""
        self.taken: list[tuple[str, bytes]] = []
        """The routing keys and bodies of confirmed messages."""
        self.asked: list[str] = []
        """The routing keys of all messages."""
        self.talking = threading.Event()
        """Cleared, nothing is answered on any connection, new ones included."""
        self.talking.set()
        self._socket = socket.create_server(("127.0.0.1", port))
        self._threads = [threading.Thread(target=self._accept, name="amqp-broker", daemon=True)]
        self._connections: list[socket.socket] = []

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._socket.getsockname()[1]}"

    @property
    def url(self) -> str:
        return f"amqp://guest:guest@{self.address}//"

    def __enter__(self) -> Self:
        self._threads[0].start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._threads[0].join()
        self._socket.close()
        self.talking.set()
        self.drop()
        for thread in self._threads:
            thread.join()

    def drop(self) -> None:
        """Ends all connections, as a broker that is killed does."""
        for connection in self._connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            self._connections.append(connection)
            thread = threading.Thread(target=self._serve, args=(connection,), name="amqp-connection", daemon=True)
            self._threads.append(thread)
            thread.start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            _Conversation(self, connection).hold()


class _Conversation:
    def __init__(self, broker: AmqpBroker, connection: socket.socket) -> None:
        self._broker = broker
        self._connection = connection
        self._stream = connection.makefile("rb")
        self._tag = 0
        self._publishing = self._header = self._body = b""
        self._left = 0

    def hold(self) -> None:
        with self._stream:
            self._stream.read(8)  # the protocol's name
            self._say(0, START, pack(">BBI", 0, 9, 0) + _long(b"PLAIN AMQPLAIN") + _long(b"en_US"))
            while header := self._stream.read(7):
                kind, channel, size = unpack(">BHI", header)
                content = self._stream.read(size + 1)[:-1]
                if kind == 1:
                    self._method(channel, unpack_from(">HH", content), content[4:])
                elif kind == 2:
                    (self._left,) = unpack_from(">Q", content, 4)
                    self._header, self._body = content, b""
                elif kind == 3:
                    self._body += content
                if kind in (2, 3) and len(self._body) == self._left:
                    self._published(channel)

    def _say(self, channel: int, method: tuple[int, int], arguments: bytes = b"", *content: bytes) -> None:
        self._broker.talking.wait()
        frames = [(1, pack(">HH", *method) + arguments), *zip((2, 3), content, strict=False)]
        self._connection.sendall(b"".join(pack(">BHI", kind, channel, len(f)) + f + b"\xce" for kind, f in frames))

    def _method(self, channel: int, method: tuple[int, ...], arguments: bytes) -> None:
        if method == START_OK and b"wrong" in arguments:
            self._say(0, CLOSE, pack(">H", 403) + _short(b"ACCESS_REFUSED - Login was refused") + pack(">HH", 0, 0))
        elif method == START_OK:
            self._say(0, TUNE, pack(">HIH", 0, 131072, 60))
        elif method == OPEN:
            self._say(0, OPEN_OK, _short(b""))
        elif method == CHANNEL_OPEN:
            self._tag = 0
            self._say(channel, CHANNEL_OPEN_OK, _long(b""))
        elif method == DECLARE:
            self._say(channel, (50, 11), _short(_first_short(arguments, 2)) + pack(">II", 0, 0))
        elif method == PUBLISH:
            self._publishing = arguments
        elif method == CLOSE:
            self._say(0, CLOSE_OK)
        elif method in EMPTY_ANSWERS:
            self._say(channel, EMPTY_ANSWERS[method])

    def _published(self, channel: int) -> None:
        exchange = _first_short(self._publishing, 2)
        name = _first_short(self._publishing, 3 + len(exchange))
        key = name.decode()
        self._tag += 1
        self._broker.asked.append(key)
        answer = self._broker.of_bodies.get(self._body.partition(b"|")[0]) or self._broker.answers.get(key, "ack")
        if answer == "slow":
            threading.Event().wait(SLOW_S)
        match answer:
            case "ack" | "slow":
                self._broker.taken.append((key, self._body))
                self._say(channel, ACK, pack(">QB", self._tag, 0))
            case "nack":
                self._say(channel, NACK, pack(">QB", self._tag, 0))
            case "unroutable":
                told = pack(">H", 312) + _short(b"NO_ROUTE") + _short(exchange) + _short(name)
                self._say(channel, RETURN, told, self._header, self._body)
                self._say(channel, ACK, pack(">QB", self._tag, 0))
            case "missing":
                text = b"NOT_FOUND - no exchange '%s' in vhost '/'" % exchange
                self._say(channel, CHANNEL_CLOSE, pack(">H", 404) + _short(text) + pack(">HH", *PUBLISH))
            case "large":
                text = b"PRECONDITION_FAILED - message size 9 is larger than configured max size 1"
                self._say(channel, CHANNEL_CLOSE, pack(">H", 406) + _short(text) + pack(">HH", *PUBLISH))
            case "silent":
                pass


def _short(text: bytes) -> bytes:
    return pack(">B", len(text)) + text


def _long(text: bytes) -> bytes:
    return pack(">I", len(text)) + text


def _first_short(arguments: bytes, at: int) -> bytes:
    return arguments[at + 1 : at + 1 + arguments[at]]
