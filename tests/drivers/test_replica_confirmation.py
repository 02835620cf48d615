"""Both drivers tell if replicas have what was written, on servers with replicas and without."""

from __future__ import annotations

import pytest

from cluster.cluster import Cluster
from cluster.server import Server
from shardq.core.calls import node_info
from shardq.core.layout.keys import ShardKeys, shard_keys
from shardq.errors import AccessDenied
from tests.drivers.carriers import Carrier, Carriers
from tests.lua.shard import EPOCH, opening
from tests.support.waiting import wait_until


def opened(carrier: Carrier, name: str, shard: int) -> ShardKeys:
    """A shard that can be written to."""
    keys = shard_keys(name, shard)
    carrier.call(opening(keys))
    return keys


def test_without_a_replica_nothing_is_written(carriers: Carriers, single: Server, name: str) -> None:
    carrier = carriers.opened(single.url)
    keys = opened(carrier, name, 0)
    (first,) = carrier.confirm([node_info.seal(keys.meta, keys.slot, EPOCH)]).values()
    (second,) = carrier.confirm([node_info.seal(keys.meta, keys.slot, EPOCH)]).values()
    assert first
    assert first == second
    assert single.ask("HGET", keys.meta, "sealed") is None


def test_a_replica_that_is_lost(carriers: Carriers, own_cluster: Cluster, name: str) -> None:
    """Then nothing is known of its node, and of the others all; also by a driver that never saw it."""
    carrier = carriers.opened(own_cluster.url)
    lost, other = (opened(carrier, name, shard) for shard in (0, 1))
    master = own_cluster.node_of_slot(lost.slot)
    (replica,) = own_cluster.replicas_of(master)
    seals = [node_info.seal(each.meta, each.slot, EPOCH) for each in (lost, other)]
    before = carrier.confirm(seals)
    assert len(set(before.values()) - {None}) == 2
    assert carrier.confirm(seals) == before
    replica.pause()
    try:
        master.ask("CLIENT", "KILL", "TYPE", "replica")
        for each in (carrier, carriers.opened(own_cluster.url)):
            assert each.confirm(seals) == before | {lost.slot: None}
    finally:
        replica.resume()
    wait_until(lambda: carrier.confirm(seals) == before, "the replica is back")


def test_after_a_failover_the_history_is_another(carriers: Carriers, own_cluster: Cluster, name: str) -> None:
    carrier = carriers.opened(own_cluster.url, timeout=90.0)
    keys = opened(carrier, name, 0)
    before = carrier.confirm([node_info.seal(keys.meta, keys.slot, EPOCH)])
    master = own_cluster.node_of_slot(keys.slot)
    master.kill()
    own_cluster.wait_promoted(master)
    carrier.call(opening(keys))
    after = carrier.confirm([node_info.seal(keys.meta, keys.slot, EPOCH)])
    # the new master has no replica, and nothing to wait for
    assert after[keys.slot]
    assert after != before


def test_what_follows_a_promoted_master_is_waited_for(
    carriers: Carriers, own_server: Server, replica: Server, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others that followed its master come to it within moments: that it has no replica yet does not hold for long."""
    monkeypatch.setattr("shardq.core.drivers.replica_tracker.ALONE_S", 60.0)
    replica.ask("CONFIG", "SET", "repl-diskless-sync-delay", "0")
    replica.ask("REPLICAOF", "NO", "ONE")
    carrier = carriers.opened(replica.url)
    keys = opened(carrier, name, 0)
    seals = [node_info.seal(keys.meta, keys.slot, EPOCH)]
    assert None not in carrier.confirm(seals).values()
    own_server.ask("REPLICAOF", *replica.address.split(":"))
    wait_until(lambda: "online" in str(replica.ask("INFO", "replication")), "the other one follows it", timeout=30)
    own_server.pause()
    try:
        assert list(carrier.confirm(seals).values()) == [None]
    finally:
        own_server.resume()


def test_a_user_who_may_not_ask(carriers: Carriers, own_cluster: Cluster, name: str) -> None:
    carrier = carriers.opened(own_cluster.url)
    keys = opened(carrier, name, 0)
    for node in own_cluster.nodes:
        node.ask("ACL", "SETUSER", "me", "on", ">secret9", "~*", "&*", "+@all", "-wait")
    carrier = carriers.opened(own_cluster.url.replace("://", "://me:secret9@"))
    with pytest.raises(AccessDenied, match="WAIT") as caught:
        carrier.confirm([node_info.seal(keys.meta, keys.slot, EPOCH)])
    assert "secret9" not in str(caught.value)
