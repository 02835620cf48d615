"""An engine that goes by a clock for a while: its name, parts and keys. Both clocks use it."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Generic, TypeVar
from weakref import WeakKeyDictionary

from shardq.core.calls.request import Command
from shardq.core.operation import Many, Operation, values
from shardq.core.topology_cache import TopologyCache
from shardq.engine.base import EngineBase
from shardq.engine.options import Options
from shardq.engine.parts import Parts, has_opened, refit
from shardq.errors import InvalidOption
from shardq.testing.virtual import VirtualPollers, VirtualTime

if TYPE_CHECKING:
    from shardq.testing.clock_aio import AsyncClockCommands
    from shardq.testing.clock_sync import ClockCommands

E = TypeVar("E", bound=EngineBase)

_adopted: WeakKeyDictionary[EngineBase, Adopted[Any]] = WeakKeyDictionary()


def adopted_of(engine: EngineBase) -> Adopted[Any] | None:
    """Returns how an engine goes by a clock; None: it goes by that of its servers."""
    return _adopted.get(engine)


def check_kind(engine: object, kind: type[EngineBase], clock: ClockCommands | AsyncClockCommands) -> None:
    """Refuses what a clock can't move."""
    if not isinstance(engine, kind):
        raise InvalidOption(
            f"{engine!r:.80} can't go by {clock!r}: a Clock (shardq_clock) moves an Engine, and an AsyncClock "
            "(shardq_async_clock) an AsyncEngine"
        )


class Adopted(Generic[E]):
    """One engine of a clock."""

    def __init__(self, engine: E, clock: ClockCommands | AsyncClockCommands, time: VirtualTime) -> None:
        self.engine = engine
        self.clock = clock
        self.pollers = VirtualPollers(engine, time)
        self._before: tuple[Parts, Options] | None = None
        self._parts: Parts | None = None
        self._rested = False

    @property
    def has_tasks(self) -> bool:
        """True if something may be stored under its name."""
        return self._rested or has_opened(self.engine)

    def begin(self, parts: Parts, *, url: str, name: str, shards: int | None) -> None:
        if self.engine in _adopted:
            raise InvalidOption(
                f"{self.engine!r} goes by a clock already: close() that before you adopt the engine again"
            )
        options = dataclasses.replace(
            self.engine.options, url=url, name=name, shards=self.engine.options.shards if shards is None else shards
        )
        self._parts, self._before = parts, refit(self.engine, parts, options)
        _adopted[self.engine] = self

    def move_rows(self) -> None:
        """Does what the threads of the engine's outbox relays do that were started."""
        for relay in list(self.engine.relays):
            relay.catch_up()

    def rest(self) -> None:
        """Lets an engine that is closed be opened again at its next use, in another loop."""
        if self._parts is not None and has_opened(self.engine):
            self._rested = True
            refit(self.engine, self._parts, self.engine.options)

    def end(self) -> None:
        """Makes the engine what it was. It is closed."""
        if self._before is not None:
            refit(self.engine, *self._before)
            self._before = None
        _adopted.pop(self.engine, None)


def remove(cache: TopologyCache) -> Operation[None]:
    """Removes all that is stored under the name of an engine."""
    shards = {keys.shard: keys for keys in cache.span()}
    topics: dict[int, list[bytes]] = values(
        (yield Many({shard: Command(keys.slot, ("HKEYS", keys.topics), list) for shard, keys in shards.items()}))
    )
    removals: dict[int, Command[int]] = {}
    for shard, keys in shards.items():
        names = ["", *(topic.decode() for topic in topics[shard])]
        removals[shard] = Command(
            keys.slot,
            (
                *("UNLINK", keys.meta, keys.due, keys.task, keys.leased, keys.lease, keys.dead, keys.why, keys.ghost),
                *(keys.seen, keys.topics, keys.moved, keys.staged),
                *map(keys.ready, names),
                *map(keys.waiting, names),
            ),
            int,
        )
    control, limited = cache.control, cache.topology.limits
    removals[-1] = Command(
        control.slot,
        (
            *("UNLINK", control.topology, control.members, control.schedules, control.changes),
            *map(control.bucket, limited),
            *map(control.permits, limited),
        ),
        int,
    )
    values((yield Many(removals)))
