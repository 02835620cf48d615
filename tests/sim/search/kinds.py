"""The operations that a search interleaves, all on one id, and the states that it begins in."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec

from shardq.core.calls import consume, dispatch, listing
from shardq.core.calls.consume import (
    Claim,
    SettleAck,
    SettleBury,
    SettleGiveBack,
    SettleHold,
    SettleRetry,
    SettleSnooze,
)
from shardq.core.calls.request import Epoch
from shardq.core.consumer.settling import settle_acks
from shardq.core.layout.keys import ShardKeys
from shardq.core.layout.topology import Limit, Topology
from shardq.core.model.checks import MAX_AT_MS
from shardq.core.model.record import JSON, decode_record, encode_record
from shardq.core.model.task import Outcome, Receipt
from shardq.core.operation import Operation
from shardq.core.producer.commands_by_id import cancel, get, hold, requeue, reschedule
from shardq.core.producer.packing import Entries, Packer
from shardq.core.producer.pushing import push_one
from shardq.core.resharding.lane_keeper import open_arrived
from shardq.core.resharding.migration import MoveRate, MoveTokens, sweep
from shardq.core.resharding.resizing import forget_priors, remove_marks, resize, unswept
from shardq.core.topology_cache import TopologyCache
from shardq.core.topology_edits import edit_topology
from shardq.core.topology_recovery import Make, call_shards, put_in_force
from shardq.core.topology_upkeep import declare as declare_topology
from shardq.core.topology_upkeep import open_shards, refresh
from shardq.engine.engine_wide import with_limit
from shardq.errors import Conflict, ShardqError, Unanswered
from shardq.features.listing.bulk import Bulk, bulk_query, purge
from tests.judge.model import Op
from tests.support.heads import encode_head

NAME = "x"
BEFORE, AFTER = 1, 2
TOPIC = ""
TOKEN = "t"

LEASE_MS = 20_000
WINDOW_MS = 600_000
LIMIT = 3
LATER_MS = 5000
"""A due time so much later; a tick goes past it, and past a lease."""
TICK_MS = 30_000

TAG = "red"


def _moving_id() -> str:
    before, after = Topology(epoch=1, shards=BEFORE), Topology(epoch=1, shards=AFTER)
    names = (f"a{number}" for number in range(100))
    return next(name for name in names if before.shard_of(name) != after.shard_of(name))


KEYED = int(os.environ.get("SHARDQ_SEARCH_KEYED", "0"))
"""How many of a key may be out, in a search of tasks with a key; 0 in one of tasks without. All of a process are of
one or the other.
"""


def _moving_lane() -> str:
    before, after = Topology(epoch=1, shards=BEFORE), Topology(epoch=1, shards=AFTER)
    lanes = (f"/k{number}/" for number in range(100))
    return next(lane for lane in lanes if before.shard_of(lane) != after.shard_of(lane))


LANE = _moving_lane()
ID = f"{LANE}b" if KEYED else _moving_id()
OTHER = f"{LANE}a"
"""It belongs elsewhere under the other number of shards."""

Judged = Callable[[Any], list[Op]]
"""The result of an operation, or its ShardqError, as the judge knows it; empty: nothing that concerns the id."""


@dataclass(frozen=True)
class Kind:
    """An operation. ``number``: that of its place in a search, by which payloads, nonces and tokens differ."""

    name: str
    make: Callable[[TopologyCache, int], Operation[Any]]
    judged: Callable[[int], Judged]
    is_short: bool = True
    """True if it takes one request where no number of shards changes."""
    moves: bool = False
    """True if it is a step of a migration."""


# ---- pushes


def _record(number: int, *, tagged: bool = True) -> bytes:
    return encode_record(JSON, number, encode_head(nonce=1000 + number, tags=(TAG,) if tagged else ()))


def _pushing(mode: str, delay_ms: int, window_ms: int, cache: TopologyCache, number: int) -> Operation[Receipt]:
    words: list[Any] = [ID, -delay_ms, _record(number), mode, window_ms]
    return push_one(cache, _Packer(), Entries(ids=[ID], unique=words))


class _Packer(Packer):
    """Makes no id of its own."""

    def __init__(self) -> None:
        super().__init__(JSON, max_payload=1 << 20)

    def again(self, id: str, due: Any, record: Any) -> tuple[str, Any, Any]:
        raise AssertionError(f"{id} is taken")


def push_judged(mode: str, delay_ms: int, window_ms: int, number: int) -> Judged:
    def judged(result: Any) -> list[Op]:
        op = Op("push", 0, number=number, delay_us=delay_ms * 1e3, mode=mode, window_us=window_ms * 1e3, limit=LIMIT)
        if isinstance(result, Receipt):
            op.outcome = f"{result.outcome}:{result.state}" if result.state else str(result.outcome)
        elif isinstance(result, Conflict):
            op.outcome = f"refused:{result.state}"
        elif not isinstance(result, Unanswered):
            return []
        return [op]

    return judged


def push(mode: str, delay_ms: int = 0, window_ms: int = 0) -> Kind:
    name = f"push {mode}{' later' if delay_ms else ''}{' with a window' if window_ms else ''}"
    return Kind(name, partial(_pushing, mode, delay_ms, window_ms), partial(push_judged, mode, delay_ms, window_ms))


# ---- orders


def order_judged(kind: Any, delay_ms: int, number: int) -> Judged:
    def judged(result: Any) -> list[Op]:
        op = Op(kind, 0, delay_us=delay_ms * 1e3)
        if isinstance(result, Outcome):
            op.outcome = "" if result is Outcome.UNKNOWN else str(result)
        elif kind == "get" and not isinstance(result, ShardqError):
            op.outcome = "gone" if result is None else result.state.replace("held", "scheduled")
        elif not isinstance(result, Unanswered):
            return []
        return [op]

    return judged


def _order(kind: Any, delay_ms: int = 0) -> Kind:
    def make(cache: TopologyCache, number: int) -> Operation[Any]:
        if kind == "cancel":
            return cancel(cache, ID)
        if kind == "get":
            return get(cache, ID, JSON)
        return (reschedule if kind == "reschedule" else requeue)(cache, ID, -delay_ms)

    return Kind(f"{kind}{' later' if delay_ms else ''}", make, partial(order_judged, kind, delay_ms))


def bulk_judged(number: int) -> Judged:
    return lambda result: [Op("bulk", 0, outcome="" if isinstance(result, ShardqError) else "applied", mode="cancel")]


def _purge(cache: TopologyCache, number: int) -> Operation[Any]:
    return purge(cache, TOPIC)


def _cancel_tag(cache: TopologyCache, number: int) -> Operation[Any]:
    bulk = Bulk(cache, "cancel", bulk_query("cancel", tag=TAG))
    while (yield from bulk.following()):
        pass


def _trim(cache: TopologyCache, number: int) -> Operation[Any]:
    return _on_each_shard(cache, partial(listing.trim, age_ms=0, keep=0))


# ---- leases


def _on_each_shard(cache: TopologyCache, make: Make[Any]) -> Operation[dict[int, Any]]:
    """On each shard that may have the id: what others do is of no concern."""
    shards = map(cache.keys, cache.topology.homes(ID))
    return (yield from call_shards(cache, {keys.shard: (keys, make) for keys in shards}))


def _claim(cache: TopologyCache, number: int) -> Operation[Any]:
    make = partial(consume.claim, shares={TOPIC: 5}, max=5, lease_ms=LEASE_MS, token=f"c{number}")
    return _on_each_shard(cache, make)


def _claim_judged(number: int) -> Judged:
    def judged(result: Any) -> list[Op]:
        for claimed in result.values() if isinstance(result, dict) else ():
            if isinstance(claimed, Claim) and ID in claimed.ids:
                return [claim_op(claimed, f"c{number}")]
        return []

    return judged


def claim_op(claimed: Claim, token: str, id: str = ID) -> Op:
    place = claimed.ids.index(id)
    failures, lapses = claimed.pasts.get(place, (0, 0))
    payload = decode_record(claimed.records[place], own=None).payload
    return Op(
        "claim",
        0,
        outcome="given",
        number=payload,
        token=token,
        lease_us=LEASE_MS * 1e3,
        failures=failures,
        lapses=lapses,
    )


def _settling(item: Any, is_ack: bool, cache: TopologyCache, number: int) -> Operation[Any]:
    """Its holder knows the shard that gave the task out."""
    keys = cache.keys(Topology(epoch=1, shards=BEFORE).shard_of(ID))
    make = partial(settle_acks, cache, [item]) if is_ack else partial(consume.settle, acks=[], others=[item])
    return call_shards(cache, {0: (keys, make)})


def _settle_judged(kind: Any, delay_ms: int, number: int) -> Judged:
    def judged(result: Any) -> list[Op]:
        op = Op(kind, 0, token=TOKEN, delay_us=delay_ms * 1e3, lease_us=LEASE_MS * 1e3)
        statuses = result.get(0) if isinstance(result, dict) else result
        if isinstance(statuses, Unanswered):
            return [op]
        if isinstance(statuses, ShardqError):
            return []
        status = dict(statuses or {}).get(ID, "done")
        op.outcome = "lost" if status == "lost" or (status == "replaced" and kind != "ack") else "done"
        return [op]

    return judged


def _settle(name: str, kind: Any, item: Any, delay_ms: int = 0) -> Kind:
    return Kind(name, partial(_settling, item, kind == "ack"), partial(_settle_judged, kind, delay_ms))


def _extending(cache: TopologyCache, number: int) -> Operation[Any]:
    keys = cache.keys(Topology(epoch=1, shards=BEFORE).shard_of(ID))
    make = partial(consume.extend, held=[SettleAck(ID, TOKEN)], lease_ms=LEASE_MS)
    return call_shards(cache, {0: (keys, make)})


# ---- what goes on by itself


def _nothing_judged(number: int) -> Judged:
    return lambda result: []


def _dispatch(cache: TopologyCache, number: int) -> Operation[Any]:
    return _on_each_shard(cache, partial(dispatch.dispatch, topics=[TOPIC], limit=10, max_attempts=LIMIT))


def _forward(cache: TopologyCache, number: int) -> Operation[Any]:
    def make(keys: ShardKeys, epoch: Epoch) -> Any:
        return dispatch.forward(keys, epoch, TOPIC, to=f"{keys.prefix}out", side="right", limit=10)

    return _on_each_shard(cache, make)


def edit(cache: TopologyCache, number: int) -> Operation[Any]:
    """Another epoch: a setting changes."""
    while True:
        yield from refresh(cache)
        known = cache.topology
        settings = msgspec.structs.replace(known.settings, dead_count=known.settings.dead_count + 1)
        following = known.following(settings=settings)
        if known.pending is None and (yield from declare_topology(cache, known, following)):
            yield from open_shards(cache, cache.span())
            return
        if known.pending is not None:
            return


def _resize(shards: int, cache: TopologyCache, number: int) -> Operation[Any]:
    return resize(cache, shards, rate=None, members=0)


def moving(cache: TopologyCache, numbers: MoveTokens) -> Operation[bool]:
    """One round of a mover. Returns True when there is nothing left to do."""
    yield from refresh(cache)
    topology = cache.topology
    if topology.pending is not None:
        yield from put_in_force(cache)
        return False
    if not topology.priors:
        return True
    for keys in (yield from unswept(cache, topology.span())):
        if cache.topology.stamp != topology.stamp:
            return False
        yield from sweep(cache, keys, numbers, MoveRate())
    if KEYED:
        for keys in cache.span():
            yield from open_arrived(cache, keys)
    shards = cache.span()
    if not (yield from forget_priors(cache)):
        return False
    yield from remove_marks(cache, shards)
    return True


def _move(cache: TopologyCache, number: int) -> Operation[Any]:
    return moving(cache, MoveTokens(f"m{number}"))


def _occurrence(cache: TopologyCache, number: int) -> Operation[Any]:
    """A push ahead of a schedule: by a dispatcher that may be late."""
    return _pushing("keep", LATER_MS, WINDOW_MS, cache, number)


def _retraction(cache: TopologyCache, number: int) -> Operation[Any]:
    """What holds an occurrence back: it is pushed, so that nobody else can, and put off for good; then cancelled."""
    words: list[Any] = [ID, MAX_AT_MS, _record(number), "keep", WINDOW_MS]
    results: list[Any] = [(yield from push_one(cache, _Packer(), Entries(ids=[ID], unique=words)))]
    results.append((yield from reschedule(cache, ID, MAX_AT_MS)))
    if results[-1] is Outcome.MOVED:
        results.append((yield from cancel(cache, ID)))
    return results


def _retraction_judged(number: int) -> Judged:
    far_ms = MAX_AT_MS // 2  # far enough from whatever the time is
    parts = [push_judged("keep", far_ms, WINDOW_MS, number), order_judged("reschedule", far_ms, number)]
    parts.append(order_judged("cancel", 0, number))

    def judged(result: Any) -> list[Op]:
        results = result if isinstance(result, list) else []
        heard = [op for judge, each in zip(parts, results, strict=False) for op in judge(each)]
        unheard = [op for judge in parts[len(results) :] for op in judge(Unanswered(""))]
        return heard if isinstance(result, list) else unheard

    return judged


PUSHES = [
    push("keep"),
    push("keep", LATER_MS),
    push("reject"),
    push("replace"),
    push("keep", 0, WINDOW_MS),
    push("replace", LATER_MS, WINDOW_MS),
]

ORDERS = [_order("cancel"), _order("reschedule", LATER_MS), _order("reschedule"), _order("requeue"), _order("get")]

SETTLEMENTS = [
    _settle("ack", "ack", SettleAck(ID, TOKEN)),
    _settle("retry", "retry", SettleRetry(ID, TOKEN, LATER_MS, "no", LIMIT), LATER_MS),
    _settle("bury", "bury", SettleBury(ID, TOKEN, "no")),
    _settle("snooze", "snooze", SettleSnooze(ID, TOKEN, LATER_MS), LATER_MS),
    _settle("give back", "snooze", SettleGiveBack(ID, TOKEN)),
    Kind("extend", _extending, partial(_settle_judged, "extend", 0)),
]

SERVICE = [
    Kind("dispatch", _dispatch, _nothing_judged),
    Kind("claim", _claim, _claim_judged),
    Kind("forward", _forward, _nothing_judged),
]

BULK = [
    Kind("purge", _purge, bulk_judged),
    Kind("cancel by tag", _cancel_tag, bulk_judged, is_short=False),
    Kind("trim", _trim, bulk_judged),
]

SIMILAR = ("reschedule", "get", "bury", "snooze", "give back", "push keep later", "trim")
"""Operations that others stand for where three are searched."""

CHANGES = [
    Kind("edit", edit, _nothing_judged, is_short=False),
    Kind("resize", partial(_resize, AFTER), _nothing_judged, is_short=False),
    Kind("resize back", partial(_resize, BEFORE), _nothing_judged, is_short=False),
    Kind("move", _move, _nothing_judged, is_short=False, moves=True),
]

SCHEDULE = [
    Kind("occurrence", _occurrence, partial(push_judged, "keep", LATER_MS, WINDOW_MS)),
    Kind("retraction", _retraction, _retraction_judged, is_short=False),
]


def _holding(until: int | str, cache: TopologyCache, number: int) -> Operation[Any]:
    return hold(cache, TOPIC, LANE.split("/")[1], until)


def _limited(limit: Limit, cache: TopologyCache, number: int) -> Operation[Any]:
    yield from edit_topology(cache, partial(with_limit, topic=TOPIC, limit=limit))


OF_KEYS = [
    _settle("hold", "snooze", SettleHold(ID, TOKEN, LATER_MS)),  # it may be let go at any time
    Kind("put the key on hold", partial(_holding, -LATER_MS), _nothing_judged),
    Kind("let the key go", partial(_holding, ""), _nothing_judged),
    Kind("more at once", partial(_limited, Limit(per_key=KEYED + 1)), _nothing_judged, is_short=False),
    Kind("one at once", partial(_limited, Limit(per_key=1)), _nothing_judged, is_short=False),
    Kind("at a rate", partial(_limited, Limit(per_key=KEYED, per_key_rate=0.2)), _nothing_judged, is_short=False),
]

STEADY: Sequence[Kind] = [*PUSHES, *ORDERS, *SETTLEMENTS, *SERVICE, *BULK, *(OF_KEYS if KEYED else ())]

KINDS: Sequence[Kind] = [*STEADY, *CHANGES]

FEW: Sequence[Kind] = [kind for kind in STEADY if kind.is_short and kind.name not in SIMILAR]
