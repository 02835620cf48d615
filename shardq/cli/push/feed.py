"""The lines of a file, a pipe or a terminal, as they come. What they mean is for ``lines``."""

from __future__ import annotations

import os
import select
import time
from collections.abc import Callable, Iterator

from shardq.cli.signals import Ending
from shardq.errors import ShardqError

CHUNK = 256 << 10

LINGER_S = 0.05
"""Lines that came in one piece should be pushed in one call, and none should wait: so long for those after it."""


class Feed:
    """To be gone through once. Ends with its source, or as soon as ``ending`` is asked for."""

    def __init__(self, descriptor: int, *, limit: int, ending: Ending, advance: Callable[[int], None]) -> None:
        self.exhausted = False
        """The source has ended, and all its lines were given out."""
        self._descriptor = descriptor
        self._limit = limit
        self._ending = ending
        self._advance = advance
        self._flush_at: float | None = None

    def __iter__(self) -> Iterator[tuple[bytes, int] | None]:
        """Each line, or as much of it as is allowed and a little more, and its size. None: what came before it should
        wait no longer for more; there is none among the lines of a file.
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
        """True when it has been waited for more for long enough."""
        if self._readable(0):
            # a source that is never far ahead of us: it has been waited for now and then
            late = self._flush_at is not None and time.monotonic() >= self._flush_at
        else:
            self._flush_at = self._flush_at or time.monotonic() + LINGER_S
            late = not self._readable(max(0.0, self._flush_at - time.monotonic()))
        if late:
            self._flush_at = None
        return late

    def _readable(self, seconds: float | None) -> bool:
        """Also when it is to end."""
        return bool(select.select([self._descriptor, self._ending.fileno()], [], [], seconds)[0])

    def _read(self) -> bytes | None:
        """The bytes that are there, waited for; empty at the end. None: nothing, look again."""
        self._readable(None)
        if self._over():
            return None
        try:
            return os.read(self._descriptor, CHUNK)
        except BlockingIOError:
            return None
        except OSError as exc:
            raise ShardqError(f"the lines can't be read: {exc.strerror}") from exc
