"""Receipts: what they bring back, whose they are, and that no text passes for one."""

from __future__ import annotations

from base64 import urlsafe_b64encode

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from shardq import Delivery
from shardq.errors import InvalidOption
from shardq.http.receipts import LONGEST, is_of, read, receipt_of

LEASED = Delivery(
    "mail/ann/letter", "mail", {"n": 1}, 4, {"a": "b"}, "http.mailer-0a1b2c3d4e5f:7#2", 3, 2, 1, pushed_s=5
)


def test_a_receipt_names_the_lease_and_brings_no_payload() -> None:
    assert read(receipt_of(LEASED)) == msgspec.structs.replace(LEASED, payload=None, headers={})


@pytest.mark.parametrize(
    ("consumer", "service", "is_its"),
    [
        ("http.mailer", "mailer", True),
        ("http.mailer", "mail", False),
        ("http.mailer-2", "mailer-2", True),
        ("http.mailer-2", "mailer", False),
        ("mailer", "mailer", False),  # a consumer in Python of this name
        ("http", "", True),
        ("http.mailer", "", False),
        ("http", "http", False),
    ],
)
def test_a_receipt_is_of_one_service(consumer: str, service: str, is_its: bool) -> None:
    for token in (f"{consumer}-0a1b2c3d4e5f:7", f"{consumer}-0a1b2c3d4e5f:7#2"):
        assert is_of(service, msgspec.structs.replace(LEASED, token=token)) is is_its


@settings(max_examples=50)
@given(some.binary(max_size=60))
def test_no_other_text_is_one(data: bytes) -> None:
    for text in (urlsafe_b64encode(data).decode(), data.decode("latin-1")):
        with pytest.raises(InvalidOption, match="is not one: give what a claim"):
            read(text)


def test_one_that_was_changed_or_is_too_long_is_none() -> None:
    whole = receipt_of(LEASED)
    long = receipt_of(msgspec.structs.replace(LEASED, id="x" * LONGEST))
    for wrong in (whole[:-4], f"{whole}AAAA", f"{whole[:8]}!{whole[8:]}", long):
        with pytest.raises(InvalidOption):
            read(wrong)


@settings(max_examples=50)
@given(some.lists(some.one_of(some.integers(-(2**63), 2**63), some.sampled_from(["", "x", "http-0:1"])), max_size=8))
def test_lists_of_another_form_are_none(values: list[object]) -> None:
    if len(values) == 6 and [type(each) for each in values] == [int, str, str, int, int, int]:
        return
    try:
        text = urlsafe_b64encode(msgspec.msgpack.encode(values)).decode()
    except OverflowError:
        return
    with pytest.raises(InvalidOption):
        read(text)
