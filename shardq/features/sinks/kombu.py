"""``kombu+URL``: publishes captured messages by kombu, in a process that has no Celery app.

    kombu+amqp://USER:PASSWORD@HOST/VHOST?timeout=SECONDS&shardq=OPTIONS

``delay_through`` makes these URLs. What follows ``kombu+`` is the app's ``broker_url``; OPTIONS are its
``broker_transport_options`` and ``broker_use_ssl``, as JSON in base64url.

A message that is declined (a nack, a missing exchange, no right to write) has failed, if others that came behind it
were taken. Otherwise the queue is full by now, or gone, and counts as down. It is the only one of its topic, and holds
up no other; in a topic that many share each message fails for itself. On a connection that is lost or silent nothing is
waited for, not even the answer to a goodbye.
"""

from __future__ import annotations

import contextlib
import re
import ssl
import time
from base64 import b64decode, urlsafe_b64decode
from collections.abc import Sequence
from typing import Any
from urllib.parse import parse_qsl, urlencode

import msgspec

from shardq.core.layout.words import UNDECODABLE
from shardq.errors import InvalidUrl, MissingPackage
from shardq.features.sinks.amqp import CLOSE_S, IDLE_S, has_room
from shardq.features.sinks.base import SEND_S, SENT, Failed, Message, Refused, Result, Sink, Unsent, shut_down
from shardq.features.sinks.urls import TIMEOUT, addresses_in, timeout

try:
    import kombu
    from amqp.exceptions import MessageNacked
    from kombu.transport import virtual
    from kombu.utils.json import loads
except ImportError as _exc:
    raise MissingPackage("kombu+…:// URLs need kombu, which comes with Celery: pip install 'shardq[celery]'") from _exc

NOT_ALLOWED, NOT_FOUND = 403, 404
"""The errors of the broker about an exchange and a key, whatever the message. The first one also of a login."""

NO_ACCESS = 530
"""Its errors about a vhost."""

_PREPARED = ("body", "priority", "content_type", "content_encoding", "headers", "properties")
_TOO_LARGE = re.compile(r"message size \d+ is larger than .*")


class _Declined(Exception):
    """The broker has not taken a message now. ``all``: it takes none for this exchange and key."""

    def __init__(self, reason: str, *, all: bool = False) -> None:
        self.reason, self.all = reason, all


class KombuSink(Sink):
    """Publishes one message after the other."""

    batch = 128

    def __init__(self, url: str) -> None:
        broker, mark, query = url.removeprefix("kombu+").partition("?")
        options = dict(parse_qsl(query, keep_blank_values=True))
        self._timeout_s = timeout(f"kombu+{broker.partition('://')[0]}", options, SEND_S)
        options.pop(TIMEOUT, None)
        try:
            more = msgspec.json.decode(urlsafe_b64decode(options.pop("shardq", "e30=")), type=dict[str, Any])
        except UNDECODABLE as exc:
            raise InvalidUrl(f"the options of this kombu URL can't be read: {exc}; delay_through writes them") from exc
        self._url = f"{broker}{mark if options else ''}{urlencode(options)}"
        self._options = {
            "transport_options": {
                **more.get("transport_options", {}),
                "confirm_publish": True,
                # RabbitMQ's, and those of Redis; other transports pass over them
                "read_timeout": self._timeout_s,
                "write_timeout": self._timeout_s,
                "socket_timeout": self._timeout_s,
                "socket_connect_timeout": self._timeout_s / 2,
            },
            "ssl": _ssl(more.get("ssl", False)),
            "login_method": more.get("login"),
            "connect_timeout": self._timeout_s / 2,
        }
        # kombu may be given several URLs, or hosts, each for the case that the one before it fails
        self.addresses: Sequence[str] = tuple(address for each in broker.split(";") for address in addresses_in(each))
        try:
            self._shown = self._new_connection().as_uri().rpartition("@")[2].rstrip("/")
        except Exception as exc:
            raise InvalidUrl(f"kombu has no transport for this URL: {type(exc).__name__}") from exc
        self._connection: Any = None
        self._channel: Any = None
        self._amqp: Any = None
        """py-amqp's connection, also while it is being made; None with other transports."""
        self._returned: list[str] = []
        self._used = 0.0

    # ---- the connection

    def _new_connection(self) -> Any:
        connection = kombu.Connection(self._url, **self._options)
        transport = connection.transport  # it is loaded now, and connects later
        if transport.driver_type == "amqp":
            make = transport.Connection

            def made(**options: Any) -> Any:
                self._amqp = make(**options)
                return self._amqp

            transport.Connection = made
        return connection

    def open(self) -> None:
        self._connection = self._new_connection()
        try:
            # without a pause between the addresses of a broker, of which each is tried once
            self._connection.ensure_connection(
                max_retries=max(0, len(self._connection.alt or ()) - 1),
                interval_start=0,
                interval_step=0,
                timeout=self._timeout_s,
                reraise_as_library_errors=False,
            )
            self._channel = self._connection.channel()
        except Exception as exc:
            self._end(answers=False)
            raise ConnectionError(self._reason(exc)) from exc
        if hasattr(self._channel, "events"):  # AMQP's
            self._channel.events["basic_return"].add(lambda error, *_: self._returned.append(str(error)))
        self._used = time.monotonic()

    def interrupt(self) -> None:
        sock = self._socket()
        if sock is not None:
            shut_down(sock)
        elif (pool := getattr(self._channel, "_pool", None)) is not None:  # of Redis
            pool.disconnect()

    def _socket(self) -> Any:
        """The socket of an AMQP connection, from its first connect on."""
        return getattr(getattr(self._amqp, "_transport", None), "sock", None)

    def close(self) -> None:
        self._end(answers=True)

    def _end(self, *, answers: bool) -> None:
        """Disconnects. ``answers``: the broker is there, and is told."""
        connection, self._connection, self._channel = self._connection, None, None
        if connection is not None:
            with contextlib.suppress(Exception):  # it is lost already
                sock = self._socket()
                if sock is not None:
                    sock.settimeout(CLOSE_S)
                if answers or sock is None:
                    connection.release()
                else:
                    connection.collect()

    # ---- a batch

    def send(self, batch: Sequence[Message]) -> Sequence[Result]:
        if time.monotonic() - self._used > IDLE_S:
            self.close()
        results: list[Result] = []
        declined: dict[int, str] = {}
        """Position → why the broker has not taken this one now."""
        places: dict[tuple[str, str], str | None] = {}
        """Exchange and key → why the broker takes nothing for them, if so. It is asked once a batch."""
        for position, message in enumerate(batch):
            try:
                envelope = _read(message)
                place = envelope["exchange"], envelope["routing_key"]
                if (closed := places.setdefault(place, None)) is not None:
                    raise _Declined(closed)
                result = self._publish(envelope)
            except _Declined as exc:
                declined[position] = exc.reason
                if exc.all:
                    places[place] = exc.reason
                result = Failed(exc.reason)
            except (*UNDECODABLE, KeyError, TypeError) as exc:
                result = Refused(f"it is not a message of Celery: {type(exc).__name__}: {exc}")
            results.append(result)
            if isinstance(result, Unsent):
                self._end(answers=False)
                results += [result] * (len(batch) - len(results))
                break
        self._used = time.monotonic()
        if len(places) == 1:
            # what is declined behind all that were taken tells of the queue: it is full by now, or gone
            last = max((n for n, result in enumerate(results) if result is SENT), default=-1)
            for position, reason in declined.items():
                if position > last:
                    results[position] = Unsent(reason)
        return results

    def _publish(self, envelope: dict[str, Any]) -> Result:
        exchange, key = envelope["exchange"], envelope["routing_key"]
        where = f"the key {key!r} of the exchange {exchange!r}"
        if self._connection is None:
            try:
                self.open()
            except OSError as exc:
                return Unsent(str(exc))
        self._returned.clear()
        try:
            channel = self._channel
            virtually = isinstance(channel, virtual.Channel)
            if virtually and exchange:
                channel.exchange_declare(exchange, type=envelope["exchange_type"])
                if envelope["exchange_type"] != "fanout" and not channel._lookup(exchange, key):
                    return Refused(f"unroutable: no queue takes {where}")
            prepared = channel.prepare_message(*(envelope[name] for name in _PREPARED))
            most = getattr(self._amqp, "frame_max", None)
            if most and not has_room(prepared, most):
                return Refused("its headers are larger than a frame of the broker")
            confirmed = {} if virtually else {"mandatory": True, "confirm_timeout": self._timeout_s}
            channel.basic_publish(prepared, exchange=exchange, routing_key=key, **confirmed)
        except MessageNacked as exc:
            raise _Declined(f"the broker has not taken it for {where}: a queue is full, or failed") from exc
        except self._connection.channel_errors as exc:
            self.close()  # the broker has closed the channel
            code = getattr(exc, "reply_code", 0)
            text = f"the broker refused it for {where}: {f'{code} {exc.reply_text}' if code else exc}"
            if _TOO_LARGE.search(text):
                return Refused(text)
            raise _Declined(text, all=code in (NOT_ALLOWED, NOT_FOUND)) from exc
        except (*self._connection.connection_errors, OSError) as exc:
            return Unsent(self._reason(exc))
        except Exception as exc:  # noqa: BLE001  what a message of nonsense raises, each transport knows
            return Failed(f"{type(exc).__name__}: {exc}")
        return SENT if not self._returned else Refused(f"unroutable: no queue takes {where}: {self._returned[0]}")

    def _reason(self, exc: Exception) -> str:
        if isinstance(exc, TimeoutError | BlockingIOError):
            silent = f"{self._shown}: the broker has answered nothing for {self._timeout_s:g} s"
            return f"{silent}: it hangs, is short of memory or disk space, or a queue is without a leader"
        text = f"{self._shown}: {type(exc).__name__}: {exc}"
        if getattr(exc, "reply_code", 0) in (NOT_ALLOWED, NO_ACCESS):
            return f"{text}; check the user, the password and the vhost in broker_url"
        return f"{text}; check that it runs and can be reached from here" if self._connection is None else text


def _read(message: Message) -> dict[str, Any]:
    """The message to be published, with the body as bytes or text. Raises ValueError, KeyError or TypeError."""
    envelope: dict[str, Any] = dict(loads(bytes(message.payload)))
    if envelope["base64"]:
        envelope["body"] = b64decode(envelope["body"])
    envelope["properties"] = properties = dict(envelope["properties"])
    expires_ms = envelope["expires_ms"]
    if expires_ms is not None and (left := expires_ms - time.time() * 1000) >= 1000:
        properties["expiration"] = str(int(left))  # of one that is over the worker tells the result's backend
    return envelope


def _ssl(given: Any) -> Any:
    """``broker_use_ssl`` as it was: JSON knows no ``ssl.CERT_REQUIRED``."""
    if not isinstance(given, dict):
        return given
    return {key: ssl.VerifyMode(value) if key.endswith("cert_reqs") else value for key, value in given.items()}
