"""What is to be replayed holds pollers up, and nothing else."""

from __future__ import annotations

from itertools import count

import pytest

from cluster.cluster import Cluster
from shardq import Engine
from shardq.core.layout.keys import control_keys, shard_keys
from shardq.features.replay import replayer
from tests.support.states import FAR_S
from tests.support.waiting import wait_until


def test_a_heartbeat_to_a_node_without_shards(cluster: Cluster, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The looks at masters are at those of the shards: no look would ever end the wait."""
    apart = next(
        each
        for each in (f"{name}-{number}" for number in count())
        if cluster.node_of_slot(control_keys(each).slot) is not cluster.node_of_slot(shard_keys(each, 0).slot)
    )
    control = control_keys(apart)
    node = cluster.node_of_slot(control.slot)

    def alive_until_ms() -> int:
        members = node.ask("ZRANGE", control.members, "0", "-1", "WITHSCORES")
        return max((int(score) for _, score in members), default=0)

    monkeypatch.setattr(replayer, "HOLD_S", 60.0)
    with Engine(cluster.url, name=apart, shards=1, replay=30) as engine:
        engine.push("x", delay=FAR_S)
        engine.start()
        first = wait_until(alive_until_ms, "it is a member")
        wait_until(lambda: alive_until_ms() > first + 2000, "it has sent other heartbeats")
