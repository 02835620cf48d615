"""What becomes of calls when a shard refuses them and the recovery fails: driven by hand, without a server."""

from __future__ import annotations

from typing import Any

from shardq.core.calls import consume
from shardq.core.calls.consume import SettleAck
from shardq.core.calls.request import Call, Command, Stale
from shardq.core.consumer.settling import SettleStatuses
from shardq.core.layout.keys import ShardKeys
from shardq.core.layout.topology import Topology
from shardq.core.recovery import call_every_shard, call_shards
from shardq.core.topology_cache import TopologyCache
from shardq.errors import Unanswered, Unavailable
from tests.resharding.stepping import Stepped

GONE = Unavailable("nobody serves the topology")


def cache(shards: int) -> TopologyCache:
    return TopologyCache("x", Topology(epoch=1, shards=shards))


def settle(keys: ShardKeys, epoch: int) -> Call[SettleStatuses]:
    return consume.settle(keys, epoch, [SettleAck("a", "token")])


def refused(_: Command[Any]) -> Stale:
    return Stale(2)


def test_only_a_call_whose_answer_was_lost_has_an_unknown_end() -> None:
    topology = cache(1)
    its = topology.keys(0)
    acks = Stepped("acks", call_shards(topology, {"lost": (its, settle), "unsent": (its, settle)}))
    acks.advance(refused, lost=True)
    acks.advance(refused)
    acks.advance(lambda _: GONE)
    assert {key: type(error) for key, error in acks.result.items()} == {"lost": Unanswered, "unsent": Unavailable}
    assert acks.result["lost"].__cause__ is GONE


def test_a_shard_that_can_not_be_asked_again_holds_no_other_back() -> None:
    topology = cache(2)
    first, second = topology.span()
    asked = Stepped("everywhere", call_every_shard(topology, settle))
    asked.advance(refused)
    asked.advance(lambda _: {})
    asked.advance(lambda _: GONE)
    assert asked.result == [(first, GONE), (second, {})]
