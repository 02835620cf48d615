"""Storing the tasks of many lines: in windows, in bounded memory, with the books kept by line.

By ``push_many``, window for window, and not by ``push_iter``: when part of a window is refused (an id is taken, the
server is full) the refused lines are named, and the lines after them are pushed all the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from shardq.cli.push.lines import Numbered
from shardq.engine import Engine
from shardq.errors import Conflict, PushError, ShardqError
from shardq.model.ids import full_id
from shardq.model.task import Receipt, Task

WINDOW = 4000
"""Lines pushed at a time: over 16 shards some 250 in a call."""

WINDOW_BYTES = 8 << 20
"""And no more than this much text."""

Stored = Callable[[int, Receipt], None]
"""Told of each task that the engine has: line number, receipt."""

Bad = Callable[[int, str], None]
"""Told of each line whose task it has not: line number, reason."""


@dataclass(slots=True)
class Bulk:
    """One bulk push. Use ``run`` once; the counts are for who looks meanwhile or afterwards."""

    engine: Engine
    stored: Stored
    bad: Bad
    strict: bool
    outcomes: Counter[str] = field(default_factory=Counter)
    """Of what the engine has: pushed, replaced, kept, seen."""
    bad_lines: int = 0
    _window: list[tuple[int, Task]] = field(default_factory=list)
    _ids: set[str] = field(default_factory=set)
    _bytes: int = 0

    def run(self, lines: Iterable[Numbered]) -> None:
        """Raises the error when the server can't take any more; everything before is in the books."""
        for line in lines:
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
            self._send()
        if task.id is not None:
            # one id twice in a call could not be told apart in its answer
            id = full_id(task.topic, task.id)
            if id in self._ids:
                self._send()
            self._ids.add(id)
        self._window.append((number, task))
        self._bytes += size

    def _send(self) -> None:
        window, self._window = self._window, []
        self._ids, self._bytes = set(), 0
        if not window:
            return
        try:
            receipts = self.engine.push_many([task for _, task in window])
        except PushError as exc:
            self._sort_out([number for number, _ in window], exc)
        else:
            for (number, _), receipt in zip(window, receipts, strict=True):
                self._note_stored(number, receipt)

    def _sort_out(self, numbers: list[int], error: PushError) -> None:
        unknown = set(error.unknown)
        beyond: ShardqError | None = None
        for number, id in zip(numbers, error.ids, strict=True):
            if id in error.failed:
                reason = error.failed[id]
                self._note_bad(number, str(reason))
                if not isinstance(reason, Conflict):
                    beyond = beyond or reason
            elif id in unknown:
                self._note_bad(number, f"the answer was lost: the task {id} may be stored or not")
                beyond = beyond or error
            else:
                self._note_stored(number, Receipt(id))
        if beyond is not None:
            raise beyond

    def _note_stored(self, number: int, receipt: Receipt) -> None:
        self.outcomes[receipt.outcome] += 1
        self.stored(number, receipt)

    def _note_bad(self, number: int, reason: str) -> None:
        self.bad_lines += 1
        self.bad(number, reason)
