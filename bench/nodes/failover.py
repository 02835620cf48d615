"""A master is killed while tasks flow: lateness, the time until its shards are served again, and losses.

The victim also has the control slot, with members and topology. It is the worst one to lose.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.cores import Cores
from bench.nodes.costs import SHARDS
from bench.nodes.flow import Flow, Pushes
from bench.nodes.timeline import Lateness, Step, lateness, series
from bench.stand import Scale, clustered
from cluster.cluster import NODE_TIMEOUT_MS, PROMOTION_TIMEOUT_S, Cluster
from cluster.node import Node
from shardq import Engine
from shardq.core.layout.keys import control_keys, shard_keys

MASTERS = 3
NAME = "bench-failover"

PLAIN = 12
REPLICATED = 6
"""The number of threads that push in either way."""

LOOK_S = 0.01
"""The time between two looks at who is master."""

COPIED_S = 10.0


@dataclass(frozen=True, slots=True)
class Failover:
    """Instants are in seconds after the kill."""

    masters: int
    replicas: int
    shards: int
    lost_shards: int
    per_s: int
    """Tasks that fall due a second; those of the pushing threads come on top."""
    node_timeout_s: float
    """The cluster waits so long for a dead master before a replica stands for its place."""
    promoted_s: float
    first_dispatch_s: float
    """The first dispatch in a shard of the lost master, by the promoted one."""
    promotion_to_dispatch_s: float
    """The time until the first of those shards had dispatched."""
    promotion_to_all_s: float
    """The time until each of those shards had dispatched what fell due during the outage."""
    ready: dict[str, Lateness | None]
    """From due to ready, for ``all`` tasks, for the shards of the ``lost`` master, and for the ``other`` shards."""
    claimed: dict[str, Lateness | None]
    """From due to claimed, for the same groups. One consumer serves all shards."""
    pushes: dict[str, Pushes]
    """``plain`` and ``replicated``."""
    lost_of_those_before: int
    """Tasks that the replica had and that fell due."""
    given_out_twice: int
    series: list[Step]
    """From due to ready, for all tasks."""
    series_lost: list[Step]
    """The same for the shards of the lost master."""


def failover(binary: Path, *, cores: Cores, scale: Scale, say: Callable[[str], None]) -> Failover:
    quick = scale == "quick"
    per_s, before_s, seconds = (200, 1.0, 6.0) if quick else (600, 4.0, 16.0)
    say(f"starting {MASTERS} masters, 1 replica each")
    with (
        clustered(binary, masters=MASTERS, replicas=1, cores=cores, node_timeout_ms=NODE_TIMEOUT_MS) as cluster,
        Engine(cluster.url, name=NAME, shards=SHARDS) as engine,
    ):
        engine.start()
        flow = Flow(engine, per_s=per_s, seconds=seconds)
        lost = cluster.node_of_slot(control_keys(NAME).slot)
        its = cluster.view()[lost.node_id]
        lost_shards = {shard for shard in range(SHARDS) if its.owns(shard_keys(NAME, shard).slot)}
        _await_copied(cluster)
        say(f"{per_s} tasks/s fall due; after {before_s:.0f} s a master is killed")
        with flow.running(cluster.nodes, plain=PLAIN, replicated=REPLICATED):
            flow.sleep_until(before_s)
            killed_s = time.time()
            lost.kill()
            promoted_s = _promotion(cluster.replicas_of(lost)[0])
            say(f"promoted after {promoted_s - killed_s:.1f} s; the flow goes on")
        return _judged(flow, engine, lost_shards, per_s, killed_s, promoted_s - killed_s)


def _await_copied(cluster: Cluster) -> None:
    """Waits until every replica has everything its master has now. Replicas report once a second."""
    written = [(master, int(master.ask("ROLE")[1])) for master in cluster.masters]
    deadline = time.monotonic() + COPIED_S
    while not all(_copied(master, offset) for master, offset in written):
        if time.monotonic() > deadline:
            raise TimeoutError(f"the replicas did not have all pushed tasks within {COPIED_S:.0f} s")
        time.sleep(LOOK_S)


def _copied(master: Node, offset: int) -> bool:
    _, _, replicas = master.ask("ROLE")
    return bool(replicas) and all(int(told) >= offset for _, _, told in replicas)


def _promotion(replica: Node) -> float:
    """Waits until it is master, and returns the instant in the seconds of ``time.time()``."""
    deadline = time.monotonic() + PROMOTION_TIMEOUT_S
    client = replica.client(decode=True)
    try:
        role: Callable[..., Any] = client.execute_command
        while role("ROLE")[0] != "master":
            if time.monotonic() > deadline:
                raise TimeoutError(f"no replica was promoted within {PROMOTION_TIMEOUT_S:.0f} s")
            time.sleep(LOOK_S)
        return time.time()
    finally:
        client.close()


def _judged(
    flow: Flow, engine: Engine, lost_shards: set[int], per_s: int, killed_s: float, promoted_s: float
) -> Failover:
    shard_of = engine.topology.shard_of
    lost = {id for id in flow.dues if shard_of(id) in lost_shards}
    groups = {"all": flow.dues.keys(), "lost": lost, "other": flow.dues.keys() - lost}
    ready = {group: flow.ready(origin_s=killed_s, ids=ids) for group, ids in groups.items()}
    claimed = {group: flow.claimed(origin_s=killed_s, ids=ids) for group, ids in groups.items()}
    firsts: dict[int, float] = {}
    for id in lost:
        for arrival in flow.ready(origin_s=killed_s, ids=[id]):
            if arrival.at_s >= promoted_s:
                shard = shard_of(id)
                firsts[shard] = min(arrival.at_s, firsts.get(shard, arrival.at_s))
    if not firsts:
        raise RuntimeError("none of the lost master's shards dispatched anything after the promotion")
    return Failover(
        masters=MASTERS,
        replicas=1,
        shards=SHARDS,
        lost_shards=len(lost_shards),
        per_s=per_s,
        node_timeout_s=NODE_TIMEOUT_MS / 1000,
        promoted_s=promoted_s,
        first_dispatch_s=min(firsts.values()),
        promotion_to_dispatch_s=min(firsts.values()) - promoted_s,
        promotion_to_all_s=max(firsts.values()) - promoted_s,
        ready={group: lateness(arrivals) for group, arrivals in ready.items()},
        claimed={group: lateness(arrivals) for group, arrivals in claimed.items()},
        pushes={"plain": flow.pushes(None), "replicated": flow.pushes("replicated")},
        lost_of_those_before=flow.lost(flow.dues),
        given_out_twice=sum(count > 1 for count in flow.claims.values()),
        series=series(ready["all"]),
        series_lost=series(ready["lost"]),
    )
