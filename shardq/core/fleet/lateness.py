"""Records how late tasks are dispatched, how long those with a key have waited by then, and how long claimed ones wait
for their handler, in histograms of fixed size. Each poller has one for its shard, each dispatcher and each worker one
for each topic; they can be added up.

A dispatch answers how late the oldest and the newest task without a key of its batch were, by the server's clock. All
of them count as late as the oldest. So no quantile is better than the truth, and it is exact while tasks are moved one
by one, as in a shard that keeps up. Tasks with a key wait for more than the dispatcher: the script answers the bin of
each (``lua/common/wait.lua``).

Values up to 15 ms have a bin each. Above, each doubling has eight bins, so a value reads at most an eighth too high.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

EXACT = 16
PER_DOUBLING = 8
_LONGEST_MS = (1 << 36) - 1
"""Two years; a longer lateness counts as this."""

MAX_LATE_S = 5.0
"""A lateness from which on something is wrong: a reason of ``health()``, an incident of the history. Other dispatchers
take over from a killed one within four seconds, from a stopped one at once, and no shard that is served falls this far
behind.
"""

MOST_TOPICS = 64
"""Topics that have a histogram of their own in a process."""

OTHERS = "*"
"""All other topics together: no topic has this name."""


class Lateness(msgspec.Struct, frozen=True):
    """The lateness of some tasks."""

    counts: tuple[int, ...] = ()
    """Tasks in each bin; empty bins at the end may be missing."""
    early: int = 0
    """Tasks in batches of which one was moved before its due time: always 0."""

    @property
    def count(self) -> int:
        return sum(self.counts)

    @property
    def p50_ms(self) -> int | None:
        return self.quantile_ms(0.5)

    @property
    def p99_ms(self) -> int | None:
        return self.quantile_ms(0.99)

    @property
    def max_ms(self) -> int | None:
        return self.quantile_ms(1.0)

    def quantile_ms(self, share: float) -> int | None:
        """The lateness that this share of the tasks did not exceed, rounded up within its bin; None without tasks.

        >>> Lateness(counts=(98, 1, 1)).quantile_ms(0.99)
        1
        """
        wanted = share * self.count
        seen = 0
        for at, count in enumerate(self.counts):
            seen += count
            if count and seen >= wanted:
                return _last_of(at)
        return None

    @property
    def bins(self) -> Iterator[tuple[int, int]]:
        """The highest lateness in ms of each bin that is not empty, and the tasks in it."""
        return ((_last_of(at), count) for at, count in enumerate(self.counts) if count)

    @classmethod
    def total(cls, parts: Iterable[Lateness]) -> Lateness:
        """The lateness of the tasks of all parts."""
        counts: list[int] = []
        early = 0
        for part in parts:
            counts += [0] * (len(part.counts) - len(counts))
            for at, count in enumerate(part.counts):
                counts[at] += count
            early += part.early
        return cls(tuple(counts), early)

    def since(self, earlier: Lateness) -> Lateness:
        """The lateness of the tasks that have come since an earlier look at the same histogram.

        >>> Lateness(counts=(5, 3)).since(Lateness(counts=(5, 1)))
        Lateness(counts=(0, 2), early=0)
        """
        before = (*earlier.counts, *(0,) * len(self.counts))
        counts = tuple(now - then for now, then in zip(self.counts, before, strict=False))
        return Lateness(counts, self.early - earlier.early)


class TopicLateness:
    """Records the lateness of tasks by topic, for ``MOST_TOPICS`` topics; later ones count together. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._recorders: dict[str, LatenessRecorder] = {}

    def note(self, tasks: Sequence[tuple[str, int]], *, oldest_ms: int, newest_ms: int) -> None:
        """Notes one batch: topics, and how many tasks of each."""
        with self._lock:
            for topic, count in tasks:
                self._of(topic).note(count, oldest_ms=oldest_ms, newest_ms=newest_ms)

    def add(self, bins: Iterable[tuple[str, int, int]]) -> None:
        """Adds what a script has counted: topics, bins, and how many tasks are in each."""
        with self._lock:
            for topic, at, count in bins:
                self._of(topic).add(at, count)

    def _of(self, topic: str) -> LatenessRecorder:
        if topic not in self._recorders:
            topic = topic if len(self._recorders) < MOST_TOPICS else OTHERS
            self._recorders.setdefault(topic, LatenessRecorder())
        return self._recorders[topic]

    def snapshot(self) -> Mapping[str, Lateness]:
        with self._lock:
            return {topic: recorder.snapshot() for topic, recorder in self._recorders.items()}


class LatenessRecorder:
    """Records the lateness of tasks. One thread calls ``note`` and ``add``, any thread ``snapshot``."""

    def __init__(self) -> None:
        self._counts = [0] * BINS
        self._last = -1
        """The highest bin in use; those above need not be copied."""
        self._early = 0

    def note(self, tasks: int, *, oldest_ms: int, newest_ms: int) -> None:
        """Notes one batch."""
        if newest_ms < 0:
            self._early += tasks
        self.add(_bin(min(max(oldest_ms, 0), _LONGEST_MS)), tasks)

    def add(self, at: int, tasks: int) -> None:
        """Adds tasks to a bin."""
        self._counts[at] += tasks
        self._last = max(self._last, at)

    def snapshot(self) -> Lateness:
        return Lateness(tuple(self._counts[: self._last + 1]), self._early)


def _bin(ms: int) -> int:
    if ms < EXACT:
        return ms
    # of its four highest bits, the first says which doubling, the others which eighth of it
    shift = ms.bit_length() - 4
    return EXACT + (shift - 1) * PER_DOUBLING + ((ms >> shift) & (PER_DOUBLING - 1))


def _last_of(at: int) -> int:
    """The highest value of a bin."""
    if at < EXACT:
        return at
    doubling, part = divmod(at - EXACT, PER_DOUBLING)
    return ((PER_DOUBLING + part + 1) << (doubling + 1)) - 1


BINS = _bin(_LONGEST_MS) + 1
"""The number of bins."""
