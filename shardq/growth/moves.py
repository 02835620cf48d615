"""Moving the tasks of one shard that belong elsewhere under the present number of shards. Operations, for any driver.

Scheduled and dead tasks move, and the ends of dedup windows; ready and leased ones drain where they are. See
``calls.grow`` for why every step may be repeated, by anybody, at any time. Whatever is moved, or noted as moved, is so
under one topology from first to last: a shard that knows a newer one refuses it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count

from shardq.atlas import Atlas
from shardq.calls import grow
from shardq.calls.grow import Parcel
from shardq.calls.request import Command
from shardq.errors import ShardqError
from shardq.layout.keys import ShardKeys
from shardq.layout.topology import Topology
from shardq.operation import Many, Operation, Pause, delivered, emptied

PART_S = 0.1
"""Under a rate, what is moved at a time: a process that is stopped does not pause for longer."""

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

    def parts(self, ids: Sequence[str]) -> Iterator[Sequence[str]]:
        size = max(1, len(ids) if self.rate is None else int(self.rate * PART_S))
        return (ids[at : at + size] for at in range(0, len(ids), size))

    def pause_s(self, done: int) -> float:
        if done:
            self.moving()
        return 0.0 if self.rate is None else done / self.rate


def brought(atlas: Atlas, source: ShardKeys, id: str) -> Operation[None]:
    """Delivers one task that a look-up found on its way."""
    parcel = yield grow.parcel_of(source, id)
    if parcel is not None:
        yield from delivered(atlas, source, [parcel])


def moved(atlas: Atlas, topology: Topology, source: ShardKeys, ids: Iterable[str], numbers: Numbers) -> Operation[int]:
    """Moves these tasks to where they belong under ``topology``; answers how many were here to be moved.

    Raises Stale when it is no longer the present one.
    """
    by_target: dict[int, list[str]] = {}
    for id in ids:
        by_target.setdefault(topology.shard_of(id), []).append(id)
    batches = [
        (atlas.keys(target), group[at : at + grow.BATCH], numbers.next())
        for target, group in by_target.items()
        for at in range(0, len(group), grow.BATCH)
    ]
    yield from _sure([grow.reserve(keys, topology.epoch, number, some) for keys, some, number in batches])
    refused: ShardqError | None = None
    parcels: list[Parcel] = []
    takes = [grow.take(source, topology.epoch, number, keys.shard, some) for keys, some, number in batches]
    for _, result in (yield Many(takes)):
        if isinstance(result, ShardqError):
            # what it took all the same, its answer being lost, is found in moved
            refused = refused or result
        else:
            parcels += result
    yield from delivered(atlas, source, parcels)
    if refused is not None:
        raise refused
    return len(parcels)


def swept(atlas: Atlas, source: ShardKeys, numbers: Numbers, pace: Pace) -> Operation[bool]:
    """Goes through a shard once, moving what belongs elsewhere. When nothing does, not even on its way out, notes that
    in the shard and is True.

    It stays so: pushes by an older topology are refused, and a retry stays where its lease was.
    """
    topology = atlas.topology
    if topology.pending is not None or (yield from emptied(atlas, source)):
        return False
    found = False
    for key in (source.due, source.dead):
        cursor = ""
        while cursor != "0":
            cursor, members = yield grow.scan(source, key, cursor or "0", count=grow.SCAN)
            for some in pace.parts(_strangers(topology, source, members)):
                found = True
                done = yield from moved(atlas, topology, source, some, numbers)
                if pause := pace.pause_s(done):
                    yield Pause(pause)
    if found or (yield from _stocked(topology, source)):
        return False
    # No record of a stranger is here, and none can come: so no window of one can either, and nothing is there to take.
    yield from _windows_moved(atlas, topology, source)
    if (yield from emptied(atlas, source)):
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


def _windows_moved(atlas: Atlas, topology: Topology, source: ShardKeys) -> Operation[None]:
    cursor = ""
    while cursor != "0":
        cursor, ends = yield grow.scan(source, source.seen, cursor or "0", count=grow.SCAN)
        by_target: dict[int, list[str]] = {}
        for id in _strangers(topology, source, ends):
            by_target.setdefault(topology.shard_of(id), []).append(id)
        parts = [
            (atlas.keys(target), {id: ends[id] for id in group[at : at + grow.WINDOWS]})
            for target, group in by_target.items()
            for at in range(0, len(group), grow.WINDOWS)
        ]
        # never nowhere: an id that is asked for meanwhile is asked for here first
        yield from _sure([grow.remember(keys, topology.epoch, some) for keys, some in parts])
        yield from _sure([grow.forget(source, topology.epoch, some) for _, some in parts])


def _strangers(topology: Topology, source: ShardKeys, ids: Iterable[str]) -> list[str]:
    locate = topology.locator()
    return [id for id in ids if locate(id) != source.shard]


def _sure(commands: list[Command[None]]) -> Operation[None]:
    for _, result in (yield Many(commands)):
        if isinstance(result, ShardqError):
            raise result
