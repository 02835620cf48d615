"""The frames of AMQP 0-9-1 that publish a message, packed by us: a batch is one write, where a client packs and writes
each message on its own. All else of the protocol is the client's. No I/O.

    method   basic.publish: the exchange, the key, mandatory; the same for all messages of a route
    header   the length of the body, and the properties
    body     the payload, in frames that are no larger than the broker allows
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from struct import pack

from shardq.features.sinks.base import Message

SHORT = 255
"""The bytes that the name of an exchange, a routing key, and the name of a header have at most."""

_METHOD, _HEADER, _BODY = 1, 2, 3
_END = b"\xce"
_ENVELOPE = 8
"""The bytes around a frame's content."""

_BASIC, _PUBLISH = 60, 40
_MANDATORY = b"\x01"
_FLAGS = 1 << 15 | 1 << 13 | 1 << 12 | 1 << 7 | 1 << 5
"""The properties in their order: content_type, headers, delivery_mode, message_id, type."""
_PERSISTENT = b"\x02"
_NO_HEADERS = b"\0\0\0\0"
_HEAD_BYTES = 14
"""The bytes of a header frame before the properties."""
_LENGTHS = [bytes((length,)) for length in range(SHORT + 1)]


_TEXT = b"S"
"""The type of a header's value."""


def message_id(message: Message) -> str:
    """The task's id, or a digest of one that is too long: that of a long topic and a long id of the caller's."""
    id = message.id
    return id if len(id.encode()) <= SHORT else hashlib.sha256(id.encode()).hexdigest()


class Frames:
    """Packs messages for one exchange and key on one channel."""

    def __init__(self, channel: int, exchange: str, key: str, frame_max: int) -> None:
        self._channel = channel
        self._most = frame_max - _ENVELOPE
        publish = pack(">HHH", _BASIC, _PUBLISH, 0) + _short(exchange) + _short(key) + _MANDATORY
        self._method = pack(">BHI", _METHOD, channel, len(publish)) + publish + _END

    def of(self, message: Message) -> bytes | None:
        """The frames of a message; None if its headers are more than the broker takes."""
        body = message.payload
        size = len(body)
        properties = b"".join(
            (
                _short(message.content_type),
                _table(message.headers) if message.headers else _NO_HEADERS,
                _PERSISTENT,
                _short(message_id(message)),
                _short(message.topic),
            )
        )
        length = _HEAD_BYTES + len(properties)
        if length > self._most:
            return None
        head = pack(">BHIHHQH", _HEADER, self._channel, length, _BASIC, 0, size, _FLAGS)
        if size > self._most:
            bodies = (self._body(body[at : at + self._most]) for at in range(0, size, self._most))
            return b"".join((self._method, head, properties, _END, *bodies))
        if not size:
            return self._method + head + properties + _END
        return b"".join((self._method, head, properties, _END, pack(">BHI", _BODY, self._channel, size), body, _END))

    def _body(self, part: bytes) -> bytes:
        return pack(">BHI", _BODY, self._channel, len(part)) + part + _END


def _table(headers: Mapping[str, str]) -> bytes:
    """The headers whose names AMQP has room for."""
    content = b"".join(
        _short(name) + _TEXT + pack(">I", len(text := value.encode())) + text
        for name, value in headers.items()
        if len(name.encode()) <= SHORT
    )
    return pack(">I", len(content)) + content


def _short(text: str) -> bytes:
    encoded = text.encode()
    return _LENGTHS[len(encoded)] + encoded
