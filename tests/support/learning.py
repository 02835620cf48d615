"""A topology cache that learns of a change between two glances at it, as from another thread."""

from __future__ import annotations

from typing import Any

from shardq.core.layout.topology import Topology
from shardq.core.topology_cache import TopologyCache


class LearningCache(TopologyCache):
    """Hears of ``news`` after so many glances at the topology."""

    def __init__(self, name: str, topology: Topology, news: Topology, glances: int) -> None:
        super().__init__(name, topology)
        self._news, self._left = news, glances

    def __getattribute__(self, name: str) -> Any:
        if name == "topology" and not self._lock.locked():  # else it learns
            self._left -= 1
            if self._left == -1:
                self.learn(self._news)
        return super().__getattribute__(name)
