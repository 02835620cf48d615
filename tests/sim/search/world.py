"""The world of a search: one model server with all shards, the states in which a search begins, and its end."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

from shardq.core.calls import by_id, consume, dispatch, lane_control, resharding
from shardq.core.calls.consume import Claim, SettleAck, SettleBury, SettleRetry
from shardq.core.calls.request import Call, Command
from shardq.core.consumer.settling import settle_acks
from shardq.core.layout.keys import shard_keys
from shardq.core.layout.topology import Limit, Topology
from shardq.core.model.record import JSON, encode_record
from shardq.core.operation import Confirm, Many, Operation, Pause
from shardq.core.resharding.migration import MoveTokens
from shardq.core.resharding.resizing import resize
from shardq.core.scripts import Script
from shardq.core.topology_cache import TopologyCache
from shardq.core.topology_recovery import Make, call_shards
from shardq.core.topology_upkeep import create_topology, open_shards, refresh
from shardq.core.topology_upkeep import declare as declare_topology
from shardq.errors import ShardqError
from tests.judge.model import Op
from tests.sim.invariants import Shard, Violation, check_lanes, check_once
from tests.sim.model.keyspace import Keyspace, Snapshot
from tests.sim.model.server import Failure, Server
from tests.sim.search.kinds import (
    AFTER,
    BEFORE,
    ID,
    KEYED,
    LANE,
    LEASE_MS,
    LIMIT,
    NAME,
    OTHER,
    TICK_MS,
    TOKEN,
    TOPIC,
    WINDOW_MS,
    Kind,
    claim_op,
    edit,
    moving,
    push,
)  # fmt: skip
from tests.sim.search.pictures import STILL, Picture, picture
from tests.support.heads import encode_head

START_US = 1_700_000_000_000_000
SHARDS = [shard_keys(NAME, shard, KEYED > 0) for shard in range(AFTER + 1)]


class World:
    """``instead``: scripts that are run in place of ours, by name."""

    def __init__(self, instead: Mapping[str, Script]) -> None:
        self.now_us = START_US
        self.space = Keyspace(lambda: self.now_us, shuffle=1)
        self.server = Server(self.space)
        self.instead = instead
        self._rung: set[int] = set()
        self.shards = [Shard(keys, self.space) for keys in SHARDS]
        self._kept: dict[int, tuple[Snapshot, int, frozenset[int]]] = {}
        self._executed: dict[Any, tuple[Any, int]] = {}
        self._settled: dict[int, Ending] = {}
        self._pictures: dict[int, Picture] = {}
        self._empty = self.keep()
        self._of_meta = {keys.meta: shard for keys, shard in zip(SHARDS, self.shards, strict=True)}

    def execute(self, request: Command[Any]) -> Any:
        """Carries a request out, and looks at all shards. Returns the raw answer."""
        if not isinstance(request, Call):
            return self.server.command(*request.words)
        script = self.instead.get(request.script.name, request.script)
        raw = self.server.run(script, request.keys, request.words)
        if isinstance(raw, Failure):
            raise Violation(f"{request.script.name} answers an error: {raw.text.decode()}, line {raw.line}")
        shard = self._of_meta.get(request.keys[0])
        messages = self.space.messages
        if shard is not None:
            number = shard.keys.shard
            if request.script.name == "open" or (request.script.name == "dispatch" and raw[0] == b"ok"):
                self._rung.discard(number)
            elif any(channel == shard.keys.bell.encode() for channel, _ in messages):
                self._rung.add(number)
            shard.check([TOPIC], is_rung=number in self._rung, now_ms=self.now_us / 1000)
            check_once(self.shards)
            check_lanes(self.shards)
        messages.clear()
        return raw

    def carry_out(self, operation: Operation[Any]) -> Any:
        """Carries an operation out alone."""
        try:
            step = next(operation)
            while True:
                if isinstance(step, Command):
                    result = self._answered(step)
                    step = operation.throw(result) if isinstance(result, ShardqError) else operation.send(result)
                elif isinstance(step, Many):
                    step = operation.send([(key, self._answered(request)) for key, request in step.pairs])
                elif isinstance(step, Confirm):
                    step = operation.send({seal.slot: "one" for seal in step.seals})
                else:
                    assert isinstance(step, Pause)
                    step = operation.send(None)
        except StopIteration as stop:
            return stop.value

    def _answered(self, request: Command[Any]) -> Any:
        try:
            return request.decode(self.execute(request))
        except ShardqError as exc:
            return exc

    def cache(self) -> TopologyCache:
        """The stored topology, as somebody new knows it."""
        cache = TopologyCache(NAME, self.carry_out(create_topology(NAME, BEFORE)))
        if KEYED and not cache.topology.is_keyed:
            known = cache.topology.with_topic(TOPIC, limit=Limit(per_key=KEYED))
            following = known.following(is_keyed=True)
            assert self.carry_out(declare_topology(cache, cache.topology, following))
            self.carry_out(open_shards(cache, cache.span()))
            _dispatched(self)  # which looks over the lanes of the topic
        return cache

    def forget(self) -> None:
        """Begins anew, empty."""
        self.restore(self._empty)
        self._kept = {self._empty: self._kept[self._empty]}
        self._executed.clear()
        self._settled.clear()
        self._pictures.clear()

    def change_a_setting(self) -> None:
        self.carry_out(edit(self.cache(), 0))

    def keep(self) -> int:
        """Keeps what is stored now, and the time. Returns its mark, the same for the same."""
        rung = frozenset(self._rung)
        mark = hash((self.space.dump(), self.now_us, rung))
        if mark not in self._kept:
            self._kept[mark] = self.space.snapshot(), self.now_us, rung
        return mark

    def restore(self, mark: int) -> None:
        kept, self.now_us, rung = self._kept[mark]
        self.space.restore(kept)
        self._rung = set(rung)

    def executed(self, mark: int, request: Command[Any]) -> tuple[Any, int]:
        """What a request answers in a kept state, and the mark of that after it."""
        name, keys = (request.script.name, tuple(request.keys)) if isinstance(request, Call) else ("", ())
        key = mark, name, keys, tuple(request.words)
        known = self._executed.get(key)
        if known is None:
            self.restore(mark)
            raw = self.execute(request)
            known = self._executed[key] = raw, self.keep()
            if name in STILL and (before := self._picture(mark)) != (after := self._picture(known[1])):
                raise Violation(f"{name} has changed {before} into {after}")
        return known

    def _picture(self, mark: int) -> Picture:
        known = self._pictures.get(mark)
        if known is None:
            self.restore(mark)
            known = self._pictures[mark] = picture(self.shards)
        return known

    def state_of_id(self) -> str:
        """Where the id is, as a look would tell."""
        id = ID.encode()
        for shard in self.shards:
            keys = shard.keys
            if id in shard.fields(keys.task):
                for name, key in (("scheduled", keys.due), ("leased", keys.leased), ("dead", keys.dead)):
                    if id in shard.scores(key):
                        return name
                return "ready"
        for shard in self.shards:
            parcel = shard.fields(shard.keys.moved).get(id)
            if parcel is not None:
                number, target, kind = parcel.split(b"|", 3)[:3]
                if b"%s|%s" % (id, number) in self.shards[int(target)].fields(self.shards[int(target)].keys.staged):
                    return "dead" if kind == b"dead" else "scheduled"
        return "gone"

    def forwarded(self) -> list[bytes]:
        """What stands in the lists that topics are forwarded to."""
        lists = (self.space.keys.get(f"{keys.prefix}out".encode()) for keys in SHARDS)
        return [payload for entries in lists if isinstance(entries, list) for payload in entries if payload != b"77"]


# ---- beginnings


@dataclass(frozen=True)
class Beginning:
    """A state in which a search begins, and the history that led there."""

    name: str
    steps: Sequence[Callable[[World], list[Op]]] = ()
    history: list[Op] = field(default_factory=list)

    def build(self, world: World) -> list[Op]:
        """Brings a new world there. Returns the history."""
        world.cache()
        history: list[Op] = []
        for place, step in enumerate(self.steps):
            at_us = (place - 100) * 1000.0
            for op in step(world):
                op.begin_us, op.end_us = at_us, at_us + 1
                history.append(op)
        return history


def _does(kind: Kind, number: int = 1) -> Callable[[World], list[Op]]:
    def step(world: World) -> list[Op]:
        result = world.carry_out(kind.make(world.cache(), number))
        return kind.judged(number)(result)

    return step


def _dispatched(world: World) -> list[Op]:
    cache = world.cache()
    make = partial(dispatch.dispatch, topics=[TOPIC], limit=10, max_attempts=LIMIT)
    world.carry_out(call_shards(cache, {keys.shard: (keys, make) for keys in cache.span()}))
    return []


def _claimed(lease_ms: int = LEASE_MS) -> Callable[[World], list[Op]]:
    def step(world: World) -> list[Op]:
        cache = world.cache()
        make = partial(consume.claim, shares={TOPIC: 5}, max=5, lease_ms=lease_ms, token=TOKEN)
        results = world.carry_out(call_shards(cache, {keys.shard: (keys, make) for keys in cache.span()}))
        (claimed,) = [each for each in results.values() if isinstance(each, Claim) and each.ids]
        op = claim_op(claimed, TOKEN)
        op.lease_us = lease_ms * 1000
        return [op]

    return step


def _settled(op: Op, item: Any) -> Callable[[World], list[Op]]:
    def step(world: World) -> list[Op]:
        cache = world.cache()
        keys = cache.keys(Topology(epoch=1, shards=BEFORE).shard_of(ID))
        make: Make[Any] = partial(consume.settle, acks=[], others=[item])
        if isinstance(item, SettleAck):
            make = partial(settle_acks, cache, [item])
        world.carry_out(call_shards(cache, {0: (keys, make)}))
        return [copy(op)]

    return step


def _resized(shards: int) -> Callable[[World], list[Op]]:
    def step(world: World) -> list[Op]:
        world.carry_out(resize(world.cache(), shards, rate=None, members=0))
        return []

    return step


def _brought(stage: str) -> Callable[[World], list[Op]]:
    """Moves the id up to a stage, as a mover that stands still there."""

    def step(world: World) -> list[Op]:
        cache = world.cache()
        topology = cache.topology
        source = cache.keys(Topology(epoch=1, shards=topology.priors[-1]).shard_of(ID))
        target = cache.home(ID)
        if KEYED:
            world._answered(lane_control.close(source, topology.stamp, [LANE]))
        world._answered(resharding.reserve(target, topology.stamp, "m:1", [ID]))
        if stage == "reserved":
            return []
        tasks = world._answered(resharding.take(source, topology.stamp, "m:1", target.shard, [ID]))
        if stage != "taken":
            world._answered(resharding.put(target, topology.stamp, tasks))
        if stage == "cleared":
            world._answered(resharding.clear(source, topology.stamp, tasks))
        return []

    return step


_FAR_MS = TICK_MS * 4

_PUSHED = _does(replace(push("keep")), 1)
_WINDOWED = _does(push("keep", 0, WINDOW_MS), 1)
_FAR = _does(push("keep", _FAR_MS), 1)
_READY = [_PUSHED, _dispatched]
_LEASED = [*_READY, _claimed()]
_ACKED = _settled(Op("ack", 0, outcome="done", token=TOKEN), SettleAck(ID, TOKEN))
_BURIED = _settled(Op("bury", 0, outcome="done", token=TOKEN), SettleBury(ID, TOKEN, "no"))
_RETRIED = _settled(
    Op("retry", 0, outcome="done", token=TOKEN, delay_us=_FAR_MS * 1e3), SettleRetry(ID, TOKEN, _FAR_MS, "no", LIMIT)
)

SIMPLE: Sequence[Beginning] = [
    Beginning("gone"),
    Beginning("gone, in its window", [_WINDOWED, _dispatched, _claimed(), _ACKED]),
    Beginning("scheduled", [_FAR]),
    Beginning("due", [_PUSHED]),
    Beginning("ready", _READY),
    Beginning("leased", _LEASED),
    Beginning("lease over", [*_READY, _claimed(0)]),
    Beginning("dead", [*_LEASED, _BURIED]),
]
"""``lease over``: its lease is one of no length."""

_RETRIED_IN_ITS_WINDOW = [_WINDOWED, _dispatched, _claimed(), _RETRIED]


def _neighbour(*, state: str) -> Callable[[World], list[Op]]:
    """Another task of the lane, in front."""

    def step(world: World) -> list[Op]:
        cache = world.cache()
        words: list[Any] = [OTHER, 0, encode_record(JSON, 77, encode_head(nonce=77))]
        (keys,) = cache.span()
        world._answered(by_id.push(keys, cache.topology.stamp, words))
        if state != "waiting":
            _dispatched(world)
        if state in ("leased", "lease over"):
            length = LEASE_MS if state == "leased" else 0
            world._answered(
                consume.claim(keys, cache.topology.stamp, {TOPIC: 5}, max=5, lease_ms=length, token="other")
            )
        return []

    return step


if KEYED:
    SIMPLE = [*SIMPLE] + [
        Beginning(f"{name} beside one that is {state}", [_neighbour(state=state), *steps])
        for name, steps in (("gone", []), ("scheduled", [_FAR]), ("due", [_PUSHED]), ("passed over", _READY))
        for state in ("waiting", "ready", "leased", "lease over")
    ]

MOVING: Sequence[Beginning] = [
    Beginning(f"{name}, {stage}", [*steps, _resized(AFTER), *([_brought(stage)] if stage != "not moved" else [])])
    for name, steps in (("scheduled", [_FAR]), ("retried in its window", _RETRIED_IN_ITS_WINDOW))
    for stage in ("not moved", "reserved", "taken", "put", "cleared")
] + [
    Beginning("dead, not moved", [*_LEASED, _BURIED, _resized(AFTER)]),
    Beginning("leased, not moved", [*_LEASED, _resized(AFTER)]),
    Beginning("ready, not moved", [*_READY, _resized(AFTER)]),
]
"""While the number of shards changes."""


# ---- the end


class Ending(NamedTuple):
    """The end of all that was left in a state."""

    met: Sequence[Op]
    """What is met of the id on the way."""
    end_us: int
    unused: str
    """What is wrong with marks that nobody used, unless a step of a migration broke off."""


def settled_down(world: World, mark: int) -> Ending:
    """Brings all that was left to an end."""
    known = world._settled.get(mark)
    if known is None:
        world.restore(mark)
        known = world._settled[mark] = _settled_down(world)
    return known._replace(met=[copy(op) for op in known.met])


def _settled_down(world: World) -> Ending:
    met: list[Op] = [Op("get", 0, outcome=world.state_of_id())]
    cache, numbers = world.cache(), MoveTokens("end")
    for _ in range(20):
        if _moved(world, cache, numbers):
            break
        met += _drained(world, cache)
    else:
        raise Violation("it does not come to rest: tasks are left to be moved")
    met += _drained(world, cache)
    unused = ""
    for shard in world.shards:
        shard.check_at_rest(is_used=shard.keys.shard < cache.topology.shards, now_ms=world.now_us / 1000)
        try:
            shard.check_marks()
        except Violation as exc:
            unused = str(exc)
    return Ending(met, world.now_us, unused)


def _moved(world: World, cache: TopologyCache, numbers: MoveTokens) -> bool:
    try:
        world.carry_out(refresh(cache))
        return bool(world.carry_out(moving(cache, numbers)))
    except ShardqError:
        return False


def _drained(world: World, cache: TopologyCache) -> list[Op]:
    """A long time goes by, and what is ready then is claimed and acknowledged. What is dead stays."""
    met: list[Op] = []
    for turn in range(2):
        world.now_us += TICK_MS * 6000
        _dispatched(world)
        token = f"end{world.now_us}"
        if KEYED:
            _dispatched(world)  # a change of settings had the first one look over lanes
        for keys in cache.span():
            call = consume.claim(keys, cache.topology.stamp, {TOPIC: 10}, max=10, lease_ms=LEASE_MS, token=token)
            for _ in range(10):
                claimed = world._answered(call)
                if not isinstance(claimed, Claim) or not claimed.ids:
                    break
                for id in claimed.ids:
                    if id == ID:
                        met.append(claim_op(claimed, token))
                    world._answered(settle_acks(cache, [SettleAck(id, token)], keys, cache.topology.stamp))
                    if id == ID:
                        met.append(Op("ack", 0, outcome="done", token=token))
                if KEYED:
                    _dispatched(world)
        del turn
    met.append(Op("get", 0, outcome=world.state_of_id()))
    return met
