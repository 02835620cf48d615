"""Moving the tasks of one shard that belong elsewhere under the present number of shards. Operations, for any driver.

Scheduled and dead tasks move, and the ends of dedup windows; ready and leased ones drain where they are. See
``calls.grow`` for why every step may be repeated, by anybody, at any time. Whatever is moved, or noted as moved, is so
under one topology from first to last: a shard that knows a newer one refuses it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from operator import itemgetter
from typing import Any

from shardq.atlas import Atlas
from shardq.calls import grow
from shardq.calls.grow import Parcel
from shardq.calls.request import Command
from shardq.errors import ShardqError
from shardq.layout.keys import ShardKeys
from shardq.layout.topology import Topology
from shardq.operation import Barrier, Many, Operation, Pause, delivered, emptied, put

GROUP = 1000
"""Tasks that are moved at a time: while on their way, for some tens of milliseconds, they cannot be dispatched."""

PART_S = 0.1
"""Under a rate, what is moved at a time: a process that is stopped does not pause for longer."""

Stranger = tuple[int, str]
"""Where a task belongs, and its id."""

FIRST_PAGE = 64
"""Records of unknown size that the server reads at a time, to begin with."""


class Numbers:
    """Names of attempts to move, never used before: the process's and a number."""

    def __init__(self, process: str) -> None:
        self._process = process
        self._count = count(1)

    def next(self) -> str:
        return f"{self._process}:{next(self._count)}"


@dataclass(frozen=True, slots=True)
class Pace:
    """How fast one process may move."""

    rate: float | None = None
    """Tasks a second; None: as fast as it can."""
    moving: Callable[[], None] = lambda: None
    """Called when something was moved."""
    stopped: Callable[[], bool] = lambda: False
    """Whether to move no more: what is under way arrives, and nothing else is taken."""

    def groups(self, strangers: Sequence[Stranger]) -> Iterator[Sequence[Stranger]]:
        size = GROUP if self.rate is None else max(1, min(GROUP, int(self.rate * PART_S)))
        return (strangers[at : at + size] for at in range(0, len(strangers), size))

    def pause_s(self, done: int) -> float:
        if done:
            self.moving()
        return 0.0 if self.rate is None else done / self.rate


def brought(atlas: Atlas, source: ShardKeys, id: str) -> Operation[None]:
    """Puts one task that a look-up found on its way where it goes. The parcel stays for the next sweep, which sees to
    it that the replicas there have it."""
    parcel = yield grow.parcel_of(source, id)
    if parcel is not None:
        yield from put(atlas, [parcel])


def all_brought(atlas: Atlas, source: ShardKeys) -> Operation[None]:
    """The same for everything that is on its way out of a shard."""
    cursor = ""
    while cursor != "0":
        cursor, parcels = yield grow.scan_moved(source, cursor or "0", count=grow.SCAN)
        yield from put(atlas, parcels)


def cleared(atlas: Atlas, source: ShardKeys, id: str) -> Operation[None]:
    """``brought``, and the parcel forgotten, for a look-up that has no other shard to ask."""
    parcel = yield grow.parcel_of(source, id)
    if parcel is not None:
        yield from delivered(atlas, source, [parcel])


class Train:
    """Tasks on their way out of one shard, in groups that follow one another: in one trip the first group is cleared,
    the next put, the next taken and the last reserved. So neither the servers nor this process wait for the other,
    and a task is on its way for two short trips.

    After a trip the replicas, where there are some, confirm all of it. Where they don't, nothing goes on: what was
    reserved is not taken, and what was put is not cleared.

    What was taken and is not told of any more, its process gone, is found in ``moved`` by the next sweep.
    """

    def __init__(self, atlas: Atlas, topology: Topology, source: ShardKeys, numbers: Numbers) -> None:
        self._atlas = atlas
        self._topology = topology
        self._source = source
        self._numbers = numbers
        self._barrier = Barrier(atlas)
        self._behind: set[int] = set()
        """Shards whose replicas do not keep up: nothing more is taken for them in this sweep, or out of the source."""
        self._reserved: list[tuple[ShardKeys, str, list[str]]] = []
        self._taken: list[Parcel] = []
        self._put: list[Parcel] = []

    @property
    def held_up(self) -> bool:
        """Nothing more can be taken."""
        return self._source.shard in self._behind

    def along(self, group: Iterable[Stranger] = ()) -> Operation[int]:
        """One trip, with the group that follows; answers how many tasks it took.

        Raises Stale when the topology is no longer the present one; what was taken arrives all the same.
        """
        group = yield from self._boarding(group)
        epoch, reserved, takes = self._topology.epoch, self._reserved, set[int]()
        self._reserved = [
            (self._atlas.keys(home), self._numbers.next(), ids) for home, ids in _batches(group, grow.BATCH)
        ]

        def requests() -> Iterator[Command[Any]]:
            for _, parcels in grow.loads(self._put):
                yield grow.clear(self._source, epoch, parcels)
            for target, parcels in grow.loads(self._taken):
                yield grow.put(self._atlas.keys(target), epoch, parcels)
            for keys, number, ids in reserved:
                take = grow.take(self._source, epoch, number, keys.shard, ids)
                takes.add(id(take))
                yield take
            for keys, number, ids in self._reserved:
                yield grow.reserve(keys, epoch, number, ids)

        taken: list[Parcel] = []
        refused: ShardqError | None = None
        for request, result in (yield Many(requests())):
            if isinstance(result, ShardqError):
                # what a take took all the same, its answer being lost, is found in moved
                refused = refused or result
            elif id(request) in takes:
                taken += result
        if refused is not None:
            under_way, self._reserved, self._taken, self._put = [*self._put, *self._taken, *taken], [], [], []
            yield from delivered(self._atlas, self._source, under_way)
            raise refused
        self._put, self._taken = self._taken, taken
        yield from self._confirmed(taking=bool(taken))
        return len(taken)

    def arrived(self) -> Operation[int]:
        """Brings all that is under way to its end; answers how many more tasks it took."""
        taken = 0
        while self._reserved or self._taken or self._put:
            taken += yield from self.along()
        return taken

    def _boarding(self, group: Iterable[Stranger]) -> Operation[list[Stranger]]:
        """Those of a group that may be moved now."""
        group = list(group)
        new = {home for home, _ in group if not self._barrier.knows(home)} - self._behind
        if new:
            ends = [self._atlas.keys(shard) for shard in {*new, self._source.shard}]
            yield from self._barrier.behind(ends)
            self._behind |= {keys.shard for keys in ends if not self._barrier.knows(keys.shard)}
        return [] if self.held_up else [stranger for stranger in group if stranger[0] not in self._behind]

    def _confirmed(self, *, taking: bool) -> Operation[None]:
        """Lets nothing go on that the replicas do not have."""
        targets = {keys.shard for keys, _, _ in self._reserved} | {parcel.target for parcel in self._put}
        if ends := targets | ({self._source.shard} if taking else set()):
            behind = yield from self._barrier.behind([self._atlas.keys(shard) for shard in ends])
            self._behind |= behind
            self._put = [parcel for parcel in self._put if parcel.target not in behind]
            self._reserved = [entry for entry in self._reserved if entry[0].shard not in behind]
            if self.held_up:
                # a take may be undone: what is really taken is in moved
                self._reserved, self._taken = [], []


def swept(atlas: Atlas, source: ShardKeys, numbers: Numbers, pace: Pace) -> Operation[bool]:
    """Goes through a shard once, moving what belongs elsewhere. When nothing does, not even on its way out, notes that
    in the shard and is True.

    It stays so: pushes by an older topology are refused, and a retry stays where its lease was.
    """
    topology = atlas.topology
    if topology.pending is not None or (yield from emptied(atlas, source)):
        return False
    if source.shard >= max(topology.priors, default=0):
        # under no earlier number was there such a shard: all that is here belongs here
        yield grow.swept(source, topology.epoch, topology.since)
        return True
    found, train = False, Train(atlas, topology, source, numbers)
    for key in (source.due, source.dead):
        # From the latest on: what is due soon has mostly gone when its turn comes, and neighbours cost the servers
        # less. What falls between two pages, since others add and remove meanwhile, the next sweep finds.
        kept = leaving = 0
        while ids := (yield grow.latest(source, key, kept + leaving, count=grow.PAGE)):
            # those of one home together, so that calls are few
            strangers = sorted(_strangers(topology, source, ids), key=itemgetter(0))
            kept += len(ids) - len(strangers)
            leaving += len(strangers)
            for group in pace.groups(strangers):
                if pace.stopped() or train.held_up:
                    yield from train.arrived()
                    yield from emptied(atlas, source)
                    return False
                found = True
                done = yield from train.along(group)
                if pace.rate is not None:
                    done += yield from train.arrived()
                leaving -= done
                if pause := pace.pause_s(done):
                    yield Pause(pause)
        pace.pause_s((yield from train.arrived()))
    if train.held_up:
        yield from emptied(atlas, source)
    if found or (yield from _stocked(topology, source)):
        return False
    # No record of a stranger is here, and none can come: so no window of one can either, and nothing is there to take.
    moved = yield from _windows_moved(atlas, topology, source)
    if (yield from emptied(atlas, source)) or not moved:
        return False
    yield grow.swept(source, topology.epoch, topology.since)
    return True


def _stocked(topology: Topology, source: ShardKeys) -> Operation[bool]:
    """Whether the record of a stranger is here. Looked for in the records, which stay where they are while a task goes
    from state to state and could be missed in each."""
    cursor, size = "0", FIRST_PAGE
    while True:
        page = yield grow.stock(source, topology.epoch, cursor, count=size)
        if _strangers(topology, source, page.ids):
            return True
        if page.cursor == "0":
            return False
        cursor = page.cursor
        size = max(1, min(grow.SCAN, size * 4, size * grow.BATCH_BYTES // max(1, page.bytes)))


def _windows_moved(atlas: Atlas, topology: Topology, source: ShardKeys) -> Operation[bool]:
    """False when some stay, whose end the replicas of their homes do not have."""
    cursor, barrier, all_moved = "", Barrier(atlas), True
    ahead_ms: int = yield grow.ahead(source)
    while cursor != "0":
        cursor, ends = yield grow.scan(source, source.seen, cursor or "0", count=grow.SCAN)
        parts = [
            (atlas.keys(home), {id: ends[id] for id in ids})
            for home, ids in _batches(_strangers(topology, source, ends), grow.WINDOWS)
        ]
        if not parts:
            continue
        homes = {keys.shard: keys for keys, _ in parts}.values()
        if new := [keys for keys in homes if not barrier.knows(keys.shard)]:
            yield from barrier.behind(new)
        # never nowhere: an id that is asked for meanwhile is asked for here first
        yield from _sure([grow.remember(keys, topology.epoch, some, ahead_ms=ahead_ms) for keys, some in parts])
        behind = yield from barrier.behind(homes)
        all_moved = all_moved and not behind
        gone = [some for keys, some in parts if keys.shard not in behind]
        yield from _sure([grow.forget(source, topology.epoch, some) for some in gone])
    return all_moved


def _strangers(topology: Topology, source: ShardKeys, ids: Collection[str]) -> list[Stranger]:
    return [(home, id) for home, id in zip(topology.shards_of(ids), ids, strict=True) if home != source.shard]


def _batches(strangers: Iterable[Stranger], most: int) -> Iterator[tuple[int, list[str]]]:
    """By home, in parts of at most so many."""
    by_home: dict[int, list[str]] = {}
    for home, id in strangers:
        by_home.setdefault(home, []).append(id)
    return ((home, ids[at : at + most]) for home, ids in by_home.items() for at in range(0, len(ids), most))


def _sure(commands: list[Command[None]]) -> Operation[None]:
    for _, result in (yield Many(commands)):
        if isinstance(result, ShardqError):
            raise result
