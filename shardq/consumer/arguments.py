"""Checks and converts the arguments of both consumers before anything is sent. No I/O."""

from __future__ import annotations

import datetime as dt

from shardq.calls.consume import OtherSettlement, SettleBury, SettleRetry
from shardq.consumer.settling import SettlementsByShard
from shardq.errors import InvalidOption
from shardq.model.checks import check_seconds, due_spec, reason_text
from shardq.model.task import Delivery

ITERATION_WAIT_S = 60.0
"""The wait of one claim under a loop over a consumer; ``close()`` ends it sooner."""


def check_claim(max: int, wait: float) -> None:
    if not isinstance(max, int) or isinstance(max, bool) or max < 1:
        raise InvalidOption(f"a claim of max={max!r} deliveries is not possible; give an int from 1")
    check_seconds(wait, "wait")


def retries(
    deliveries: list[Delivery], delay: float | dt.timedelta, reason: str, max_attempts: int
) -> SettlementsByShard:
    delay_ms = -due_spec(delay, None)
    by_shard: dict[int, tuple[tuple[()], list[OtherSettlement]]] = {}
    for d in deliveries:
        by_shard.setdefault(d.shard, ((), []))[1].append(
            SettleRetry(d.id, d.token, delay_ms, reason_text(reason), max_attempts)
        )
    return by_shard


def burials(deliveries: list[Delivery], reason: str) -> SettlementsByShard:
    by_shard: dict[int, tuple[tuple[()], list[OtherSettlement]]] = {}
    for d in deliveries:
        by_shard.setdefault(d.shard, ((), []))[1].append(SettleBury(d.id, d.token, reason_text(reason)))
    return by_shard
