"""The disk of a node: its append-only file, as far as it was surely written, and its snapshots (RDB).

Every write has a level. It is in memory at once; in the file, which a loss of power may cut anywhere behind what was
synced last; synced, within the second; and in the next snapshot. What a node comes back with is a state that it had
after one of its writes.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal, NamedTuple

from tests.sim.model.keyspace import Snapshot
from tests.sim.model.server import Failure

if TYPE_CHECKING:
    from tests.sim.world.nodes import Node

Policy = Literal["always", "everysec", "rdb", "none"]
"""What reaches the disk: each write before it is answered; all of them once a second; snapshots alone; nothing."""

SYNC_US = 1e6
"""How often everysec syncs."""

LAST = 6
"""Every other loss of power cuts only some of so many last writes."""

NO_FILE = Failure(b"ERR WAITAOF cannot be used when numlocal is set but appendonly is disabled.")


class Point(NamedTuple):
    """A state that the node had."""

    at_us: float
    offset: int
    snapshot: Snapshot


class Disk:
    """``save_s``: the seconds between two snapshots; 0: there are none."""

    def __init__(self, node: Node, policy: Policy, seed: int, save_s: float) -> None:
        self._node = node
        self._hub = node.hub
        self._draw = random.Random(f"{seed}/disk/{node.name}")
        self._policy = policy
        self._synced = self._point()
        self._unsynced: list[Point] = []
        """What was written since, after each write."""
        self.saved: list[Point] = []
        """The snapshots, the last one last."""
        self.waits: list[tuple[int, Callable[[int], None]]] = []
        if policy == "everysec":
            self._hub.after(self._draw.random() * SYNC_US, self._sync)
        if save_s:
            self._hub.after(self._draw.random() * save_s * 1e6, lambda: self._save(save_s * 1e6))

    @property
    def appends(self) -> bool:
        """True if it has an append-only file."""
        return self._policy in ("always", "everysec")

    def _point(self) -> Point:
        return Point(self._hub.now_us, self._node.offset, self._node.space.snapshot())

    def wrote(self) -> None:
        if self._policy == "everysec":
            self._unsynced.append(self._point())

    def _sync(self) -> None:
        if self._node.is_up:
            if self._unsynced:
                self._synced, self._unsynced = self._unsynced[-1], []
            self._synced = self._synced._replace(at_us=self._hub.now_us)
            due, self.waits = self.waits, []
            for _, answer in due:
                answer(1)
        self._hub.after(SYNC_US, self._sync)

    def _save(self, every_us: float) -> None:
        if self._node.is_up:
            self.saved.append(self._point())
        self._hub.after(every_us, lambda: self._save(every_us))

    def wait(self, ms: int, answer: Callable[[int], None]) -> None:
        """WAITAOF 1 0: answers whether all that was written is synced, within that time."""
        if self._policy == "always" or not self._unsynced:
            answer(1)
            return
        entry = (self._node.offset, answer)
        self.waits.append(entry)

        def over() -> None:
            if entry in self.waits:
                self.waits.remove(entry)
                answer(0)

        if ms:
            self._hub.after(ms * 1000, over)

    # ---- what the node comes back with

    def cut(self) -> Point:
        """After a loss of power."""
        if self._policy == "always":
            return self._point()
        if self._policy == "none" or (self._policy == "rdb" and not self.saved):
            return Point(0.0, 0, Snapshot({}))
        if self._policy == "rdb":
            return self.saved[-1]
        kept = len(self._unsynced)
        if kept:
            fewest = max(0, kept - LAST) if self._draw.random() < 0.5 else 0
            kept = self._draw.randint(fewest, kept - 1)
        return self._unsynced[kept - 1] if kept else self._synced

    def earlier(self) -> Point | None:
        """One of its snapshots; None: it has none yet."""
        return self._draw.choice(self.saved[-self._draw.choice((2, 4, 20)) :]) if self.saved else None

    def restarts(self, point: Point) -> None:
        """The node comes back with that, and what was later is nowhere any more."""
        self.waits.clear()
        self._synced, self._unsynced = point._replace(at_us=self._hub.now_us), []
        self.saved = [each for each in self.saved if each.at_us <= point.at_us]
