"""The servers of an engine, as a thread beside it sees them: on connections of the thread's own, beside either kind of
engine. The relay of the outbox has one, and the drain of the spool.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import ExitStack
from typing import TypeVar

from shardq.core.drivers.settings import Settings
from shardq.core.drivers.sync import Driver
from shardq.core.layout.topology import Topology
from shardq.core.operation import Operation, run
from shardq.core.producer.packing import Packer
from shardq.core.topology_cache import TopologyCache
from shardq.engine.connections import connected
from shardq.engine.options import Options
from shardq.features.spool.drain import Drain
from shardq.features.spool.file import SpoolFile

T = TypeVar("T")


class Target:
    """Opens itself at its first use, also after ``close()``, which may come from another thread."""

    def __init__(self, options: Options, make: Callable[[Settings], Driver] = Driver) -> None:
        self._options = options
        self._make = make
        self._lock = threading.Lock()
        self._connections = ExitStack()
        self._opened: tuple[Driver, TopologyCache] | None = None

    def topology(self) -> Topology:
        """The topology as it is known here."""
        with self._lock:
            _, cache = self._opened or self._open()
            return cache.topology

    def run(self, make: Callable[[TopologyCache], Operation[T]], *, timeout: float | None = None) -> T:
        """Carries out an operation on the present topology. ``timeout`` bounds each trip; None is the engine's."""
        with self._lock:
            driver, cache = self._opened or self._open()
            return run(driver, make(cache), timeout)

    def _open(self) -> tuple[Driver, TopologyCache]:
        with ExitStack() as opening:
            driver = opening.enter_context(connected(self._options, self._make))
            topology = run(driver, self._options.create_topology())
            self._options.compare(topology)
            self._connections = opening.pop_all()
        self._opened = driver, TopologyCache(self._options.name, topology)
        return self._opened

    def close(self) -> None:
        with self._lock:
            self._opened = None
            self._connections.close()


def drain_of(file: SpoolFile, options: Options) -> Drain:
    """Returns the drain of a spool to the servers of an engine. It connects when there is something to send."""
    return Drain(file, Packer(options.codec, max_payload=options.max_payload), Target(options))
