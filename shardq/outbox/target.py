"""The engine that a relay pushes to, on connections of the relay's own: it is a thread beside either kind of engine."""

from __future__ import annotations

import threading

from shardq import recovery
from shardq.drivers.sync import Driver
from shardq.embedded import Embedded
from shardq.engine.options import Options
from shardq.operation import run
from shardq.producer import pushing
from shardq.producer.packing import BATCH, Entries, Packer
from shardq.topology_cache import TopologyCache


class Target:
    """Opens itself at its first push. ``close()`` may come from another thread."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._packer = Packer(options.codec, max_payload=options.max_payload)
        self._lock = threading.Lock()
        self._driver: Driver | None = None
        self._cache: TopologyCache | None = None
        self._server: Embedded | None = None

    def push(self, entries: Entries) -> None:
        """Pushes tasks that may have been pushed before. Raises PushError."""
        with self._lock:
            driver, cache = self._opened()
            run(driver, pushing.push(cache, self._packer, entries, most=BATCH, in_doubt=True))

    def _opened(self) -> tuple[Driver, TopologyCache]:
        if self._driver is None or self._cache is None:
            settings, self._server = self._options.enter()
            driver = Driver(settings)
            try:
                driver.open()
                topology = run(driver, recovery.create_topology(self._options.name, self._options.shards))
                self._options.compare(topology)
            except BaseException:
                driver.close()
                self._leave()
                raise
            self._driver, self._cache = driver, TopologyCache(self._options.name, topology)
        return self._driver, self._cache

    def close(self) -> None:
        with self._lock:
            driver, self._driver = self._driver, None
            if driver is not None:
                driver.close()
            self._leave()

    def _leave(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            server.leave()
