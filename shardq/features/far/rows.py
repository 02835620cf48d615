"""A task as the table has it, the ids that are made for it, and how far is far. No I/O.

An id that is made for a row is an id as the engine makes them, with a dot in place of its first character: it is as
long, and lies beside those that were made in the same second in the index of the table. No other id that is made here
begins with a dot, so who meets one knows that its task may wait in the table.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from shardq.core.model.checks import OnConflict
from shardq.core.model.ids import ALPHABET, UNIQUE_LENGTH

LINK = "far"
"""The word of the table among the links of an engine, and of what it is given by."""

LEAST_AHEAD_S = 60.0
"""The least ``ahead``: less leaves a loader no time to come back."""

MARGIN_S = 900.0
"""Tasks due later than ``ahead`` plus this belong to the table alone; tasks due within ``ahead`` are loaded. In
between, a command on a task moves it first. It is more than any statement takes, and than any clock jumps.
"""

LAST_MS = 30_000_000_000_000
"""An instant in the year 2920: what is due later stays in Redis."""

_MADE = re.compile(rf"(?:.*/)?\.[{ALPHABET[1:]}-]{{{UNIQUE_LENGTH - 1}}}", re.DOTALL)

Fate = Literal["stored", "taken", "near", "doubtful"]
"""The fate of a pushed row: it is stored; another task has its id; it is due too soon for the table; it is due too
soon now, and an earlier send may have been carried out.
"""


def far_id(id: str) -> str:
    """The id of a far task, in place of one that was made for a near one."""
    return f"{id[:-UNIQUE_LENGTH]}.{id[1 - UNIQUE_LENGTH :]}"


def is_made(id: str) -> bool:
    """True for an id that was made for a row."""
    return _MADE.fullmatch(id) is not None


class Row(NamedTuple):
    """One task.

    Only those of the outbox have a ``nonce``, and the two instants, in ms by the database's clock: ``until``, the end
    of the dedup window, or 0; ``known``, until when resends know of the push, whatever becomes of the row.
    ``rule``: the conflict rule when it is moved to Redis, where nothing has its id but its own earlier moves. It is
    "replace" only where the caller said so, and no window counts.
    """

    id: str
    due: int
    tags: str | None
    record: bytes
    until: int = 0
    known: int = 0
    nonce: int | None = None
    rule: OnConflict = "keep"

    def window_left(self, now_ms: float) -> int:
        """The rest of its dedup window, in ms."""
        return max(0, int(self.until - now_ms))


def tags_text(tags: Iterable[str]) -> str | None:
    """The tags as one text, in which each can be found as a whole; None for none."""
    text = "\n".join(tags)
    return f"\n{text}\n" if text else None


@dataclass(frozen=True, slots=True)
class Horizon:
    """How far a task has to be for the table."""

    ahead_ms: int
    """``ahead``: who is due within it is loaded."""
    margin_ms: int = field(default_factory=lambda: round(MARGIN_S * 1000))
    widest_ms: int = 0
    """While ``ahead`` changes, the larger one of both."""

    @property
    def far_ms(self) -> int:
        """Tasks due later than so many ms from now belong to the table alone."""
        return max(self.ahead_ms, self.widest_ms) + self.margin_ms

    @property
    def memory_ms(self) -> int:
        """How long Redis remembers that a row was moved: longer than anybody who has read it may still push it, and
        than a row waits that was moved early, by a process that died before it removed it.
        """
        return 2 * self.far_ms - self.margin_ms

    @property
    def stale_ms(self) -> int:
        """How long after it was read a row may be pushed."""
        return self.ahead_ms


class Owner(NamedTuple):
    """Whose the table is."""

    engine: str
    identity: str
    ahead: float
    former: float
    """The ``ahead`` before the last change of it."""
    changed: int
    """When that was, in ms by the database's clock."""
    beat: int
    """The last that was given out: see ``witness``."""
    halted: str
    """Why no row may be moved, as the database was restored; empty if it was not."""

    @property
    def changes_until(self) -> int:
        """Until then both count, the former and the present ``ahead``: a row may be moved for so long by who has read
        it, and knows the former one.
        """
        longer = Horizon(round(1000 * max(self.ahead, self.former)))
        return self.changed + longer.far_ms

    def horizon(self, now_ms: float) -> Horizon:
        """Returns what is near, and what is far, at an instant."""
        both = [round(1000 * each) for each in (self.ahead, self.former)]
        return Horizon(both[0]) if now_ms >= self.changes_until else Horizon(min(both), widest_ms=max(both))
