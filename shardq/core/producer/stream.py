"""push_iter: stores any number of tasks in bounded memory, and returns ids in the order of the tasks. No I/O.

Tasks are taken in *chunks*: the next chunk is packed while the servers work on the last. The drivers' ``call_all``
pulls calls from here and hands the answers back. Which batches may be under way together, ``turns`` says.
"""

from __future__ import annotations

import itertools
import math
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from shardq.core.calls.request import Command, Word
from shardq.core.layout.topology import Stamp
from shardq.core.model.task import Receipt, Task
from shardq.core.operation import Operation
from shardq.core.producer.packing import FRESH, UNIQUE, Batch, Entries, Packer, batches, chunk_sizes
from shardq.core.producer.pushing import PushResults, check_hooked, complete, is_over, push_each
from shardq.core.producer.turns import Turns
from shardq.core.topology_cache import TopologyCache
from shardq.core.topology_recovery import REFUSALS
from shardq.errors import PushError, ShardqError

CHUNK_BYTES = 16 << 20
"""The bytes of records in one chunk, which bound the memory where payloads are large."""

KEYED_OF_SHARD = 250
"""Tasks for each shard in a chunk after one with keys: their batches often wait for one another, so the answers must be
heard in between. With 1,000 a few keys were pushed at 0.6 of the rate.
"""


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
    """Its batches that are not answered."""
    leftover: Entries = field(default_factory=Entries)
    """Tasks to send again, because of a newer topology or a collision."""
    later: Entries = field(default_factory=Entries)
    """Tasks to send behind those: they keep an order."""
    uncertain: list[Batch] = field(default_factory=list)
    """Tasks in doubt, because of a lost answer and then a newer topology."""


InFlight = tuple[Chunk, Batch]
"""The key of a call."""


@dataclass(slots=True)
class Stream(Iterator[tuple[InFlight, Command[list[str]]]]):
    """One run of push_iter: an iterator over its calls, which may have more after an answer."""

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
    _turns: Turns[Batch] = field(default_factory=Turns)
    _chunk_of: dict[Batch, Chunk] = field(default_factory=dict)
    """Of each batch that is not answered."""
    _keyed: bool = False
    """True if the last chunk had tasks with keys."""
    _drains: bool = False
    """True while nothing more is sent, until all chunks are complete."""
    _stamp: Stamp | None = None
    """That of the topology of the chunks under way: under another one a lane may have another shard."""
    _sizes: Iterator[int] | None = None
    _record_bytes: float = 1.0
    """The bytes of a record, as the last chunk lets expect."""

    def __next__(self) -> tuple[InFlight, Command[list[str]]]:
        """The next call, packed when it is asked for, with the key that ``note`` takes. None may have its turn until
        some are answered; ``exhausted`` tells whether there is more.
        """
        while (batch := self._turns.next()) is None:
            if self._turns.waiting >= self.cache.topology.shards or not self._take():
                raise StopIteration
        chunk = self._chunk_of[batch]
        return (chunk, chunk.results.sent(batch)), batch.call

    def _take(self) -> bool:
        """Takes a chunk. Returns False if there is no more, or none now."""
        if self._chunks:
            self._chunks[-1].results.make_some()
        topology = self.cache.topology
        if self._chunks and (self._drains or topology.stamp != self._stamp):
            return False
        if self._drains:
            self._turns, self._drains = Turns(), False
        if self.exhausted or self.ended_by is not None or self.errors or self.halted():
            return False
        if (tasks := self._taken(self._most())) is None:
            return False
        self._keyed = bool(tasks.keyed)
        chunk = Chunk(PushResults(tasks.ids), tasks, math.ceil(time.time() * 1000), time.monotonic() + self.timeout)
        self._chunks.append(chunk)
        self._stamp = topology.stamp
        for width, words, later in (
            (FRESH, tasks.fresh, chunk.later.fresh),
            (UNIQUE, tasks.unique, chunk.later.unique),
        ):
            # While tasks move, ids of the caller's own are looked for one by one.
            if (tasks.keyed and not topology.is_keyed) or (width == UNIQUE and words and topology.priors):
                self._drains = True
                later += words
                continue
            in_order = bool(tasks.keyed) or width == UNIQUE
            for batch in batches(self.cache, self._stamp, words, width, sizes=[len(words) // width]):
                chunk.open += 1
                self._chunk_of[batch] = chunk
                self._turns.add(batch, in_order=in_order)
        return True

    def _most(self) -> int:
        """How many tasks to take next."""
        if self._keyed:
            return KEYED_OF_SHARD * self.cache.topology.shards
        self._sizes = self._sizes or chunk_sizes(self.cache.topology.shards)
        return next(self._sizes)

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
        del self._chunk_of[batch]
        chunk.open -= 1
        refused = isinstance(result, REFUSALS)
        if not isinstance(result, ShardqError):
            self.cache.heard_at = time.monotonic()
        if is_over(batch, result):
            self._turns.answered(batch)
        elif batch.subjects:
            self._drain()
        if refused and batch.call.in_doubt:
            chunk.uncertain.append(batch)
            return
        again: list[Word] = batch.words if refused else chunk.results.note(batch, result, self.packer)
        (chunk.leftover.fresh if batch.width == FRESH else chunk.leftover.unique).extend(again)

    def _drain(self) -> None:
        """Sends nothing more until all chunks are complete: some of it may have to follow what is sent again there."""
        self._drains = True
        for batch in self._turns.rest():
            chunk = self._chunk_of.pop(batch)
            chunk.open -= 1
            (chunk.later.fresh if batch.width == FRESH else chunk.later.unique).extend(batch.words)

    def completed(self, chunk: Chunk) -> Operation[list[Receipt] | None]:
        """Sends again what must be. Returns the ids of a finished chunk, or None if some of it is not stored."""
        cache, results = self.cache, chunk.results
        try:
            for batch in chunk.uncertain:
                yield from push_each(cache, results, batch.words, batch.width, in_doubt=True, number=batch.number)
            left = Entries(keyed=chunk.entries.keyed)
            left.fresh = chunk.leftover.fresh + chunk.later.fresh
            left.unique = chunk.leftover.unique + chunk.later.unique
            yield from complete(cache, self.packer, results, left)
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
        while self._chunks and not self._chunks[0].open:
            yield self._chunks.popleft()
