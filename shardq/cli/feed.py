"""The lines of a file, a pipe or a terminal for ``import``, as they come, within bounds. Asks no server."""

from __future__ import annotations

import gzip
import os
import select
import stat
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO

from shardq.cli.serving import Ending
from shardq.errors import ShardqError

CHUNK = 256 << 10

LINGER_S = 0.05
"""A line waits so long for lines after it. Lines that came together are pushed in one call, and none waits long."""


@dataclass
class Source:
    """What the lines are read from."""

    descriptor: int
    file: str = ""
    """The path of a regular file, which can be gone on with; empty for anything else."""
    size: int | None = None
    """In bytes, as they will be read; None where that is not known."""
    unpacked: gzip.GzipFile | None = None
    is_cut: bool = False
    """True if a packed file ends in its middle."""

    def skip(self, offset: int) -> None:
        """Goes to an offset, in bytes as they are read."""
        if self.unpacked is not None:
            self.unpacked.seek(offset)
        else:
            os.lseek(self.descriptor, offset, os.SEEK_SET)

    def head(self, size: int) -> bytes:
        """The first bytes of a file, as they are stored."""
        return os.pread(self.descriptor, size, 0)

    def read(self) -> bytes:
        if self.unpacked is None:
            return os.read(self.descriptor, CHUNK)
        try:
            return self.unpacked.read1(CHUNK)
        except (EOFError, gzip.BadGzipFile, zlib.error):
            self.is_cut = True
            return b""


@contextmanager
def opened_source(path: str) -> Iterator[Source]:
    """Opens what a user names: a file, one packed by gzip if it is called .gz, or stdin for -."""
    if path == "-":
        if sys.stdin is None:
            raise ShardqError("there are no lines to read: stdin is closed")
        yield Source(sys.stdin.fileno())
        return
    file: IO[bytes]
    with open(path, "rb", buffering=0) as file:  # noqa: PTH123  the error names the path as the user wrote it
        status = os.fstat(file.fileno())
        is_file = stat.S_ISREG(status.st_mode)
        if is_file and path.endswith(".gz"):
            with gzip.GzipFile(fileobj=file) as unpacked:
                yield Source(file.fileno(), path, None, unpacked)
        else:
            yield Source(file.fileno(), path if is_file else "", status.st_size if is_file else None)


class Feed:
    """The lines of a source, to iterate over once. Ends with it, or at the first signal."""

    def __init__(self, source: Source, *, limit: int, ending: Ending, advance: Callable[[int], object]) -> None:
        self.exhausted: bool = False
        """True when the source has ended, and all its lines were given out."""
        self._source = source
        self.limit = limit
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
                yield (text + piece)[: self.limit + 2], size + len(piece) + 1
                text, size = b"", 0
            text += rest[: max(0, self.limit + 2 - len(text))]
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
        return bool(select.select([self._source.descriptor, self._ending.fileno()], [], [], seconds)[0])

    def _read(self) -> bytes | None:
        """Waits for bytes and returns those that are there; empty at the end. None: there were none, look again."""
        self._readable(None)
        if self._over():
            return None
        try:
            return self._source.read()
        except BlockingIOError:
            return None
        except OSError as exc:
            raise ShardqError(f"the lines can't be read: {exc.strerror}") from exc
