"""Keeps the order of tasks of one key, and of one id, while batches of a push go to the servers together. No I/O.

Of two calls under way, either may be executed first: a server asks for the script once more, a connection is lost, the
topology has changed. So a batch waits while one before it is under way that shares a key or an id with it; those behind
it in its shard wait, too. Other shards go on. The batches that are not answered are all of one topology.
"""

from __future__ import annotations

import re
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from shardq.core.calls.request import Call, Word
from shardq.core.topology_recovery import Routed

T = TypeVar("T")

_subjects: Callable[[str], list[str]] = re.compile(r"^[^/\n]*/[^/\n]+/|^.+", re.MULTILINE).findall


def subjects(ids: Sequence[Word]) -> set[str]:
    """What the tasks of these ids keep an order of: their lanes, or else the ids themselves.

    >>> sorted(subjects(["mail/ann/1", "mail/ann/2", "mail/7"]))
    ['mail/7', 'mail/ann/']
    """
    return set(_subjects("\n".join(ids)))  # type: ignore[arg-type]  # ids are text


@dataclass(slots=True, eq=False)
class Ordered(Routed[T]):
    """A batch whose tasks may keep an order."""

    subjects: set[str] = field(default_factory=set, kw_only=True)
    """What they keep an order of, once it was added to ``Turns``."""

    @property
    def ids(self) -> Sequence[Word]:
        """The ids of its tasks."""
        raise NotImplementedError


B = TypeVar("B", bound=Ordered[Any])


class Turns(Generic[B]):
    """The batches of a push that are not answered, and which of them may go."""

    def __init__(self) -> None:
        self._free: deque[B] = deque()
        """Those whose turn it is."""
        self._waiting: defaultdict[int, deque[B]] = defaultdict(deque)
        """Shard → those that wait for one before them."""
        self._under_way: defaultdict[int, set[str]] = defaultdict(set)
        """Shard → the subjects of those that were free, and are not answered."""
        self.waiting = 0
        """How many wait."""

    def add(self, batch: B, *, in_order: bool) -> None:
        """Adds a batch behind all others. ``in_order``: False if its tasks keep no order."""
        if in_order:
            batch.subjects = subjects(batch.ids)
            if self._waiting[batch.keys.shard] or not self._joins(batch):
                self._waiting[batch.keys.shard].append(batch)
                self.waiting += 1
                return
        self._free.append(batch)

    def next(self) -> B | None:
        """Takes one whose turn it is."""
        return self._free.popleft() if self._free else None

    def answered(self, batch: B) -> None:
        """Notes that a batch is stored, or never will be: others follow. Not for one that is sent again."""
        if not batch.subjects:
            return
        shard = batch.keys.shard
        self._under_way[shard] -= batch.subjects
        waiting = self._waiting[shard]
        while waiting and self._joins(waiting[0]):
            self._free.append(waiting.popleft())
            self.waiting -= 1

    def rest(self) -> list[B]:
        """Takes all that had no turn, those of a shard in their order."""
        rest = [*self._free]
        for waiting in self._waiting.values():
            rest += waiting
        self._free.clear()
        self._waiting.clear()
        self.waiting = 0
        return rest

    def _joins(self, batch: B) -> bool:
        under_way = self._under_way[batch.keys.shard]
        if not under_way.isdisjoint(batch.subjects):
            return False
        under_way |= batch.subjects
        return True


class Sending(Iterator[tuple[B, Call[Any]]], Generic[B]):
    """The calls of batches, made when they are asked for. After an answer there may be more of them."""

    def __init__(self, batches: Iterable[B], is_over: Callable[[B, Any], bool], *, in_order: bool) -> None:
        """``is_over``: True for an answer after which nothing of the batch is sent again."""
        self._turns = Turns[B]()
        self._batches = iter(batches)
        self._is_over = is_over
        self._in_order = in_order

    def __next__(self) -> tuple[B, Call[Any]]:
        while (batch := self._turns.next()) is None:
            self._turns.add(next(self._batches), in_order=self._in_order)
        return batch, batch.call

    def told(self, batch: B, result: Any) -> None:
        """Notes an answer."""
        if self._is_over(batch, result):
            self._turns.answered(batch)

    def rest(self) -> list[B]:
        """Takes, at the end, those that had no turn: one before them is to be sent again."""
        return self._turns.rest()
