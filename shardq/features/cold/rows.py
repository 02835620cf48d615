"""A task as the table has it, and what is said of rows. No I/O."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from shardq.core.layout.lanes import beginning_of
from shardq.core.model.checks import OnConflict
from shardq.features.cold.ids import Place, spelled

LEAST_AFTER_S = 60.0
"""The least ``cold_after``: less leaves a loader no time to come back."""

MARGIN_S = 900.0
"""Tasks due later than ``cold_after`` plus this belong to the table alone; tasks due within ``cold_after`` are loaded.
In between, a command on a task moves it first. It is more than any statement takes, and than any clock jumps.
"""

Fate = Literal["stored", "taken", "near", "doubtful"]
"""The fate of a pushed row: it is stored; another task has its place; it is due too soon for the table; it is due too
soon now, and an earlier send may have been carried out.
"""


class Row(NamedTuple):
    """One task. ``name`` is empty where the place is its id's; of any other task it is the whole id.

    ``until``: the end of its dedup window, in ms by the database's clock, or 0. ``known``: likewise, until when resends
    know of its push, whatever becomes of the row. ``rule``: its conflict rule when it is moved to Redis, where nothing
    has its id but its own earlier moves. It is "replace" only where the caller said so, and no window counts.
    """

    bucket: int
    seq: int
    due: int
    topic: str
    tags: str | None
    record: bytes
    name: str = ""
    until: int = 0
    known: int = 0
    rule: OnConflict = "keep"

    def window_left(self, now_ms: float) -> int:
        """The rest of its dedup window, in ms."""
        return max(0, int(self.until - now_ms))

    @property
    def id(self) -> str:
        return self.name or spelled(self.topic, Place(self.bucket, self.seq))

    @property
    def beginning(self) -> str:
        """The part of its id before the place."""
        return beginning_of(self.name) if self.name else self.topic

    @property
    def place(self) -> Place:
        return Place(self.bucket, self.seq)


def tags_text(tags: Iterable[str]) -> str | None:
    """The tags as one text, in which each can be found as a whole; None for none."""
    text = "\n".join(tags)
    return f"\n{text}\n" if text else None


@dataclass(frozen=True, slots=True)
class Horizon:
    """How far a task has to be for the table."""

    after_ms: int
    """``cold_after``: who is due within it is loaded."""
    margin_ms: int = field(default_factory=lambda: round(MARGIN_S * 1000))

    @property
    def far_ms(self) -> int:
        """Tasks due later than so many ms from now belong to the table alone."""
        return self.after_ms + self.margin_ms

    @property
    def memory_ms(self) -> int:
        """How long Redis remembers that a row was moved: longer than anybody who has read it may still push it, and
        than a row waits that was moved early, by a process that died before it removed it.
        """
        return 2 * self.after_ms + self.margin_ms

    @property
    def stale_ms(self) -> int:
        """How long after it was read a row may be pushed."""
        return self.after_ms
