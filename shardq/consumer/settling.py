"""Settling what was claimed: acks, retries, burials, leases given back or extended. Written once for both consumers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from shardq.calls import consume
from shardq.calls.consume import OtherSettlement, SettleAck, SettleStatus
from shardq.calls.request import Call
from shardq.consumer.claims import Claims
from shardq.errors import InvalidOption, LeaseLost, SettleError, ShardqError, Unanswered
from shardq.layout.keys import ShardKeys
from shardq.model.task import Delivery
from shardq.operation import Operation
from shardq.recovery import Part, call_shards

T = TypeVar("T")

SettleStatuses = Mapping[str, SettleStatus]
SettlementsByShard = Mapping[int, tuple[Sequence[SettleAck], Sequence[OtherSettlement]]]

OTHERS_PER_CALL = 200
"""A retry or a burial costs several commands, where acks share three."""


def settle(claims: Claims, by_shard: SettlementsByShard) -> Operation[dict[str, SettleStatus]]:
    """Settles deliveries of any number of shards. Returns, by id, those that were not simply done.

    Where some shards fail the rest is settled: raises SettleError, or the shards' own error when nothing was settled.
    """

    def settle(
        acks: Sequence[SettleAck], others: Sequence[OtherSettlement]
    ) -> Callable[[ShardKeys, int], Call[SettleStatuses]]:
        return lambda keys, epoch: consume.settle(keys, epoch, acks, others)

    parts: list[tuple[Part[SettleStatuses], Sequence[SettleAck | OtherSettlement]]] = []
    for shard, (acks, others) in by_shard.items():
        keys = claims.cache.keys(shard)
        parts += [((keys, settle(some, ())), some) for some in _slices(acks, consume.MAX_CLAIM)]
        parts += [((keys, settle((), some)), some) for some in _slices(others, OTHERS_PER_CALL)]
    broken: list[tuple[Part[SettleStatuses], ShardqError]] = []
    answers = yield from call_shards(claims.cache, [part for part, _ in parts], broken=broken)
    statuses = _statuses(answers)
    errors = {id(part): error for part, error in broken}
    done = [item for part, some in parts if id(part) not in errors for item in some]
    yield from claims.limiter.settled(done)
    if broken:
        first = broken[0][1]
        if not done:
            raise first
        reasons = {item.id: errors[id(part)] for part, some in parts if id(part) in errors for item in some}
        raise SettleError(
            settled=[item.id for item in done if statuses.get(item.id, "dead") == "dead"],
            lost=[item.id for item in done if statuses.get(item.id, "dead") != "dead"],
            failed={id: error for id, error in reasons.items() if not isinstance(error, Unanswered)},
            unknown=[id for id, error in reasons.items() if isinstance(error, Unanswered)],
            first=first,
        ) from first
    return statuses


def extend(
    claims: Claims, by_shard: Mapping[int, Sequence[SettleAck]], lease_ms: int
) -> Operation[dict[str, SettleStatus]]:
    """Moves the deadlines of leases. Returns, by id, those that are no longer held."""

    def extend(held: Sequence[SettleAck]) -> Callable[[ShardKeys, int], Call[SettleStatuses]]:
        return lambda keys, epoch: consume.extend(keys, epoch, held, lease_ms=lease_ms)

    parts: list[Part[SettleStatuses]] = [
        (claims.cache.keys(shard), extend(some))
        for shard, held in by_shard.items()
        for some in _slices(held, consume.MAX_CLAIM)
    ]
    statuses = _statuses((yield from call_shards(claims.cache, parts)))
    if claims.limiter.any_held:
        items = [item for held in by_shard.values() for item in held]
        yield from claims.limiter.extended([item for item in items if item.id not in statuses], lease_ms)
        # Whoever has these leases now has permits of its own.
        yield from claims.limiter.settled([item for item in items if item.id in statuses])
    return statuses


def _statuses(answers: Iterable[SettleStatuses]) -> dict[str, SettleStatus]:
    return {id: status for answer in answers for id, status in answer.items()}


def _slices(items: Sequence[T], most: int) -> list[Sequence[T]]:
    return [items[at : at + most] for at in range(0, len(items), most)]


def check_held(statuses: Mapping[str, SettleStatus], *, replaced_is_fine: bool) -> None:
    """Raises LeaseLost for leases that are no longer held. An ack of a task that a push has replaced is not an
    error.
    """
    lost = [
        id for id, status in statuses.items() if status == "lost" or (status == "replaced" and not replaced_is_fine)
    ]
    if lost:
        raise LeaseLost(lost)


def acks_by_shard(deliveries: Iterable[Delivery]) -> dict[int, list[SettleAck]]:
    by_shard: dict[int, list[SettleAck]] = {}
    for delivery in deliveries:
        by_shard.setdefault(delivery.shard, []).append(SettleAck(delivery.id, delivery.token))
    return by_shard


def one_or_many(deliveries: Delivery | Iterable[Delivery]) -> list[Delivery]:
    given: Any = deliveries  # Anything that a caller may have given, ids of deliveries for one.
    held = list(given) if isinstance(given, Iterable) else [given]
    if wrong := set(map(type, held)) - {Delivery}:
        raise InvalidOption(f"a delivery can't be {wrong.pop().__name__}; give what claim() gave out, one or many")
    return held
