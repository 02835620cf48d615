"""Estimates what a change of the number of shards would move, from the number of tasks in each shard. No I/O."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from shardq.core.layout.buckets import BUCKETS, table


@dataclass(frozen=True, slots=True)
class Holding:
    """One shard now: its scheduled and dead tasks, and the bytes of their records."""

    tasks: int
    bytes: int
    node: str


@dataclass(frozen=True, slots=True)
class Flow:
    """The tasks that would go from one shard to another."""

    source: int
    target: int
    tasks: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Preview:
    """The tasks that another number of shards would move.

    >>> preview = engine.preview(64)
    >>> print(preview.tasks, preview.bytes, preview.nodes)
    """

    shards: int
    flows: list[Flow]
    nodes: Mapping[str, tuple[int, int]]
    """Node → the tasks that leave it and the tasks that come. Tasks that move within a node count in both."""

    @property
    def tasks(self) -> int:
        return sum(flow.tasks for flow in self.flows)

    @property
    def bytes(self) -> int:
        return sum(flow.bytes for flow in self.flows)


def preview(present: int, shards: int, holdings: Mapping[int, Holding], node_of: Mapping[int, str]) -> Preview:
    """Ids are spread evenly over buckets, so a shard gives away tasks in proportion to its buckets."""
    before, after = table(present), table(shards)
    owned = Counter(before)
    moving = Counter((before[bucket], after[bucket]) for bucket in range(BUCKETS) if before[bucket] != after[bucket])
    flows = []
    leaving: Counter[str] = Counter()
    coming: Counter[str] = Counter()
    for (source, target), buckets in sorted(moving.items()):
        held = holdings[source]
        flow = Flow(
            source, target, round(held.tasks * buckets / owned[source]), round(held.bytes * buckets / owned[source])
        )
        flows.append(flow)
        leaving[held.node] += flow.tasks
        coming[node_of[target]] += flow.tasks
    nodes = {node: (leaving[node], coming[node]) for node in sorted(leaving.keys() | coming.keys())}
    return Preview(shards, flows, nodes)
