"""A failed attempt: its backoff, the exceptions Retry, Bury and Snooze, and the reason that is kept."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest

from shardq import Backoff, Bury, Retry, Snooze
from shardq.core.calls import consume
from shardq.core.consumer.policy import reason_of
from shardq.core.model.checks import MAX_REASON
from shardq.core.model.task import Delivery
from shardq.delivery.handler import Handler
from shardq.delivery.job import Job, settlement_of
from shardq.errors import InvalidDelay, InvalidOption


@pytest.mark.parametrize(("attempt", "most"), [(1, 2.0), (2, 4.0), (3, 8.0), (5, 32.0), (6, 50.0), (1_000_000, 50.0)])
def test_full_jitter(attempt: int, most: float) -> None:
    delays = [Backoff(base=2.0, cap=50.0).delay_s(attempt) for _ in range(2000)]
    assert min(delays) >= 0
    assert max(delays) <= most
    # full: over the whole of it, evenly
    assert min(delays) < most * 0.05
    assert max(delays) > most * 0.95
    assert sum(delays) / len(delays) == pytest.approx(most / 2, rel=0.1)


def test_no_backoff_at_all() -> None:
    assert Backoff(base=0, cap=0).delay_s(3) == 0


@pytest.mark.parametrize(
    ("base", "cap"),
    [
        (-1.0, 5.0),
        (2.0, 1.0),
        (1.0, float("inf")),
        (float("nan"), 1.0),
        (0.0, float("nan")),
        ("1", 5.0),
        (1.0, None),
        (True, 5.0),
    ],
)
def test_an_impossible_backoff(base: Any, cap: Any) -> None:
    with pytest.raises(InvalidOption, match="give 0 <= base <= cap"):
        Backoff(base=base, cap=cap)


def job(backoff: Backoff | None = None, attempt: int = 1) -> Job:
    delivery = Delivery(
        id="a", topic="", payload=None, attempt=attempt, headers={}, token="t", shard=0, failures=attempt - 1, lapses=0
    )
    handler = Handler(
        topic="",
        run=print,
        is_coroutine=lambda _: False,
        has_coroutines=lambda: False,
        name=lambda _: "print",
        max_attempts=7,
        backoff=backoff or Backoff(),
    )
    return Job(delivery, handler)


class BareSnooze(Snooze):
    def __init__(self) -> None:
        pass


def test_verdicts() -> None:
    assert settlement_of(job(), Retry(delay=1.5, reason="busy")) == consume.SettleRetry("a", "t", 1500, "busy", 7)
    assert settlement_of(job(), Bury("of no use")) == consume.SettleBury("a", "t", "of no use")
    assert settlement_of(job(Backoff(base=0)), Retry()) == consume.SettleRetry(
        "a", "t", 0, "the handler asked for a retry", 7
    )
    assert settlement_of(job(), Snooze(1.5)) == consume.SettleSnooze("a", "t", 1500)
    assert settlement_of(job(), Snooze(dt.timedelta(hours=1))) == consume.SettleSnooze("a", "t", 3_600_000)
    assert settlement_of(job(), BareSnooze()) == consume.SettleSnooze("a", "t", 60_000)


@pytest.mark.parametrize("exc", [ValueError("boom"), SystemExit(3), KeyboardInterrupt(), RecursionError("deep")])
def test_whatever_a_handler_raises_is_a_failure(exc: BaseException) -> None:
    settlement = settlement_of(job(Backoff(base=4, cap=4), attempt=3), exc)
    assert isinstance(settlement, consume.SettleRetry)
    assert 0 <= settlement.delay_ms <= 4000
    assert type(exc).__name__ in settlement.reason


def test_the_reason_is_the_end_of_the_traceback() -> None:
    def deep(levels: int) -> None:
        if levels:
            deep(levels - 1)
        raise ValueError("the cause is said last")

    try:
        deep(200)
    except ValueError as exc:
        reason = reason_of(exc)
    assert reason.endswith("ValueError: the cause is said last")
    assert "in deep" in reason
    assert len(reason) <= MAX_REASON


@pytest.mark.parametrize("delay", [-1, float("nan"), float("inf"), "5"])
def test_an_impossible_delay_is_refused_where_it_is_given(delay: Any) -> None:
    with pytest.raises(InvalidDelay):
        Retry(delay=delay)
    with pytest.raises(InvalidDelay, match="a delay can't be"):
        Snooze(delay)


def test_a_snooze_needs_a_delay() -> None:
    missing: Any = None
    with pytest.raises(InvalidDelay, match="a delay can't be None; give seconds as a number, or a timedelta"):
        Snooze(missing)


@pytest.mark.parametrize("make", [Bury, lambda reason: Retry(reason=reason)])
def test_a_reason_is_a_text(make: Any) -> None:
    with pytest.raises(InvalidOption, match="a reason can't be NoneType; give a str"):
        make(None)


@pytest.mark.parametrize("make", [Bury, lambda reason: Retry(reason=reason), ValueError])
def test_a_reason_can_always_be_stored(make: Any) -> None:
    settlement = settlement_of(job(), make("x" * 5000 + "\udcff the end"))
    assert isinstance(settlement, consume.SettleBury | consume.SettleRetry)
    assert settlement.reason.endswith("the end")
    assert len(settlement.reason.encode()) <= MAX_REASON + 10
