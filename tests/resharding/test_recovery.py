"""What becomes of calls when a shard refuses them and the recovery fails, and steps of recovery that others have made
first: driven by hand, without a server.
"""

from __future__ import annotations

from typing import Any

from shardq.core.calls import consume
from shardq.core.calls.consume import SettleAck
from shardq.core.calls.control import Declared, Learnt
from shardq.core.calls.request import Call, Command, Epoch, Missing, Stale
from shardq.core.consumer.settling import SettleStatuses
from shardq.core.layout.keys import ShardKeys
from shardq.core.layout.topology import Stamp, Topology
from shardq.core.producer.pushing import push_unique
from shardq.core.topology_cache import TopologyCache
from shardq.core.topology_recovery import Recovery, call_every_shard, call_shards, put_in_force
from shardq.core.topology_upkeep import refresh
from shardq.errors import Unanswered, Unavailable
from tests.resharding.stepping import Stepped

GONE = Unavailable("nobody serves the topology")


def cache(shards: int) -> TopologyCache:
    return TopologyCache("x", Topology(epoch=1, shards=shards))


def learnt(topology: Topology) -> Learnt:
    return Learnt(topology.to_fields(), True, False, {})


def settle(keys: ShardKeys, epoch: Epoch) -> Call[SettleStatuses]:
    return consume.settle(keys, epoch, [SettleAck("a", "token")])


def refused(_: Command[Any]) -> Stale:
    return Stale(Stamp("2"))


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


def test_a_shard_that_is_out_of_use_is_not_opened() -> None:
    """It was in use when it was asked; another process has taken it out of use since."""
    topology = cache(2)
    recovery = Stepped("recovery", Recovery(topology).recover(topology.keys(7), Missing()))
    recovery.advance(lambda _: learnt(topology.topology))
    assert recovery.done
    assert recovery.result is None


def test_a_change_that_another_has_put_in_force() -> None:
    known = cache(1)
    assert Stepped("nothing is announced", put_in_force(known)).result is True
    known.learn(Topology(epoch=2, shards=1, pending=2))
    steps = Stepped("put in force", put_in_force(known))
    for _ in range(2):
        steps.advance(lambda _: Stale(Stamp("5")))
    steps.advance(lambda _: learnt(Topology(epoch=5, shards=2, priors=(1,), since=3)))
    assert steps.result is True
    assert known.topology.epoch == 5


def test_all_is_lost_again_while_it_is_restored() -> None:
    known = cache(1)
    known.learn(Topology(epoch=3, shards=2))
    refreshed = Stepped("refresh", refresh(known))
    refreshed.advance(lambda _: learnt(Topology(epoch=2, shards=1)))
    refreshed.advance(lambda _: Declared(False, {}))
    refreshed.advance(lambda _: Learnt({}, True, False, {}))
    refreshed.advance(lambda _: Declared(True, Topology(epoch=4, shards=2, since=4).to_fields()))
    for _ in range(2):
        refreshed.advance(lambda _: True)
    refreshed.advance(lambda _: learnt(Topology(epoch=4, shards=2, since=4)))  # still at home
    refreshed.advance(lambda _: 0)
    assert refreshed.done
    assert known.topology.epoch == 4


def test_a_task_that_moves_out_of_the_only_shard_it_can_be_in() -> None:
    """A failover has taken back that it was cleared there. It is asked for again, when nothing moves any more."""
    push = Stepped("push", push_unique(cache(1), ["a", 0, b"\x10hi", "keep", 0]))
    push.advance(lambda _: ["moving"])
    push.advance(lambda _: None)
    push.advance(lambda _: ["pushed"])
    assert push.result == "pushed"
