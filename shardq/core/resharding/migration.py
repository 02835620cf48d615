"""Moves the tasks of one shard that belong elsewhere under the present number of shards: operations for both drivers.
``migrator`` has the thread that runs them.

Scheduled and dead tasks migrate, and the ends of dedup windows; ready and leased tasks drain where they are.
``calls.resharding`` says why every step may be repeated, by any process, at any time. A move happens under one topology
from its first step to its last: a shard that knows a newer one refuses it.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from operator import itemgetter
from typing import Any, Literal, NamedTuple

from shardq.core.calls import lane_control as lane_calls
from shardq.core.calls import node_info, resharding
from shardq.core.calls.request import FIRST_PAGE, Command, next_page
from shardq.core.calls.resharding import MovingTask
from shardq.core.layout.keys import ShardKeys
from shardq.core.layout.lanes import lane_of
from shardq.core.layout.topology import Topology
from shardq.core.layout.words import raw
from shardq.core.operation import Many, Operation, Pause, values
from shardq.core.replicas import ReplicaBarrier
from shardq.core.resharding.moving_lanes import closed, holds_left, misplaced_lanes
from shardq.core.topology_cache import TopologyCache
from shardq.core.topology_recovery import NotConfirmed, deliver, deliver_all, put_or_deliver, taken
from shardq.errors import ShardqError

GROUP = 1000
"""Tasks moved at a time. While they move, for some tens of milliseconds, they can't be dispatched."""

CHUNK = 50_000
"""Tasks that wait for the disk together, where it takes its time: a second with ``appendfsync everysec``."""

LONG_S = 0.02
"""The time from which on the disk is waited for by chunks, and not after each trip."""

PART_S = 0.1
"""With a rate limit, the part of a second that is moved at a time: a process that is stopped pauses no longer than
that.
"""

Misplaced = tuple[int, str]
"""The shard where a task belongs, and its id."""


class _Reserved(NamedTuple):
    """Ids with a mark at their target."""

    keys: ShardKeys
    number: str
    ids: list[str]


class MoveTokens:
    """Names for attempts to move, never used before: the process's name and a number."""

    def __init__(self, process: str) -> None:
        self._process = process
        self._count = count(1)

    def next(self, run: str = "") -> str:
        """``run``: the process of a target that may lose the mark."""
        return f"{self._process}:{next(self._count)}{'!' if run else ''}{run}"


@dataclass(frozen=True, slots=True)
class MoveRate:
    """The speed at which one process may move."""

    rate: float | None = None
    """Tasks a second; None: as fast as it can."""
    moving: Callable[[], None] = lambda: None
    """Called when something was moved."""
    stopped: Callable[[], bool] = lambda: False
    """True when no more may be moved: what is moving arrives, and nothing else is taken."""

    @property
    def size(self) -> int:
        """The tasks of one group."""
        return GROUP if self.rate is None else max(1, min(GROUP, int(self.rate * PART_S)))

    def groups(self, misplaced: Sequence[Misplaced]) -> Iterator[Sequence[Misplaced]]:
        return (misplaced[at : at + self.size] for at in range(0, len(misplaced), self.size))

    def pause_s(self, done: int) -> float:
        if done:
            self.moving()
        return 0.0 if self.rate is None else done / self.rate


def bring_in(cache: TopologyCache, source: ShardKeys, id: str) -> Operation[None]:
    """Puts one moving task, met by a look-up, into its target. The source keeps it as moving until the next sweep has
    made sure that the target's replicas have it.
    """
    moving_task = yield from taken(cache, source, partial(resharding.moving_task_of, source, id))
    if moving_task is not None:
        yield from put_or_deliver(cache, source, [moving_task])


def bring_in_all(cache: TopologyCache, source: ShardKeys) -> Operation[None]:
    """Puts everything that is moving out of a shard into its targets."""
    cursor = ""
    while cursor != "0":
        look = partial(resharding.scan_moved, source, cursor or "0", count=resharding.SCAN)
        cursor, moving_tasks = yield from taken(cache, source, look)
        yield from put_or_deliver(cache, source, moving_tasks)


def bring_in_and_clear(cache: TopologyCache, source: ShardKeys, id: str) -> Operation[None]:
    """Brings a task in, and clears it at the source: for a look-up that has no other shard to ask."""
    moving_task = yield from taken(cache, source, partial(resharding.moving_task_of, source, id))
    if moving_task is not None:
        yield from deliver(cache, source, [moving_task])


class MigrationPipeline:
    """Moves tasks out of one shard in groups that overlap: one trip clears what is safe, puts a group, takes the next
    and reserves the last. So neither the servers nor this process wait for the other, and a task is moving for two
    short trips.

    A task is taken only when its mark is safe at the target, and cleared only when it is itself: on the replicas, if
    there are any, and on the disk of a server with an append-only file, in one history from before it was written. What
    is not does not go on: it is not taken, or not cleared. Where the disk takes its time, marks and tasks wait for it
    in chunks, and no task is on its way meanwhile. A chunk is taken and cleared over many trips, and each of them
    makes sure that the processes which confirmed it still serve.

    The next sweep finds what was taken by a process that has died: it is in ``moved``.
    """

    def __init__(
        self, cache: TopologyCache, topology: Topology, source: ShardKeys, numbers: MoveTokens, *, size: int = 0
    ) -> None:
        """``size``: the tasks that are taken at a time; 0: as many as ``GROUP``."""
        self._cache = cache
        self._topology = topology
        self._source = source
        self._numbers = numbers
        self._size = size or GROUP
        self._barrier = ReplicaBarrier(cache)
        self._behind: set[int] = set()
        """Shards whose copies do not keep up. Nothing more is taken for them in this sweep; or nothing at all, if the
        source is one.
        """
        self._reserved: list[_Reserved] = []
        """Batches whose marks may not be safe yet."""
        self._marked: list[_Reserved] = []
        """Batches that may be taken."""
        self._taken: list[MovingTask] = []
        self._put: list[MovingTask] = []
        """Tasks that were put, and may not be safe yet."""
        self._safe: list[MovingTask] = []
        """Tasks that may be cleared."""
        self._waits_long = False
        """True once a disk took its time."""
        self._is_fresh = False
        """True when nothing was sent since the barrier confirmed last."""

    @property
    def held_up(self) -> bool:
        """True if nothing more can be taken."""
        return self._source.shard in self._behind

    @property
    def is_busy(self) -> bool:
        """True while something is reserved or moving."""
        return bool(self._reserved or self._marked or self._taken or self._put or self._safe)

    def check(self) -> Operation[None]:
        """Raises NotConfirmed if tasks wait for copies still: after a restart they waited for no more than a look."""
        if self._behind and (behind := (yield from self._barrier.behind(map(self._cache.keys, self._behind)))):
            raise NotConfirmed(behind)

    def advance(self, group: Iterable[Misplaced] = ()) -> Operation[int]:
        """Makes one trip, and admits the next group. Returns how many tasks it took.

        Raises Stale when the topology is no longer the present one; what was taken arrives all the same.
        """
        group = yield from self._admit(group)
        yield from self._hold_back()
        reserved = [
            _Reserved(self._cache.keys(home), self._numbers.next(self._barrier.volatile_run(home)), ids)
            for home, ids in _batches(group, resharding.BATCH)
        ]
        taken = yield from self._trip(self._next_marked(), reserved)
        self._reserved += reserved
        if taken and (yield from self._barrier.behind([self._source])):
            # A failover may undo a take: what was really taken is in moved.
            self._behind.add(self._source.shard)
            self._reserved, self._marked, self._taken = [], [], []
        if not self._waits_long or self._waiting >= CHUNK:
            yield from self._make_safe()
        return taken

    def step(self) -> Operation[int]:
        """Brings what is reserved or moving one step further. Returns how many tasks it took."""
        if self._marked or self._taken or self._safe:
            return (yield from self.advance())
        yield from self._make_safe()
        return 0

    def land(self) -> Operation[None]:
        """Puts what is taken: before a pause."""
        if self._taken:
            yield from self._trip([], [])

    def finish(self) -> Operation[int]:
        """Delivers all that is moving. Returns how many more tasks it took."""
        taken = 0
        while self.is_busy:
            taken += yield from self.step()
        return taken

    @property
    def _waiting(self) -> int:
        return sum(len(batch.ids) for batch in self._reserved) + len(self._put)

    def _next_marked(self) -> list[_Reserved]:
        """The next batches to take, of one group together."""
        batches, size = list[_Reserved](), 0
        while self._marked and (not batches or size + len(self._marked[0].ids) <= self._size):
            batches.append(self._marked.pop(0))
            size += len(batches[-1].ids)
        return batches

    def _trip(self, marked: Sequence[_Reserved], reserved: Sequence[_Reserved]) -> Operation[int]:
        """Clears, puts, takes and reserves. Returns how many tasks it took."""
        self._is_fresh = False
        epoch, safe = self._topology.stamp, self._safe[:GROUP]

        def requests() -> Iterator[tuple[Literal["clear", "put", "take", "reserve"], Command[Any]]]:
            for _, moving_tasks in resharding.loads(safe):
                yield "clear", resharding.clear(self._source, epoch, moving_tasks)
            for target, moving_tasks in resharding.loads(self._taken):
                yield "put", resharding.put(self._cache.keys(target), epoch, moving_tasks)
            for keys, number, ids in marked:
                yield "take", resharding.take(self._source, epoch, number, keys.shard, ids)
            for keys, number, ids in reserved:
                yield "reserve", resharding.reserve(keys, epoch, number, ids)

        taken: list[MovingTask] = []
        refused: ShardqError | None = None
        for step, result in (yield Many(requests())):
            if isinstance(result, ShardqError):
                # A take whose answer was lost may have taken something: it is found in moved.
                refused = refused or result
            elif step == "take":
                taken += result
        if refused is not None:
            self._reserved, self._marked, self._taken, self._put, self._safe = [], [], [], [], []
            yield from deliver_all(self._cache, self._source)
            raise refused
        self._safe = self._safe[len(safe) :]
        self._put += [moving_task.receipt for moving_task in self._taken]
        self._taken = taken
        return len(taken)

    def _admit(self, group: Iterable[Misplaced]) -> Operation[list[Misplaced]]:
        """Returns the tasks of a group that may be moved now."""
        group = list(group)
        new = {home for home, _ in group if not self._barrier.knows(home)} - self._behind
        if new:
            ends = [self._cache.keys(shard) for shard in {*new, self._source.shard}]
            yield from self._barrier.behind(ends)
            self._behind |= {keys.shard for keys in ends if not self._barrier.knows(keys.shard)}
        return [] if self.held_up else [misplaced for misplaced in group if misplaced[0] not in self._behind]

    def _hold_back(self) -> Operation[None]:
        """Takes out what was confirmed by a process that has ended since: it may have been lost all the same. The next
        sweep finds it in ``moved``, or takes it anew.
        """
        targets = {batch.keys.shard for batch in self._marked} | {moving_task.target for moving_task in self._safe}
        if self._is_fresh or not targets:
            return
        ended = yield from self._barrier.ended([self._cache.keys(shard) for shard in sorted(targets)])
        self._behind |= ended
        self._marked = [batch for batch in self._marked if batch.keys.shard not in ended]
        self._safe = [moving_task for moving_task in self._safe if moving_task.target not in ended]

    def _make_safe(self) -> Operation[None]:
        """Waits until marks and tasks are safe at their targets, and holds back those that are not."""
        ends = {batch.keys.shard for batch in self._reserved} | {moving_task.target for moving_task in self._put}
        if not ends:
            return
        if self._waits_long:
            yield from self.land()
            ends |= {moving_task.target for moving_task in self._put}
        began = time.monotonic()
        behind = yield from self._barrier.behind([self._cache.keys(shard) for shard in ends], disk=True)
        self._waits_long = self._waits_long or time.monotonic() - began > LONG_S
        self._behind |= behind
        self._marked = [batch for batch in (*self._marked, *self._reserved) if batch.keys.shard not in behind]
        self._safe += [
            moving_task
            for moving_task in self._put
            if moving_task.target not in behind
            # the barrier may have heard of a restart between a mark and its take: what is put without a mark is nowhere
            and moving_task.run in ("", self._barrier.volatile_run(moving_task.target))
        ]
        self._reserved, self._put, self._is_fresh = [], [], True


def sweep(cache: TopologyCache, source: ShardKeys, numbers: MoveTokens, pace: MoveRate) -> Operation[bool]:
    """Goes through a shard once, and moves what belongs elsewhere. If nothing does, and nothing is moving, notes that
    in the shard and returns True.

    It stays so: pushes under an older topology are refused, and a retry stays where its lease was.
    """
    topology = cache.topology
    if topology.pending is not None or (yield from deliver_all(cache, source)):
        return False
    if source.shard >= max(topology.priors, default=0):
        # Under no earlier number was there such a shard: all that is here belongs here.
        yield resharding.swept(source, topology.stamp, topology.since)
        return True
    found, pipeline = False, MigrationPipeline(cache, topology, source, numbers, size=pace.size)
    if topology.is_keyed and (lanes := (yield from misplaced_lanes(cache, source))):
        found = True
        free = [each.lane for each in (yield from closed(cache, source, lanes)) if each.waits]
        yield from move_lanes(cache, source, free, pipeline, pace)
    for key in (source.due, source.dead):
        # From the latest on: what is due soon has mostly gone when its turn comes, and neighbours cost the servers
        # less. Tasks that fall between two pages, because others add and remove meanwhile, are found by the next sweep.
        kept = leaving = 0
        while ids := (yield resharding.latest(source, key, kept + leaving, count=resharding.PAGE)):
            # Tasks of one target together, so that calls are few.
            misplaced = sorted(_misplaced(topology, source, ids), key=itemgetter(0))
            if topology.is_keyed and key == source.due:
                misplaced = [each for each in misplaced if lane_of(each[1]) is None]
            kept += len(ids) - len(misplaced)
            leaving += len(misplaced)
            for group in pace.groups(misplaced):
                if pace.stopped() or pipeline.held_up:
                    yield from pipeline.finish()
                    yield from deliver_all(cache, source)
                    yield from pipeline.check()
                    return False
                found = True
                done = yield from pipeline.advance(group)
                leaving -= done
                yield from _paused(pipeline, pace, done)
        while pipeline.is_busy and not pace.stopped():
            yield from _paused(pipeline, pace, (yield from pipeline.step()))
        yield from pipeline.finish()
    if pipeline.held_up:
        yield from deliver_all(cache, source)
    yield from pipeline.check()
    if found or (yield from _holds_misplaced(topology, source)):
        return False
    # Without a task of its lane no hold is set here: what is found now is all.
    if topology.is_keyed and (yield from holds_left(cache, source)):
        return False
    # No record of a misplaced task is here, and none can come: so there is no window of one either, and nothing to
    # take.
    moved = yield from _move_seen(cache, topology, source)
    if (yield from deliver_all(cache, source)) or not moved:
        return False
    yield resharding.swept(source, topology.stamp, topology.since)
    return True


LANES = 200
"""Lanes whose first tasks are looked up together."""


def move_lanes(
    cache: TopologyCache, source: ShardKeys, lanes: Sequence[str], pipeline: MigrationPipeline, pace: MoveRate
) -> Operation[None]:
    """Moves what waits in lanes that are closed, and of which nothing is ready or leased here any more."""
    left = deque((lane, "") for lane in lanes)
    while left and not (pace.stopped() or pipeline.held_up):
        some = dict(left.popleft() for _ in range(min(LANES, len(left))))
        looks = {lane: lane_calls.first_of(source, lane, after, count=pace.size) for lane, after in some.items()}
        group: list[Misplaced] = []
        for lane, entries in values((yield Many(looks))).items():
            home = cache.topology.shard_of(lane)
            group += [(home, lane_calls.id_of_entry(entry, lane)) for entry in entries]
            if len(entries) == pace.size:
                left.append((lane, entries[-1]))
        for part in pace.groups(sorted(group, key=itemgetter(0))):
            if not (pace.stopped() or pipeline.held_up):
                yield from _paused(pipeline, pace, (yield from pipeline.advance(part)))
    yield from pipeline.finish()
    if pipeline.held_up:
        yield from deliver_all(cache, source)


def _paused(pipeline: MigrationPipeline, pace: MoveRate, done: int) -> Operation[None]:
    """Pauses after so many tasks, for as long as the rate wants. None is on its way meanwhile."""
    if pause := pace.pause_s(done):
        yield from pipeline.land()
        yield Pause(pause)


def _holds_misplaced(topology: Topology, source: ShardKeys) -> Operation[bool]:
    """True if the record of a misplaced task is here. It looks at records, which stay in place: a task that goes from
    state to state could be missed in each of them.
    """
    cursor, size = "0", FIRST_PAGE
    while True:
        page = yield resharding.stock(source, topology.stamp, cursor, count=size)
        if _misplaced(topology, source, page.ids):
            return True
        if page.cursor == "0":
            return False
        cursor = page.cursor
        size = next_page(size, page.bytes, most=resharding.SCAN)


def _move_seen(cache: TopologyCache, topology: Topology, source: ShardKeys) -> Operation[bool]:
    """Moves the ends of dedup windows. Returns False if some may stay: those that the replicas of their targets lack,
    and those that another process of the server has in other places than the one that began the scan.
    """
    cursor, barrier, all_moved = "", ReplicaBarrier(cache), True
    scanned: str = yield node_info.run_id(source.slot)
    ahead_ms: int = yield resharding.ahead(source)
    sent: list[tuple[ShardKeys, dict[str, str]]] = []
    while cursor != "0":
        cursor, ends = yield resharding.scan(source, source.seen, cursor or "0", count=resharding.SCAN)
        parts = [
            (cache.keys(home), {id: ends[id] for id in ids})
            for home, ids in _batches(_misplaced_seen(topology, source, ends), resharding.MOST_SEEN)
        ]
        homes = {keys.shard: keys for keys, _ in parts}.values()
        if new := [keys for keys in homes if not barrier.knows(keys.shard)]:
            yield from barrier.behind(new)
        # At no instant in neither shard: an id that is asked for meanwhile is asked for here first.
        remembers = [resharding.remember(keys, topology.stamp, some, ahead_ms=ahead_ms) for keys, some in parts]
        values((yield Many(enumerate(remembers))))
        sent += parts
        if sent and (cursor == "0" or sum(len(some) for _, some in sent) >= CHUNK):
            behind = yield from barrier.behind({keys.shard: keys for keys, _ in sent}.values(), disk=True)
            all_moved = all_moved and not behind
            gone = [some for keys, some in sent if keys.shard not in behind]
            values((yield Many(enumerate(resharding.forget(source, topology.stamp, some) for some in gone))))
            sent = []
    return all_moved and scanned == (yield node_info.run_id(source.slot))


def _misplaced(topology: Topology, source: ShardKeys, ids: Collection[str]) -> list[Misplaced]:
    return [(home, id) for home, id in zip(topology.shards_of(map(raw, ids)), ids, strict=True) if home != source.shard]


def _misplaced_seen(topology: Topology, source: ShardKeys, members: Collection[str]) -> list[Misplaced]:
    """Members of ``seen``: ids, and ids with the nonce of a push, whose window only its resends know of."""
    homes = topology.shards_of([raw(member).partition(b"\n")[0] for member in members])
    return [(home, member) for home, member in zip(homes, members, strict=True) if home != source.shard]


def _batches(misplaced: Iterable[Misplaced], most: int) -> Iterator[tuple[int, list[str]]]:
    """Groups them by target, in parts of at most ``most``."""
    by_home: dict[int, list[str]] = {}
    for home, id in misplaced:
        by_home.setdefault(home, []).append(id)
    return ((home, ids[at : at + most]) for home, ids in by_home.items() for at in range(0, len(ids), most))
