"""A model of clusters of any size, by the costs that were measured on small ones. It does no I/O."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bench.nodes.costs import Measured
from shardq.features.planning import imbalance

NODES = (1, 2, 3, 6, 12, 16, 24, 32, 48, 64)

SHARDS = (48, 256)
"""The number that is measured; and four for each of 64 masters."""

FORMULA = (
    "tasks/s = 1,000,000 × min(nodes × (1 − idle) ÷ (server µs per task × imbalance(nodes, shards)), "
    "client cores ÷ client µs per task)"
)

MEANING = (
    "Costs are those of a task's life (push_many, dispatch, claim and ack), the dearest of all numbers of masters that "
    "were measured. idle: the part of a core that a node takes when nothing happens. imbalance: the ids of the fullest "
    "node ÷ the mean, by the engine's own layout. Every master has a core to itself; the network and replicas are "
    "taken not to be the limit, and batches to be as full for each shard as they were in the measurement."
)

LIFE = ("push_many", "dispatch", "claim and ack")


@dataclass(frozen=True, slots=True)
class Calibration:
    """The costs that the model takes from the measurement."""

    server_us: float
    client_us: float
    idle: float


@dataclass(frozen=True, slots=True)
class Point:
    """One size of cluster."""

    nodes: int
    shards: int
    imbalance: float
    tasks_per_s: float
    """The servers' limit."""
    client_cores: float
    """The client cores that reach it. With fewer, they are the limit."""


@dataclass(frozen=True, slots=True)
class Model:
    formula: str
    meaning: str
    calibration: Calibration
    points: list[Point]


def calibrated(measured: Sequence[Measured]) -> Calibration:
    lives = [[one.work[name] for name in LIFE] for one in measured]
    return Calibration(
        server_us=max(sum(cost.server_us for cost in life) for life in lives),
        client_us=max(sum(cost.client_us for cost in life) for life in lives),
        idle=max(one.idle for one in measured),
    )


def point(nodes: int, shards: int, by: Calibration) -> Point:
    uneven = imbalance(nodes, shards)
    rate = 1e6 * nodes * (1 - by.idle) / (by.server_us * uneven)
    return Point(nodes, shards, uneven, rate, rate * by.client_us / 1e6)


def modelled(measured: Sequence[Measured]) -> Model:
    by = calibrated(measured)
    return Model(FORMULA, MEANING, by, [point(nodes, shards, by) for shards in SHARDS for nodes in NODES])
