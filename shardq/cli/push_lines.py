"""Lines of tasks for ``push-file``: read from a file, a pipe or a terminal as they come, within bounds, and understood
as JSON; of a bad line it is told what is wrong with it. Asks no server.

The payload of a line is stored byte for byte as it stands there.
"""

from __future__ import annotations

import codecs
import os
import select
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

from shardq.cli.serving import Ending
from shardq.core.layout.words import UNDECODABLE
from shardq.core.model.options import OPTIONS, Kind
from shardq.core.model.quantities import expiry, instant, seconds
from shardq.core.model.task import Task
from shardq.engine.forms import PushLine
from shardq.errors import BadInput, ShardqError

CHUNK = 256 << 10

LINGER_S = 0.05
"""A line waits so long for lines after it. Lines that came together are pushed in one call, and none waits long."""


class Feed:
    """The lines of a descriptor, to iterate over once. Ends with its source, or at the first signal."""

    def __init__(self, descriptor: int, *, limit: int, ending: Ending, advance: Callable[[int], object]) -> None:
        self.exhausted: bool = False
        """True when the source has ended, and all its lines were given out."""
        self._descriptor = descriptor
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


ROOM_FOR_OPTIONS = 64 << 10
"""The bytes that a line may have beside its payload: headers take up to 8 KiB, and several times that escaped."""


@dataclass(frozen=True, slots=True)
class NumberedLine:
    """A line that is a task, or a bad line with the ``reason``."""

    number: int
    size: int
    """In bytes."""
    task: Task | None
    reason: str = ""


def numbered(
    feed: Iterable[tuple[bytes, int] | None], *, first: int, defaults: Task, check: Callable[[Task], object], limit: int
) -> Iterator[NumberedLine | None]:
    """Yields the lines that are not blank, from the ``first`` on, and None where the feed has nothing more for now.

    ``defaults`` are the options of tasks that don't give their own. ``check`` raises BadInput for a task that the
    engine would refuse.
    """
    decode = msgspec.json.Decoder(PushLine).decode
    number = 0
    for each in feed:
        if each is None:
            yield None
            continue
        number += 1
        text, size = each
        if number == 1:
            text = text.removeprefix(codecs.BOM_UTF8)
        if number < first or not text.strip():
            continue
        try:
            if size > limit:
                raise ValueError(f"it has {size:,} bytes; {limit:,} are allowed")
            task = _task(decode(text.decode()), defaults)
            check(task)
        except UNDECODABLE as exc:  # BadInput is a ValueError, and so is broken UTF-8
            yield NumberedLine(number, size, None, _reason(exc))
        else:
            yield NumberedLine(number, size, task)


def longest(max_payload: int) -> int:
    """The bytes that a line may have."""
    return max_payload + ROOM_FOR_OPTIONS


_READ: dict[Kind, Callable[[str], Any]] = {"seconds": seconds, "instant": instant, "expiry": expiry}
"""Kind of an option that may be text → what reads it."""


def _task(line: msgspec.Struct, defaults: Task) -> Task:
    fields = {name: value for name, value in msgspec.structs.asdict(line).items() if value is not None}
    for option in OPTIONS:
        if option.kind in _READ and isinstance(text := fields.get(option.name), str):
            fields[option.name] = _READ[option.kind](text)
    if "delay" in fields or "at" in fields:
        fields = {"delay": None, "at": None} | fields  # its own due time stands in place of that of the options
    return msgspec.structs.replace(defaults, **fields)


def _reason(exc: Exception) -> str:
    if isinstance(exc, RecursionError):
        return "it is nested too deeply"
    if isinstance(exc, UnicodeDecodeError):
        return f"it is not UTF-8: {exc.reason} at byte {exc.start}"
    if isinstance(exc, BadInput) or not isinstance(exc, msgspec.MsgspecError):
        return str(exc)
    if isinstance(exc, msgspec.ValidationError):
        return f"it is not a task: {exc}"
    return f"it is not JSON: {exc}"
