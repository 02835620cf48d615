"""Text of others as it may be shown. Everything that the command and the dashboard show goes through here, and so do
the lines of the log.
"""

from __future__ import annotations

import json


def printable(text: str, *, keep: str = "") -> str:
    r"""The text with escapes for what steers a terminal, turns the order of characters, or is not to be seen; not for
    the characters to ``keep``.

    >>> print(printable("a\x1b[31m\nb\u202e"))
    a\x1b[31m\nb\u202e
    """
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() or char in keep else char.encode("unicode_escape").decode() for char in text
    )


def printable_json(text: bytes) -> bytes:
    r"""JSON that says the same, with such characters as escapes of JSON: msgspec escapes none beyond U+001F.

    >>> printable_json('{"why": "a\u009b31m"}'.encode())
    b'{"why": "a\\u009b31m"}'
    """
    characters = text.decode()
    if characters.isprintable():
        return text
    return "".join(char if char.isprintable() else json.dumps(char)[1:-1] for char in characters).encode()


MOST = 80
"""Characters of a value in a message: what was passed in by mistake may be long."""


def quoted(value: object) -> str:
    """A value of a caller's as a message shows it, cut. Its own ``repr`` may be any code.

    >>> quoted("a"), quoted(10**5000), quoted("x" * 99)[-3:]
    ("'a'", 'an int of 16610 bits', 'xx…')
    """
    if isinstance(value, int) and value.bit_length() > 256:
        return f"an int of {value.bit_length()} bits"  # repr() refuses the very long ones
    try:
        text = printable(repr(value))
    except Exception:  # noqa: BLE001  as said above
        return f"an object of type {type(value).__name__}"
    return text if len(text) <= MOST else f"{text[: MOST - 1]}…"


def counted(count: int, what: str) -> str:
    """
    >>> counted(0, "shard"), counted(1, "shard"), counted(1200, "shard")
    ('no shards', '1 shard', '1,200 shards')
    """
    return f"{f'{count:,}' if count else 'no'} {what}{'' if count == 1 else 's'}"
