"""purge, tasks and requeue_all meet every task while tasks move, to more shards and to fewer."""

from __future__ import annotations

import pytest

from shardq import Engine, Task
from shardq.core.layout.topology import Topology
from shardq.features.listing import bulk
from tests.resharding.conftest import SHARDS
from tests.resharding.migration import Migration, moving_ids
from tests.resharding.stepping import Stepped
from tests.support.states import FAR_S, claim

# races that the searches go through, too: one case of each at each change
pytestmark = [pytest.mark.slow, pytest.mark.promise]

MOVING = 12


def changed(engine: Engine, shards: int) -> None:
    """The new number is in force; there is no dispatcher, so nothing migration."""
    engine.resize(shards)


def settled(engine: Engine) -> None:
    engine.start()
    assert engine.resize(dry_run=True).wait(30), engine.resize(dry_run=True).progress()
    engine.stop()


@pytest.fixture
def ids(shards: int) -> list[str]:
    """Some that the change migration, and as many that stay."""
    before, after = Topology(epoch=1, shards=SHARDS), Topology(epoch=1, shards=shards)
    staying = [id for n in range(1000) if before.shard_of(id := f"stayer{n}") == after.shard_of(id)]
    return moving_ids(SHARDS, shards, MOVING) + staying[:MOVING]


@pytest.fixture
def dead(engine: Engine, ids: list[str]) -> list[str]:
    """All of them are dead."""
    engine.push_many([Task(id, id=id) for id in ids])
    engine.start()
    consumer = engine.consumer()
    consumer.bury(claim(consumer, len(ids)), "of no use")
    engine.stop()
    return ids


def test_a_purge_says_how_far_it_came(engine: Engine, migration: Migration, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk, "MOST_WALKS", 1)
    engine.push_many([Task(n, delay=FAR_S) for n in range(200)])
    purge = Stepped("purge", bulk.purge(migration.cache(), None))
    migration.step(purge, 4)
    changed(engine, 9)
    migration.step(purge, 500)
    assert purge.done
    assert "changed 1 times meanwhile" in str(purge.result)
    assert "purged before that: " in "".join(purge.result.__notes__)


@pytest.mark.parametrize("shards", [7, 2])
@pytest.mark.parametrize("read", [5, 13])
def test_the_dead_are_listed_while_they_move(engine: Engine, shards: int, dead: list[str], read: int) -> None:
    changed(engine, shards)
    page = engine.tasks(state="dead", limit=read)
    listed = [task.id for task in page]
    settled(engine)
    while page.cursor is not None:
        page = engine.tasks(state="dead", limit=read, cursor=page.cursor)
        listed += [task.id for task in page]
    assert sorted(listed) == sorted(dead)


def test_the_order_is_the_way_tasks_move() -> None:
    for before in range(1, 20):
        for after in range(1, 20):
            topology = Topology(epoch=2, shards=after, priors=(before,))
            order = topology.downstream()
            assert sorted(order) == list(topology.span())
            old, new = Topology(epoch=1, shards=before), Topology(epoch=1, shards=after)
            for n in range(200):
                assert order.index(old.shard_of(f"i{n}")) <= order.index(new.shard_of(f"i{n}"))
