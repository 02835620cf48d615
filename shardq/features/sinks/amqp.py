"""AMQP 0-9-1, as RabbitMQ speaks it: each task is a persistent message to an exchange, confirmed by the broker.

    amqp://USER:PASSWORD@HOST[:PORT]/VHOST#EXCHANGE/KEY
    amqps://…?ca=FILE&cert=FILE&key=FILE&timeout=SECONDS#/QUEUE         the default exchange, to a queue by its name

A message counts as taken when the broker has confirmed it: it is in every queue that it was routed to, and on the disk
of durable ones. That the exchange is missing or a queue is full is about the place and not about the task, which waits.
A batch is published at once, and its confirms, each of which may stand for many messages, are read behind it: a round
trip and a write to the disk of the broker are shared by the batch. py-amqp packs and writes each message, which costs
some 25 µs; frames that were packed here and written together cost 4, and handed out up to twice as many a second.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import re
import socket
import ssl
import time
from collections.abc import Sequence
from functools import partial
from itertools import takewhile
from typing import Any
from urllib.parse import unquote

from shardq.core.drivers.settings import bracketed
from shardq.core.drivers.sockets import context_of, resolve
from shardq.errors import InvalidUrl, MissingPackage, Unavailable
from shardq.features.sinks.base import SENT, Message, Refused, Result, Sink, Unsent, shut_down
from shardq.features.sinks.urls import options, split, split_name, unreached

try:
    import amqp
    import amqp.exceptions
except ImportError as _exc:
    raise MissingPackage("amqp:// URLs need py-amqp: pip install 'shardq[amqp]'") from _exc

HEARTBEAT_S = 10
"""A broker that is silent for two of these is gone."""

IDLE_S = 8.0
"""No heartbeats are answered between two batches: a connection that was idle for so long is replaced by another before
the broker closes it.
"""

CLOSE_S = 1.0
"""The time that a broker has to answer a goodbye. Nothing depends on it but a line in the broker's log."""

READ_BYTES = 256 << 10
"""After so much was published, all that the broker says is read, so that neither waits for the other."""

HEADER_BYTES = 20
"""The bytes of a header frame beside the properties."""

PERSISTENT = 2
"""The delivery mode of messages that a durable queue keeps on disk."""

SHORT = 255
"""The bytes that the name of an exchange, a routing key, and the name of a header have at most."""

_ADVICE = {
    320: "it ends, or an operator has closed the connection: start it again",
    403: "check the user, the password, and the user's permissions in this vhost",
    404: "declare the exchange, or correct its name behind the # of the URL",
    530: "add the vhost, or correct its name in the URL",
}
"""The code of a reply → what to do."""

_TOO_LARGE = re.compile(r"message size (\d+)\D+max size (\d+)")


class AmqpSink(Sink):
    """Publishes batches, and waits for the confirm of each message."""

    batch = 1000

    def __init__(self, url: str) -> None:
        scheme = url.partition("://")[0]
        where, name = split_name(url)
        exchange, slash, key = name.partition("/")
        if not slash or (not exchange and not key):
            raise InvalidUrl(
                f"a {scheme}:// URL ends with the exchange and the routing key: {scheme}://HOST/VHOST#EXCHANGE/KEY, or "
                "#/QUEUE for the default exchange"
            )
        parts = split(where, "USER:PASSWORD@HOST:PORT/VHOST")
        host, port = parts.hostname, parts.port
        if not host or "/" in parts.path[1:]:
            raise InvalidUrl(
                f"a {scheme}:// URL is {scheme}://USER:PASSWORD@HOST:PORT/VHOST; a / in the name of the vhost is "
                "written %2F"
            )
        self._timeout_s, self._tls, _ = options(scheme, parts.query, tls=scheme == "amqps")
        self._exchange, self._key = unquote(exchange), unquote(key)
        if any(len(name.encode()) > SHORT for name in (self._exchange, self._key)):
            raise InvalidUrl(f"an exchange and a routing key of a {scheme}:// URL have {SHORT} bytes each at most")
        self.addresses: Sequence[str] = (f"{host}:{port or (5671 if scheme == 'amqps' else 5672)}",)
        self._address = bracketed(self.addresses[0])
        self._host = host
        self._vhost = unquote(parts.path[1:]) or "/"
        self._login = (unquote(parts.username), unquote(parts.password or "")) if parts.username else ("guest", "guest")
        self._connection: Any = None
        """py-amqp's, which has no types."""
        self._socket: socket.socket | None = None
        self._used = 0.0
        self._blocked = False
        self._most: int | None = None
        """The bytes of a message at most, once the broker has told."""
        self._waiting: dict[int, int] = {}
        """Delivery tag → the position in the batch, of messages that are not confirmed. In the order of the tags."""
        self._results: list[Result | None] = []
        self._ids: list[str] = []
        self._returned: set[str] = set()
        """The ids of messages that no queue takes. They are confirmed, too."""

    # ---- the connection

    def open(self) -> None:
        try:
            self._open_one()
        except (amqp.exceptions.AMQPError, OSError) as exc:
            said = f"RabbitMQ at {unreached(self._address, exc)}" if isinstance(exc, OSError) else self._reason(exc)
            raise Unavailable(said) from exc
        self._used = time.monotonic()

    def _open_one(self) -> None:
        """Connects to the first address that accepts. The client is given addresses: names it would look up again."""
        addresses = resolve(self.addresses[0], time.monotonic() + self._timeout_s, self.check_ip)
        for last, (_, where) in enumerate(addresses, 1 - len(addresses)):
            try:
                self._open_at(bracketed(f"{where[0]}:{where[1]}"))
                break
            except OSError:
                if not last:
                    raise

    def _open_at(self, address: str) -> None:
        user, password = self._login
        # a broker that is busy may take nothing for a while, where the client's own options allow a second
        option = getattr(socket, "TCP_USER_TIMEOUT", None)
        patient = {} if option is None else {option: int(self._timeout_s * 1000)}
        self._connection = amqp.Connection(
            address,
            user,
            password,
            login_method="PLAIN",
            virtual_host=self._vhost,
            client_properties={"connection_name": "shardq"},
            ssl=self._tls_options(),
            connect_timeout=self._timeout_s / 2,
            read_timeout=self._timeout_s,
            write_timeout=self._timeout_s,
            # none are sent while confirms are waited for
            heartbeat=max(HEARTBEAT_S, math.ceil(self._timeout_s)),
            on_blocked=partial(self._note_blocked, True),
            on_unblocked=partial(self._note_blocked, False),
            socket_settings=patient,
        )
        self._blocked = False
        try:
            self._connection.connect()
            self._socket = self._connection.sock
            self._channel = self._connection.channel()
            self._channel.events["basic_ack"].add(self._on_ack)
            self._channel.events["basic_nack"].add(self._on_nack)
            self._channel.events["basic_return"].add(self._on_return)
            self._confirm()
        except BaseException:
            self._abandon()
            raise

    def _tls_options(self) -> dict[str, Any]:
        """The options of which the client makes its own context; empty without TLS."""
        tls = self._tls
        if tls is None:
            return {}
        context_of(tls)  # a file that can't be used is named
        return {
            "cert_reqs": ssl.CERT_REQUIRED,
            "ca_certs": tls.ca,
            "certfile": tls.cert,
            "keyfile": tls.key,
            "server_hostname": self._host if tls.check_hostname else None,
        }

    def _confirm(self) -> None:
        """Asks for confirms on a channel that was opened, or opened again."""
        self._channel.confirm_select()
        self._tag = 0

    def interrupt(self) -> None:
        shut_down(self._socket)

    def close(self) -> None:
        connection, sock, self._connection, self._socket = self._connection, self._socket, None, None
        if connection is not None:
            try:
                if sock is not None:
                    sock.settimeout(CLOSE_S)
                connection.close()
            except (amqp.exceptions.AMQPError, OSError):
                connection.collect()  # it is lost already

    def _abandon(self) -> None:
        """Drops a connection without a goodbye, which the broker would not answer."""
        connection, self._connection, self._socket = self._connection, None, None
        if connection is not None:
            connection.collect()

    # ---- a batch

    def send(self, batch: Sequence[Message]) -> Sequence[Result]:
        if time.monotonic() - self._used > IDLE_S:
            self.close()
            self.open()
        self._results = [None] * len(batch)
        self._ids = list(map(message_id, batch))
        self._returned.clear()
        try:
            while self._left():
                self._publish(batch)
        except (amqp.exceptions.AMQPError, OSError) as exc:
            self._abandon()
            down = Unsent(self._reason(exc))
            self._results = [down if result is None else result for result in self._results]
        self._used = time.monotonic()
        return [result for result in self._results if result is not None]

    def _publish(self, batch: Sequence[Message]) -> None:
        """Publishes what has no result yet, and waits for its confirms. Where a message was too large, the broker has
        forgotten the others that it had not confirmed: they are left without a result.
        """
        self._waiting.clear()
        try:
            self._write(batch)
            deadline = time.monotonic() + self._timeout_s
            while self._waiting:
                before = len(self._waiting)
                # one frame, which calls one of the methods below, or raises what the broker says
                self._connection.blocking_read(max(0.0, deadline - time.monotonic()))
                if len(self._waiting) < before:
                    deadline = time.monotonic() + self._timeout_s
        except amqp.exceptions.PreconditionFailed as exc:
            told = _TOO_LARGE.search(exc.reply_text or "")
            if told is None or not any(len(batch[position].payload) > int(told[2]) for position in self._left()):
                raise
            self._most = int(told[2])
            # the client has opened the channel again
            self._confirm()

    def _left(self) -> list[int]:
        """The positions of the messages that have no result yet."""
        return [position for position, result in enumerate(self._results) if result is None]

    def _write(self, batch: Sequence[Message]) -> None:
        size = 0
        with self._connection.transport.having_timeout(self._timeout_s):
            for position in self._left():
                message = batch[position]
                if self._most is not None and len(message.payload) > self._most:
                    self._results[position] = Refused(f"the broker takes messages of {self._most:,} bytes at most")
                    continue
                packed = _packed(message)
                if message.headers and not has_room(packed, self._connection.frame_max):
                    self._results[position] = Refused("its headers are larger than a frame of the broker")
                    continue
                self._tag += 1
                self._waiting[self._tag] = position
                self._channel.basic_publish(packed, self._exchange, self._key, mandatory=True)
                size += len(message.payload)
                if size > READ_BYTES:
                    self._read()
                    size = 0

    def _read(self) -> None:
        """Reads all that the broker has said so far."""
        with contextlib.suppress(TimeoutError):  # nothing more is there
            while True:
                self._connection.blocking_read(0.0)

    def _reason(self, exc: Exception) -> str:
        where = f"RabbitMQ at {self._address}"
        # the client raises an error of its own where a write took too long
        if isinstance(exc, TimeoutError) or isinstance(exc.__context__, TimeoutError):
            silent = f"has confirmed nothing for {self._timeout_s:g} s: it hangs, or a queue is without a leader"
            if self._blocked:
                short = "it is short of memory or disk space; let consumers drain it, or give it more"
                return f"{where}: the broker takes no messages: {short}"
            return f"{where}: the broker {silent}; look at its log"
        if isinstance(exc, OSError):
            return f"{where}: the connection was lost: {type(exc).__name__}: {exc}; check that it runs"
        code, text = getattr(exc, "reply_code", 0), getattr(exc, "reply_text", "") or str(exc)
        advice = _ADVICE.get(code, "look at its log")
        said = f" refused: {code} {text}" if code else f": {type(exc).__name__}: {exc}"
        return f"{where}{said}; {advice}"

    # ---- what the broker says, called by the client

    def _on_ack(self, tag: int, multiple: bool) -> None:
        for position in self._confirmed(tag, multiple):
            if self._ids[position] in self._returned:
                self._results[position] = Refused(
                    f"unroutable: no queue takes the key {self._key!r} of the exchange {self._exchange!r}"
                )
            else:
                self._results[position] = SENT

    def _on_nack(self, tag: int, multiple: bool) -> None:
        for position in self._confirmed(tag, multiple):
            self._results[position] = Unsent(
                "the broker has not taken it: a queue is full, or failed; let consumers drain it, or raise its limit"
            )

    def _confirmed(self, tag: int, multiple: bool) -> list[int]:
        """The positions of the messages that a confirm is about."""
        tags = list(takewhile(lambda each: each <= tag, self._waiting)) if multiple else [tag]
        return [self._waiting.pop(each) for each in tags if each in self._waiting]

    def _on_return(self, _exc: Exception, _exchange: str, _key: str, message: Any) -> None:
        self._returned.add(message.properties["message_id"])

    def _note_blocked(self, blocked: bool, *_reason: str) -> None:
        self._blocked = blocked


def message_id(message: Message) -> str:
    """The task's id, or a digest of one that is too long: that of a long topic and a long id of the caller's."""
    id = message.id
    return id if len(id.encode()) <= SHORT else hashlib.sha256(id.encode()).hexdigest()


def _packed(message: Message) -> Any:
    """The client's own message, with the headers whose names AMQP has room for."""
    return amqp.Message(
        message.payload,
        content_type=message.content_type,
        application_headers={key: text for key, text in message.headers.items() if len(key.encode()) <= SHORT},
        delivery_mode=PERSISTENT,
        message_id=message_id(message),
        type=message.topic,
    )


def has_room(message: Any, frame_max: int) -> bool:
    """False for a message of py-amqp whose properties make the broker close the connection."""
    return len(message._serialize_properties()) <= frame_max - HEADER_BYTES
