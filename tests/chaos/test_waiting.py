"""A task of a quiet topic that waits while a worker is idle is found, unless a fault explains it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.chaos.nemesis.nemesis import Happened
from tests.chaos.plan import Fault, FaultKind
from tests.chaos.waiting import BOUND_S, RECOVERS_S, waited
from tests.judge.history import Call
from tests.judge.model import Op
from tests.judge.verdict import Loss

S = 1e6

OVER_S = 100.0

ID = "quiet/1"

WORKER = Call("quiet1.1", "worker", 0.0)


def task(due_s: float, given_s: float, **more: int) -> list[Call]:
    push = Op("push", 0.0, due_s * S, "pushed", 7)
    claim = Op("claim", 0.0, given_s * S, "given", 7, **more)  # type: ignore[arg-type]
    return [Call("quiet2.1", "push", 0.0, ops=[(ID, push)]), Call("quiet1.1", "handler", 0.0, ops=[(ID, claim)])]


def happened(kind: FaultKind, from_s: float, to_s: float, target: str = "") -> Happened:
    return Happened(Fault(from_s, kind, 0, 0.0), target, from_s * S, to_s * S)


def wrong(
    calls: Sequence[Call], faults: Sequence[Happened] = (), losses: Sequence[Loss] = (), **ended_s: float
) -> Sequence[str]:
    ended_us = {who.replace("_", "."): at_s * S for who, at_s in ended_s.items()}
    return waited([WORKER, *calls], faults, losses, ended_us, OVER_S * S).wrong


def test_who_waits_too_long_is_named() -> None:
    assert wrong(task(10, 10.1)) == []
    assert wrong(task(10, 10 + BOUND_S - 0.1)) == []
    (text,) = wrong(task(10, 10 + BOUND_S + 0.1))
    assert ID in text


@pytest.mark.parametrize(
    ("fault", "explains"),
    [
        (happened("cut", 11, 12), True),
        (happened("kill program", 11, 12, "dispatch1.2"), True),
        (happened("kill program", 11, 12, "quiet1.2"), False),
        (happened("deploy", 11, 12, "8 processes"), False),
        (happened("scale", 11, 12, "3 processes"), False),
        (happened("crash loop", 11, 12, "quiet1.2"), False),
    ],
    ids=str,
)
def test_what_explains_it(fault: Happened, explains: bool) -> None:
    assert bool(wrong(task(10, 12 + RECOVERS_S), [fault])) is not explains


def test_a_server_that_is_away_explains_no_more_than_its_time() -> None:
    loss = Loss(11 * S, 12 * S)
    assert wrong(task(10, 12 + RECOVERS_S + BOUND_S - 1), losses=[loss]) == []
    assert wrong(task(10, 12 + RECOVERS_S + BOUND_S + 1), losses=[loss])


def test_where_no_worker_is_there_nobody_is_idle() -> None:
    assert wrong(task(10, 60), quiet1_1=11) == []
    assert wrong(task(10, 60), quiet1_1=19)


def test_a_lease_that_ran_out_is_no_wait() -> None:
    assert wrong(task(10, 60, lapses=1)) == []
