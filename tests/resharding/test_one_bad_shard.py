"""A shard whose tasks can't be moved holds up no other."""

from __future__ import annotations

import pytest

from shardq import Engine, Task
from shardq.core.layout.keys import shard_keys
from shardq.core.layout.topology import Topology
from tests.resharding.conftest import SHARDS
from tests.resharding.migration import Migration
from tests.support.servers import Servers
from tests.support.states import FAR_S
from tests.support.waiting import wait_until

MORE = 7


@pytest.mark.parametrize("bad", [0, SHARDS - 1])
def test_a_key_of_another_type(engine: Engine, migration: Migration, servers: Servers, name: str, bad: int) -> None:
    before, after = Topology(epoch=1, shards=SHARDS), Topology(epoch=1, shards=MORE)
    ids = [f"t{number}" for number in range(200)]
    moving = [id for id in ids if before.shard_of(id) not in (bad, after.shard_of(id))]
    engine.push_many([Task("x", id=id, delay=FAR_S) for id in ids])
    keys = shard_keys(name, bad)
    servers.ask(keys.slot, "SET", keys.dead, "of another program")
    engine.start()
    engine.resize(MORE)

    def moved() -> bool:
        cache = migration.cache()
        return all(migration.places(id, MORE) == [cache.keys(after.shard_of(id))] for id in moving)

    wait_until(moved, "the tasks of other shards are where they belong")
    servers.ask(keys.slot, "DEL", keys.dead)
    assert engine.resize(dry_run=True).wait(30)
