"""AMQP 0-9-1, as RabbitMQ speaks it: each task is a persistent message to an exchange, confirmed by the broker.

    amqp://USER:PASSWORD@HOST[:PORT]/VHOST#EXCHANGE/KEY
    amqps://…#/QUEUE                                        the default exchange, to a queue by its name

A message counts as taken when the broker has confirmed it: it is in every queue that it was routed to, and on the disk
of durable ones. One that no queue takes is unroutable, and refused for good. Everything else that the broker says, that
the exchange is missing or a queue is full, is about the place and not about the task, which waits.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from typing import ClassVar
from urllib.parse import unquote

from shardq.errors import InvalidOption, InvalidUrl
from shardq.sinks.base import SEND_S, SENT, Message, Refused, Result, Sink, Unsent
from shardq.sinks.urls import split

try:
    import pika
    import pika.exceptions
except ImportError as exc:
    raise InvalidOption("amqp:// URLs need pika: pip install 'shardq[amqp]'") from exc

HEARTBEAT_S = 10
"""A broker that is silent for two of these is gone."""

IDLE_S = 8.0
"""Nobody answers heartbeats between two batches: a connection that was idle for so long is replaced by another before
the broker closes it.
"""

_TOO_LARGE = "message size"
_PERSISTENT = 2


class AmqpSink(Sink):
    """Publishes one message after the other, each with its confirm."""

    batch: ClassVar[int] = 128

    def __init__(self, url: str) -> None:
        scheme = url.partition("://")[0]
        where, mark, fragment = url.partition("#")
        exchange, slash, key = fragment.partition("/")
        if not mark or not slash or (not exchange and not key):
            raise InvalidUrl(
                f"a {scheme}:// URL ends with the exchange and the routing key: {scheme}://HOST/VHOST#EXCHANGE/KEY, or "
                "#/QUEUE for the default exchange"
            )
        parts = split(where, "USER:PASSWORD@HOST:PORT/VHOST")
        host, port = parts.hostname, parts.port
        if not host or parts.query or "/" in parts.path[1:]:
            raise InvalidUrl(
                f"a {scheme}:// URL is {scheme}://USER:PASSWORD@HOST:PORT/VHOST; a / in the name of the vhost is "
                "written %2F, and it takes no options after a ?"
            )
        self._exchange, self._key = unquote(exchange), unquote(key)
        login = (
            pika.PlainCredentials(unquote(parts.username or ""), unquote(parts.password or ""))
            if parts.username
            else pika.ConnectionParameters.DEFAULT_CREDENTIALS
        )
        tls = scheme == "amqps"
        self._host, self._port = host, port or (5671 if tls else 5672)
        self._vhost, self._login, self._tls = unquote(parts.path[1:]) or "/", login, tls
        self._connection: pika.BlockingConnection | None = None
        self._used = 0.0

    def open(self) -> None:
        options = None
        if self._tls:
            import ssl

            options = pika.SSLOptions(ssl.create_default_context(), self._host)
        self._connection = pika.BlockingConnection(
            pika.ConnectionParameters(
                self._host,
                self._port,
                self._vhost,
                self._login,
                heartbeat=HEARTBEAT_S,
                blocked_connection_timeout=SEND_S,
                socket_timeout=SEND_S / 2,
                stack_timeout=SEND_S,
                ssl_options=options,
                client_properties={"connection_name": "shardq"},
            )
        )
        self._open_channel(self._connection)
        self._used = time.monotonic()

    def send(self, batch: Sequence[Message]) -> Sequence[Result]:
        if time.monotonic() - self._used > IDLE_S:
            self.close()
            self.open()
        results: list[Result] = []
        for message in batch:
            result = self._publish(message)
            results.append(result)
            if isinstance(result, Unsent):
                # the channel is closed, or more would meet the same
                results += [result] * (len(batch) - len(results))
                break
        self._used = time.monotonic()
        return results

    def _publish(self, message: Message) -> Result:
        properties = pika.BasicProperties(
            message_id=message.id,
            type=message.topic,
            content_type=message.content_type,
            headers=dict(message.headers),
            delivery_mode=_PERSISTENT,
        )
        try:
            self._channel.basic_publish(self._exchange, self._key, message.payload, properties, mandatory=True)
        except pika.exceptions.UnroutableError:
            return Refused(f"unroutable: no queue takes the key {self._key!r} of the exchange {self._exchange!r}")
        except pika.exceptions.NackError:
            return Unsent("the broker has not taken it: a queue is full, or failed")
        except pika.exceptions.ChannelClosedByBroker as exc:
            reason = f"the broker refused: {exc.reply_code} {exc.reply_text}"
            if _TOO_LARGE not in exc.reply_text:
                return Unsent(reason)
            assert self._connection is not None, "it is open"
            self._open_channel(self._connection)
            return Refused(reason)
        except (pika.exceptions.AMQPError, OSError) as exc:
            return Unsent(f"{self._host}:{self._port}: {type(exc).__name__}: {exc}")
        return SENT

    def _open_channel(self, connection: pika.BlockingConnection) -> None:
        self._channel = connection.channel()
        self._channel.confirm_delivery()

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None and connection.is_open:
            with contextlib.suppress(pika.exceptions.AMQPError, OSError):  # it is lost already
                connection.close()
