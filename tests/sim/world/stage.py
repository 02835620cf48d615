"""A simulated world for one test: servers, and processes whose threads are functions of the test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from shardq import Engine
from shardq.core.scripts import script
from tests.lua.contract import NAMES
from tests.sim.world.hub import Hub, Process, Thread
from tests.sim.world.network import Network
from tests.sim.world.patches import simulated
from tests.sim.world.servers import Servers


class Stage:
    """``seed``: of the latencies, and of the order of what happens at once."""

    def __init__(self, seed: int, *, nodes: int = 1, is_cluster: bool = False, replicated: bool = False) -> None:
        self.hub = Hub(seed)
        self.net = Network(self.hub, seed)
        self.servers = Servers(
            self.hub,
            self.net,
            seed,
            nodes=nodes,
            is_cluster=is_cluster,
            replicated=replicated,
            executed=lambda *_: None,
            scripts={name: script(name) for name in NAMES},
            instead={},
        )

    def engine(self, **options: Any) -> Engine:
        given: dict[str, Any] = {"name": "x", "shards": 2, "protocol": 2}
        return Engine(self.servers.url, **given | options)

    def spawn(self, name: str, target: Callable[[], object]) -> Thread:
        """Has a process do that."""
        return self.hub.spawn(Process(name), target)

    def run(self, *threads: Thread, seconds: float = 60.0) -> None:
        """Lets time go by until these have ended. Raises what one of them has ended with."""
        self.hub.run(lambda: not any(thread.is_alive() for thread in threads), most_us=seconds * 1e6)
        for thread in threads:
            if thread.failure is not None:
                raise thread.failure


@contextmanager
def staged(seed: int, **options: Any) -> Iterator[Stage]:
    """What engines do in this block is simulated."""
    stage = Stage(seed, **options)
    with simulated(stage.hub, stage.net, seed):
        yield stage
