"""A server dies while a task moves to it, and comes back without what was not on its disk. The task is where it was, or
where it goes, and is handled.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cluster.cluster import Cluster
from cluster.server import Server
from shardq import Engine, Task
from shardq.core.calls.request import Call, Command
from shardq.core.drivers.settings import Settings
from shardq.core.drivers.sync import Driver
from shardq.core.layout.keys import ShardKeys, shard_keys
from shardq.core.operation import Confirm, Histories
from shardq.core.resharding.migration import MoveRate, MoveTokens, sweep
from shardq.core.topology_cache import TopologyCache
from shardq.errors import ShardqError
from tests.resharding.stepping import Stepped
from tests.support.states import FAR_S, claim
from tests.support.waiting import wait_until

BEFORE, AFTER, TASKS = 4, 16, 60


@pytest.fixture
def cluster(server_binary: Path) -> Iterator[Cluster]:
    options = {"appendonly": "yes", "appendfsync": "everysec", "auto-aof-rewrite-percentage": "0"}
    with Cluster(server_binary, masters=3, options=options) as cluster:
        yield cluster


def log_of(server: Server) -> Path:
    """The append-only file that grows."""
    (found,) = (server.folder / "appendonlydir").glob("*.incr.aof")
    return found


class Nodes:
    """Carries requests, and can take back what a node has written since some step."""

    def __init__(self, cluster: Cluster, driver: Driver, source: ShardKeys) -> None:
        self._cluster, self._driver = cluster, driver
        self._source = cluster.node_of_slot(source.slot)
        self._sizes: dict[Any, int] = {}
        self.cut: str = ""
        """The step behind which the first node that it goes to loses its power, and that step."""

    def carry(self, request: Command[Any]) -> Any:
        node = self._cluster.node_of_slot(request.slot)
        if isinstance(request, Call) and request.script.name in ("reserve", "put") and node is not self._source:
            self._sizes.setdefault((node.address, request.script.name), log_of(node).stat().st_size)
        try:
            return self._driver.call(request)
        except ShardqError as exc:
            return exc

    def confirm(self, step: Confirm) -> Histories:
        for (address, name), size in list(self._sizes.items()):
            if name == self.cut:
                (node,) = (node for node in self._cluster.masters if node.address == address)
                self.cut = ""
                node.kill()
                with log_of(node).open("rb+") as file:
                    file.truncate(size)
                node.start()
                self._cluster.wait_ok()
        return self._driver.confirm(step.seals, disk=step.disk)


@pytest.mark.timeout(120)
@pytest.mark.parametrize("cut", ["reserve", "put"])
def test_what_was_moved_to_a_server_that_loses_its_tail(cluster: Cluster, name: str, cut: str) -> None:
    with Engine(cluster.url, name=name, shards=BEFORE, timeout=30.0) as engine:
        ids = {str(id) for id in engine.push_many([Task(n, delay=FAR_S) for n in range(TASKS)], durability="fsynced")}
        engine.resize(AFTER)
        driver = Driver(Settings.from_url(cluster.url, timeout=20.0))
        driver.open()
        try:
            cache = TopologyCache(name, engine.topology)
            cuts = 0
            for shard in range(BEFORE):
                nodes = Nodes(cluster, driver, shard_keys(name, shard))
                nodes.cut = cut
                steps = Stepped(
                    "sweep", sweep(cache, cache.keys(shard), MoveTokens("me"), MoveRate()), confirm=nodes.confirm
                )
                while not steps.done:
                    steps.advance(nodes.carry)
                cuts += not nodes.cut
        finally:
            driver.close()
        assert cuts
        engine.start()
        assert engine.resize(dry_run=True).wait(60)
        for id in ids:
            assert engine.reschedule(id, delay=0), id
        consumer = engine.consumer()
        deliveries = claim(consumer, TASKS)
        consumer.ack(deliveries)
        assert {delivery.id for delivery in deliveries} == ids
        wait_until(lambda: engine.stats().scheduled == 0, "nothing is there twice")
