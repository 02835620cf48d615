"""The master of a service under Sentinel, by the words of its sentinels. No I/O.

A failover is carried by a majority of the sentinels, and gives its master a higher config-epoch than any before. So the
word of the majority counts; where those that answer make no majority for any master, the highest epoch does. A sentinel
that is cut off from the others goes on naming the master that they have replaced: alone, it is believed only while
nobody can say better, and never against an epoch that was seen.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple


class Vote(NamedTuple):
    """The word of one sentinel."""

    sentinel: str
    master: str
    epoch: int
    """The config-epoch of the failover that it goes by; 0 where its user may not ask for it."""
    sentinels: int
    """The number of sentinels of the service, as far as it knows."""

    def __str__(self) -> str:
        return f"{self.sentinel} names {self.master} (config-epoch {self.epoch})"


@dataclass(frozen=True, slots=True)
class Election:
    """The outcome of a look at all sentinels of a URL."""

    votes: Sequence[Vote]
    asked: int
    """The number of sentinels that the URL names."""
    seen: int = 0
    """The highest config-epoch by which this process has gone before."""

    @property
    def majority(self) -> int:
        return self.asked // 2 + 1

    @property
    def is_decided(self) -> bool:
        """True if those who have not answered yet can't change it."""
        return any(count >= self.majority for _, count in self._counts())

    @property
    def master(self) -> str | None:
        """The address of the master; None if nobody is to be believed."""
        if self.is_decided:
            return self._counts()[0][0]
        newest = max((vote.epoch for vote in self.votes), default=-1)
        masters = {vote.master for vote in self.votes if vote.epoch == newest}
        if len(masters) != 1 or (len(self.votes) < self.majority and newest < self.seen):
            return None
        return masters.pop()

    @property
    def epoch(self) -> int:
        """The config-epoch of the master that was elected."""
        return max((vote.epoch for vote in self.votes if vote.master == self.master), default=0)

    @property
    def dissent(self) -> list[Vote]:
        """The words that were not believed."""
        return [vote for vote in self.votes if vote.master != self.master]

    @property
    def refusal(self) -> str:
        """Why nobody is believed."""
        told = "; ".join(map(str, self.votes))
        if len({vote.master for vote in self.votes}) > 1:
            return f"the sentinels disagree, and neither a majority nor a config-epoch decides: {told}"
        return (
            f"only {len(self.votes)} of {self.asked} sentinels answer, and by an older failover than the one this "
            f"process has seen (config-epoch {self.seen}): {told}"
        )

    def _counts(self) -> list[tuple[str, int]]:
        return Counter(vote.master for vote in self.votes).most_common()


@dataclass(frozen=True, slots=True)
class Survey:
    """A look at all sentinels and at other masters."""

    election: Election
    silent: Mapping[str, str]
    """The sentinels that tell nothing → why."""
    rivals: Sequence[str]
    """Servers that say that they are masters, beside the one that was elected."""
