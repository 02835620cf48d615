"""The barrier of moves: it knows which writes of a shard its replicas, and its disk, have. For both drivers."""

from __future__ import annotations

from collections.abc import Iterable

from shardq.core.calls import node_info
from shardq.core.drivers.replica_tracker import VOLATILE
from shardq.core.layout.keys import ShardKeys
from shardq.core.operation import Confirm, Histories, Many, Operation
from shardq.core.topology_cache import TopologyCache


class ReplicaBarrier:
    """Knows what is on replicas and disks. What was written to a shard between two questions of one barrier is on its
    replicas if the second says so, and on its disk if that was asked, whatever became of its node in between.
    """

    def __init__(self, cache: TopologyCache) -> None:
        self._cache = cache
        self._histories: dict[int, str] = {}  # shard → its replication history, as last confirmed

    def knows(self, shard: int) -> bool:
        return shard in self._histories

    def volatile_run(self, shard: int) -> str:
        """The process of a server that loses what it wrote last when it ends, as it has neither replicas nor an
        append-only file; empty for others.
        """
        run, _, rest = self._run(shard)
        return run if rest == VOLATILE else ""

    def ended(self, shards: Iterable[ShardKeys]) -> Operation[set[int]]:
        """Returns the shards that may be served by another process than the one that confirmed last. What that one had
        confirmed counts no more: ask again, before something is let go in its name. Behind a proxy that does not tell
        the process, nothing is known to have ended.
        """
        served = {keys.shard: node_info.run_id(keys.slot) for keys in shards if self._run(keys.shard)[0]}
        runs = (yield Many(served)) if served else []
        return {shard for shard, run in runs if run != self._run(shard)[0]}

    def behind(self, shards: Iterable[ShardKeys], *, disk: bool = False) -> Operation[set[int]]:
        """Returns the shards whose replicas may lack something, or the ``disk`` of a server with an append-only file.
        Shards that are asked about for the first time are among them.
        """
        asked, epoch = list(shards), self._cache.topology.stamp
        histories: Histories = yield Confirm([node_info.seal(keys.meta, keys.slot, epoch) for keys in asked], disk)
        behind = set()
        for keys in asked:
            history = histories[keys.slot]
            if history is None or self._histories.get(keys.shard) != history:
                behind.add(keys.shard)
            if history is not None:
                self._histories[keys.shard] = history
        return behind

    def _run(self, shard: int) -> tuple[str, str, str]:
        """The process of the server that confirmed last, a space, and what its history says after that."""
        return self._histories[shard].partition(" ")[2].partition(" ")
