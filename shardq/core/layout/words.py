"""Words that a server has stored as values of Python. Another program, or another version, may have written them: what
can't be read is told as far as it goes, and reading never fails.

An id whose bytes are no UTF-8 is a str with halves of surrogate pairs in it, which stand for these bytes, so that it
goes back as it came: to purge it, to move it, to page on behind it. Nobody is given such an id.
"""

from __future__ import annotations

from math import isnan
from typing import Any

import msgspec

MOST = (1 << 63) - 1
"""The largest integer of a server."""

UNDECODABLE = (msgspec.MsgspecError, ValueError, RecursionError)
"""The errors of decoding. Bytes that are no JSON or MessagePack raise msgspec's, which is a ValueError in its newest
versions alone; broken UTF-8 is a ValueError, and values that are nested too deeply are a RecursionError.
"""

UNENCODABLE = (TypeError, *UNDECODABLE)
"""The errors of encoding: a TypeError is of what JSON can't say."""

FOREIGN = "surrogateescape"
"""How bytes that are no UTF-8 are decoded, and encoded again."""


def id_of(word: bytes) -> str:
    """An id as it is stored."""
    return word.decode(errors=FOREIGN)


def raw(id: str) -> bytes:
    """The bytes of such an id. mmh3 ends the process at a str with halves of surrogate pairs."""
    return id.encode(errors=FOREIGN)


def is_foreign(id: str) -> bool:
    """True if the bytes of the id are no UTF-8: no push has stored it."""
    try:
        id.encode()
    except UnicodeEncodeError:
        return True
    return False


def shown_id(id: str) -> str:
    """The id as it may be given to callers: bytes that are no UTF-8 are escapes.

    >>> shown_id(id_of(b"mail/\\xff"))
    'mail/\\\\xff'
    """
    return id if id.isascii() else text_of(raw(id))


def text_of(word: bytes) -> str:
    """A name or a text; bytes that are no UTF-8 are escapes."""
    return word.decode(errors="backslashreplace")


def number_of(word: Any) -> int:
    """An integer; of a fraction the whole part, of what is no number 0.

    >>> number_of(b"7"), number_of(b"1.5"), number_of(b"inf"), number_of(b"x"), number_of(None)
    (7, 1, 9223372036854775807, 0, 0)
    """
    number: int | float
    try:
        number = int(word)
    except (TypeError, ValueError, OverflowError):
        try:
            number = float(word)
        except (TypeError, ValueError):
            return 0
        if isnan(number):
            return 0
    return int(max(-MOST, min(number, MOST)))
