"""Values that no caller means and anybody may give or store: strategies, shared by all properties of this folder.

``few`` bounds the examples of a property: some in `make test`, the same ones each time; many more, others each time, in
`make fuzz`.
"""

from __future__ import annotations

import copy
import datetime as dt
import re
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import Any

import hypothesis
import msgspec
from hypothesis import strategies as st

MARKUP = "<img src=x onerror=alert(1)>"

EVIL = f"\x1b[31337m\x1b]0;title\x07\x9b7m\x7f\r\u202e\u2066\ufeff\u2028{MARKUP}'\"&{{{{7*7}}}}"
"""It steers a terminal, turns the order of characters, and is markup."""

OBEYED = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff\ud800-\udfff]")
"""What no terminal and no page may get: control characters but ends of lines and tabs, what turns the order."""

LONGER = 10
"""How many times as many examples `make fuzz` makes in a round."""


def few(count: int) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """So many examples of a property."""
    is_long = hypothesis.settings.get_current_profile_name() == "fuzz"
    return hypothesis.settings(max_examples=count * LONGER if is_long else count)


# ---- values of Python

texts = st.one_of(
    st.sampled_from(
        ["", " ", "x", "0", "-1", "a/b", "a\n", "\x00", "x" * 65, "x" * 201, "ü" * 101, "{a}", "%s", "../a"]
    ),
    st.sampled_from(
        [EVIL, MARKUP, "\ud800", "a\udfff", "nan", "inf", "1e999", "9" * 5000, "None", "${HOME}", "😀" * 60]
    ),
    st.text(st.characters(), max_size=20),
)
"""With halves of surrogate pairs."""

numbers: st.SearchStrategy[int | float] = st.one_of(
    st.sampled_from([0, -1, 1, 1.5, 1e9, 2**31, 2**53, 2**63, -(2**63), 2**64, 10**30, 1e308, -0.0, 5e-324]),
    st.sampled_from([float("nan"), float("inf"), float("-inf"), -1e-9, 0.1, 253402300800, 253402300799.9999]),
    st.builds(pow, st.just(10), st.just(5000)),
    st.integers(-5, 2000),
    st.integers(),
    st.floats(),
)
"""With one of more digits than Python writes."""


class Odd:
    """An object of the caller's own, whose text can't be had."""

    def __repr__(self) -> str:
        raise RuntimeError("no text")


class OddText(str):
    """A str that is none of ours."""

    __slots__ = ()


def _deep(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


times: st.SearchStrategy[Any] = st.one_of(
    st.timedeltas(),
    st.datetimes(),
    st.datetimes(timezones=st.timezones()),
    st.sampled_from([dt.datetime.max, dt.datetime.min.replace(tzinfo=dt.UTC), dt.datetime.max.replace(tzinfo=dt.UTC)]),
    st.sampled_from([dt.timedelta.max, dt.timedelta.min, dt.timedelta(microseconds=1), dt.date(2030, 1, 1)]),
)

_leaves: st.SearchStrategy[Any] = st.one_of(
    st.none(), st.booleans(), numbers, texts, st.binary(max_size=20), st.just(EVIL.encode()), times
)

objects: st.SearchStrategy[Any] = st.one_of(
    _leaves,
    st.builds(Odd),
    st.builds(OddText, texts),
    st.sampled_from([Decimal("NaN"), Decimal("1e999"), 1j, object, len, Ellipsis, {1}, frozenset((EVIL,)), range(3)]),
    st.lists(_leaves, max_size=3),
    st.dictionaries(st.one_of(texts, numbers, st.binary(max_size=3)), _leaves, max_size=3),
    st.builds(_deep, st.sampled_from([10, 900, 5000])),
)
"""Anything that a caller can pass."""

# ---- what is stored

words = st.one_of(
    st.sampled_from(
        [b"", b" ", b"x", b"0", b"-1", b"1.5", b"1e2", b"1e999", b"nan", b"inf", b"-inf", b"0x10", b"1_0", b" 7", b"+7"]
    ),
    st.sampled_from(
        [b"9" * 30, b"9" * 5000, b"\xff\xfe", b"\x00", b"a\nb", b"a|b", b"a/b/c", b"/", b"{", b"[", b"null"]
    ),
    st.just(EVIL.encode()),
    st.binary(max_size=12),
    texts.map(lambda text: text.encode(errors="replace")),
)
"""Bytes in place of a number, an id, a name or a text."""

scores = st.sampled_from(
    ["-inf", "+inf", "0", "-1", "0.5", "-3.25", "1e300", "-1e300", "1.7e308", "9007199254740993", "253402300800000"]
)
"""Of entries of sorted sets."""

_DEEP_JSON = b"[" * 5000 + b"]" * 5000

_ODD: list[Any] = [
    *(None, True, False, 0, -1, 1, 1.5, 2**31, 2**53 + 1, 2**63 - 1, -(2**63), 2**64 - 1, 1e308, -1e308),
    *(
        "",
        "x",
        "9",
        "nan",
        EVIL,
        "\u2028",
        "a/b",
        "x" * 5000,
        [],
        {},
        [[]],
        [1, "x", None],
        {"a": {"b": [1]}},
        {"": EVIL},
    ),
    *(_deep(200), list(range(300)), {str(n): n for n in range(300)}),
]
odd: st.SearchStrategy[Any] = st.sampled_from(_ODD)
"""What JSON and MessagePack can say, in place of what is meant."""


@st.composite
def bent(draw: st.DrawFn, valid: Any) -> Any:
    """A value in which some parts are others, are missing, or are too many."""
    value = copy.deepcopy(valid)
    for _ in range(draw(st.integers(0, 2))):
        value = _bent(draw, value)
    return value


def _bent(draw: st.DrawFn, value: Any) -> Any:
    if isinstance(value, dict) and value and draw(st.booleans()):
        name = draw(st.sampled_from(list(value)))
        what = draw(st.integers(0, 5))
        if what == 0:
            return {other: each for other, each in value.items() if other != name}
        if what == 1:
            return value | {draw(texts): draw(odd)}
        return value | {name: _bent(draw, value[name])}
    if isinstance(value, list) and value and draw(st.booleans()):
        at = draw(st.integers(0, len(value) - 1))
        return [*value[:at], _bent(draw, value[at]), *value[at + 1 :]]
    return draw(odd)


def _torn(draw: st.DrawFn, text: bytes) -> bytes:
    """Mostly as it is; or truncated, with something behind it, or with other bytes in it."""
    what = draw(st.integers(0, 9))
    at = draw(st.integers(0, len(text)))
    if what == 0:
        return text[:at]
    if what == 1:
        return text + draw(words)
    if what == 2:
        return text[:at] + draw(st.binary(min_size=1, max_size=3)) + text[at + 1 :]
    return text


@st.composite
def json_of(draw: st.DrawFn, valid: Any) -> bytes:
    """JSON that is like a valid one."""
    whole = draw(st.integers(0, 9))
    if whole == 0:
        return draw(st.sampled_from([_DEEP_JSON, b"", b"nul", b'{"a":1e999}', b'"\xff"', b'"\\ud800"', b"9" * 5000]))
    if whole == 1:
        return draw(words)
    value = draw(bent(valid))
    text = msgspec.json.encode(_writable(value))
    if whole == 2 and isinstance(value, dict):
        return text[:-1] + b',"deep":' + _DEEP_JSON + b"}"
    return _torn(draw, text)


@st.composite
def msgpack_of(draw: st.DrawFn, valid: Any) -> bytes:
    """MessagePack that is like a valid one."""
    whole = draw(st.integers(0, 9))
    if whole == 0:
        return draw(
            st.sampled_from([b"", b"\xc1", b"\x81\xa1m", b"\x90", b"\xdf\xff\xff\xff\xff", b"\xdd\xff\xff\xff\xff"])
        )
    if whole == 1:
        deep = b"\x91" * draw(st.sampled_from([500, 20_000])) + b"\xc0"
        return b"\x81\xa1" + draw(st.sampled_from([b"q", b"m", b"h"])) + deep
    if whole == 2:
        return msgspec.msgpack.encode(_writable(draw(bent(valid)))).replace(b"\xa1x", b"\xa1\xff", 1)
    return _torn(draw, msgspec.msgpack.encode(_writable(draw(bent(valid)))))


def _writable(value: Any) -> Any:
    """The value without halves of surrogate pairs, which neither format can say."""
    if isinstance(value, str):
        return value.encode(errors="replace").decode()
    if isinstance(value, Mapping):
        return {_writable(name): _writable(each) for name, each in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, bytes):
        return [_writable(each) for each in value]
    return value


_HEAD: dict[str, Any] = {"m": 3, "h": {"a": "b", "x": "y"}, "x": 4_102_444_800_000, "n": 7, "t": ["red", "blue"]}


@st.composite
def heads(draw: st.DrawFn) -> bytes:
    """The head of a record, as it is stored."""
    names = draw(st.sets(st.sampled_from(list(_HEAD)), min_size=1))
    return draw(msgpack_of({name: _HEAD[name] for name in sorted(names)}))


@st.composite
def records(draw: st.DrawFn) -> bytes:
    """Records: of every codec and version, with any head, truncated."""
    payload = draw(
        st.sampled_from([b"", b'"good"', b"1", b"\xff\x00", EVIL.encode(), _DEEP_JSON, b"\x91" * 5000 + b"\xc0"])
    )
    kind = draw(st.integers(0, 9))
    if kind == 0:
        return draw(st.binary(max_size=12))
    first = draw(st.sampled_from([0x10, 0x11, 0x12, 0x13, 0x17, 0x20, 0x01, 0xF1]))
    if kind == 1:
        return bytes([first]) + payload
    head = draw(heads())[:65535]
    length = len(head) + draw(st.sampled_from([0, 0, 0, 0, 1, -1, 40_000]))
    record = bytes([first | 8]) + max(0, min(length, 65535)).to_bytes(2, "big") + head + payload
    return record[: draw(st.integers(0, len(record)))] if kind == 2 else record
