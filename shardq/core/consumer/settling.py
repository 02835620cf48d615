"""Settling what was claimed: acks, retries, burials, leases given back or extended. Written once for both consumers."""

from __future__ import annotations

import datetime as dt
import itertools
import operator
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import msgspec

from shardq.core.calls import consume
from shardq.core.calls.consume import (
    KeyWaits,
    Leased,
    OtherSettlement,
    SettleAck,
    SettleBury,
    SettleGiveBack,
    SettleHold,
    SettleRetry,
    SettleSnooze,
    SettleStatus,
)
from shardq.core.calls.request import Call, Epoch
from shardq.core.consumer import policy
from shardq.core.consumer.claim_state import Claims
from shardq.core.consumer.holding import delays_of_topics, pause_topics
from shardq.core.consumer.policy import Bury, Gone, Hold, Retry, Snooze, reason_of
from shardq.core.consumer.rate_limiter import LATE_S, permits_of
from shardq.core.layout.keys import ShardKeys
from shardq.core.layout.lanes import lane_of
from shardq.core.layout.topology import Topology
from shardq.core.model.attempts import holder_of, with_attempt
from shardq.core.model.checks import due_spec, reason_text
from shardq.core.model.ends import end_word
from shardq.core.model.ids import topic_of
from shardq.core.model.task import Delivery
from shardq.core.operation import Operation, succeeded
from shardq.core.topology_cache import TopologyCache
from shardq.core.topology_recovery import Request, call_shards
from shardq.errors import InvalidOption, LeaseLost, SettleError, ShardqError, Unanswered

T = TypeVar("T")
S = TypeVar("S", bound=OtherSettlement)

SettleStatuses = Mapping[str, SettleStatus]
Settlement = Delivery | SettleAck | OtherSettlement
"""A delivery itself is its ack: it names the lease."""
SettlementsByShard = Mapping[int, tuple[Sequence[Leased], Sequence[OtherSettlement]]]

_shard_of = operator.attrgetter("shard")

OTHERS_PER_CALL = 200
"""A retry or a burial costs several commands, where acks share three."""


def settle(claims: Claims, settlements: SettlementsByShard) -> Operation[dict[str, SettleStatus]]:
    """Settles deliveries of any number of shards. Returns, by id, those that were not simply done.

    Where some shards fail the rest is settled: raises SettleError; or the shards' own error where nothing was settled,
    and it is unknown of all if it was, or of none.
    """
    statuses, done, errors = yield from settle_each(claims, settlements)
    if errors:
        first = next(iter(errors.values()))
        if not done and len({isinstance(error, Unanswered) for error in errors.values()}) == 1:
            raise first
        raise SettleError(
            settled=[item.id for item in done if statuses.get(item.id, "dead") == "dead"],
            lost=[item.id for item in done if statuses.get(item.id, "dead") != "dead"],
            failed={id: error for id, error in errors.items() if not isinstance(error, Unanswered)},
            unknown=[id for id, error in errors.items() if isinstance(error, Unanswered)],
            first=first,
        ) from first
    return statuses


def settle_each(
    claims: Claims, settlements: SettlementsByShard
) -> Operation[tuple[dict[str, SettleStatus], list[Leased], dict[str, ShardqError]]]:
    """The same, and raises nothing: returns the statuses by id, the leases that shards have settled, and by id the
    errors of the others.
    """
    parts: list[Sequence[Leased]] = []
    requests: dict[int, Request[SettleStatuses]] = {}
    held_up: list[SettleHold] = []
    for shard, (acks, others) in settlements.items():
        keys = claims.cache.keys(shard)
        for at in range(0, len(acks), consume.MAX_CLAIM):
            parts.append(held := acks[at : at + consume.MAX_CLAIM])
            requests[len(requests)] = keys, partial(settle_acks, claims.cache, held, note_waits=claims.note_waits)
        for some in _slices(others, OTHERS_PER_CALL):
            parts.append(some)
            requests[len(requests)] = keys, partial(_settle_others, claims, some)
            for each in some:
                if isinstance(each, SettleHold) and lane_of(each.id) is None:
                    held_up.append(each)
    if holds := delays_of_topics(held_up) if held_up else {}:
        claims.hold(holds)  # before the trip: what this consumer would claim meanwhile would meet the same
    statuses: dict[str, SettleStatus] = {}
    done: list[Leased] = []
    errors: dict[str, ShardqError] = {}
    for number, result in (yield from call_shards(claims.cache, requests)).items():
        if isinstance(result, ShardqError):
            errors |= dict.fromkeys([item.id for item in parts[number]], result)
        else:
            statuses |= result
            done += parts[number]
    if permits := permits_of(done):
        yield from claims.limiter.released(permits)
    if holds:
        yield from pause_topics(claims, holds)
    return statuses, done, errors


def settle_acks(
    cache: TopologyCache,
    acks: Sequence[Leased],
    keys: ShardKeys,
    epoch: Epoch,
    *,
    note_waits: Callable[[KeyWaits], object] = lambda _: None,
) -> Call[SettleStatuses]:
    """Acknowledges, and has keys hand the places that become free to their next tasks."""
    topology, topics, ends = cache.topology, list[str](), dict[str, str]()
    # by the topology of the call alone: the guard of the script compares that with the shard's
    if topology.is_keyed and topology.stamp == epoch:
        found = {topic_of(ack.id) for ack in acks if lane_of(ack.id) is not None}
        topics = sorted(filter(topology.hands_over, found))[: consume.MAX_HANDING]
    kept = topology if topology.stamp == epoch else cache.of(epoch)
    if kept.ends_rule:
        for ack in acks:
            if word := _end_of(ack) if kept.ends_age_ms(topic_of(ack.id)) else "":
                ends[ack.id] = word
    return consume.settle(keys, epoch, acks, handing=topics, note_waits=note_waits, ends_rule=kept.ends_rule, ends=ends)


def _end_of(ack: Leased) -> str:
    if isinstance(ack, Delivery):
        return end_word(ack.past, ack.pushed_s)
    return ack.end if isinstance(ack, SettleAck) else ""


def worked(delivery: Delivery, topology: Topology, took_s: float | None) -> Delivery | SettleAck:
    """The ack of a delivery whose handler took so long."""
    if not topology.ends_rule or not topology.ends_age_ms(delivery.topic):
        return delivery
    return SettleAck(delivery.id, delivery.token, end_word(delivery.past, delivery.pushed_s, took_s))


def _settle_others(
    claims: Claims, others: Sequence[OtherSettlement], keys: ShardKeys, epoch: Epoch
) -> Call[SettleStatuses]:
    """Settles by the engine's present number of attempts: what was refused as stale is sent again by a newer one."""
    return consume.settle(keys, epoch, (), others, max_attempts=claims.cache.topology.settings.max_attempts)


def extend(claims: Claims, leases: Mapping[int, Sequence[Leased]], lease_ms: int) -> Operation[dict[str, SettleStatus]]:
    """Moves the deadlines of leases. Returns, by id, those that are no longer held. Where some shards fail, it raises
    Unanswered if others have done it, or may have.

    Permits are renewed first, so that none lapses under a lease. A lease that was over, and whose place another has
    got, is not extended.
    """
    items = [item for held in leases.values() for item in held]
    permits, began = permits_of(items), time.monotonic()
    taken: set[str] = set()
    if permits:
        taken, _ = yield from claims.limiter.renewed(permits, lease_ms)
    statuses: dict[str, SettleStatus] = {item.id: "lost" for item in items if item.token in taken}
    requests = {
        (shard, number): (claims.cache.keys(shard), partial(consume.extend, held=some, lease_ms=lease_ms))
        for shard, held in leases.items()
        for number, some in enumerate(_slices([item for item in held if item.token not in taken], consume.MAX_CLAIM))
    }
    results = yield from call_shards(claims.cache, requests)
    errors = [result for result in results.values() if isinstance(result, ShardqError)]
    if errors:
        raise _of_all(errors, is_part_done=len(errors) < len(results))
    statuses |= {id: status for result in succeeded(results.items()).values() for id, status in result.items()}
    if permits:
        yield from claims.limiter.released(permits_of([item for item in items if item.id in statuses]))
        if time.monotonic() - began > LATE_S:
            yield from claims.limiter.renewed(permits_of([item for item in items if item.id not in statuses]), lease_ms)
    return statuses


def _of_all(errors: Sequence[ShardqError], *, is_part_done: bool) -> ShardqError:
    """The error of leases that were extended together: one of those that say that nothing was written, if that is so
    of all.
    """
    lost = next((error for error in errors if isinstance(error, Unanswered)), None)
    if lost is not None or not is_part_done:
        return lost or errors[0]
    partly = Unanswered(f"some of these leases are extended and some are not; extend all of them again: {errors[0]}")
    partly.last = errors[0]
    partly.__cause__ = errors[0]
    return partly


def _slices(items: Sequence[T], most: int) -> Sequence[Sequence[T]]:
    return [items[at : at + most] for at in range(0, len(items), most)]


def check_held(statuses: Mapping[str, SettleStatus], *, replaced_is_fine: bool) -> None:
    """Raises LeaseLost for leases that are no longer held. An ack of a task that a push has replaced is not an
    error.
    """
    if statuses:
        lost = [id for id, why in statuses.items() if why == "lost" or (why == "replaced" and not replaced_is_fine)]
        if lost:
            raise LeaseLost(lost)


def per_shard(deliveries: Iterable[Delivery]) -> dict[int, list[Delivery]]:
    divided: dict[int, list[Delivery]] = {}
    # Those of one claim come shard by shard.
    for shard, run in itertools.groupby(deliveries, _shard_of):
        divided.setdefault(shard, []).extend(run)
    return divided


def acks_of(deliveries: Sequence[Delivery]) -> SettlementsByShard:
    if len(deliveries) == 1:
        return {deliveries[0].shard: (deliveries, ())}
    return {shard: (held, ()) for shard, held in per_shard(deliveries).items()}


def one_or_many(deliveries: Delivery | Iterable[Delivery]) -> list[Delivery]:
    given: Any = deliveries  # Anything that a caller may have given, ids of deliveries for one.
    held = list(given) if isinstance(given, Iterable) else [given]
    if wrong := set(map(type, held)) - {Delivery}:
        raise InvalidOption(f"a delivery can't be {wrong.pop().__name__}; give what claim() gave out, one or many")
    return held


def settlement_after(
    delivery: Delivery,
    failure: BaseException,
    delay: float | dt.timedelta | None = None,
    backoff_ms: Callable[[int], int] | None = None,
    max_attempts: int | None = None,
) -> OtherSettlement:
    """The settlement after a handler, or a block, that raised ``failure``. ``delay``: that of a retry; None: by
    ``backoff_ms``, which is given the number of the attempt, or else by the default backoff.
    """
    id, token = delivery.id, delivery.token
    match failure:
        case Gone():
            return SettleBury(id, token, reason_text(failure.reason), policy.snooze_ms(failure.hold_s))
        case Bury():
            return SettleBury(id, token, reason_text(failure.reason))
        case Hold():
            return SettleHold(id, token, policy.snooze_ms(failure.delay))
        case Snooze():
            return SettleSnooze(id, token, policy.snooze_ms(failure.delay))
        case Retry():
            reason, delay = failure.reason, delay if failure.delay is None else failure.delay
        case _:
            reason = reason_of(failure)
    if delay is not None:
        delay_ms = -due_spec(delay, None)
    elif backoff_ms is not None:
        delay_ms = backoff_ms(delivery.attempt)
    else:
        delay_ms = policy.delay_ms(policy.DEFAULT, delivery.attempt)
    return SettleRetry(id, token, delay_ms, reason_text(reason), max_attempts)


def noted(settlement: S, past: str, took_s: float | None = None) -> S:
    """The settlement as it is sent. If the attempt has failed, it is noted behind those before (``past``)."""
    if not isinstance(settlement, SettleRetry | SettleBury):
        return settlement
    text = with_attempt(
        settlement.reason,
        past,
        at_ms=int(time.time() * 1000),
        process=holder_of(settlement.token),
        took_ms=None if took_s is None else round(took_s * 1000),
    )
    return msgspec.structs.replace(settlement, reason=text)


def back_unbegun(deliveries: Iterable[Delivery]) -> SettlementsByShard:
    """Gives deliveries back, which counts no attempt."""
    return by_shard((d, SettleGiveBack(d.id, d.token)) for d in deliveries)


def by_shard(settlements: Iterable[tuple[Delivery, Settlement]]) -> SettlementsByShard:
    divided: dict[int, tuple[list[Leased], list[OtherSettlement]]] = {}
    for delivery, settlement in settlements:
        parts = divided.get(delivery.shard)
        if parts is None:
            parts = divided[delivery.shard] = [], []
        if isinstance(settlement, Delivery | SettleAck):
            parts[0].append(settlement)
        else:
            parts[1].append(settlement)
    return divided
