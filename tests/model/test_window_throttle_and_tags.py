"""The checks of window, throttle and tags: what passes, what is refused, and the error and its words."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest

from shardq.core.model import checks
from shardq.core.model.checks import MAX_AT_MS, MAX_TAGS, MAX_WINDOW_S
from shardq.core.model.record import JSON, decode_record, encode_record
from shardq.errors import InvalidOption
from tests.support.heads import encode_head


@pytest.mark.parametrize(
    ("window", "ms"),
    [(None, 0), (60, 60_000), (0.0005, 1), (1.5, 1500), (dt.timedelta(minutes=1), 60_000), (MAX_WINDOW_S, 31622400000)],
)
def test_windows(window: Any, ms: int) -> None:
    assert checks.window_ms(window) == ms


@pytest.mark.parametrize("window", [0, -1, "60", True, float("nan"), float("inf"), MAX_WINDOW_S + 1, 10**400, [60]])
def test_what_is_no_window(window: Any) -> None:
    with pytest.raises(InvalidOption, match=r"^window can't be .*; give .*at most"):
        checks.window_ms(window)


@pytest.mark.parametrize(
    ("due", "ms", "word"),
    [
        (0, 0, 0),
        (0, 5, -5),
        (-1000, 5, -1005),
        (1_700_000_000_000, 5, 1_700_000_000_005),
        (MAX_AT_MS - 2, 5, MAX_AT_MS),
    ],
)
def test_a_due_word_that_is_later(due: int, ms: int, word: int) -> None:
    assert checks.later(due, ms) == word


@pytest.mark.parametrize(
    ("expires", "due", "window", "spec"),
    [
        (60.001, 0, 60_000, -60_001),
        (60, 0, 60_000, -60_000),
        (70, -10_000, 60_000, -70_000),
        (1_700_000_060, 1_700_000_000_000, 60_000, 1_700_000_060_000),
        (60, 1_700_000_000_000, 60_000, -60_000),  # counted from different moments
    ],
)
def test_a_task_that_is_good_in_its_whole_window(expires: float, due: int, window: int, spec: int) -> None:
    assert checks.expiry_spec(expires, due, window_ms=window) == spec


@pytest.mark.parametrize(
    ("expires", "due", "window"),
    [(59.999, 0, 60_000), (69.999, -10_000, 60_000), (1_700_000_059.999, 1_700_000_000_000, 60_000)],
)
def test_a_task_that_would_expire_at_some_places_of_its_window(expires: float, due: int, window: int) -> None:
    """It is refused for every id, not for those whose place is late."""
    with pytest.raises(InvalidOption, match="is not after the end of the task's window"):
        checks.expiry_spec(expires, due, window_ms=window)


def test_a_throttle_is_a_dedup_window() -> None:
    assert checks.check_throttle(5, "id", None, "keep") == 5000
    assert checks.check_throttle(dt.timedelta(minutes=1), "id", None, "keep") == 60_000


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ((5, None, None, "keep"), "throttle=5 was given without id=; .*: give one"),
        ((5, "a", 60, "keep"), "both throttle=5 and dedup=60 were given; .*: give only one of them"),
        ((5, "a", None, "replace"), 'throttle=5 and on_conflict="replace" exclude each other; .* to debounce'),
        ((5, "a", None, "reject"), 'throttle=5 and on_conflict="reject" exclude each other'),
        ((0, "a", None, "keep"), "throttle can't be 0; give more than 0"),
        (("5", "a", None, "keep"), "throttle can't be '5'; give more than 0"),
        ((float("nan"), "a", None, "keep"), "throttle can't be nan"),
    ],
)
def test_what_is_no_throttle(words: Any, text: str) -> None:
    with pytest.raises(InvalidOption, match=text):
        checks.check_throttle(*words)


@pytest.mark.parametrize(
    ("tags", "checked"),
    [
        ([], ()),
        (["user-42", "digest"], ("user-42", "digest")),
        (("a", "b", "a"), ("a", "b")),
        (["ä b:c"], ("ä b:c",)),
        (["x" * 200] * 50, ("x" * 200,)),
        ([f"{n}" for n in range(MAX_TAGS)], tuple(f"{n}" for n in range(MAX_TAGS))),
    ],
)
def test_tags(tags: Any, checked: tuple[str, ...]) -> None:
    assert checks.checked_tags(tags) == checked
    unordered: Any = set(tags)
    assert sorted(checks.checked_tags(unordered)) == sorted(checked)


@pytest.mark.parametrize(
    ("tags", "text"),
    [
        ("user-42", r"tags can't be 'user-42'; give a list of str, such as tags=\['user-42'\]"),
        (b"user", "tags can't be b'user'; give a list"),
        (5, "tags can't be 5; give a list"),
        ({"a": 1}, "tags can't be .*; give a list"),
        ([5], "a tag can't be 5; give a str"),
        ([""], "a tag can't be empty"),
        (["a/b"], "the tag 'a/b' has '/' at position 1; .*: replace them"),
        (["a\nb"], r"has '\\n' at position 1"),
        (["\ud800"], "at position 0"),
        (["ä" * 101], "has 202 bytes in UTF-8; 200 are allowed: use a digest of it"),
        ([f"{n}" for n in range(MAX_TAGS + 1)], "a task can't have 17 tags; 16 are allowed"),
    ],
)
def test_what_are_no_tags(tags: Any, text: str) -> None:
    with pytest.raises(InvalidOption, match=text):
        checks.checked_tags(tags)


def test_tags_in_a_record() -> None:
    record = encode_record(JSON, {"n": 1}, encode_head(tags=("user-42", "ä")))
    decoded = decode_record(record)
    assert (decoded.payload, decoded.content.tags) == ({"n": 1}, ("user-42", "ä"))
    assert encode_head(tags=()) is None
    most = encode_head(headers={"h": "x" * 8186}, tags=tuple(f"{n:02}" + "x" * 198 for n in range(MAX_TAGS)))
    assert most is not None
    assert decode_record(encode_record(JSON, 1, most)).content.headers["h"] == "x" * 8186
