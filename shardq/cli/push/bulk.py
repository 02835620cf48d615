"""Pushes the tasks of many lines, window by window, in bounded memory, and keeps account of each line. Called by
``command``.

Each window is a ``push_many``. ``push_iter`` would not do: when part of a window is refused (an id is taken, the server
is full), the refused lines are named here, and the lines after them are pushed all the same. However the push ends, the
account says with which line to go on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from shardq.cli.push.lines import NumberedLine
from shardq.cli.signals import apart
from shardq.core.model.task import Receipt, Task
from shardq.core.producer.durable import Durability
from shardq.engine import Engine
from shardq.errors import Conflict, NotReplicated, PushError, ShardqError

WINDOW = 4000
"""Lines pushed at a time: over 16 shards some 250 in a call."""

WINDOW_BYTES = 8 << 20
"""Bytes of lines pushed at a time, at most."""


class Told(Protocol):
    """Hears what became of each line."""

    def stored(self, lines: Sequence[tuple[int, Receipt]]) -> None:
        """The engine has the tasks of these lines: line number, receipt."""

    def bad(self, number: int, reason: str) -> None:
        """The engine does not have the task, and would refuse it again."""


@dataclass(slots=True)
class Bulk:
    """One bulk push. ``run`` it once; the fields may be read meanwhile and afterwards."""

    engine: Engine
    told: Told
    strict: bool
    durability: Durability | None = None
    outcomes: Counter[str] = field(default_factory=Counter)
    """Outcome (pushed, replaced, kept, seen) → tasks."""
    bad_lines: int = 0
    read: int = 0
    """The number of the last line that was read; blank lines count."""
    settled: int = 0
    """The last line up to which every outcome is known, except of ``missing`` and ``doubtful`` lines."""
    missing: list[int] = field(default_factory=list)
    """Lines that the server refused, while it stored lines after them."""
    doubtful: list[int] = field(default_factory=list)
    """Lines that may be stored or not: their answer was lost, or nobody waited for it."""
    _window: list[tuple[int, Task]] = field(default_factory=list)
    _bytes: int = 0

    def run(self, lines: Iterable[NumberedLine | None]) -> None:
        """Pushes the lines. Raises the error that ends the push, with everything before it in the account."""
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
        self._window.append((number, task))
        self._bytes += size

    def _send(self) -> None:
        """Pushes the window, which settles every line that was read."""
        window, self._window = self._window, []
        self._bytes = 0
        before, self.settled = self.settled, self.read
        if not window:
            return
        numbers = [number for number, _ in window]
        # a signal that ends the push right here leaves all of them in doubt
        self.doubtful = numbers
        result = self._pushed(numbers, [task for _, task in window])
        self.doubtful, self.missing = result.doubtful, result.missing
        if self.missing == numbers:
            self.settled, self.missing = before, []
        self.outcomes.update(receipt.outcome for _, receipt in result.stored)
        # the account is complete before anybody hears of it: the reader of our output may have gone
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
        result = _Result([])
        for number, id in zip(numbers, error.ids, strict=True):
            reason = error.failed.get(id)
            if isinstance(id, Receipt):
                result.stored.append((number, id))
            elif isinstance(reason, Conflict):
                result.taken.append((number, str(reason)))
            elif reason is not None:
                result.missing.append(number)
                result.error = result.error or reason
            else:
                result.doubtful.append(number)
        if result.doubtful:
            result.error = result.error or error
        return result

    def _note_bad(self, number: int, reason: str) -> None:
        self.bad_lines += 1
        self.told.bad(number, reason)


@dataclass(slots=True)
class _Result:
    """The outcome of the lines of one window."""

    stored: list[tuple[int, Receipt]]
    taken: list[tuple[int, str]] = field(default_factory=list)
    """Lines whose id is taken, with the reason."""
    missing: list[int] = field(default_factory=list)
    doubtful: list[int] = field(default_factory=list)
    error: ShardqError | None = None
    """The reason to push nothing more."""


def ranges(numbers: Sequence[int]) -> str:
    """Line numbers, as people write them.

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
