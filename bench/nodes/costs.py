"""The same work on clusters of several sizes: the CPU of servers and client for each task, rates, and balance.

All clusters stand at once and take turns, so that other work of the machine falls on each alike. The number of shards
is the same everywhere: only the nodes vary. The CPU of idle servers, whose nodes talk to each other, is measured first,
told by itself, and not counted as the work's.
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bench.consuming import claim_and_ack, function, running
from bench.cores import Cores
from bench.loads import READY_S, fill_ready, push_for_one_instant, spread_tasks
from bench.stand import Scale, Stand, clustered
from cluster.server import Server
from shardq import Engine
from shardq.core.layout.keys import shard_keys

SHARDS = 48
"""Six masters have eight each, three have sixteen each."""

ROUNDS = 3
"""The median of each figure counts."""


@dataclass(frozen=True, slots=True)
class Balance:
    """The fullest master ÷ the mean of all. 1.0 is even."""

    tasks: float
    commands: float
    cpu: float


@dataclass(frozen=True, slots=True)
class Cost:
    """One kind of work. ``server`` is all masters together, ``busy`` the part of its one core that a side used."""

    tasks_per_s: float
    server_us: float
    client_us: float
    server_busy: float
    client_busy: float
    balance: Balance


@dataclass(frozen=True, slots=True)
class Measured:
    """The costs on one size of cluster."""

    masters: int
    replicas: int
    shards: int
    idle: float
    """The part of a core that each master takes when nothing happens."""
    work: Mapping[str, Cost]


@dataclass(slots=True)
class Sample:
    """The time and CPU of one piece of work. ``sampling`` fills it in; servers are in the order of masters."""

    wall_s: float = 0.0
    client_s: float = 0.0
    server_s: list[float] = field(default_factory=list)
    commands: list[int] = field(default_factory=list)


def measured(
    binary: Path, *, masters: Sequence[int], replicas: int, cores: Cores, scale: Scale, say: Callable[[str], None]
) -> list[Measured]:
    """Measures every size of cluster, in turns."""
    with contextlib.ExitStack() as stack:
        stands = []
        for count in masters:
            say(f"starting a cluster (masters: {count}, replicas of each: {replicas})")
            stands.append(stack.enter_context(_stand(binary, count, replicas, cores, scale, say)))
        idle = _idle(stands, say)
        tasks = stands[0].pick(3_000, 60_000)
        rounds = stands[0].pick(1, ROUNDS)
        found: list[dict[str, list[Cost]]] = [{} for _ in stands]
        for turn in range(rounds):
            # another size is first in each round
            for place in _rotated(len(stands), turn):
                stand = stands[place]
                say(f"{tasks:,} tasks (masters: {masters[place]}), round {turn + 1} of {rounds}")
                for name, cost in _round(stand, tasks, idle[place]):
                    found[place].setdefault(name, []).append(cost)
        return [
            Measured(count, replicas, SHARDS, part, {name: _middle(costs) for name, costs in of.items()})
            for count, part, of in zip(masters, idle, found, strict=True)
        ]


@contextlib.contextmanager
def _stand(
    binary: Path, masters: int, replicas: int, cores: Cores, scale: Scale, say: Callable[[str], None]
) -> Iterator[Stand]:
    with (
        clustered(binary, masters=masters, replicas=replicas, cores=cores) as cluster,
        Stand(cluster.url, list[Server](cluster.masters), scale=scale, say=say) as stand,
    ):
        yield stand


def _rotated(count: int, turn: int) -> list[int]:
    return [(place + turn) % count for place in range(count)]


def _idle(stands: Sequence[Stand], say: Callable[[str], None]) -> list[float]:
    """Returns, for each stand, the part of a core that one of its masters takes."""
    seconds = stands[0].pick(1.0, 5.0)
    say(f"watching idle servers for {seconds:.0f} s")
    before = [stand.cpu_s() for stand in stands]
    began = time.perf_counter()
    time.sleep(seconds)
    took = time.perf_counter() - began
    return [(stand.cpu_s() - first) / took / len(stand.masters) for stand, first in zip(stands, before, strict=True)]


def _round(stand: Stand, count: int, idle: float) -> Iterator[tuple[str, Cost]]:
    """Does every kind of work once, and yields the cost of each."""
    spread = spread_tasks(count)
    with stand.engine(shards=SHARDS) as engine:
        engine.push_many(spread[:SHARDS])  # this push connects, and loads the script
        with sampling(stand) as sample:
            ids = engine.push_many(spread)
        yield "push_many", cost(sample, _tasks(stand, engine, ids), idle)
    with stand.engine(shards=SHARDS) as engine:
        engine.start()
        due_s = push_for_one_instant(stand, engine, count)
        time.sleep(max(0.0, due_s - time.time() - READY_S))
        with sampling(stand) as sample:
            ready_s = stand.until_gone(engine, lambda keys: keys.due)
        sample.wall_s = ready_s - due_s
        engine.stop()
        # ids are new in each round, but evenly spread: those of the push tell how many tasks each master has
        tasks = _tasks(stand, engine, ids)
        yield "dispatch", cost(sample, tasks, idle)
        with sampling(stand) as sample:
            claim_and_ack(engine, count)
        yield "claim and ack", cost(sample, tasks, idle)
        fill_ready(stand, engine, count)
        with sampling(stand) as sample:
            running(stand, function)(engine, count)
        yield "worker, no-op", cost(sample, tasks, idle)


def _tasks(stand: Stand, engine: Engine, ids: Iterable[str]) -> list[int]:
    """Returns the number of tasks on each master."""
    shards = Counter(engine.topology.shards_of(ids))
    held: Counter[str] = Counter()
    for shard, count in shards.items():
        held[stand.server_of(shard_keys(engine.name, shard).slot).address] += count
    return [held[master.address] for master in stand.masters]


@contextlib.contextmanager
def sampling(stand: Stand) -> Iterator[Sample]:
    """Measures the work of its block, master by master. The sample is complete afterwards."""
    sample = Sample()
    stand.reset_stats()
    before, client, began = stand.cpus_s(), time.process_time(), time.perf_counter()
    yield sample
    sample.wall_s = time.perf_counter() - began
    sample.client_s = time.process_time() - client
    sample.server_s = [now - first for now, first in zip(stand.cpus_s(), before, strict=True)]
    sample.commands = [sum(stats["calls"] for stats in said.values()) for said in stand.ask_all("INFO", "commandstats")]


def cost(sample: Sample, tasks: Sequence[int], idle: float) -> Cost:
    """Returns the cost of a piece of work. ``tasks`` counts those of each master; ``idle`` is the part of a core that
    each takes anyway.
    """
    count = sum(tasks)
    servers = [max(0.0, spent - idle * sample.wall_s) for spent in sample.server_s]
    return Cost(
        tasks_per_s=count / sample.wall_s,
        server_us=sum(servers) / count * 1e6,
        client_us=sample.client_s / count * 1e6,
        server_busy=sum(sample.server_s) / sample.wall_s,
        client_busy=sample.client_s / sample.wall_s,
        balance=Balance(tasks=_fullest(tasks), commands=_fullest(sample.commands), cpu=_fullest(servers)),
    )


def _fullest(parts: Sequence[float]) -> float:
    # all are 0 where the work took no more CPU than idling
    return max(parts) * len(parts) / sum(parts) if any(parts) else 1.0


def _middle(costs: Sequence[Cost]) -> Cost:
    """Returns the median of each figure by itself."""

    def of(figure: Callable[[Cost], float]) -> float:
        ordered = sorted(map(figure, costs))
        return ordered[len(ordered) // 2]

    return Cost(
        tasks_per_s=of(lambda one: one.tasks_per_s),
        server_us=of(lambda one: one.server_us),
        client_us=of(lambda one: one.client_us),
        server_busy=of(lambda one: one.server_busy),
        client_busy=of(lambda one: one.client_busy),
        balance=Balance(
            tasks=of(lambda one: one.balance.tasks),
            commands=of(lambda one: one.balance.commands),
            cpu=of(lambda one: one.balance.cpu),
        ),
    )
