"""push_iter: stores any number of tasks in bounded memory, and returns ids in the order of the tasks. No I/O.

Tasks are taken in *chunks*: the next chunk is packed while the servers work on the last. The drivers' ``call_all``
pulls calls from here and hands the answers back.
"""

from __future__ import annotations

import itertools
import math
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from shardq.core.calls.request import Command, Word
from shardq.core.model.task import Receipt, Task
from shardq.core.operation import Operation
from shardq.core.producer.packing import FRESH, UNIQUE, Batch, Entries, Packer, batches, chunk_sizes
from shardq.core.producer.pushing import PushResults, check_hooked, comes_again, complete, push_each
from shardq.core.topology_cache import TopologyCache
from shardq.core.topology_recovery import REFUSALS
from shardq.errors import PushError, ShardqError

CHUNK_BYTES = 16 << 20
"""The bytes of records in one chunk, which bound the memory where payloads are large."""


@dataclass(slots=True, eq=False)
class Chunk:
    """Tasks that are taken together, and what is still to be done for them."""

    results: PushResults
    entries: Entries
    """All of its tasks, for who keeps those that are not stored."""
    taken_ms: int
    """When they were taken, by this machine's clock: their delays count from then."""
    deadline: float
    """The time at which its tasks must be stored. What the caller does between two chunks does not count."""
    open: int = 0
    packed: bool = False
    own_ids: frozenset[str] = frozenset()
    """The ids that the caller gave."""
    leftover: Entries = field(default_factory=Entries)
    """Tasks to send again, because of a newer topology or a collision."""
    uncertain: list[Batch] = field(default_factory=list)
    """Tasks in doubt, because of a lost answer and then a newer topology."""


InFlight = tuple[Chunk, Batch]
"""The key of a call."""


@dataclass(slots=True)
class Stream:
    """One run of push_iter."""

    cache: TopologyCache
    packer: Packer
    tasks: Iterator[Task]
    timeout: float
    """The time for each chunk."""
    halted: Callable[[], bool] = lambda: False
    """Asked before each chunk: if true, no more input is read, and the rest is for another run."""
    exhausted: bool = False
    """True once all input was read."""
    ended_by: BaseException | None = None
    """The error of a wrong task, or whatever the input raised. The tasks of its chunk were not sent."""
    errors: list[PushError] = field(default_factory=list)
    """Errors of partly stored chunks. After the first, no more input is read; what is in flight is finished."""
    _chunks: deque[Chunk] = field(default_factory=deque)
    _sizes: Iterator[int] | None = None
    _record_bytes: float = 1.0
    """The bytes of a record, as the last chunk lets expect."""

    def calls(self) -> Iterator[tuple[InFlight, Command[list[str]]]]:
        """The calls of the tasks, packed when they are asked for, with the key that ``note`` takes. Ends early before
        tasks that must wait for those under way; ``exhausted`` tells whether there are more.
        """
        self._sizes = self._sizes or chunk_sizes(self.cache.topology.shards)
        waits = False
        while not waits and not self.errors and not self.halted() and (tasks := self._taken(next(self._sizes))):
            entries = Entries(tasks.ids, tasks.fresh, tasks.unique, tasks.keyed)
            deadline = time.monotonic() + self.timeout
            ids: list[str] = tasks.unique[::UNIQUE]  # type: ignore[assignment]  # the first word of each task is its id
            chunk = Chunk(PushResults(tasks.ids), entries, math.ceil(time.time() * 1000), deadline)
            chunk.own_ids = frozenset(ids)
            epoch = self.cache.topology.stamp
            # While tasks move they are looked for one by one; of one id they are stored in their order.
            waits = bool(ids) and (
                bool(self.cache.topology.priors)
                or comes_again(ids)
                or not all(chunk.own_ids.isdisjoint(each.own_ids) for each in self._chunks)
            )
            if waits:
                chunk.leftover.unique, tasks.unique = list(tasks.unique), []
            if tasks.keyed and not self.cache.topology.is_keyed:
                waits, chunk.leftover = True, Entries(tasks.ids, tasks.fresh, tasks.unique, keyed=True)
                tasks.fresh, tasks.unique = [], []
            self._chunks.append(chunk)
            for width, words in ((FRESH, tasks.fresh), (UNIQUE, tasks.unique)):
                parts = batches(self.cache, epoch, words, width, sizes=[len(words) // width])
                for batch, call in chunk.results.sending(parts):
                    chunk.open += 1
                    yield (chunk, batch), call
            chunk.packed = True

    def _taken(self, most: int) -> Entries | None:
        size = max(1, min(most, int(CHUNK_BYTES / self._record_bytes)))
        try:
            entries = self.packer.many(itertools.islice(self.tasks, size))
            check_hooked(self.cache, entries.hooked or ())
        except BaseException as exc:  # noqa: BLE001  raised when all that was sent is answered, see check
            self.ended_by = exc
            return None
        if not entries.ids:
            self.exhausted = True
            return None
        self._record_bytes = entries.bytes / len(entries.ids)
        return entries

    def deadline(self, sent: InFlight) -> float:
        """The end of a call's time, for ``call_all``."""
        return sent[0].deadline

    def came_back(self, left: float) -> None:
        """Notes that the caller, who had left with receipts at that time, has come back."""
        away_s = time.monotonic() - left
        for chunk in self._chunks:
            chunk.deadline += away_s

    def note(self, answered: InFlight, result: list[str] | ShardqError) -> None:
        chunk, batch = answered
        chunk.open -= 1
        refused = isinstance(result, REFUSALS)
        if not isinstance(result, ShardqError):
            self.cache.heard_at = time.monotonic()
        if refused and batch.call.in_doubt:
            chunk.uncertain.append(batch)
            return
        again: list[Word] = batch.words if refused else chunk.results.note(batch, result, self.packer)
        (chunk.leftover.fresh if batch.width == FRESH else chunk.leftover.unique).extend(again)

    def completed(self, chunk: Chunk) -> Operation[list[Receipt] | None]:
        """Sends again what must be. Returns the ids of a finished chunk, or None if some of it is not stored."""
        cache, results = self.cache, chunk.results
        try:
            for batch in chunk.uncertain:
                yield from push_each(cache, results, batch.words, batch.width, in_doubt=True, number=batch.number)
            yield from complete(cache, self.packer, results, chunk.leftover)
            return results.receipts()
        except PushError as exc:
            self.errors.append(exc)
            return None

    def check(self) -> None:
        """Raises, at the end, the errors of all chunks at once, and what ended the input."""
        error = PushError.merged(self.errors) if self.errors else None
        if error is not None and (self.ended_by is None or isinstance(self.ended_by, Exception)):
            raise error from self.ended_by
        if self.ended_by is not None:
            raise self.ended_by from error or self.ended_by.__cause__

    def finished(self) -> Iterator[Chunk]:
        """Yields the chunks whose answers are all here, in order."""
        while self._chunks and self._chunks[0].packed and not self._chunks[0].open:
            yield self._chunks.popleft()
