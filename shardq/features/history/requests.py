"""The history as it is stored, one string on the control slot: reading and writing parts of it. No I/O."""

from __future__ import annotations

from collections.abc import Sequence

from shardq.core.calls.request import Call, Command, Epoch, Word, body
from shardq.core.layout.keys import ControlKeys


def read(keys: ControlKeys, offset: int, length: int) -> Command[bytes]:
    """Reads a part; shorter where the history ends, empty where there is none."""
    words = ("GETRANGE", keys.history, offset, offset + length - 1)
    return Command[bytes](keys.slot, words, bytes)


def write(
    keys: ControlKeys, epoch: Epoch, seen: bytes, parts: Sequence[tuple[int, bytes]], *, length: int
) -> Call[bool]:
    """Writes parts, each at its offset. ``seen``: the first four bytes, as they were read. Returns False if
    another process has written since, and in another engine.
    """
    flat: list[Word] = [word for part in parts for word in part]
    return Call.of("history", keys, [epoch, seen, length, *flat], lambda answer: bool(body(answer)[0]))
