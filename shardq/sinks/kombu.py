"""``kombu+URL``: publishes captured messages by kombu, in a process that has no Celery app.

    kombu+amqp://USER:PASSWORD@HOST/VHOST?shardq=OPTIONS

``delay_through`` makes these URLs. What follows ``kombu+`` is the app's ``broker_url``; OPTIONS are its
``broker_transport_options`` and ``broker_use_ssl``, as JSON in base64url.

RabbitMQ confirms each message, and one that no queue takes is refused for good: it is kept as dead.
"""

from __future__ import annotations

import contextlib
import ssl
import time
from base64 import b64decode, urlsafe_b64decode
from collections.abc import Sequence
from typing import Any
from urllib.parse import parse_qsl, urlencode

import msgspec

from shardq.errors import InvalidUrl, MissingPackage
from shardq.sinks.base import SEND_S, SENT, Failed, Message, Refused, Result, Sink, Unsent

try:
    import kombu
    from kombu.transport import virtual
    from kombu.utils.json import loads
except ImportError as exc:
    raise MissingPackage("kombu+…:// URLs need kombu, which comes with Celery: pip install 'shardq[celery]'") from exc

IDLE_S = 8.0
"""Nobody answers heartbeats between two batches: a connection that was idle for so long is replaced by another."""


class KombuSink(Sink):
    """Publishes one message after the other."""

    batch = 128

    def __init__(self, url: str) -> None:
        broker, mark, query = url.removeprefix("kombu+").partition("?")
        options = dict(parse_qsl(query, keep_blank_values=True))
        try:
            more = msgspec.json.decode(urlsafe_b64decode(options.pop("shardq", "e30=")), type=dict[str, Any])
        except (ValueError, msgspec.MsgspecError) as exc:
            raise InvalidUrl(f"the options of this kombu URL can't be read: {exc}; delay_through writes them") from exc
        self._url = f"{broker}{mark if options else ''}{urlencode(options)}"
        self._options = {
            "transport_options": {**more.get("transport_options", {}), "confirm_publish": True},
            "ssl": _ssl(more.get("ssl", False)),
            "login_method": more.get("login"),
            "connect_timeout": SEND_S / 2,
        }
        try:
            self._new_connection()
        except Exception as exc:
            raise InvalidUrl(f"kombu has no transport for this URL: {type(exc).__name__}") from exc
        self._connection: Any = None
        self._channel: Any = None
        self._returned: list[str] = []
        self._used = 0.0

    def _new_connection(self) -> Any:
        connection = kombu.Connection(self._url, **self._options)
        _ = connection.transport  # it is loaded now, and connects later
        return connection

    def open(self) -> None:
        self._connection = self._new_connection()
        self._channel = self._connection.channel()
        if hasattr(self._channel, "events"):  # AMQP's
            self._channel.events["basic_return"].add(self._note_returned)
        self._used = time.monotonic()

    def _note_returned(self, error: Any, *_: Any) -> None:
        self._returned.append(str(error))

    def send(self, batch: Sequence[Message]) -> Sequence[Result]:
        if time.monotonic() - self._used > IDLE_S:
            self.close()
            self.open()
        results: list[Result] = []
        for message in batch:
            result = self._publish(message)
            results.append(result)
            if isinstance(result, Unsent):
                results += [result] * (len(batch) - len(results))
                break
        self._used = time.monotonic()
        return results

    def _publish(self, message: Message) -> Result:
        try:
            envelope = loads(bytes(message.payload))
            body = b64decode(envelope["body"]) if envelope["base64"] else envelope["body"]
            exchange, key = envelope["exchange"], envelope["routing_key"]
            properties = dict(envelope["properties"])
        except (ValueError, KeyError, TypeError) as exc:
            return Refused(f"it is no message of Celery: {type(exc).__name__}: {exc}")
        if envelope["expires_ms"] is not None and (left := envelope["expires_ms"] - time.time() * 1000) >= 1000:
            properties["expiration"] = str(int(left))  # of one that is over the worker tells the result's backend
        self._returned.clear()
        try:
            channel = self._channel
            if isinstance(channel, virtual.Channel) and exchange:
                channel.exchange_declare(exchange, type=envelope["exchange_type"])
                if envelope["exchange_type"] != "fanout" and not channel._lookup(exchange, key):
                    return Refused(f"unroutable: no queue takes the key {key!r} of the exchange {exchange!r}")
            channel.basic_publish(
                channel.prepare_message(
                    body,
                    envelope["priority"],
                    envelope["content_type"],
                    envelope["content_encoding"],
                    envelope["headers"],
                    properties,
                ),
                exchange=exchange,
                routing_key=key,
                **({} if isinstance(channel, virtual.Channel) else {"mandatory": True, "confirm_timeout": SEND_S}),
            )
        except (*self._connection.connection_errors, *self._connection.channel_errors, OSError) as exc:
            return Unsent(f"{type(exc).__name__}: {exc}")
        except Exception as exc:  # noqa: BLE001  what a message of nonsense raises, each transport knows
            return Failed(f"{type(exc).__name__}: {exc}")
        return SENT if not self._returned else Refused(f"unroutable: {self._returned[0]}")

    def close(self) -> None:
        connection, self._connection, self._channel = self._connection, None, None
        if connection is not None:
            with contextlib.suppress(Exception):  # it is lost already
                connection.release()


def _ssl(given: Any) -> Any:
    """``broker_use_ssl`` as it was: JSON knows no ``ssl.CERT_REQUIRED``."""
    if not isinstance(given, dict):
        return given
    return {key: ssl.VerifyMode(value) if key.endswith("cert_reqs") else value for key, value in given.items()}
