"""Values as text: the filters of templates. Texts of others (names, reasons, payloads) are bounded, and characters that
can't be seen become escapes; templates escape the result for HTML.
"""

from __future__ import annotations

import datetime as dt
import json
import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from html import escape
from typing import Any, NamedTuple

from markupsafe import Markup

from shardq.core.layout.words import UNDECODABLE, UNENCODABLE
from shardq.core.model.ids import shown_topic
from shardq.core.model.printable import printable
from shardq.engine.around import age, counted, instant, number, per_second

MOST = 14_000
"""Bytes of a payload, as a page has them, that a task's page shows: with the longest headers, tags and reason it stays
within 80 kB.
"""

PREVIEW = 80
"""Characters that a list shows."""

_BYTES = 2048
"""Bytes that are shown in hex: some 10,000 characters."""

_ROW = 16


# ---- numbers and times


def milliseconds(value: float | None) -> str:
    """
    >>> milliseconds(None), milliseconds(0), milliseconds(12), milliseconds(1234), milliseconds(75_000)
    ('-', '<1 ms', '12 ms', '1.2 s', '75 s')
    """
    if value is not None and value < 1000:
        return f"{value:.0f} ms" if value >= 1 else "<1 ms"
    return age(None if value is None else value / 1000)


def short(count: int) -> str:
    """A round number beside an axis.

    >>> short(600), short(1_000), short(2_500), short(400_000), short(2_000_000)
    ('600', '1k', '2.5k', '400k', '2M')
    """
    for unit, least in (("M", 1_000_000), ("k", 1_000)):
        if count >= least:
            return f"{count / least:g}{unit}"
    return str(count)


def size(count: int) -> str:
    """
    >>> size(999), size(123_456), size(7_300_000), size(2_000_000_000)
    ('999 B', '123 kB', '7.3 MB', '2.0 GB')
    """
    for unit, least in (("GB", 1e9), ("MB", 1e6)):
        if count >= least:
            return f"{count / least:,.1f} {unit}"
    return f"{count / 1000:.0f} kB" if count >= 1000 else f"{count} B"


def points(values: Iterable[float], width: int, height: int) -> str:
    """A line through these values, as the points of an SVG polyline, the newest at the right. It has a margin of 2.

    >>> points([0, 5, 10], 24, 14)
    '2,12 12,7 22,2'
    """
    drawn = list(values)
    most = max(drawn, default=0) or 1
    step = (width - 4) / max(1, len(drawn) - 1)
    return " ".join(
        f"{2 + at * step:.4g},{height - 2 - (height - 4) * value / most:.4g}" for at, value in enumerate(drawn)
    )


# ---- texts of others


def line(text: str | None, most: int = 120) -> str:
    r"""The last line of a text: of a traceback it is the error.

    >>> line("Traceback\n  File …\nKeyError: 'a'"), line(None)
    ("KeyError: 'a'", '')
    """
    last = (text or "").strip().rpartition("\n")[2]
    return printable(last if len(last) <= most else f"{last[: most - 1]}…")


def lines(text: str) -> str:
    """All of it, with escapes for what can't be seen."""
    return printable(text, keep="\n\t")


_UNBROKEN = 24
"""Characters of the longest word that goes on in no other line, however narrow its column is."""

_PART = re.compile(r"\S{5,}?[._:/@=]+(?=[^\s._:/@=])")
_LONG = re.compile(rf"[^\s\0-]{{{_UNBROKEN + 1},}}")


def words(text: str) -> Markup:
    """A name, or another text without many blanks, whose lines end behind its punctuation, and not within a word.

    >>> words("customer.welcome"), words("m" * 25)
    (Markup('customer.<wbr>welcome'), Markup('<span class="any">mmmmmmmmmmmmmmmmmmmmmmmmm</span>'))
    """
    # no text that was made printable has these characters
    parted = _LONG.sub("\1\\g<0>\2", _PART.sub("\\g<0>\0", lines(text)))
    written = str(Markup.escape(parted)).replace("\0", "<wbr>")
    return Markup(written.replace("\1", '<span class="any">').replace("\2", "</span>"))


def harmless(value: Any) -> Any:
    """A value as it goes into a page: all that templates write goes through this, so that no text of others has to be
    thought of. Markup is ours.
    """
    return lines(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def exactly(text: Any) -> Markup:
    """The value of a field, which must come back from the browser as it is."""
    return Markup.escape(text)


def fitting(text: str, most: int, *, end: bool = False) -> str:
    """The beginning of a text, or its ``end``, that takes so many bytes of a page at most."""
    while (size := len(escape(text).encode())) > most:
        length = min(len(text) - 1, len(text) * most // size)
        text = text[len(text) - length :] if end else text[:length]
    return text


# ---- payloads


class Shown(NamedTuple):
    """A payload as a page shows it."""

    kind: str
    text: str
    is_cut: bool


def shown(payload: Any, *, most: int = MOST) -> Shown:
    """The payload on many lines: JSON with its structure, text as it is, other bytes in hex.

    >>> print(shown({"to": "ann", "body": b"\\0"}).text)
    {
      "to": "ann",
      "body": "hex 00"
    }
    """
    if isinstance(payload, bytes):
        try:
            text = payload.decode()
        except UnicodeDecodeError:
            return _hex(payload)
        with suppress(*UNDECODABLE):
            if text[:1] in ("{", "["):
                return shown(json.loads(text), most=most)
        if any(char < " " and char not in "\n\r\t" for char in text[:most]):
            return _hex(payload)
        return _fitting("text", text, most)
    if (written := _json(_indented, payload, most + 1)) is None:
        return _fitting(type(payload).__name__, _repr(payload), most)
    return _fitting("JSON", written, most)


def preview(payload: Any) -> str:
    """The beginning of a payload on one line."""
    if payload is None:
        return ""
    if isinstance(payload, bytes):
        begin = payload[: PREVIEW * 4]
        try:
            text = begin.decode() if len(begin) == len(payload) else begin.decode(errors="ignore")
        except UnicodeDecodeError:
            text = f"hex {begin[: PREVIEW // 2].hex()}"
    else:
        text = _json(_compact, payload, PREVIEW + 1) or _repr(payload)
    text = printable(text[: PREVIEW + 1])
    return text if len(text) <= PREVIEW else f"{text[: PREVIEW - 1]}…"


def named(payload: Any) -> str:
    """The name of the task that a payload calls; "" for another payload.

    >>> named({"task": "shop.resize", "args": [1]}), named({"order": 42})
    ('shop.resize', '')
    """
    name = payload.get("task") if isinstance(payload, dict) else ""
    return name if isinstance(name, str) else ""


def _plain(value: object) -> object:
    """Text for what JSON has no word for: msgpack and codecs of the caller's own know more."""
    if isinstance(value, bytes):
        return f"hex {value[:_BYTES].hex()}"
    if isinstance(value, dt.datetime | dt.date | dt.time):
        return value.isoformat()
    return repr(value)


_indented = json.JSONEncoder(indent=2, ensure_ascii=False, default=_plain)
_compact = json.JSONEncoder(ensure_ascii=False, default=_plain)


def _json(encoder: json.JSONEncoder, payload: object, most: int) -> str | None:
    """The first characters; no more are made than that takes. None: it can't be JSON."""
    text = ""
    try:
        for part in encoder.iterencode(payload):
            text += part[: most - len(text)]
            if len(text) >= most:
                break
    except UNENCODABLE:
        return None
    return text


def _hex(payload: bytes) -> Shown:
    rows = []
    for place in range(0, min(len(payload), _BYTES), _ROW):
        row = payload[place : place + _ROW]
        text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in row)
        rows.append(f"{place:06x}  {row.hex(' '):<{_ROW * 3}} {text}")
    return Shown(f"{len(payload):,} bytes", "\n".join(rows), len(payload) > _BYTES)


def _repr(payload: object) -> str:
    try:
        return repr(payload)
    except Exception as exc:  # noqa: BLE001  a class of the caller's codec may raise anything
        return f"can't be shown: {type(exc).__name__}"


def _fitting(kind: str, text: str, most: int) -> Shown:
    whole = lines(text[:most])
    begin = fitting(whole, most)
    return Shown(kind, begin, len(text) > most or len(begin) < len(whole))


FILTERS: dict[str, Callable[..., Any]] = {"topic": shown_topic} | {
    each.__name__: each
    for each in (
        *(number, per_second, milliseconds, age, short, size, instant, counted, points),
        *(line, lines, words, exactly, preview, named),
    )
}
