"""The disk of a node: its append-only file, as far as it was surely written, and its snapshots (RDB).

Every write has a level. It is in memory at once; in the file, which a loss of power may cut anywhere behind what was
synced last; synced, after a second or two; and in the next snapshot. What a node comes back with is a state that it had
after one of its writes.

With everysec an fsync has what was written before it began, takes its time, which is long on a busy disk, and is
followed by the next one a second after it began, or as it ends. A node that stands still begins none. WAITAOF is
answered when an fsync had the write, or at once by a server that answers early, as Valkey does.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Literal, NamedTuple

from tests.sim.model.keyspace import Snapshot
from tests.sim.model.server import Failure

if TYPE_CHECKING:
    from tests.sim.world.nodes import Node

ServerKind = Literal["valkey9", "redis8", "redis7"]
"""redis7 does not know WAITAOF; valkey9 answers it too early."""

Policy = Literal["always", "everysec", "rdb", "none"]
"""What reaches the disk: each write before it is answered; all of them once a second; snapshots alone; nothing."""

SYNC_US = 1e6
"""How often everysec syncs."""

TICK_US = 1e5
"""How often a server looks if it is time, beside each command."""

LAST = 6
"""One loss of power in four cuts only some of so many last writes, and one cuts all that was not synced."""

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
        self.policy = policy
        self._answers_early = node.servers.kind == "valkey9" and policy == "everysec"
        self._is_busy = self._draw.random() < 0.25
        self._synced = self._point()
        self._unsynced: list[Point] = []
        """What was written since, after each write."""
        self._began_us = 0.0
        """When the last fsync began."""
        self._lives = 0
        self.is_syncing = False
        self.saved: list[Point] = []
        """The snapshots, the last one last."""
        self.waits: list[tuple[int, Callable[[int], None]]] = []
        if policy == "everysec":
            self._hub.after(self._draw.random() * SYNC_US, self._ticks)
        if save_s:
            self._hub.after(self._draw.random() * save_s * 1e6, lambda: self._save(save_s * 1e6))

    @property
    def appends(self) -> bool:
        """True if it has an append-only file."""
        return self.policy in ("always", "everysec")

    def _point(self) -> Point:
        return Point(self._hub.now_us, self._node.offset, self._node.space.snapshot())

    def wrote(self) -> None:
        if self.policy == "everysec":
            self._unsynced.append(self._point())

    def _ticks(self) -> None:
        if self._node.is_up and self._node.held_until_us <= self._hub.now_us:
            self.tick()
        self._hub.after(TICK_US, self._ticks)

    def tick(self) -> None:
        """Begins an fsync, if it is time: at each tick, and behind each command."""
        now_us = self._hub.now_us
        if self.policy != "everysec" or self.is_syncing:
            return
        if not self._unsynced:
            self._synced = self._synced._replace(at_us=now_us)
        elif now_us - self._began_us >= SYNC_US:
            self.is_syncing, self._began_us = True, now_us
            takes_us = self._draw.choice((3e5, 9e5, 1.4e6)) if self._is_busy else self._draw.random() * 2e4
            self._hub.after(takes_us, partial(self._synced_until, len(self._unsynced), self._lives))

    def _synced_until(self, written: int, life: int) -> None:
        if life != self._lives:
            return
        self.is_syncing = False
        self._synced, self._unsynced = self._unsynced[written - 1], self._unsynced[written:]
        due = [wait for wait in self.waits if wait[0] <= self._synced.offset]
        self.waits = [wait for wait in self.waits if wait not in due]
        for _, answer in due:
            answer(1)

    def _save(self, every_us: float) -> None:
        if self._node.is_up:
            self.saved.append(self._point())
        self._hub.after(every_us, lambda: self._save(every_us))

    def wait(self, ms: int, answer: Callable[[int], None]) -> None:
        """WAITAOF 1 0: answers whether all that was written is synced, within that time, or will be soon."""
        if self.policy == "always" or self._answers_early or not self._unsynced:
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
        if self.policy == "always":
            return self._point()
        if self.policy == "none" or (self.policy == "rdb" and not self.saved):
            return Point(0.0, 0, Snapshot({}))
        if self.policy == "rdb":
            return self.saved[-1]
        kept = len(self._unsynced)
        if kept:
            fewest, most = self._draw.choice(((0, 0), (0, kept), (0, kept), (max(0, kept - LAST), kept)))
            kept = self._draw.randint(fewest, most)
        return self._unsynced[kept - 1] if kept else self._synced

    def earlier(self) -> Point | None:
        """One of its snapshots; None: it has none yet."""
        return self._draw.choice(self.saved[-self._draw.choice((2, 4, 20)) :]) if self.saved else None

    def ends(self) -> None:
        """The process of the node ends, and with it whoever waits, and an fsync on its way."""
        self.waits.clear()
        self._lives += 1
        self.is_syncing = False

    def restarts(self, point: Point) -> None:
        """The node comes back with that, and what was later is nowhere any more."""
        self.ends()
        self._synced, self._unsynced = point._replace(at_us=self._hub.now_us), []
        self.saved = [each for each in self.saved if each.at_us <= point.at_us]
