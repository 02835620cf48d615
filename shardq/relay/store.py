"""What a mover needs of the place where rows wait."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager

import msgspec

from shardq.errors import ShardqError
from shardq.relay.row import Numbered


class Head(msgspec.Struct, frozen=True, gc=False):
    """A row that waits, as it is chosen: before it is claimed and read."""

    seq: int
    id: str
    created: object  # an instant in ms of the epoch
    size: int


class Store(ABC):
    """Where rows wait. The mover's thread alone uses it, within ``turn``."""

    memory_ms: int
    """How long the servers know a row after its last send."""
    send_s: float | None = None
    """What was claimed so long ago may be carried out no more, as another mover may claim it; None: none may."""
    least_left: float = math.inf
    """The least number of a row that held back one of the last claim."""
    problem: str = ""  # why refused rows can't be put aside
    moved: int = 0
    failed: int = 0
    """The rows that were put aside."""

    @property
    @abstractmethod
    def batch(self) -> int:
        """The most rows of a page."""

    @abstractmethod
    def turn(self, deadline: float = 0.0) -> AbstractContextManager[bool]:
        """Uses the store. False: another mover is at work, until the deadline."""

    @abstractmethod
    def page(self, after: int) -> Sequence[Head]:
        """The first rows after this number that nobody has claimed, and that were not refused."""

    @abstractmethod
    def claim(self, seqs: Collection[int], memory: str) -> list[Numbered]:
        """Claims rows, and reads those of them that have no earlier row of their id beside them, which nobody sends."""

    def release(self, seqs: Collection[int]) -> None:  # noqa: B027  not every store has claims
        """They wait again."""

    def abandon(self) -> None:  # noqa: B027
        """Gives up the claims without a word: they lapse like those of a mover that has died."""

    @abstractmethod
    def remove(self, seqs: Collection[int]) -> None: ...

    @abstractmethod
    def refused(self, rows: Sequence[tuple[Numbered, ShardqError]]) -> set[int]:
        """Keeps rows for another try, or puts them aside. Returns the numbers of those for which that went well."""

    @abstractmethod
    def present(self, seqs: Collection[int]) -> Collection[int]:
        """Those of the rows that are still here."""

    def look(self) -> tuple[list[int], float]:
        """Looks after claims of others and refused rows. Returns refused ones that are to be tried again now, each in a
        call of its own, and the seconds until the next look.
        """
        return [], math.inf

    def sent(self, until: int) -> int:
        """Is told that no row up to a number waits to be sent, as far as the mover has seen. Returns the number after
        which it has to look for more: others may have stored some before it.
        """
        return 0
