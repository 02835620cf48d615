"""One simulated run: its processes by its seed, its end, and its story where it shows a fault."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from shardq.core.layout.topology import Topology
from shardq.core.operation import Operation
from shardq.core.recovery import create_topology, refresh
from shardq.core.resharding.migration import MoveTokens
from shardq.core.scripts import Script
from shardq.core.topology_cache import TopologyCache
from shardq.errors import ShardqError
from tests.sim.simulation.actors import Consumer, Mover, Operator, Poller, Process, Producer, drained, moved
from tests.sim.simulation.judge import Violation
from tests.sim.simulation.world import NAME, NONE, Faults, World

PAGE = 60
"""The lines of a story that are told of the time before a fault."""


@dataclass(frozen=True)
class Told:
    """What a run came to."""

    seed: int
    requests: int
    reached: Counter[str]
    story: list[str]
    violation: str = ""

    def __str__(self) -> str:
        lines = [f"run {self.seed}: {self.violation}", f"its last {PAGE} steps, by ms since its beginning:"]
        return "\n".join(lines + self.story[-PAGE:])


def run(seed: int, scripts: Mapping[str, Script] | None = None) -> Told:
    """``scripts``: those that are run in place of ours, by name."""
    world = World(seed, servers=seed % 2 + 1, faults=Faults(), scripts=scripts)
    violation = ""
    try:
        _run(world)
    except Violation as exc:
        violation = str(exc)
    return Told(seed, world.requests, world.judge.reached, world.story, violation)


def _run(world: World) -> None:
    draw = world.draw
    first = draw.choice((1, 2, 3))
    topology = world.carry_out("opener", create_topology(NAME, first))
    shards = draw.sample(range(1, 7), 3)
    busy: list[Process] = [
        *(Producer(world, f"producer{number}", draw.choice((5, 15, 30))) for number in range(draw.choice((1, 2)))),
        Operator(world, "operator", draw.choice((0, 5, 15, 25)), shards),
    ]
    served: list[Process] = [
        *(Poller(world, f"poller{number}") for number in range(draw.choice((1, 2)))),
        *(Consumer(world, f"consumer{number}") for number in range(draw.choice((1, 2)))),
        *(Mover(world, f"mover{number}") for number in range(draw.choice((1, 2, 3)))),
    ]
    at_work = [process.actor() for process in busy]
    world.actors = [*at_work, *(process.actor() for process in served)]
    world.run(lambda: all(actor.over for actor in at_work))
    _end(world, topology)


def _end(world: World, topology: Topology) -> None:
    """Without faults everything comes to rest, and is accounted for."""
    world.faults, world.actors = NONE, []
    cache = TopologyCache(NAME, topology)
    world.carry_out("end", refresh(cache))
    numbers = MoveTokens("end")
    for round in range(60):
        at_rest = world.carry_out("end", _moved(cache, numbers))
        done = world.carry_out("end", drained(cache, round))
        world.now_us += 2_000_000
        if at_rest and not done and round > 10:
            world.judge.account(len(cache.topology.span()), world.now_us)
            return
    raise Violation("it does not come to rest")


def _moved(cache: TopologyCache, numbers: MoveTokens) -> Operation[bool]:
    try:
        yield from refresh(cache)
        return (yield from moved(cache, numbers))
    except ShardqError:
        return False
