"""The record: how a task's payload and options are stored, byte by byte, and the codecs.

Called by the producer (encode) and by what reads tasks back (decode). Scripts look at the first byte and the
head's length only, to find where the payload begins.

    byte 0      version (high 4 bits, now 1), has-head (bit 3), codec (low 3 bits)
    if has-head:
      2 bytes   length of the head, big-endian
      head      a msgpack map: "m" max_attempts (int), "h" headers (str to str), "x" when it expires
              (an instant in ms; below 0: so many ms from the push, whose script puts the instant in its place),
              "n" the nonce of the push, where the caller chose the id (int): how a resend knows its own first send,
              "t" tags (list of str), "e" why the last attempt failed (str, always first, which settle's script puts
              there), "p" when it was pushed, in seconds since 1970, where the engine keeps ends and the caller chose
              the id (uint32); other names are passed over
    the rest    the payload, exactly as the codec made it

    codec 0 raw bytes, 1 JSON, 2 msgpack, 7 the caller's own

The byte names the codec, so an engine reads what another wrote with a different default. To change the
layout: a new version here, the reader of the old one kept, ``forward.lua``, and the tables in
``lua/README.md``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, Protocol

import msgspec

from shardq.core.layout.words import UNDECODABLE
from shardq.core.locks import raised_by_handler
from shardq.core.model.checks import MAX_PAYLOAD, check_payload_size
from shardq.core.model.printable import quoted
from shardq.core.model.task_options import Content, StoredContent, parted, store_content
from shardq.core.model.typed import to_builtins
from shardq.errors import InvalidOption, PayloadNotAuthentic, PayloadNotDecodable, PayloadNotEncodable

VERSION = 1

UNREADABLE = "format"
"""The reason of the death of a task whose record is of another version, or whose head can't be read."""

_HEADED = 0b1000
_CODEC = 0b0111
_OWN = 7


class Codec(Protocol):
    """How payloads become bytes and come back. An object of your own as ``codec=`` is used as it is.

    A codec that authenticates payloads, such as ``shardq.codecs.encrypted``, has an attribute ``clear``: "refuse", or
    "read" if the engine may read what the built-in codecs wrote, too. Its methods get the id of the task as a second
    argument. It binds a payload to ``shardq.codecs.bound_to(id)``, and raises PayloadNotAuthentic for one that it did
    not encode for this id: the task is dead at once.

    >>> class Text:
    ...     name = "text"
    ...     def encode(self, payload): return payload.encode()
    ...     def decode(self, data): return data.decode()
    >>> notes = shardq.Engine(codec=Text())
    """

    @property
    def name(self) -> str:
        """The codec's name in messages."""

    def encode(self, payload: Any, /) -> bytes:
        """Bytes of a payload. May raise anything: the caller sees PayloadNotEncodable."""

    def decode(self, data: bytes, /) -> Any:
        """A payload of its bytes. May raise anything: the caller sees PayloadNotDecodable."""


class Builtin(msgspec.Struct, frozen=True):
    """A built-in codec; its number goes into the record."""

    name: str
    number: int
    encode: Callable[[Any], bytes]
    decode: Callable[[bytes], Any]
    refused: tuple[type, ...] = ()  # types of payload that it could encode and would not give back


def _to_bytes(payload: Any) -> bytes:
    # bytes(5) would make five zero bytes of a mistake.
    if not isinstance(payload, BYTES):
        raise TypeError('codec="raw" takes bytes, bytearray or memoryview only')
    return bytes(payload)


BYTES = (bytes, bytearray, memoryview)


RAW = Builtin("raw", 0, _to_bytes, bytes)
JSON = Builtin(
    "json", 1, msgspec.json.Encoder(enc_hook=to_builtins).encode, msgspec.json.Decoder().decode, refused=BYTES
)
MSGPACK = Builtin("msgpack", 2, msgspec.msgpack.Encoder(enc_hook=to_builtins).encode, msgspec.msgpack.Decoder().decode)

_BY_NAME = {codec.name: codec for codec in (JSON, MSGPACK, RAW)}
_BY_NUMBER = {codec.number: codec for codec in _BY_NAME.values()}
CODECS: Mapping[str, int] = {name: codec.number for name, codec in _BY_NAME.items()} | {"own": 7}
"""The codecs by the names under which stored payloads are shown → their numbers in the record."""

PLAIN: Mapping[int, Callable[[bytes], Any]] = {VERSION << 4 | codec.number: codec.decode for codec in _BY_NAME.values()}
"""First byte of a record without a head → the decoder of the rest, which is its payload. Most records have none, and
a reader of many saves the calls of ``decode_payload``, which are as much as the decoding.
"""
_WITH_NONCE = {
    bytes([VERSION << 4 | _HEADED | codec.number]) + b"\0\x08\x81\xa1n\xce": codec.decode for codec in _BY_NAME.values()
}
"""First bytes of a record whose head is a nonce alone, as with most ids of the caller's own → likewise."""
_NONCE_END = 11  # the payload's place in such a record
_WITH_PUSH = {
    bytes([VERSION << 4 | _HEADED | codec.number]) + b"\0\x0f\x82\xa1n\xce": codec.decode for codec in _BY_NAME.values()
}
"""The same with the second of the push, where ends are kept."""
_PUSHED = b"\xa1p\xce"  # before that
_PUSH_END = 18


def codec_named(choice: str | Codec) -> Codec:
    """The codec for the option ``codec=``: a name, or an object of the caller's own."""
    if isinstance(choice, str):
        if choice in _BY_NAME:
            return _BY_NAME[choice]
    elif all(hasattr(choice, part) for part in ("name", "encode", "decode")):
        return choice
    raise InvalidOption(
        f"codec can't be {quoted(choice)}; use one of {', '.join(map(repr, _BY_NAME))}, "
        "or an object with a name and the methods encode and decode"
    )


def clear_of(codec: Codec | None) -> Literal["refuse", "read"] | None:
    """A codec that authenticates payloads refuses those in the clear, or reads them; None for any other codec."""
    clear = getattr(codec, "clear", None)
    return clear if clear in ("refuse", "read") else None


class UnreadableRecord(PayloadNotDecodable):
    """The record itself can't be read, whatever its codec."""


_NO_REASON = msgspec.Raw()


class _Head(StoredContent, omit_defaults=True):
    expires: int | None = msgspec.field(default=None, name="x")
    nonce: int | None = msgspec.field(default=None, name="n")
    pushed: int | None = msgspec.field(default=None, name="p")
    reason: msgspec.Raw = msgspec.field(default=_NO_REASON, name="e")
    """Its text may be cut anywhere, or be none: it must not make the record unreadable."""


_encode_head = msgspec.msgpack.Encoder(enc_hook=str).encode  # of a subclass of str the text
_decode_head = msgspec.msgpack.Decoder(_Head).decode
_EMPTY = _encode_head(_Head())


def encode_head(
    given: Content | None = None,
    *,
    expires: int | None = None,
    nonce: int | None = None,
    pushed: int | None = None,
) -> bytes | None:
    """The head of a record with the options of this content, or None when nothing goes into it. Raises BadInput."""
    head = _Head(expires=expires, nonce=nonce, pushed=pushed)
    if given is not None:
        store_content(given, head)
    encoded = _encode_head(head)
    return None if encoded == _EMPTY else encoded


def record_encoder(codec: Codec, *, limit: int = MAX_PAYLOAD) -> Callable[[Any, bytes | None, str], bytes]:
    """``encode(payload, head, id)`` for many tasks of one codec; ``limit`` in bytes, of the encoded payload."""
    plain, headed = _first_byte(codec), _first_byte(codec, headed=True)
    to_bytes: Callable[..., bytes] = codec.encode
    takes_id = clear_of(codec) is not None
    refused = refused_types(codec)

    def encode(payload: Any, head: bytes | None, id: str) -> bytes:
        if isinstance(payload, refused):
            raise PayloadNotEncodable(
                f"a payload of {type(payload).__name__} would come back as base64 text from the codec {codec.name!r}; "
                'open the engine with codec="raw" to push bytes as they are, or with codec="msgpack", or decode them'
            )
        try:
            encoded = to_bytes(payload, id) if takes_id else to_bytes(payload)
            record = plain + encoded if head is None else _headed(headed, head, encoded)
        except Exception as exc:  # a codec, or a payload it calls, may raise anything
            if raised_by_handler(exc):
                raise
            raise PayloadNotEncodable(
                f"the codec {codec.name!r} can't encode a payload of type {type(payload).__name__}: {exc}; "
                "push what it can encode, or choose another codec="
            ) from exc
        if len(encoded) > limit:
            check_payload_size(encoded, limit)
        return record

    return encode


def plain_records_encoder(
    codec: Codec, *, limit: int = MAX_PAYLOAD
) -> Callable[[Iterable[Any], Iterable[str]], list[bytes]]:
    """``encode(payloads, ids)`` for many tasks without a head at once, none of them of ``refused_types``. An error does
    not say which was wrong.
    """
    plain = _first_byte(codec)
    to_bytes: Callable[..., bytes] = codec.encode
    takes_id = clear_of(codec) is not None

    def encode(payloads: Iterable[Any], ids: Iterable[str]) -> list[bytes]:
        try:
            encoded = list(map(to_bytes, payloads, ids) if takes_id else map(to_bytes, payloads))
            records = [plain + each for each in encoded]
        except Exception as exc:  # as above
            if raised_by_handler(exc):
                raise
            raise PayloadNotEncodable(f"the codec {codec.name!r} can't encode one of the payloads: {exc}") from exc
        check_payload_size(max(encoded, key=len, default=b""), limit)
        return records

    return encode


def refused_types(codec: Codec) -> tuple[type, ...]:
    """The types of payload that the codec would change without a word."""
    return codec.refused if isinstance(codec, Builtin) else ()


def _first_byte(codec: Codec, *, headed: bool = False) -> bytes:
    number = codec.number if isinstance(codec, Builtin) else _OWN
    return bytes([VERSION << 4 | (_HEADED if headed else 0) | number])


def encode_record(codec: Codec, payload: Any, head: bytes | None = None, *, id: str = "") -> bytes:
    """The record of one task."""
    return record_encoder(codec)(payload, head, id)


def rebound(record: bytes, codec: Codec, old: str, new: str) -> bytes:
    """The same record for a task whose id, which its codec may have bound to the payload, is another one now."""
    if clear_of(codec) is None:
        return record
    binding: Any = codec  # its methods take an id
    encoded = _parts(record)[2]
    anew: bytes = binding.encode(binding.decode(encoded, old), new)
    return record[: len(record) - len(encoded)] + anew


def expiring_sooner(record: bytes, elapsed_ms: int) -> bytes:
    """The record of a push that is sent again after so many ms: an expiry that counts from the push is that much
    sooner.
    """
    return _with_expiry_moved(record, lambda from_push: from_push and min(-1, from_push + elapsed_ms))


def dated(record: bytes, began_ms: int) -> bytes:
    """The same record, whose expiry is an instant: one that counts from the push, which began then, is added up."""
    return _with_expiry_moved(record, lambda from_push: began_ms - from_push)


def _with_expiry_moved(record: bytes, moved: Callable[[int], int]) -> bytes:
    """The same record, with another expiry in place of one that counts from the push."""
    # most records have none, and need not be read
    if not record[0] & _HEADED:
        return record
    _, head, encoded = _parts(record)
    if head is None or head.expires is None or head.expires > 0:
        return record
    head.expires = moved(head.expires)
    return _headed(record[:1], _encoded_again(head), encoded)


def _encoded_again(head: _Head) -> bytes:
    """A head that was read, with its reason in the first place, where settle's script looks for it."""
    reason, head.reason = bytes(head.reason), _NO_REASON
    return _reason_first(reason, _encode_head(head)) if reason else _encode_head(head)


def _reason_first(reason: bytes, head: bytes) -> bytes:
    return bytes([head[0] + 1]) + b"\xa1e" + reason + head[1:]


def assembled(
    payload: bytes,
    codec: str,
    content: Content,
    *,
    expires_ms: int | None = None,
    reason: bytes = b"",
) -> bytes:
    """The record of a payload as it was stored, whose ``codec`` is one of ``CODECS``. ``reason``: why its last attempt
    failed, with the attempts that are noted behind it. Raises BadInput for an option of the content.
    """
    head = encode_head(content, expires=expires_ms)
    if reason:
        # as settle's script puts it there: the first name, with a length of two bytes
        head = _reason_first(b"\xda" + len(reason).to_bytes(2, "big") + reason, head or _EMPTY)
    number = CODECS[codec]
    if head is None:
        return bytes([VERSION << 4 | number]) + payload
    return _headed(bytes([VERSION << 4 | _HEADED | number]), head, payload)


def has_head(record: bytes) -> bool:
    """True if there is more to a task than its payload."""
    return bool(record[0] & _HEADED)


def nonce_of(record: bytes) -> int | None:
    """The nonce of a push under an id of the caller's own; None for other records, and for one that can't be read."""
    try:
        _, head, _ = _parts(record)
    except PayloadNotDecodable:
        return None
    return None if head is None else head.nonce


def pushed_s_of(record: bytes) -> int:
    """When the task was pushed, in seconds since 1970; 0: its id says it; -1: nothing does."""
    if not record[:1] or not record[0] & _HEADED:
        return 0
    try:
        _, head, _ = _parts(record)
    except PayloadNotDecodable:
        return -1
    if head is None:
        return 0
    return head.pushed or (0 if head.nonce is None else -1)


def with_push(record: bytes, pushed_s: int) -> bytes:
    """The record of a push under an id that does not say so, with the second in which it was pushed."""
    if not record[0] & _HEADED:
        return _headed(bytes([record[0] | _HEADED]), _encode_head(_Head(pushed=pushed_s)), record[1:])
    pushed = _PUSHED + pushed_s.to_bytes(4, "big")
    if record[:7] in _WITH_NONCE:
        return record[:1] + b"\0\x0f\x82" + record[4:_NONCE_END] + pushed + record[_NONCE_END:]
    length, names = int.from_bytes(record[1:3], "big"), record[3]
    head = bytes([names + 1]) + record[4 : 3 + length] + pushed  # a map of up to 15 names: it was just made
    return record[:1] + (length + 7).to_bytes(2, "big") + head + record[3 + length :]


def last_reason(record: bytes) -> str | None:
    """The end of the reason of the last attempt that failed, with the attempts that are noted behind it. None where
    there is none, and for a record that can't be read.
    """
    try:
        _, head, _ = _parts(record)
    except PayloadNotDecodable:
        return None
    reason = b"" if head is None else bytes(head.reason)
    return reason[3:].decode(errors="replace") or None if reason[:1] == b"\xda" else None


def with_expiry(record: bytes, expires_ms: int) -> bytes:
    """The record with the instant after which its task is worth nothing."""
    number, head, encoded = _parts(record)
    head = head or _Head()
    head.expires = expires_ms
    return _headed(bytes([VERSION << 4 | _HEADED | number]), _encoded_again(head), encoded)


def _headed(first: bytes, head: bytes, encoded: bytes) -> bytes:
    return first + len(head).to_bytes(2, "big") + head + encoded


class Decoded(msgspec.Struct, frozen=True):
    """The content of a record."""

    payload: Any
    codec: str
    content: StoredContent
    expires_ms: int | None = None


def decode_record(record: bytes, *, own: Codec | None = None, id: str = "") -> Decoded:
    """Read a record. ``own`` is the codec for those that the caller's own codec wrote, ``id`` the task's."""
    number, head, encoded = _parts(record)
    codec = _codec_numbered(number, own)
    to_payload: Callable[..., Any] = codec.decode
    try:
        payload = to_payload(encoded, id) if number == _OWN and clear_of(own) else to_payload(encoded)
    except PayloadNotAuthentic:
        raise
    except Exception as exc:  # a codec may raise anything
        if raised_by_handler(exc):
            raise
        raise _undecodable(codec, encoded, exc) from exc
    known = "own" if number == _OWN else codec.name
    return Decoded(payload, known, head or StoredContent(), head.expires if head else None)


def undecoded(record: bytes) -> Decoded:
    """Reads a record, with the payload as its codec made it. If that can't be read, the payload is the whole record."""
    try:
        number, head, encoded = _parts(record)
    except PayloadNotDecodable:
        return Decoded(record, "", StoredContent())
    codec = "own" if number == _OWN else _BY_NUMBER[number].name if number in _BY_NUMBER else ""
    return Decoded(encoded, codec, head or StoredContent(), head.expires if head else None)


def decode_payload(
    record: bytes, own: Codec | None = None, id: str = ""
) -> tuple[Any, Mapping[str, str], tuple[str, ...]]:
    """The payload, the headers, also ours, and the tags, as ``decode_record`` reads them; in a third of its time for
    records whose head is a nonce alone, unless the codec is the caller's own, which may refuse them.
    """
    end = 0
    if own is None or type(own) is Builtin:
        decode, end = _WITH_NONCE.get(record[:7]), _NONCE_END
        if decode is None:
            decode, end = _WITH_PUSH.get(record[:7]), _PUSH_END
            if decode is not None and record[_NONCE_END : _NONCE_END + 3] != _PUSHED:
                decode = None
    else:
        decode = None
    if decode is not None and len(record) >= end:
        try:
            return decode(record[end:]), {}, ()
        except Exception as exc:
            if raised_by_handler(exc):
                raise
            raise _undecodable(_BY_NUMBER[record[0] & _CODEC], record[end:], exc) from exc
    decoded = decode_record(record, own=own, id=id)
    return decoded.payload, decoded.content.headers, decoded.content.tags


def _undecodable(codec: Codec | Builtin, encoded: bytes, exc: Exception) -> PayloadNotDecodable:
    return PayloadNotDecodable(
        f"the codec {codec.name!r} can't decode a payload of {len(encoded)} bytes: {exc}; "
        "was it written by another codec of the same kind?"
    )


def encoded_parts(record: bytes) -> tuple[bytes, Mapping[str, str]]:
    """The payload's bytes as the codec made them, and the headers of the caller, for consumers that are not ours."""
    _, head, encoded = _parts(record)
    return encoded, {} if head is None else parted(head.headers)[0]


class EncodedPayload(msgspec.Struct, frozen=True):
    """A payload as it is stored."""

    data: bytes
    codec: str  # json, msgpack, raw, or own for the caller's own


def as_stored(
    record: bytes, own: Codec | None = None, id: str = ""
) -> tuple[EncodedPayload, Mapping[str, str], tuple[str, ...]]:
    """Like ``decode_payload``, with the payload as it is stored: for what hands it on."""
    number, head, encoded = _parts(record)
    known = _BY_NUMBER.get(number)
    payload = EncodedPayload(encoded, known.name if known else "own")
    return (payload, {}, ()) if head is None else (payload, head.headers, head.tags)


def _parts(record: bytes) -> tuple[int, _Head | None, bytes]:
    """Codec number, head, encoded payload."""
    if not record or record[0] >> 4 != VERSION:
        found = f"version {record[0] >> 4}" if record else "nothing"
        raise UnreadableRecord(
            f"the stored record is of {found}, this library reads version {VERSION}; "
            "it was written by a newer shardq, or by something else: upgrade, or look at the raw value"
        )
    first = record[0]
    if not first & _HEADED:
        return first & _CODEC, None, record[1:]
    start = 3
    end = start + int.from_bytes(record[1:start], "big")
    if len(record) < max(start, end):
        raise UnreadableRecord(f"the stored record is cut off in its head, at {len(record)} bytes")
    try:
        head = _decode_head(record[start:end])
    except UNDECODABLE as exc:
        raise UnreadableRecord(f"the head of the stored record can't be read: {exc}") from exc
    return first & _CODEC, head, record[end:]


def _codec_numbered(number: int, own: Codec | None) -> Codec:
    if number == _OWN:
        if own is None or isinstance(own, Builtin):  # an engine's default may be one of ours
            raise PayloadNotDecodable(
                "the payload was written by a codec of the caller's own, and this engine has none; "
                "open the engine with the codec= that wrote it"
            )
        return own
    if not isinstance(own, Builtin) and clear_of(own) == "refuse":
        raise PayloadNotAuthentic(
            "the payload is in the clear, and this engine reads encrypted ones only; push it with the key, or open the "
            'engine with encrypted(…, clear="read") until every program that pushes has the key'
        )
    codec = _BY_NUMBER.get(number)
    if codec is None:
        raise PayloadNotDecodable(
            f"the payload's codec has number {number}, which this version does not know; upgrade shardq"
        )
    return codec
