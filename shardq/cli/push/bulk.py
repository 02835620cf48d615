"""Storing the tasks of many lines: in windows, in bounded memory, with the books kept by line.

By ``push_many``, window for window, and not by ``push_iter``: when part of a window is refused (an id is taken, the
server is full) the refused lines are named, and the lines after them are pushed all the same. However it ends, the
books tell with which line to go on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from shardq.cli.push.lines import NumberedLine
from shardq.cli.signals import apart
from shardq.engine import Engine
from shardq.errors import Conflict, NotReplicated, PushError, ShardqError
from shardq.model.ids import full_id
from shardq.model.task import Receipt, Task
from shardq.producer.durable import Durability

WINDOW = 4000
"""Lines pushed at a time: over 16 shards some 250 in a call."""

WINDOW_BYTES = 8 << 20
"""And no more than this much text."""


class Told(Protocol):
    """Who is told of each line."""

    def stored(self, lines: Sequence[tuple[int, Receipt]]) -> None:
        """The engine has their tasks: line number, receipt."""

    def bad(self, number: int, reason: str) -> None:
        """It has not, and pushing the line again would not help."""


@dataclass(slots=True)
class Bulk:
    """One bulk push. Use ``run`` once; the books are for who looks meanwhile or afterwards."""

    engine: Engine
    told: Told
    strict: bool
    durability: Durability | None = None
    outcomes: Counter[str] = field(default_factory=Counter)
    """Outcome → tasks that the engine has: pushed, replaced, kept, seen."""
    bad_lines: int = 0
    read: int = 0
    """The last line that was looked at; blank ones in between count."""
    settled: int = 0
    """The last line of those whose fate is known, but for these:"""
    missing: list[int] = field(default_factory=list)
    """Lines that the server refused while it stored others after them."""
    doubtful: list[int] = field(default_factory=list)
    """Lines that may be stored or not: their answer was lost, or not waited for."""
    _window: list[tuple[int, Task]] = field(default_factory=list)
    _ids: set[str] = field(default_factory=set)
    _bytes: int = 0

    def run(self, lines: Iterable[NumberedLine | None]) -> None:
        """Raises the error when the server can't take any more; everything before is in the books."""
        for line in lines:
            if line is None:
                self._send()
                continue
            self.read = line.number
            if line.task is None:
                self._note_bad(line.number, line.reason)
                if self.strict:
                    return
                continue
            self._add(line.number, line.task, line.size)
            if len(self._window) >= WINDOW or self._bytes >= WINDOW_BYTES:
                self._send()
                if self.strict and self.bad_lines:
                    return
        self._send()

    def _add(self, number: int, task: Task, size: int) -> None:
        if self._window and (task.on_conflict == "reject") != (self._window[-1][1].on_conflict == "reject"):
            # a call of which something was refused does not say what else was kept: so nothing else may be
            self._send(until=number - 1)
        if task.id is not None:
            # one id twice in a call could not be told apart in its answer
            id = full_id(task.topic, task.id)
            if id in self._ids:
                self._send(until=number - 1)
            self._ids.add(id)
        self._window.append((number, task))
        self._bytes += size

    def _send(self, *, until: int | None = None) -> None:
        """Pushes the window, with which every line ``until`` this one is settled."""
        window, self._window = self._window, []
        self._ids, self._bytes = set(), 0
        before, self.settled = self.settled, self.read if until is None else until
        if not window:
            return
        numbers = [number for number, _ in window]
        # who ends the push right here does not know of any of them
        self.doubtful = numbers
        result = self._pushed(numbers, [task for _, task in window])
        self.doubtful, self.missing = result.doubtful, result.missing
        if self.missing == numbers:
            self.settled, self.missing = before, []
        self.outcomes.update(receipt.outcome for _, receipt in result.stored)
        # the books are complete before anything is told: who listens may have gone
        self.bad_lines += len(result.taken)
        self.told.stored(result.stored)
        for number, reason in result.taken:
            self.told.bad(number, reason)
        if result.error is not None:
            raise result.error

    def _pushed(self, numbers: list[int], tasks: list[Task]) -> _Result:
        try:
            receipts = apart(lambda: self.engine.push_many(tasks, durability=self.durability))
            return _Result(list(zip(numbers, receipts, strict=True)))
        except NotReplicated as exc:
            return _Result(list(zip(numbers, map(Receipt, exc.ids), strict=True)), error=exc)
        except PushError as exc:
            error = exc
        result, unknown = _Result([]), set(error.unknown)
        for number, id in zip(numbers, error.ids, strict=True):
            reason = error.failed.get(id)
            if isinstance(reason, Conflict):
                result.taken.append((number, str(reason)))
            elif reason is not None:
                result.missing.append(number)
                result.error = result.error or reason
            elif id in unknown:
                result.doubtful.append(number)
            else:
                result.stored.append((number, Receipt(id)))
        if result.doubtful:
            result.error = result.error or error
        return result

    def _note_bad(self, number: int, reason: str) -> None:
        self.bad_lines += 1
        self.told.bad(number, reason)


@dataclass(slots=True)
class _Result:
    """The fate of the lines of one window."""

    stored: list[tuple[int, Receipt]]
    taken: list[tuple[int, str]] = field(default_factory=list)
    """Their ids were."""
    missing: list[int] = field(default_factory=list)
    doubtful: list[int] = field(default_factory=list)
    error: ShardqError | None = None
    """Why nothing more should be pushed."""


def ranges(numbers: Sequence[int]) -> str:
    """Lines, as people write them.

    >>> ranges([1, 2, 3, 7, 9, 10])
    '1-3, 7, 9-10'
    """
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1] = [runs[-1][0], number]
        else:
            runs.append([number])
    return ", ".join("-".join(map(str, run)) for run in runs)
