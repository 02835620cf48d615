"""The masters as the replayer last saw them, and what a change of them means. No I/O.

Each look at a master gives a *checkpoint*: all that it had acknowledged before was in the first so many bytes of its
replication history. A replica that is promoted names the history that it followed and how much of it it has; so does a
master that was started again from a snapshot. The latest checkpoint in that part is the *cut*: what was acknowledged
before it is there, what came after it may be lost.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from shardq.core.calls.node_info import Lineage

NOTHING_KNOWN = -math.inf


@dataclass(slots=True)
class Master:
    """A master, by its looks."""

    history: str
    checkpoints: deque[tuple[float, int]] = field(default_factory=deque)
    """The times at which it was asked, and the length of its history then."""

    def seen(self, asked: float, lineage: Lineage, *, keep_s: float) -> None:
        """Notes a look."""
        self.checkpoints.append((asked, lineage.offset))
        while self.checkpoints[0][0] < asked - keep_s:
            self.checkpoints.popleft()

    @property
    def last_seen(self) -> float:
        """The time of the last look."""
        return self.checkpoints[-1][0] if self.checkpoints else NOTHING_KNOWN

    def cut(self, lineage: Lineage) -> float:
        """The time before which all that it acknowledged is on the server of that lineage."""
        if not self.history or lineage.earlier != self.history:
            return NOTHING_KNOWN
        within = (at for at, length in self.checkpoints if length <= lineage.earlier_length)
        return max(within, default=NOTHING_KNOWN)


@dataclass(frozen=True, slots=True)
class Loss:
    """A master whose last writes may be lost."""

    node: str
    successor: str
    """The node that took over from it; itself after a restart; empty if that is not known."""
    cut: float

    def __str__(self) -> str:
        if self.successor == self.node:
            return f"{self.node} was restarted"
        return f"{self.successor or 'another node'} took over from {self.node}"


def loss(node: str, master: Master | None, serving: Mapping[str, Lineage]) -> Loss | None:
    """Tells what happened to a node that has acknowledged calls. None: it still has them. ``serving``: the masters that
    serve our shards now.
    """
    if (now := serving.get(node)) is not None:
        if master is None or now.history == master.history:
            return None
        return Loss(node, node, master.cut(now))
    for successor, lineage in serving.items():
        if master is not None and master.history and lineage.earlier == master.history:
            return Loss(node, successor, master.cut(lineage))
    return Loss(node, "", NOTHING_KNOWN)
