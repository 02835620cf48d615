"""The topology cache of one engine: its name, the present topology, and the keys of every shard. No I/O.

Everything that talks to shards asks the cache where to go. A newer topology replaces the present one as a whole, and
calls the listeners. ``upkeep.refresh`` reads the stored topology and tells it to ``learn``.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial

from shardq.core.layout.keys import ControlKeys, ShardKeys, control_keys, shard_keys
from shardq.core.layout.topology import Stamp, Topology

Listener = Callable[[Topology], None]


class TopologyCache:
    """The present topology and the keys that follow from it. Reading takes no lock: ``topology`` is one reference."""

    def __init__(self, name: str, topology: Topology) -> None:
        self.name = name
        self.control: ControlKeys = control_keys(name)
        self.topology: Topology = topology  # the present topology; learn and replace alone set it
        self.keys: Callable[[int], ShardKeys] = self._keys_of(topology)  # the keys of a shard
        self.before: Topology | None = None  # the one that was known before it
        self.heard_at: float = time.monotonic()
        """When the engine was there last: its topology was read, or one of its shards has answered."""
        self.is_reader: bool = False  # the server has refused that this process writes the topology
        self.awaits_repair: bool = False
        """True while a reader knows that the stored topology is older: another process restores it."""
        self._listeners: list[Listener] = []
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"<TopologyCache {self.name!r} epoch {self.topology.epoch}, {self.topology.shards} shards>"

    def learn(self, topology: Topology) -> bool:
        """Takes a topology if it is newer than the present one. Returns True if it was."""
        keys, now, epoch = self._keys_of(topology), time.monotonic(), topology.epoch
        with self._lock:  # an instant: no call in it
            if epoch <= self.topology.epoch:
                return False
            self.before, self.topology, self.keys = self.topology, topology, keys
            self.heard_at, self.awaits_repair = now, False
        self._tell(topology)
        return True

    def replace(self, topology: Topology) -> None:
        """Takes the topology of another engine, in place of one that is lost."""
        keys, now = self._keys_of(topology), time.monotonic()
        with self._lock:  # likewise
            self.before, self.topology, self.keys = None, topology, keys
            self.heard_at, self.awaits_repair = now, False
        self._tell(topology)

    def _tell(self, topology: Topology) -> None:
        for listener in list(self._listeners):
            listener(topology)

    def _keys_of(self, topology: Topology) -> Callable[[int], ShardKeys]:
        return partial(shard_keys, self.name, keyed=topology.is_keyed)

    def on_change(self, listener: Listener) -> Callable[[], None]:
        """Calls ``listener`` with every newer topology, from the thread that learnt it. Returns a function that ends
        this.
        """
        self._listeners.append(listener)

        def stop() -> None:
            with contextlib.suppress(ValueError):  # it has stopped before
                self._listeners.remove(listener)

        return stop

    def of(self, epoch: Stamp | int) -> Topology:
        """The topology by which a call of this epoch was made: another thread may have learnt a newer one since. The
        present one where that was earlier than the one before.
        """
        present, before = self.topology, self.before
        return before if before is not None and before.stamp == epoch != present.stamp else present

    def span(self) -> Sequence[ShardKeys]:
        """Every shard that may hold tasks."""
        return [self.keys(shard) for shard in self.topology.span()]

    def home(self, id: str) -> ShardKeys:
        """The shard that a new task of this id goes to."""
        return self.keys(self.topology.shard_of(id))
