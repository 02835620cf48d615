"""history: reads and writes parts of the history, one string in the control slot. ``history.stored`` has their form."""

from __future__ import annotations

from collections.abc import Sequence

from shardq.calls.answers import body
from shardq.calls.request import Call, Command, Word
from shardq.layout.keys import ControlKeys


def read(keys: ControlKeys, offset: int, length: int) -> Command[bytes]:
    """Reads a part; shorter where the history ends, empty where there is none."""
    words = ("GETRANGE", keys.history, offset, offset + length - 1)
    return Command[bytes](slot=keys.slot, words=words, decode=bytes)


def write(keys: ControlKeys, seen: bytes, parts: Sequence[tuple[int, bytes]], *, length: int) -> Call[bool]:
    """Writes parts, each at its offset. ``seen``: the first four bytes, as they were read. Returns False if somebody
    has written since.
    """
    flat: list[Word] = [word for part in parts for word in part]
    return Call.of("history", keys, [seen, length, *flat], lambda answer: bool(body(answer)[0]))
