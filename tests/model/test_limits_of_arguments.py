"""Every check of other arguments than times: what passes, what is refused, and the error and its words."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardq import errors
from shardq.core.model import checks


@pytest.mark.parametrize("id", ["a", "order-42", "a b", "x" * 200, "grün", "ü" * 100, "日本語", "a:{b}", "😀" * 50])
def test_ids(id: str) -> None:
    checks.check_id(id)


@given(st.text(st.characters(exclude_categories=["Cs", "Cc", "Zl", "Zp"], exclude_characters="/"), min_size=1))
def test_an_id_may_have_any_other_character(id: str) -> None:
    if len(id.encode()) <= 200:
        checks.check_id(id)


@pytest.mark.parametrize(
    ("id", "words"),
    [
        ("", "an id can't be empty; leave id= out for a new one"),
        ("a/b", "has '/' at position 1; .* no control characters, line separators or '/': .* topic as topic="),
        ("/", "has '/' at position 0"),
        ("a\n", r"has '\\n' at position 1"),
        ("\x00", r"has '\\x00' at position 0"),
        ("a\x7f", r"has '\\x7f' at position 1"),
        ("a\x85b", r"has '\\x85' at position 1"),
        ("a\u2028", r"has '\\u2028' at position 1"),
        ("a\u2029", r"has '\\u2029' at position 1"),
        ("a\ud800", r"has '\\ud800' at position 1"),
        ("x" * 201, "has 201 bytes in UTF-8; 200 are allowed: use a digest of it"),
        ("ü" * 101, "has 202 bytes in UTF-8; 200 are allowed"),
        (5, "an id can't be 5; give a str"),
        (b"a", "an id can't be b'a'; give a str"),
        (None, "an id can't be None; give a str"),
    ],
)
def test_ids_refused(id: Any, words: str) -> None:
    with pytest.raises(errors.InvalidId, match=words) as caught:
        checks.check_id(id)
    str(caught.value).encode()  # can be printed


WORDS = ["a", "Z", "0", "_", ".", "-", "eu-west.mail_2", "x" * 64]
BAD_WORDS: list[Any] = ["a b", "a/b", "a:b", "{a}", "ü", "a\n", "x" * 65, "٣", 5, None, b"a", ["a"]]


@pytest.mark.parametrize("word", WORDS)
def test_names_and_topics(word: str) -> None:
    checks.check_name(word)
    checks.check_topic(word)


def test_the_default_topic_is_empty_but_a_name_is_not() -> None:
    checks.check_topic("")
    with pytest.raises(errors.InvalidName):
        checks.check_name("")


@pytest.mark.parametrize("word", BAD_WORDS)
def test_names_and_topics_refused(word: Any) -> None:
    allowed = "use 1 to 64 of the characters A-Z a-z 0-9 _ . -"
    with pytest.raises(
        errors.InvalidTopic, match=rf"^a topic can't be .*; {allowed}; leave it out, or give '', for the default topic$"
    ):
        checks.check_topic(word)
    with pytest.raises(errors.InvalidName, match=rf"^the name of an engine can't be .*; {allowed}$"):
        checks.check_name(word)
    with pytest.raises(errors.InvalidName, match=r"^the name of a consumer can't be "):
        checks.check_name(word, of="consumer")


@pytest.mark.parametrize("count", [1, 16, 1024])
def test_shard_counts(count: int) -> None:
    checks.check_shards(count)


@pytest.mark.parametrize("count", [0, -1, 1025, 16.0, True, "16", None])
def test_shard_counts_refused(count: Any) -> None:
    with pytest.raises(errors.InvalidShardCount, match=r"^there can't be .* shards; use 1 to 1024: two to four"):
        checks.check_shards(count)


def test_payload_sizes() -> None:
    checks.check_payload_size(b"12345", 5)
    with pytest.raises(
        errors.PayloadTooLarge, match=r"has 6 bytes; 5 are allowed: .* push a reference to it, or raise"
    ):
        checks.check_payload_size(b"123456", 5)


def test_headers() -> None:
    checks.check_headers({})
    checks.check_headers({"trace": "1", "ü": ""})
    largest = {"a": "b" * (checks.MAX_HEADERS - 6)}
    assert len(msgspec.msgpack.encode(largest)) == checks.MAX_HEADERS
    checks.check_headers(largest)


@pytest.mark.parametrize(
    ("headers", "words"),
    [
        ([("a", "b")], r"headers can't be \[\('a', 'b'\)\]; give a mapping of str to str"),
        ("a", "headers can't be 'a'; give a mapping"),
        ({"a": 1}, r"headers can't have \('a', 1\); names and values must be str: convert them"),
        ({1: "a"}, r"headers can't have \(1, 'a'\)"),
        ({"a": None}, r"headers can't have \('a', None\)"),
        ({"a": "\ud800"}, "headers can't be encoded: .*; use text that UTF-8 can hold"),
        ({"a": "b" * 8187}, "headers have 8193 bytes when encoded; 8192 are allowed: put more into the payload"),
    ],
)
def test_headers_refused(headers: Any, words: str) -> None:
    with pytest.raises(errors.InvalidOption, match=words):
        checks.check_headers(headers)


@pytest.mark.parametrize("attempts", [1, 3, 1_000_000])
def test_max_attempts(attempts: int) -> None:
    checks.check_max_attempts(attempts)


@pytest.mark.parametrize("attempts", [0, -1, 1_000_001, 1.0, True, "3", None])
def test_max_attempts_refused(attempts: Any) -> None:
    with pytest.raises(
        errors.InvalidOption, match=r"^max_attempts can't be .*; give an int from 1 to 1000000, or leave"
    ):
        checks.check_max_attempts(attempts)


@pytest.mark.parametrize("choice", ["keep", "replace", "reject"])
def test_on_conflict(choice: str) -> None:
    checks.check_on_conflict(choice, "id")


@pytest.mark.parametrize("choice", ["", "Retention", None, [], True])
def test_on_conflict_refused(choice: Any) -> None:
    with pytest.raises(
        errors.InvalidOption, match=r"^on_conflict can't be .*; use one of 'keep', 'replace', 'reject'$"
    ):
        checks.check_on_conflict(choice, "id")


def test_on_conflict_without_an_id() -> None:
    checks.check_on_conflict("keep", None)
    for choice in ("replace", "reject"):
        with pytest.raises(errors.InvalidOption, match=rf'^on_conflict="{choice}" was given without id='):
            checks.check_on_conflict(choice, None)
