"""push_iter: any number of tasks in bounded memory, ids in the order of the tasks.

Tasks are taken in *windows*; the next is packed while the servers work on the last. Pure: the drivers' ``call_all``
pulls calls from here and hands the answers back.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from shardq.atlas import Atlas
from shardq.calls.answers import Missing, Stale
from shardq.calls.request import Command, Word
from shardq.errors import BadInput, PushError, ShardqError
from shardq.model.task import Receipt, Task
from shardq.operation import Operation
from shardq.producer.operations import Tally, asked_for, completed
from shardq.producer.packing import FRESH, UNIQUE, Batch, Entries, Packer, batches, windows

WINDOW_BYTES = 16 << 20
"""Of the records of one window: memory is bounded, also where payloads are large."""


@dataclass(slots=True, eq=False)
class Window:
    """The tasks taken together, and what is still open of them."""

    tally: Tally
    open: int = 0
    packed: bool = False
    leftover: Entries = field(default_factory=Entries)
    """What a newer topology or a collision asks to be sent again."""
    uncertain: list[Batch] = field(default_factory=list)
    """What a lost answer and then a newer topology leave in doubt."""


@dataclass(slots=True)
class Stream:
    """One run of push_iter."""

    atlas: Atlas
    packer: Packer
    tasks: Iterator[Task]
    most: int
    bad: BadInput | None = None
    """What ended the stream early; the tasks of its window were not sent."""
    errors: list[PushError] = field(default_factory=list)
    """Of windows that are not stored as a whole. The first ends the taking; what is under way is finished."""
    _windows: deque[Window] = field(default_factory=deque)
    _sent: dict[int, tuple[Window, Batch]] = field(default_factory=dict)
    _record_bytes: float = 1.0
    """Of a task, as those of the last window lead to expect."""

    def calls(self) -> Iterator[Command[list[str]]]:
        """The calls of all tasks, packed as they are asked for."""
        sizes = windows(self.atlas.topology.shards)
        while not self.errors and (tasks := self._taken(next(sizes))):
            window = Window(Tally(tasks.ids))
            self._windows.append(window)
            epoch = self.atlas.topology.epoch
            if self.atlas.topology.priors:
                # looked for where they may be, one by one, when the rest of the window is done
                window.leftover.unique, tasks.unique = tasks.unique, []
            for width, words in ((FRESH, tasks.fresh), (UNIQUE, tasks.unique)):
                for batch in batches(self.atlas, words, width, most=self.most, sizes=[len(words) // width]):
                    call = batch.call(epoch)
                    window.open += 1
                    self._sent[id(call)] = window, batch
                    yield call
                    window.tally.sent(batch)
            window.packed = True

    def _taken(self, most: int) -> Entries | None:
        size = max(1, min(most, int(WINDOW_BYTES / self._record_bytes)))
        try:
            entries = self.packer.many(itertools.islice(self.tasks, size))
        except BadInput as exc:
            self.bad = exc
            return None
        if not entries.ids:
            return None
        self._record_bytes = entries.bytes / len(entries.ids)
        return entries

    def note(self, call: Command[list[str]], result: list[str] | ShardqError) -> None:
        window, batch = self._sent.pop(id(call))
        window.open -= 1
        refused = isinstance(result, (Stale, Missing))
        if refused and call.in_doubt:
            window.uncertain.append(batch)
            return
        again: list[Word] = batch.words if refused else window.tally.note(batch, result, self.packer)
        (window.leftover.fresh if batch.width == FRESH else window.leftover.unique).extend(again)

    def completed(self, window: Window) -> Operation[list[Receipt] | None]:
        """The ids of a finished window, after sending again what must be; None when some of it is not stored."""
        try:
            return (yield from self._completed(window))
        except PushError as exc:
            self.errors.append(exc)
            return None

    def check(self) -> None:
        """At the end: raises what went wrong, of all windows at once."""
        if self.errors:
            raise PushError.merged(self.errors)
        if self.bad is not None:
            raise self.bad

    def _completed(self, window: Window) -> Operation[list[Receipt]]:
        for batch in window.uncertain:
            yield from asked_for(self.atlas, self.packer, window.tally, batch)
        return (yield from completed(self.atlas, self.packer, window.tally, window.leftover, most=self.most))

    def finished(self) -> Iterator[Window]:
        """The windows whose answers are all here, in order."""
        while self._windows and self._windows[0].packed and not self._windows[0].open:
            yield self._windows.popleft()
