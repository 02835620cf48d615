"""Virtual time for one engine: the now of its scripts' calls, and what its pollers do, without threads.

Every script takes its now as an argument (``lua/README.md``, *Calling a script*), which engines leave empty. Here it is
filled in, wherever ``virtual_drivers`` send a call. ``VirtualPollers`` dispatches a shard when time has moved, and
before something is claimed from it, so the state is that of pollers that are never late. It serves schedules, too.
"""

from __future__ import annotations

import datetime as dt
import math
import secrets
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from shardq.core.calls import dispatch, listing
from shardq.core.calls.request import NOW, Call, Command, Word
from shardq.core.dispatcher.forwarding import MAX_ROUTED, MAX_TOPICS, needs_forwarder
from shardq.core.dispatcher.retiring import EVERY_S, retire
from shardq.core.drivers.routing import DriverBase
from shardq.core.layout.keys import ShardKeys
from shardq.core.layout.topology import Topology
from shardq.core.operation import Many, Operation, values
from shardq.core.topology_cache import TopologyCache
from shardq.core.topology_edits import edit_topology, without_ended_pauses
from shardq.core.topology_recovery import REFUSALS, Recovery
from shardq.engine.around import EngineAccess, EngineBase
from shardq.errors import InvalidOption, NaiveDatetime
from shardq.features.schedules.known import KnownSchedules

EPOCH = dt.datetime.fromtimestamp(0, dt.UTC)
US = dt.timedelta(microseconds=1)

CHANGES_NO_INSTANT = frozenset(
    (
        "dispatch",
        "forward",
        "cancel",
        "get",
        "peek",
        "page",
        "page_ready",
        "page_lane",
        "forecast",
        "trim",
        "retire",
        "purge",
        "stock",
        "wake",
    )
)
"""The scripts after which nothing of a shard is due earlier than before."""

FREEING = frozenset(("forward", "cancel", "purge"))
"""But where there are keys: the next task of a key may go then, as after an ack."""


class VirtualTime:
    """The time of one clock, in whole ms: due times are."""

    def __init__(self, start: dt.datetime) -> None:
        self.now_us: int = (start - EPOCH) // US // 1000 * 1000

    @property
    def now(self) -> dt.datetime:
        return EPOCH + self.now_us * US


class VirtualPollers:
    """Does what the pollers of one engine and its scheduler do, whenever it is told."""

    def __init__(self, engine: EngineBase, time: VirtualTime) -> None:
        self.engine = engine
        self.time = time
        self.driver: DriverBase | None = None
        """The driver of the engine, once that was opened."""
        self.arrived: set[int] = set()
        """Shards in which something became ready, until the clock takes them out."""
        self.handlers: set[str] = set()
        """The consumers of bound workers. Their leases end before time moves: they change no instant."""
        self._caller = secrets.token_hex(6)
        self._claims = (0, 0)
        """The instant of the last claim, and how many were made before it at that instant."""
        self._topics: dict[int, list[str]] = {}
        self._next_us: dict[int, int | None] = {}
        """Shard → its next instant of interest, as its last dispatch said."""
        self._touched: set[int] = set()
        """Slots in which something may be due earlier than that."""
        self._schedules: KnownSchedules | None = None
        self.schedules_us: int | None = 0
        """The instant at which something is to be done about schedules; None: when one has changed."""
        self._retire_us = 0
        self._serving = False
        """True while schedules are served: what is written then is known."""

    @property
    def cache(self) -> TopologyCache:
        return EngineAccess(self.engine).cache

    @property
    def has_routes(self) -> bool:
        return bool(self.cache.topology.routes)

    # ---- calls

    def stamp(self, request: Command[Any]) -> None:
        """Fills in the time of a call that is about to be sent, and notes what it may change."""
        if not isinstance(request, Call):
            if list(request.words) == ["TIME"]:  # what is too old is so by virtual time
                request.decode = lambda _: self.time.now_us // 1000
            return
        name = request.script.name
        if name == "set_schedule" and not self._serving:
            self._doubt_schedules()
        place = request.script.place_of_now
        if place is None:
            return
        if request.words[place] == NOW:
            now_us = self.time.now_us
            if name == "claim":  # the fences of two claims differ, though time stands still
                self._claims = (now_us, min(999, self._claims[1] + 1) if self._claims[0] == now_us else 0)
                now_us += self._claims[1]
            request.words = request.at(now_us).words
        words = request.words
        # a settle that schedules nothing again; a claim of a bound worker, whose token is its name and a number
        only_acks = name == "settle" and _is_of_acks(words)
        is_handled = name == "claim" and str(words[5]).rpartition(":")[0] in self.handlers
        if EngineAccess(self.engine).has_opened and self.cache.topology.is_keyed:
            changes = name not in CHANGES_NO_INSTANT - FREEING
        else:
            changes = name not in CHANGES_NO_INSTANT and not only_acks and not is_handled
        if changes:
            self._touched.add(request.slot)

    # ---- dispatching

    def doubt(self) -> None:
        """Forgets what is known of all shards: other processes may have changed them."""
        self._next_us.clear()
        self._doubt_schedules()

    def _doubt_schedules(self) -> None:
        if self._schedules is not None:
            self._schedules.hear(None)
        self.schedules_us = 0

    def serve_schedules(self) -> Operation[None]:
        """Pushes the occurrences that dispatchers would have pushed ahead by now."""
        if self.schedules_us is None or self.schedules_us > self.time.now_us:
            return
        schedules = self._schedules = self._schedules or KnownSchedules(self.cache)
        self.schedules_us, self._serving = None, True
        try:
            done = yield from schedules.step(self.time.now_us // 1000)
        finally:
            self._serving = False
        if math.isfinite(done.again_ms):
            again_us = math.ceil(done.again_ms) * 1000
            self.schedules_us = again_us if self.schedules_us is None else min(again_us, self.schedules_us)
        for error in done.errors.values():
            raise error
        for name, why in (schedules.problems | schedules.unreadable).items():
            raise InvalidOption(f"the schedule {name!r} can't be served by this process: {why}")

    def catch_up(self, slot: int | None = None) -> Operation[None]:
        """Dispatches what is due by now, in all shards or in those of a slot, and ends pauses whose time it is."""
        now_ms = self.time.now_us / 1000
        if min(self.cache.topology.pauses.values(), default=math.inf) <= now_ms:
            yield from edit_topology(self.cache, partial(without_ended_pauses, now_ms=now_ms))
            self.arrived.update(self.cache.topology.span())
        for keys in self.cache.span():
            if (slot is None or keys.slot == slot) and self._is_stale(keys):
                yield from self.step(keys)

    def _is_stale(self, keys: ShardKeys) -> bool:
        if keys.slot in self._touched or keys.shard not in self._next_us:
            return True
        next_us = self._next_us[keys.shard]
        return next_us is not None and next_us <= self.time.now_us

    def next_us(self) -> int | None:
        """The next instant at which there is something to do for a shard or a schedule, after ``catch_up``."""
        pauses = [until_ms * 1000 for until_ms in self.cache.topology.pauses.values()]
        instants = [*self._next_us.values(), self.schedules_us, *pauses]
        return min((next_us for next_us in instants if next_us is not None), default=None)

    def step(self, keys: ShardKeys, at_us: int | None = None) -> Operation[None]:
        """Dispatches all that is due in a shard, by now or by another instant, and forwards it."""
        now_us = self.time.now_us if at_us is None else at_us
        recovery = Recovery(self.cache)
        self._touched.discard(keys.slot)
        while True:
            topology = self.cache.topology
            routed = list(topology.open_routes)[:MAX_ROUTED]
            known = self._topics.setdefault(keys.shard, [])
            call = dispatch.dispatch(
                keys,
                topology.stamp,
                list(dict.fromkeys([*routed, *known]))[:MAX_TOPICS],
                limit=dispatch.MAX_BATCH,
                max_attempts=topology.settings.max_attempts,
                paused=topology.paused,
                routed=routed,
                caller=self._caller,
            ).at(now_us)
            try:
                result = yield call
                for topic in result.routed:
                    yield from self._forward(keys, topology, topic, now_us)
            except REFUSALS as refusal:
                yield from recovery.recover(keys, refusal)
                continue
            if result.moved or result.reaped:
                self.arrived.add(keys.shard)
            if result.lacking:
                self._topics[keys.shard] = [*result.lacking, *known][:MAX_TOPICS]
            elif result.next_us is None or result.next_us > now_us:
                self._next_us[keys.shard] = result.next_us
                return

    def _forward(self, keys: ShardKeys, topology: Topology, topic: str, now_us: int) -> Operation[None]:
        route = topology.routes[topic]
        assert self.driver is not None, "it has dispatched"
        if needs_forwarder(self.driver, topology, topic, keys):
            raise InvalidOption(
                f"the topic {topic!r} is forwarded within a rate, or to a list in another slot of a cluster, which a "
                "virtual clock can't do: test it in real time (--shardq-real-time)"
            )
        left = 1
        while left:
            where: Any = {"to": route.key, "side": route.way, "maxlen": route.maxlen, "limit": dispatch.MAX_BATCH}
            left = (yield dispatch.forward(keys, topology.stamp, topic, **where).at(now_us)).left

    def sweep(self, target_us: int) -> Operation[None]:
        """Dispatches all that falls due until an instant, in batches, each at the instant of its last task, or of the
        first lease that runs out. Right only where nothing handles or forwards a task at its own instant.
        """
        for keys in self.cache.span():
            while (next_us := self._next_us.get(keys.shard)) is not None and next_us <= target_us:
                heads = {"last": _score(keys, keys.due, dispatch.MAX_BATCH - 1), "lapse": _score(keys, keys.leased, 0)}
                scores: dict[str, int | None] = values((yield Many(heads)))
                instants = [ms * 1000 for ms in scores.values() if ms is not None]
                yield from self.step(keys, max(next_us, min([*instants, target_us])))

    def trim(self) -> Operation[None]:
        """Removes dead tasks that are not kept, and once an hour retires topics."""
        if self.time.now_us >= self._retire_us:
            self._retire_us = self.time.now_us + int(EVERY_S * 1e6)
            yield from retire(self.cache)
        topology = self.cache.topology
        age_ms, keep = topology.dead_age_ms, topology.dead_in_a_shard
        for keys in self.cache.span():
            while (yield listing.trim(keys, topology.stamp, age_ms=age_ms, keep=keep)) == listing.CHUNK:
                pass


def _is_of_acks(words: Sequence[Word]) -> bool:
    """True for a settle that schedules nothing again."""
    acks, _, kept = str(words[3]).partition(":")
    return len(words) == 5 + int(acks) * (2 if kept else 1) + 2 * int(words[4])


def _score(keys: ShardKeys, key: str, rank: int) -> Command[int | None]:
    """The score of the member of this rank; None if there are not so many."""

    def decode(answer: Any) -> int | None:
        while isinstance(answer, list) and answer:
            answer = answer[-1]  # a pair in a list, or the two in one list: the servers' protocols differ
        return None if answer == [] else int(float(answer))

    return Command(slot=keys.slot, words=("ZRANGE", key, rank, rank, "WITHSCORES"), decode=decode)


# ---- the arguments of clocks and assertions


def moved(now: dt.datetime, delta: dt.timedelta | None, parts: Mapping[str, float]) -> dt.datetime:
    """The instant so much later, by a timedelta or by numbers of units."""
    for name, value in parts.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise InvalidOption(f"{name} can't be {value!r:.80}; give a finite number, such as {name}=1")
    given = {name: value for name, value in parts.items() if value}
    if delta is not None and given:
        raise InvalidOption(f"give a timedelta, or {', '.join(given)}, not both")
    if delta is not None and not isinstance(delta, dt.timedelta):
        raise InvalidOption(f"{delta!r} is not a length of time; give days=1, seconds=30 and the like, or a timedelta")
    try:
        step = dt.timedelta(**given) if delta is None else delta
        later = now + step
    except OverflowError:
        asked = delta or ", ".join(f"{name}={value:g}" for name, value in given.items())
        raise InvalidOption(f"the clock can't move on by {asked}: its time ends with the year 9999") from None
    if step < dt.timedelta(0):
        raise InvalidOption(f"the clock can't go back by {-step}; give a length of time from 0")
    return later


def instant_us(when: dt.datetime) -> int:
    """An instant in µs since the epoch, rounded up to a whole ms, as due times are."""
    if not isinstance(when, dt.datetime):
        raise InvalidOption(
            f"{when!r} is not an instant; give an aware datetime, such as clock.now() + timedelta(days=1)"
        )
    if when.utcoffset() is None:
        raise NaiveDatetime(f"{when!r} has no time zone, so it names no instant; give an aware datetime")
    if when < EPOCH:
        raise InvalidOption(f"a clock can't show {when}: its time begins with 1970")
    return -((EPOCH - when) // US // 1000) * 1000
