"""The engine that a relay pushes to, on connections of the relay's own: it is a thread beside either kind of engine."""

from __future__ import annotations

from contextlib import ExitStack

from shardq import recovery
from shardq.drivers.sync import Driver
from shardq.engine.connections import connected
from shardq.engine.options import Options
from shardq.operation import run
from shardq.producer import pushing
from shardq.producer.packing import BATCH, Entries, Packer
from shardq.topology_cache import TopologyCache


class Target:
    """Opens itself at its first push, also after ``close()``. For one thread at a time, as a relay's steps are."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._packer = Packer(options.codec, max_payload=options.max_payload)
        self._connections = ExitStack()
        self._opened: tuple[Driver, TopologyCache] | None = None

    def push(self, entries: Entries) -> None:
        """Pushes tasks that may have been pushed before. Raises PushError."""
        driver, cache = self._opened or self._open()
        run(driver, pushing.push(cache, self._packer, entries, most=BATCH, in_doubt=True))

    def _open(self) -> tuple[Driver, TopologyCache]:
        with ExitStack() as opening:
            driver = opening.enter_context(connected(self._options))
            topology = run(driver, recovery.create_topology(self._options.name, self._options.shards))
            self._options.compare(topology)
            self._connections = opening.pop_all()
        self._opened = driver, TopologyCache(self._options.name, topology)
        return self._opened

    def close(self) -> None:
        self._opened = None
        self._connections.close()
