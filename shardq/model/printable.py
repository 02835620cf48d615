"""Text of others as it may be shown. Called by the command and the dashboard."""

from __future__ import annotations


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
