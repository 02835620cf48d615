"""What one engine knows of the whole: its name, the present topology, and the keys of every shard.

Everything that talks to shards asks here where to go. The topology is replaced as a whole, only by a newer one, and
whoever wants to know of a change registers a listener. No I/O: ``operation.refreshed`` reads and ``learn`` is told.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from shardq.layout.keys import ControlKeys, ShardKeys, control_keys, shard_keys
from shardq.layout.topology import Topology

Listener = Callable[[Topology], None]


class Atlas:
    """The engine's map. Reading is free of locks: ``topology`` is one reference, replaced whole."""

    def __init__(self, name: str, topology: Topology) -> None:
        self.name = name
        self.control: ControlKeys = control_keys(name)
        self._topology = topology
        self._listeners: list[Listener] = []
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"<Atlas {self.name!r} epoch {self._topology.epoch}, {self._topology.shards} shards>"

    @property
    def topology(self) -> Topology:
        return self._topology

    def learn(self, topology: Topology) -> bool:
        """Takes a topology if it is newer than the present one; says whether it was."""
        with self._lock:
            if topology.epoch <= self._topology.epoch:
                return False
            self._topology = topology
            listeners = list(self._listeners)
        for listener in listeners:
            listener(topology)
        return True

    def on_change(self, listener: Listener) -> Callable[[], None]:
        """Calls ``listener`` with every newer topology, from whichever thread learnt it; answers how to stop that."""
        with self._lock:
            self._listeners.append(listener)

        def stop() -> None:
            with self._lock:
                if listener in self._listeners:
                    self._listeners.remove(listener)

        return stop

    def keys(self, shard: int) -> ShardKeys:
        return shard_keys(self.name, shard)

    def span(self) -> Sequence[ShardKeys]:
        """Every shard that may hold tasks."""
        return [self.keys(shard) for shard in self._topology.span()]

    def home(self, id: str) -> ShardKeys:
        """The shard a new task of this id goes to."""
        return self.keys(self._topology.shard_of(id))
