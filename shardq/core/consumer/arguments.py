"""Checks and converts the arguments of both consumers before anything is sent. No I/O."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable

from shardq.core.calls.consume import OtherSettlement, SettleBury, SettleGiveBack, SettleRetry, SettleSnooze
from shardq.core.consumer import policy
from shardq.core.consumer.policy import Bury, Retry, Snooze, reason_of
from shardq.core.consumer.settling import SettlementsByShard, acks_of
from shardq.core.model.checks import check_seconds, due_spec, reason_text
from shardq.core.model.task import Delivery
from shardq.errors import InvalidOption

ITERATION_WAIT_S = 60.0
"""The wait of one claim under a loop over a consumer; ``close()`` ends it sooner."""


def check_claim(max: int, wait: float) -> None:
    if not isinstance(max, int) or isinstance(max, bool) or max < 1:
        raise InvalidOption(f"a claim of max={max!r} deliveries is not possible; give an int from 1")
    check_seconds(wait, "wait")


def retries(deliveries: Iterable[Delivery], delay_ms: Callable[[Delivery], int], reason: str) -> SettlementsByShard:
    text = reason_text(reason)
    return _others((d, SettleRetry(d.id, d.token, delay_ms(d), text, None)) for d in deliveries)


def burials(deliveries: Iterable[Delivery], reason: str) -> SettlementsByShard:
    text = reason_text(reason)
    return _others((d, SettleBury(d.id, d.token, text)) for d in deliveries)


def snoozes(deliveries: Iterable[Delivery], delay: float | dt.timedelta) -> SettlementsByShard:
    ms = policy.snooze_ms(delay)
    return _others((d, SettleSnooze(d.id, d.token, ms)) for d in deliveries)


def settlements_after(
    deliveries: list[Delivery], failure: BaseException | None, delay: float | dt.timedelta | None
) -> SettlementsByShard:
    """The settlements after a block that raised ``failure``, or None. ``delay``: None is by the default backoff."""
    match failure:
        case None:
            return acks_of(deliveries)
        case Bury():
            return burials(deliveries, failure.reason)
        case Snooze():
            return snoozes(deliveries, failure.delay)
        case Retry():
            given, reason = delay if failure.delay is None else failure.delay, failure.reason
        case Exception():
            given, reason = delay, reason_of(failure)
        case _:
            return back_unbegun(deliveries)

    def delay_ms(delivery: Delivery) -> int:
        return policy.delay_ms(policy.DEFAULT, delivery.attempt) if given is None else -due_spec(given, None)

    return retries(deliveries, delay_ms, reason)


def back_unbegun(deliveries: Iterable[Delivery]) -> SettlementsByShard:
    """Gives deliveries back, which counts no attempt."""
    return _others((d, SettleGiveBack(d.id, d.token)) for d in deliveries)


def _others(settlements: Iterable[tuple[Delivery, OtherSettlement]]) -> SettlementsByShard:
    by_shard: dict[int, tuple[tuple[()], list[OtherSettlement]]] = {}
    for delivery, settlement in settlements:
        by_shard.setdefault(delivery.shard, ((), []))[1].append(settlement)
    return by_shard
