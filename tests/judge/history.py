"""What programs asked of an engine, and heard: one ``Call`` for each call, with an operation for each id that it is
about. A ``Book`` keeps those of one process; one with a path writes them down as they come, so that a process that is
killed leaves all but the answer that it did not hear.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from pathlib import Path

import msgspec

from tests.judge.model import Op

Named = tuple[str, Op]
"""An operation under its id; the id is empty where an engine makes it, until that is known."""


class Call(msgspec.Struct, gc=False):
    """One call."""

    who: str
    what: str
    begin_us: float
    end_us: float = math.inf
    error: str = ""
    """The name of the error that it raised."""
    ops: list[Named] = []
    topics: list[str] = []
    """Of a claim: those that it asked for."""
    within_us: float = math.inf
    """The time in which it should return."""

    @property
    def is_over(self) -> bool:
        return math.isfinite(self.end_us)


class _Began(msgspec.Struct, tag="b", gc=False):
    number: int
    call: Call


class _Ended(msgspec.Struct, tag="e", gc=False):
    number: int
    at_us: float
    error: str
    outcomes: list[str]
    ids: list[str]
    given: list[Named]


_encode = msgspec.msgpack.Encoder().encode
_decode: Callable[[bytes], _Began | _Ended] = msgspec.msgpack.Decoder(_Began | _Ended).decode


class Book:
    """The calls of one process. Threads may share it. What is in a file is not kept here."""

    def __init__(self, path: Path | None = None) -> None:
        self._calls: dict[int, Call] = {}
        self._numbers = count()
        self._file = None if path is None else opened(path)

    @property
    def calls(self) -> list[Call]:
        """All of them; none where they are in a file."""
        return list(self._calls.values())

    def begin(self, call: Call) -> int:
        """Notes a call that is about to be made. Returns its number."""
        number = next(self._numbers)
        if self._file is None:
            self._calls[number] = call
        self._write(_Began(number, call))
        return number

    def end(
        self,
        number: int,
        at_us: float,
        *,
        error: str = "",
        outcomes: Sequence[str] = (),
        ids: Sequence[str] = (),
        given: Sequence[Named] = (),
    ) -> None:
        """Notes what was heard: an outcome for each operation, empty where nothing is known of it; the ids that were
        made; what was ``given`` by a claim.
        """
        ended = _Ended(number, at_us, error, list(outcomes), list(map(str, ids)), list(given))
        self._write(ended)
        if self._file is None:
            _close(self._calls[number], ended)

    def _write(self, record: _Began | _Ended) -> None:
        if self._file is not None:
            append(self._file, _encode(record))

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None


def _close(call: Call, ended: _Ended) -> None:
    call.end_us, call.error = ended.at_us, ended.error
    for _, op in call.ops if ended.error else ():
        op.durable = False  # what is stored has not been confirmed
    if ended.given:
        call.ops = ended.given
    for place, outcome in enumerate(ended.outcomes):
        if outcome:
            call.ops[place][1].end_us, call.ops[place][1].outcome = ended.at_us, outcome
    if ended.ids:
        call.ops = [(id or old, op) for id, (old, op) in zip(ended.ids, call.ops, strict=True)]


def read(path: Path) -> list[Call]:
    """The calls of a book."""
    calls: dict[int, Call] = {}
    for record in map(_decode, records(path)):
        if isinstance(record, _Began):
            calls[record.number] = record.call
        else:
            _close(calls[record.number], record)
    return list(calls.values())


def opened(path: Path) -> int:
    """The descriptor of a file of records."""
    return os.open(path, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600)


def append(file: int, data: bytes) -> None:
    os.write(file, len(data).to_bytes(4, "big") + data)


def records(path: Path) -> Iterator[bytes]:
    """The records of a file. The last one of a process that was killed may be cut off."""
    with path.open("rb", buffering=1 << 20) as file:
        while len(head := file.read(4)) == 4:
            size = int.from_bytes(head, "big")
            data = file.read(size)
            if len(data) < size:
                return
            yield data
