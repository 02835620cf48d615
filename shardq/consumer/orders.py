"""What both consumers make of their arguments before anything is sent. Pure."""

from __future__ import annotations

import datetime as dt

from shardq.calls.consume import Bury, Other, Retry
from shardq.consumer.operations import Settlement
from shardq.errors import InvalidOption
from shardq.model.checks import check_seconds, due_spec, reason_text
from shardq.model.task import Delivery

ITERATION_WAIT_S = 60.0
"""Of one claim under a loop over a consumer; ``close()`` ends it sooner."""


def check_claim(max: int, wait: float) -> None:
    if not isinstance(max, int) or isinstance(max, bool) or max < 1:
        raise InvalidOption(f"a claim of max={max!r} deliveries is not possible; give an int from 1")
    check_seconds(wait, "wait")


def retries(deliveries: list[Delivery], delay: float | dt.timedelta, reason: str, max_attempts: int) -> Settlement:
    delay_ms = -due_spec(delay, None)
    by_shard: dict[int, tuple[tuple[()], list[Other]]] = {}
    for d in deliveries:
        by_shard.setdefault(d.shard, ((), []))[1].append(
            Retry(d.id, d.token, delay_ms, reason_text(reason), max_attempts)
        )
    return by_shard


def burials(deliveries: list[Delivery], reason: str) -> Settlement:
    by_shard: dict[int, tuple[tuple[()], list[Other]]] = {}
    for d in deliveries:
        by_shard.setdefault(d.shard, ((), []))[1].append(Bury(d.id, d.token, reason_text(reason)))
    return by_shard
