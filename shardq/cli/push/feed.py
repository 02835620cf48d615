"""Reads lines from a file, a pipe or a terminal as they come. Called by ``command``; ``lines`` reads what they mean."""

from __future__ import annotations

import os
import select
import time
from collections.abc import Callable, Iterator

from shardq.cli.signals import Ending
from shardq.errors import ShardqError

CHUNK = 256 << 10

LINGER_S = 0.05
"""A line waits so long for lines after it. Lines that came together are pushed in one call, and none waits long."""


class Feed:
    """The lines of a descriptor, to iterate over once. Ends with its source, or at the first signal."""

    def __init__(self, descriptor: int, *, limit: int, ending: Ending, advance: Callable[[int], None]) -> None:
        self.exhausted = False
        """True when the source has ended, and all its lines were given out."""
        self._descriptor = descriptor
        self._limit = limit
        self._ending = ending
        self._advance = advance
        self._flush_at: float | None = None

    def __iter__(self) -> Iterator[tuple[bytes, int] | None]:
        """Yields each line with its size; a line over the limit is cut a little past it. Yields None where the lines
        before should wait no longer for more, which never happens in a file.
        """
        text, size, held = b"", 0, False
        while not self._over():
            if held and self._stalled():
                held = False
                yield None
            chunk = self._read()
            if chunk is None:
                continue
            if not chunk:
                if size:
                    yield text, size
                self.exhausted = True
                return
            self._advance(len(chunk))
            *ends, rest = chunk.split(b"\n")
            for piece in ends:
                if self._over():
                    return
                held = True
                yield (text + piece)[: self._limit + 2], size + len(piece) + 1
                text, size = b"", 0
            text += rest[: max(0, self._limit + 2 - len(text))]
            size += len(rest)

    def _over(self) -> bool:
        return self._ending.asked

    def _stalled(self) -> bool:
        """Waits for more input. True if none came for long enough."""
        if self._readable(0):
            # more is there, but the source may be slow: the lines held before it have waited, too
            late = self._flush_at is not None and time.monotonic() >= self._flush_at
        else:
            self._flush_at = self._flush_at or time.monotonic() + LINGER_S
            late = not self._readable(max(0.0, self._flush_at - time.monotonic()))
        if late:
            self._flush_at = None
        return late

    def _readable(self, seconds: float | None) -> bool:
        """Waits until there is input, or a signal came."""
        return bool(select.select([self._descriptor, self._ending.fileno()], [], [], seconds)[0])

    def _read(self) -> bytes | None:
        """Waits for bytes and returns those that are there; empty at the end. None: there were none, look again."""
        self._readable(None)
        if self._over():
            return None
        try:
            return os.read(self._descriptor, CHUNK)
        except BlockingIOError:
            return None
        except OSError as exc:
            raise ShardqError(f"the lines can't be read: {exc.strerror}") from exc
