"""The bytes of records: pinned examples, round trips, and what is refused."""

from __future__ import annotations

import contextlib
import datetime as dt
import pickle
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardq.core.model.checks import MAX_PAYLOAD
from shardq.core.model.record import (
    JSON,
    MSGPACK,
    RAW,
    Builtin,
    Codec,
    assembled,
    codec_named,
    dated,
    decode_payload,
    decode_record,
    encode_record,
    encoded_parts,
    last_reason,
    record_encoder,
    with_expiry,
)
from shardq.core.model.task_options import Content
from shardq.errors import InvalidOption, PayloadNotDecodable, PayloadNotEncodable, PayloadTooLarge
from tests.support.heads import encode_head

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
plain_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | text | st.floats(allow_nan=False, width=32),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(text, inner, max_size=4),
    max_leaves=12,
)
finite_values = plain_values.filter(lambda value: "inf" not in repr(value))
heads = st.tuples(st.dictionaries(text, text, max_size=4), st.one_of(st.none(), st.integers(1, 1_000_000)))


class Reversed:
    """A codec of the caller's own."""

    name = "reversed"

    def encode(self, payload: Any, /) -> bytes:
        return str(payload)[::-1].encode()

    def decode(self, data: bytes, /) -> Any:
        return data.decode()[::-1]


class Broken:
    """A codec that fails both ways."""

    name = "broken"

    def encode(self, payload: Any, /) -> bytes:
        raise pickle.PicklingError("no way out")

    def decode(self, data: bytes, /) -> Any:
        raise EOFError("no way in")


@pytest.mark.parametrize(
    ("codec", "payload", "head", "record"),
    [
        (RAW, b"ab", None, b"\x10ab"),
        (JSON, {"n": 1}, None, b'\x11{"n":1}'),
        (MSGPACK, {"n": 1}, None, b"\x12\x81\xa1n\x01"),
        (Reversed(), "abc", None, b"\x17cba"),
        (JSON, 1, encode_head(headers={"a": "b"}), b"\x19\x00\x08\x81\xa1h\x81\xa1a\xa1b1"),
        (JSON, 1, encode_head(max_attempts=3), b"\x19\x00\x04\x81\xa1m\x031"),
        (
            RAW,
            b"",
            encode_head(headers={"a": "b"}, max_attempts=3),
            b"\x18\x00\x0b\x82\xa1m\x03\xa1h\x81\xa1a\xa1b",
        ),
    ],
)
def test_records_are_pinned(codec: Codec, payload: Any, head: bytes | None, record: bytes) -> None:
    assert encode_record(codec, payload, head) == record
    decoded = decode_record(record, own=Reversed())
    assert (decoded.payload, decoded.codec) == (payload, "own" if isinstance(codec, Reversed) else codec.name)


@pytest.mark.parametrize("codec", [JSON, MSGPACK], ids=lambda codec: codec.name)
@given(payload=finite_values, options=heads)
def test_a_task_survives_its_record(codec: Codec, payload: Any, options: tuple[dict[str, str], int | None]) -> None:
    headers, max_attempts = options
    record = encode_record(codec, payload, encode_head(headers=headers, max_attempts=max_attempts))
    decoded = decode_record(record)
    assert decoded.payload == payload
    assert decoded.content.headers == headers
    assert decoded.content.max_attempts == max_attempts
    assert decoded.codec == codec.name


@given(payload=st.binary(max_size=200), options=heads)
def test_raw_bytes_are_found_again_exactly(payload: bytes, options: tuple[dict[str, str], int | None]) -> None:
    headers, max_attempts = options
    record = encode_record(RAW, payload, encode_head(headers=headers, max_attempts=max_attempts))
    assert encoded_parts(record)[0] == payload
    assert decode_record(record).payload == payload
    assert record.endswith(payload)


def test_the_payload_for_others_is_what_the_codec_made() -> None:
    head = encode_head(headers={"trace": "1"}, max_attempts=2)
    assert encoded_parts(encode_record(JSON, {"n": 1}, head))[0] == b'{"n":1}'
    assert encoded_parts(encode_record(Reversed(), "abc", head))[0] == b"cba"


def test_without_options_there_is_no_head() -> None:
    assert encode_head() is None
    assert encode_head(headers={}) is None
    assert len(encode_record(RAW, b"")) == 1


def test_json_and_msgpack_take_what_msgspec_takes() -> None:
    class Order(msgspec.Struct):
        number: int
        made: dt.datetime

    order = Order(7, dt.datetime(2030, 1, 2, tzinfo=dt.UTC))
    assert decode_record(encode_record(JSON, order)).payload == {"number": 7, "made": "2030-01-02T00:00:00Z"}
    assert decode_record(encode_record(MSGPACK, order)).payload == {"number": 7, "made": order.made}


@pytest.mark.parametrize("payload", [b"ab", bytearray(b"ab"), memoryview(b"ab"), memoryview(b"axbx")[::2]])
def test_raw_takes_all_kinds_of_bytes(payload: Any) -> None:
    assert decode_record(encode_record(RAW, payload)).payload == b"ab"


@pytest.mark.parametrize(
    ("codec", "payload", "why"),
    [
        (RAW, "text", "payload of type str: .* takes bytes, bytearray or memoryview only"),
        (RAW, 5, "payload of type int"),
        (RAW, None, "payload of type NoneType"),
        (JSON, object(), "codec 'json' can't encode a payload of type object"),
        (JSON, {"a": {1, (2, object())}}, "payload of type dict"),
        (JSON, "\ud800", "surrogates"),
        (MSGPACK, 2**80, "codec 'msgpack' can't encode a payload of type int"),
        (Broken(), 1, "codec 'broken' can't encode a payload of type int: no way out"),
    ],
)
def test_what_a_codec_cannot_encode(codec: Codec, payload: Any, why: str) -> None:
    with pytest.raises(
        PayloadNotEncodable, match=rf"{why}.*; push what it can encode, or choose another codec="
    ) as caught:
        encode_record(codec, payload)
    assert caught.value.__cause__ is not None


@pytest.mark.parametrize("payload", [b"x", bytearray(b"x"), memoryview(b"x")])
def test_bytes_are_no_json(payload: Any) -> None:
    with pytest.raises(PayloadNotEncodable, match=r"would come back as base64 text .*codec=\"raw\""):
        encode_record(JSON, payload)


def test_a_payload_that_holds_itself() -> None:
    ring: list[Any] = []
    ring.append(ring)
    with pytest.raises(PayloadNotEncodable, match="recursion"):
        encode_record(JSON, ring)


def test_a_codec_that_gives_something_else_than_bytes() -> None:
    class Texts(Reversed):
        def encode(self, payload: Any, /) -> bytes:
            text: Any = "text"
            return text  # type: ignore[no-any-return]  # what an untyped codec may do

    with pytest.raises(PayloadNotEncodable, match="can't encode a payload of type int: can't concat str to bytes"):
        encode_record(Texts(), 1)


def test_the_limit_is_that_of_the_encoded_payload() -> None:
    encode = record_encoder(RAW, limit=10)
    head = encode_head(headers={"a": "b" * 50})
    assert len(encode(bytes(10), None, "")) == 11
    assert encoded_parts(encode(bytes(10), head, ""))[0] == bytes(10)
    for with_head in (None, head):
        with pytest.raises(PayloadTooLarge, match=r"has 11 bytes; 10 are allowed: .* or raise the limit"):
            encode(bytes(11), with_head, "")


def test_the_usual_limit_is_a_mebibyte() -> None:
    assert len(encode_record(RAW, bytes(MAX_PAYLOAD))) == (1 << 20) + 1
    with pytest.raises(PayloadTooLarge):
        encode_record(RAW, bytes(MAX_PAYLOAD + 1))


@pytest.mark.parametrize(("name", "codec"), [("json", JSON), ("msgpack", MSGPACK), ("raw", RAW)])
def test_codecs_by_name(name: str, codec: Codec) -> None:
    assert codec_named(name) is codec
    assert codec.name == name


def test_a_codec_of_the_callers_own() -> None:
    mine = Reversed()
    assert codec_named(mine) is mine


@pytest.mark.parametrize("choice", ["pickle", "", None, 3, object(), pickle])
def test_other_codecs_are_refused(choice: Any) -> None:
    with pytest.raises(InvalidOption, match=r"codec can't be .*; use one of 'json', 'msgpack', 'raw', or an object"):
        codec_named(choice)


def test_a_record_of_an_own_codec_needs_that_codec() -> None:
    record = encode_record(Reversed(), "abc")
    with pytest.raises(PayloadNotDecodable, match=r"codec of the caller's own, and this engine has none; .*codec="):
        decode_record(record)
    with pytest.raises(PayloadNotDecodable, match="codec 'broken' can't decode a payload of 3 bytes: no way in"):
        decode_record(record, own=Broken())


@pytest.mark.parametrize(
    ("record", "why"),
    [
        (b"", "of nothing, this library reads version 1"),
        (b"\x00x", "of version 0, this library reads version 1"),
        (b"\x21x", "of version 2, this library reads version 1; .*: upgrade"),
        (b"\x13x", "codec has number 3, which this version does not know; upgrade"),
        (b"\x11", "codec 'json' can't decode a payload of 0 bytes"),
        (b"\x11{", "codec 'json' can't decode a payload of 1 bytes"),
        (b"\x12\xc1", "codec 'msgpack' can't decode"),
        (b"\x19", "cut off in its head, at 1 bytes"),
        (b"\x19\x00", "cut off in its head, at 2 bytes"),
        (b"\x19\x00\x04\x81\xa1m", "cut off in its head, at 6 bytes"),
        (b"\x19\x00\x01\xc11", "head of the stored record can't be read"),
        (b"\x19\x00\x04\x81\xa1m\xc21", "head of the stored record can't be read"),
    ],
)
def test_what_cannot_be_decoded(record: bytes, why: str) -> None:
    with pytest.raises(PayloadNotDecodable, match=why):
        decode_record(record)


@given(st.binary(max_size=40))
def test_any_bytes_decode_or_are_refused(record: bytes) -> None:
    with contextlib.suppress(PayloadNotDecodable):
        decode_record(record, own=Reversed())


def test_names_in_the_head_that_are_not_known_are_passed_over() -> None:
    head = msgspec.msgpack.encode({"x": 5, "m": 2, "later": [1]})
    assert decode_record(encode_record(JSON, 1, head)).content.max_attempts == 2


def test_decoded_headers_belong_to_the_caller() -> None:
    for head in (None, encode_head(max_attempts=1)):
        first = decode_record(encode_record(JSON, 1, head)).content.headers
        assert isinstance(first, dict)
        first["mine"] = "1"
        assert decode_record(encode_record(JSON, 1, head)).content.headers == {}


@pytest.mark.parametrize("codec", [JSON, MSGPACK, RAW], ids=lambda codec: codec.name)
@pytest.mark.parametrize(
    "head",
    [
        None,
        encode_head(nonce=7),
        encode_head(nonce=4_000_000_000),
        encode_head(nonce=4_000_000_000, max_attempts=3),
        encode_head(headers={"a": "b"}),
        encode_head(tags=("a",)),
    ],
    ids=["none", "a small nonce", "a nonce", "a nonce and attempts", "headers", "tags"],
)
def test_a_consumer_reads_what_everybody_reads(codec: Builtin, head: bytes | None) -> None:
    record = encode_record(codec, b"hi" if codec is RAW else {"n": 1}, head)
    whole = decode_record(record)
    assert decode_payload(record) == (whole.payload, whole.content.headers, whole.content.tags)
    # cut off in the head, or in the payload of a codec that notices
    for length in range(len(record)):
        try:
            whole = decode_record(record[:length])
        except PayloadNotDecodable:
            with pytest.raises(PayloadNotDecodable):
                decode_payload(record[:length])
        else:
            assert decode_payload(record[:length]) == (whole.payload, whole.content.headers, whole.content.tags)


def test_the_reason_stays_in_the_first_place() -> None:
    """Settle's script looks for it there: behind other names it would be read as none, and written a second time."""
    record = assembled(b"1", "json", Content(tags=["a"]), expires_ms=5, reason=b"Refused: no")
    for changed in (with_expiry(record, -7), dated(with_expiry(record, -7), 100), with_expiry(record, 9)):
        assert changed[4:7] == b"\xa1e\xda"
        assert last_reason(changed) == "Refused: no"
        assert decode_record(changed).content.tags == ("a",)
