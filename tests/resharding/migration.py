"""A migration step by step: one task is brought to any point of its move, and a resize to any of its requests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from shardq.core.calls import dispatch, resharding
from shardq.core.calls.request import Command
from shardq.core.drivers.sync import Driver
from shardq.core.layout.keys import ShardKeys
from shardq.core.layout.topology import Stamp, Topology
from shardq.core.operation import run
from shardq.core.resharding.resizing import resize
from shardq.core.topology_cache import TopologyCache
from shardq.core.topology_upkeep import create_topology
from shardq.errors import ShardqError
from tests.resharding.stepping import Stepped
from tests.support.waiting import wait_until

Stage = Literal["taken", "put", "moved"]
"""Of one task: out of the old shard; in the new one, and the moving task still there; done."""


class Migration:
    """The migration of an engine that is open, or was."""

    def __init__(self, driver: Driver, name: str) -> None:
        self._driver = driver
        self._name = name
        self._count = 0

    def cache(self) -> TopologyCache:
        """Returns a cache of the present topology."""
        return TopologyCache(self._name, run(self._driver, create_topology(self._name, 1)))

    def bring(self, id: str, stage: Stage) -> None:
        """Moves an id from its shard under the last number towards the one where it belongs now, up to this stage."""
        cache = self.cache()
        epoch = cache.topology.stamp
        source = cache.keys(Topology(epoch=1, shards=cache.topology.priors[-1]).shard_of(id))
        target = cache.home(id)
        assert source is not target, f"{id} does not move"
        self._count += 1
        number = f"by hand:{self._count}"
        self._driver.call(resharding.reserve(target, epoch, number, [id]))
        moving_tasks = self._driver.call(resharding.take(source, epoch, number, target.shard, [id]))
        assert len(moving_tasks) == 1, f"{id} is not there to be taken"
        if stage in ("put", "moved"):
            self._driver.call(resharding.put(target, epoch, moving_tasks))
        if stage == "moved":
            self._driver.call(resharding.clear(source, epoch, moving_tasks))

    def dispatch(self, id: str) -> None:
        """Makes ready what is due in the shard where the id belongs now; nothing is moved by that."""
        cache = self.cache()
        call = dispatch.dispatch(cache.home(id), cache.topology.stamp, [""], limit=10, max_attempts=5, paused=())
        wait_until(lambda: self._driver.call(call).moved == 1, f"{id} was made ready")

    def resizing(self, shards: int) -> Stepped:
        """Returns a resize that has not begun."""
        return Stepped(f"to {shards} shards", resize(self.cache(), shards, rate=None, members=0))

    def step(self, steps: Stepped, times: int) -> None:
        for _ in range(times):
            steps.advance(self._carry)

    def lose(self, steps: Stepped, meanwhile: Callable[[], object]) -> None:
        """The next request is carried out and its answer lost; it is sent again when something else has happened."""
        steps.advance(self._carry, lost=True, meanwhile=meanwhile)

    def epoch_of(self, shard: int) -> int:
        """Returns the epoch that the shard knows."""
        (epoch,) = self._driver.call(resharding.meta_fields(self.cache().keys(shard), "epoch"))
        return Stamp.of(epoch).epoch

    def places(self, id: str, shards: int) -> list[ShardKeys]:
        """Returns the shards that have a record of the id."""
        all_keys = [self.cache().keys(shard) for shard in range(shards)]
        return [keys for keys in all_keys if self._driver.call(Command(keys.slot, ("HEXISTS", keys.task, id), int))]

    def _carry(self, request: Command[Any]) -> Any:
        try:
            return self._driver.call(request)
        except ShardqError as exc:
            return exc


def moving_ids(old: int, new: int, count: int = 1) -> list[str]:
    """Ids that belong to another shard under the new number than under the old one."""
    before, after = Topology(epoch=1, shards=old), Topology(epoch=1, shards=new)
    candidates = (f"mover{n}" for n in range(100 * count * max(old, new)))
    moving = [id for id in candidates if before.shard_of(id) != after.shard_of(id)]
    return moving[:count]
