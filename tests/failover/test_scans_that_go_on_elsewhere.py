"""A scan that goes on in another process of the server, as after a failover, misses nothing: a place in a hash or a
sorted set is that of one process, and another has its members in another order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from cluster.server import Server
from shardq.core.calls import listing, resharding
from shardq.core.calls.listing import START, Purged
from shardq.core.drivers.settings import Settings
from shardq.core.drivers.sync import Driver
from shardq.core.layout.keys import ShardKeys, shard_keys
from tests.lua.shard import EPOCH, NOW, Shard, T, meta, record
from tests.support.waiting import wait_until

COUNT = 6000
IDS = {f"id{n}" for n in range(COUNT)}
TAGGED = record("x", tags=("red",))

FEW = 40
"""Members of a page, before and after."""

PAGES = 5


@pytest.fixture
def keys(name: str) -> ShardKeys:
    return shard_keys(name, 1)


@pytest.fixture
def drivers(own_server: Server, replica: Server) -> Iterator[list[Driver]]:
    drivers = [Driver(Settings.from_url(server.url, protocol=2)) for server in (own_server, replica)]
    for driver in drivers:
        driver.open()
    yield drivers
    for driver in drivers:
        driver.close()


@pytest.fixture
def shards(drivers: list[Driver], keys: ShardKeys, own_server: Server, replica: Server) -> list[Shard]:
    """A shard, and what its replica has of it once that is the master."""
    master, other = (Shard(driver, keys) for driver in drivers)
    half = sorted(IDS)[: COUNT // 2]
    master.seed(
        {
            "meta": meta(),
            "task": dict.fromkeys(IDS, TAGGED),
            "due": dict.fromkeys(half, T + 5000),
            "dead": dict.fromkeys(IDS - set(half), T - 5000),
        }
    )
    offset = own_server.ask("INFO", "replication")["master_repl_offset"]
    wait_until(lambda: replica.ask("INFO", "replication")["slave_repl_offset"] >= offset, "the replica has all")
    return [master, other]


def gone_through(shards: list[Shard], page: Callable[[Shard, str], tuple[str, set[str]]], replica: Server) -> set[str]:
    """The ids that the pages met, of which the first come from one process and the rest from the next."""
    master, other = shards
    met, place = set[str](), "0"
    for _ in range(PAGES):
        place, ids = page(master, place)
        met |= ids
        assert place != "0"
    replica.ask("REPLICAOF", "NO", "ONE")
    while True:
        place, ids = page(other, place)
        met |= ids
        if place == "0":
            return met


def test_stock(shards: list[Shard], keys: ShardKeys, replica: Server) -> None:
    def page(shard: Shard, place: str) -> tuple[str, set[str]]:
        found = shard.run(resharding.stock(keys, EPOCH, place, count=FEW).at(NOW))
        return found.cursor, set(found.ids)

    assert IDS - gone_through(shards, page, replica) == set()


def test_cancel_tag(shards: list[Shard], keys: ShardKeys, replica: Server) -> None:
    def page(shard: Shard, place: str) -> tuple[str, set[str]]:
        found = shard.run(listing.cancel_tag(keys, EPOCH, "red", place, count=FEW).at(NOW))
        return found.cursor, set(found.cancelled)

    assert IDS - gone_through(shards, page, replica) == set()
    assert "task" not in shards[1].state()


def test_purge(shards: list[Shard], keys: ShardKeys, replica: Server) -> None:
    """What the first master removed, and lost, is removed again."""
    master, other = shards
    step: Purged = START
    for _ in range(2):
        step = master.run(listing.purge(keys, EPOCH, "", scope="all", go_on=step).at(NOW))
        assert not step.done
    replica.ask("REPLICAOF", "NO", "ONE")
    while not step.done:
        step = other.run(listing.purge(keys, EPOCH, "", scope="all", go_on=step).at(NOW))
    assert other.state() == {"meta": meta()}
