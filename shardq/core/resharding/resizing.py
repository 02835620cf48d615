"""Announces another number of shards, brings it in force, and forgets the earlier numbers. Says how far a change is,
and estimates what one would move. ``handle_aio`` is what callers hold of it.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from shardq.core.calls import resharding
from shardq.core.calls.observe import peek
from shardq.core.fleet.member import START_ONE
from shardq.core.fleet.missing import DispatcherLook
from shardq.core.layout.keys import ShardKeys
from shardq.core.layout.slots import BUCKETS, table
from shardq.core.layout.topology import Topology
from shardq.core.layout.words import number_of
from shardq.core.model.ids import quoted_topic
from shardq.core.model.printable import counted
from shardq.core.operation import Many, Operation, Pause, values
from shardq.core.replicas import ReplicaBarrier
from shardq.core.topology_cache import TopologyCache
from shardq.core.topology_recovery import call_every_shard, put_in_force
from shardq.core.topology_upkeep import check_writer, declare, open_shards, refresh
from shardq.errors import ChangeUnderWay, ShardqError

log: logging.Logger = logging.getLogger("shardq")

POLLED_LOOK_S = 0.02
TAKE_OVER_S = 3.0
"""The time that dispatchers have to begin with the new shards: a dead one is noticed in that time."""

PROGRESS_LOOK_S = 0.2

SHOWN = 5
"""Topics named in a sentence."""

LOOK_AGAIN_S = 5.0
"""Between two looks of a waiting caller that find a dispatcher."""


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of a change of the number of shards.

    >>> progress = engine.resize(dry_run=True).progress()
    >>> print(f"{progress.fraction:.0%} of {progress.of} shards, {progress.moved} tasks moved")
    """

    shards: int
    in_force: bool
    swept: int
    """Shards in which no task belongs elsewhere any more."""
    of: int
    moved: int
    """Tasks moved out of shards since those were opened, also out of shards that the change retires."""
    done: bool
    """True when every task is where it belongs, and the earlier number is forgotten."""
    held_up: str = ""
    """Says so where it waits for ready tasks of paused topics: these move when they are taken."""

    @property
    def fraction(self) -> float:
        return 1.0 if self.done else self.swept / self.of


def held_up(topology: Topology, ready: Mapping[str, int | None]) -> str:
    """A sentence on the ready tasks of paused topics that a change of the number of shards waits for; empty if there
    are none. ``ready``: those of each topic.
    """
    waiting = {topic: count for topic in sorted(topology.paused) if (count := ready.get(topic))}
    if not topology.priors or not waiting:
        return ""
    counts = ", ".join(f"{count:,} of {quoted_topic(topic)}" for topic, count in list(waiting.items())[:SHOWN])
    return (
        f"the change to {topology.shards} shards may wait for ready tasks of paused topics ({counts}): such tasks do "
        "not move, and nobody takes them; resume the topic, or cancel them"
    )


def resize(cache: TopologyCache, shards: int, *, rate: float | None, members: int) -> Operation[None]:
    """Returns when ``shards`` is in force. Begins the change, or goes on with one that was interrupted, then at this
    rate; begins it again when a failover had taken back what it followed.

    ``members``: the number of live dispatchers. Without any there is nobody to wait for.
    """
    yield from refresh(cache)
    while True:
        yield from _announce(cache, shards, rate)
        if cache.topology.pending is None:
            break
        # those of an earlier number that has not drained are in use, and polled
        new = [cache.keys(shard) for shard in range(max(cache.topology.numbers), cache.topology.pending)]
        yield from open_shards(cache, new, anew=True)
        waited = 0.0
        while members and waited < TAKE_OVER_S and not (yield from _all_polled(new)):
            yield Pause(POLLED_LOOK_S)
            waited += POLLED_LOOK_S
        if (yield from put_in_force(cache)):
            break
    yield from _set_rate(cache, shards, rate)


def _announce(cache: TopologyCache, shards: int, rate: float | None) -> Operation[None]:
    while True:
        known = cache.topology
        if known.pending not in (None, shards):
            assert known.pending is not None, "just compared"
            raise ChangeUnderWay(known.pending, shards)
        if known.pending == shards or known.shards == shards:
            yield from check_writer(cache)
            return
        if known.is_keyed and known.priors:
            raise ChangeUnderWay(known.shards, shards, keyed=True)
        if (yield from declare(cache, known, known.following(pending=shards, move_rate=rate))):
            return


def _set_rate(cache: TopologyCache, shards: int, rate: float | None) -> Operation[None]:
    """Gives a change that is in force another rate. An announced one is left alone: anybody may be completing it."""
    while True:
        known = cache.topology
        if not known.priors or (known.shards, known.pending) != (shards, None) or known.move_rate == rate:
            return
        if (yield from declare(cache, known, known.following(move_rate=rate))):
            # A process that moves at the old rate is refused, and begins anew at this one.
            yield from open_shards(cache, cache.span())
            return


def _all_polled(shards: list[ShardKeys]) -> Operation[bool]:
    """True if all of them have a poller: its first step writes the time up to which it sleeps."""
    answers = yield Many({keys: resharding.meta_fields(keys, "wake_at") for keys in shards})
    return all(not isinstance(fields, ShardqError) and fields[0] is not None for _, fields in answers)


def unswept(cache: TopologyCache, shards: Sequence[int]) -> Operation[list[ShardKeys]]:
    """Returns the shards in which tasks may belong elsewhere since the present number came in force."""
    since = b"%d" % cache.topology.since
    answers = yield Many({keys: resharding.meta_fields(keys, "swept") for keys in map(cache.keys, shards)})
    return [keys for keys, fields in answers if isinstance(fields, ShardqError) or fields[0] != since]


def progress(cache: TopologyCache, *, shards: int = 0) -> Operation[Progress]:
    """Reads the progress of a change from the topology as stored now.

    ``shards``: a number of shards at an earlier time. Tasks moved out of shards no longer used count, too.
    """
    yield from refresh(cache)
    topology = cache.topology
    span = topology.span()
    asked = map(cache.keys, range(max(shards, len(span))))
    since = b"%d" % topology.since
    swept = moved = 0
    for keys, fields in (yield Many({keys: resharding.meta_fields(keys, "swept", "moved") for keys in asked})):
        if not isinstance(fields, ShardqError):
            swept += keys.shard < len(span) and fields[0] == since
            moved += number_of(fields[1])
    waiting = Counter[str]()
    if topology.priors and topology.paused:
        paused = sorted(topology.paused)
        answers = yield from call_every_shard(cache, lambda keys, epoch: peek(keys, epoch, paused).briefly())
        for counts in values(answers).values():
            waiting.update(counts.ready)
    return Progress(
        held_up=held_up(topology, waiting),
        shards=topology.shards,
        in_force=topology.pending is None,
        swept=swept if topology.priors else len(span),
        of=len(span),
        moved=moved,
        done=topology.pending is None and not topology.priors,
    )


def forget_priors(cache: TopologyCache) -> Operation[bool]:
    """Forgets the earlier numbers when every shard is swept. Returns True if they are forgotten now."""
    topology = cache.topology
    if topology.pending is not None:
        return False
    if not topology.priors:
        return True
    state = yield from progress(cache)
    if state.swept < state.of:
        return False
    # What was noted of a shard, and all that was done before it, is on the replicas, and on the disk. Otherwise a
    # failover or a loss of power could bring back misplaced tasks when nobody looks for them any more.
    span, barrier = cache.span(), ReplicaBarrier(cache)
    yield from barrier.behind(span)
    state = yield from progress(cache)
    if cache.topology.stamp != topology.stamp or state.swept < state.of or (yield from barrier.behind(span, disk=True)):
        return False
    # Shards that are no longer used are told, too: their metas stay, and refuse whoever still knows them.
    ended = topology.with_ended(round(time.time() * 1000))
    if (yield from declare(cache, topology, topology.following(priors=(), move_rate=None, ended=ended))):
        yield from open_shards(cache, span)
    return not cache.topology.priors


def remove_marks(cache: TopologyCache, shards: Sequence[ShardKeys]) -> Operation[bool]:
    """Removes the marks of moves that were never made, in all shards of a change whose earlier numbers are forgotten.
    Returns False if it can't do that yet, as replicas are behind.
    """
    barrier = ReplicaBarrier(cache)
    yield from barrier.behind(shards)
    yield from open_shards(cache, shards)  # also those that were told before: a barrier knows what is written behind it
    # Only where every shard is told, and no failover can undo that: a process that left a mark and stands still can
    # take nothing.
    if (yield from barrier.behind(shards)):
        return False
    epoch = cache.topology.stamp
    values((yield Many({keys: resharding.unmark(keys, epoch) for keys in shards})))
    return True


def nobody_moves(shards: int) -> DispatcherLook:
    """Tells a caller that waits for the change to ``shards`` when no dispatcher carries it out."""
    what = f"nobody moves the tasks for the change to {counted(shards, 'shard')}, as no dispatcher runs: {START_ONE}"
    return DispatcherLook(what, again_s=LOOK_AGAIN_S)


def pause(cache: TopologyCache, look: DispatcherLook) -> Operation[None]:
    """The time between two looks at the progress, after a look for dispatchers if it is time for that."""
    if not look.left_s(time.monotonic()):
        yield from look.look(cache.control)
    yield Pause(PROGRESS_LOOK_S)


@dataclass(frozen=True, slots=True)
class Flow:
    """The tasks that would go from one shard to another."""

    source: int
    target: int
    tasks: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Estimate:
    """The tasks that another number of shards would move."""

    flows: list[Flow]
    nodes: Mapping[str, tuple[int, int]]
    """Node → the tasks that leave it and the tasks that come. Tasks that move within a node count in both."""


@dataclass(frozen=True, slots=True)
class Holding:
    """One shard now: its scheduled and dead tasks, and the bytes of their records."""

    tasks: int
    bytes: int
    node: str


def estimate(present: int, shards: int, holdings: Mapping[int, Holding], node_of: Callable[[int], str]) -> Estimate:
    """Ids are spread evenly over buckets, so a shard gives away tasks in proportion to its buckets. ``node_of``: the
    node that serves a shard.
    """
    before, after = table(present), table(shards)
    owned = Counter(before)
    moving = Counter((before[bucket], after[bucket]) for bucket in range(BUCKETS) if before[bucket] != after[bucket])
    flows, leaving, coming = list[Flow](), Counter[str](), Counter[str]()
    for (source, target), buckets in sorted(moving.items()):
        held = holdings[source]
        tasks, size = (round(count * buckets / owned[source]) for count in (held.tasks, held.bytes))
        flows.append(Flow(source, target, tasks, size))
        leaving[held.node] += tasks
        coming[node_of(target)] += tasks
    return Estimate(flows, {node: (leaving[node], coming[node]) for node in sorted(leaving.keys() | coming.keys())})


def estimate_resize(cache: TopologyCache, shards: int, node_of: Callable[[int], str]) -> Operation[Estimate]:
    """Estimates what a change to ``shards`` would move now. ``node_of`` returns the node that serves a slot."""
    yield from refresh(cache)
    present = cache.topology.shards
    if present == shards:
        return Estimate([], {})
    holdings: dict[int, Holding] = {}
    answers = yield from call_every_shard(cache, lambda keys, epoch: peek(keys, epoch, []))
    for keys, counts in values(answers).items():
        size = yield resharding.record_bytes(keys)
        records = yield resharding.records(keys)
        tasks = counts.scheduled + counts.held + counts.dead
        # Ready and leased tasks stay, and so do their bytes.
        holdings[keys.shard] = Holding(tasks, size * tasks // max(tasks, records, 1), node_of(keys.slot))
    return estimate(present, shards, holdings, lambda shard: node_of(cache.keys(shard).slot))
