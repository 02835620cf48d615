"""The judge accepts what an engine may do, and nothing else."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.judge.judge import Setback, Undecided, Violated, judged
from tests.judge.model import Kind, Op, Rules, State, Task, applied, moved_by_time

S = 1_000_000


def push(begin: float, end: float, number: int = 1, outcome: str = "pushed", **more: Any) -> Op:
    return Op("push", begin * S, end * S, outcome, number=number, mode=more.pop("mode", "keep"), **more)


def claim(begin: float, end: float, number: int = 1, token: str = "t", lease: float = 5, **more: Any) -> Op:
    return Op("claim", begin * S, end * S, "given", number=number, token=token, lease_us=lease * S, **more)


def op(kind: Kind, begin: float, end: float, outcome: str, **more: Any) -> Op:
    return Op(kind, begin * S, end * S, outcome, **more)


def ack(begin: float, outcome: str = "done", token: str = "t") -> Op:
    return op("ack", begin + 0.1, begin + 1, outcome, token=token)


GONE = op("get", 90, 91, "gone")
RETRIED = op("retry", 3.1, 4, "done", token="t")
SNOOZED = op("snooze", 3.1, 4, "done", token="t", delay_us=S)

EXPLAINED: dict[str, list[Op]] = {
    "pushed, claimed, acked": [push(0, 1), claim(2, 3), ack(3), GONE],
    "a lease that ran out": [push(0, 1), claim(2, 3), claim(8, 9, token="u", lapses=1), ack(9, token="u")],
    "an ack after the lease that nobody took": [push(0, 1), claim(2, 3), ack(20), GONE],
    "two at once, either first": [push(0, 1), op("cancel", 2, 5, "cancelled"), op("get", 2, 3, "ready"), GONE],
    "a push never answered, that was stored": [push(0, 1, outcome=""), claim(2, 3), ack(3)],
    "a push never answered, that was not": [push(0, 1, outcome=""), GONE],
    "a push never answered that is stored late": [push(0, 1, outcome=""), op("get", 3, 4, "gone"), claim(5, 6)],
    "kept while it waits": [push(0, 1, delay_us=9 * S), push(2, 3, 2, "kept:scheduled"), claim(9.5, 10)],
    "seen in its window": [push(0, 1, window_us=60 * S), claim(2, 3), ack(3), push(5, 6, 2, "seen")],
    "replaced while leased": [push(0, 1), claim(2, 3), push(3, 4, 2, "replaced", mode="replace"),
                              ack(4), claim(6, 7, 2, "u")],
    "an ack not heard of, that was done": [push(0, 1), claim(2, 3), ack(3, ""), GONE],
    "an ack not heard of, that was not": [push(0, 1), claim(2, 3), ack(3, ""), claim(9, 10, token="u", lapses=1)],
    "retried, then dead, then requeued": [
        push(0, 1, limit=2), claim(2, 3), RETRIED, claim(5, 6, token="u", failures=1),
        op("retry", 6.1, 7, "done", token="u"), op("get", 7, 8, "dead"), op("requeue", 8, 9, "requeued"),
        claim(9.1, 10, token="v"),
    ],
    "snoozed: no attempt counts": [push(0, 1), claim(2, 3), SNOOZED, claim(5, 6, token="u")],
    "sent again after it was handled": [push(0, 9, doubtful=True), claim(2, 3), ack(3), claim(5, 6, token="u")],
    "sent again, with a later one that replaced it": [
        push(0, 1), push(2, 3, 2, doubtful=True, later=(3,)), push(2, 3, 3, doubtful=True, mode="replace"),
        claim(4, 5, 3),
    ],
    "an ack whose first send was lost": [
        push(0, 1), claim(2, 3), op("ack", 3.1, 30, "done", token="t", doubtful=True),
        claim(9, 10, token="u", lapses=1),
    ],
    "forwarded": [push(0, 1), op("arrive", 2, 3, "arrived", number=1), GONE],
}  # fmt: skip

UNEXPLAINED: dict[str, list[Op]] = {
    "lost": [push(0, 1), GONE],
    "early": [push(0, 1, delay_us=5 * S), claim(3, 4.5)],
    "claimed twice at once": [push(0, 1), claim(2, 3), claim(4, 5, token="u", lapses=1)],
    "claimed after its ack": [push(0, 1), claim(2, 3), ack(3), claim(5, 6, token="u")],
    "claimed after it was cancelled": [push(0, 1), op("cancel", 2, 3, "cancelled"), claim(4, 5)],
    "said to be gone while it waits": [push(0, 1), op("cancel", 2, 3, "gone"), claim(4, 5)],
    "claimed after it was refused": [push(0, 1), push(2, 3, 2, "refused:ready", mode="reject"), claim(4, 5, 2)],
    "an attempt too many": [push(0, 1), claim(2, 3), SNOOZED, claim(5, 6, token="u", failures=1)],
    "an attempt too few": [push(0, 1), claim(2, 3), RETRIED, claim(5, 6, token="u")],
    "pushed in its window": [push(0, 1, window_us=60 * S), op("cancel", 2, 3, "cancelled"), push(5, 6, 2)],
    "seen without a window": [push(0, 1), op("cancel", 2, 3, "cancelled"), push(5, 6, 2, "seen")],
    "kept, and nothing was there": [push(0, 1, outcome="kept:scheduled")],
    "settled by another's token": [push(0, 1), claim(2, 3), ack(3, token="u")],
    "lost in spite of its lease": [push(0, 1), claim(2, 3), ack(3, "lost")],
    "rescheduled, and given before": [push(0, 1), op("reschedule", 2, 3, "moved", delay_us=9 * S), claim(4, 5)],
    "given after it has expired": [push(0, 1, expires_us=2 * S), claim(4, 5)],
    "handled, and pushed again by itself": [push(0, 9), claim(2, 3), ack(3), claim(5, 6, token="u")],
    "sent again, with a later one that is not there": [push(0, 1), push(2, 3, 2, doubtful=True, later=(3,))],
    "the old payload": [push(0, 1), push(2, 3, 2, "replaced", mode="replace"), claim(4, 5, 1)],
    "forwarded twice": [push(0, 1), op("arrive", 2, 3, "arrived", number=1), op("arrive", 4, 5, "arrived", number=1)],
    "one more life than attempts": [
        push(0, 1, limit=1), claim(2, 3), RETRIED, claim(5, 6, token="u", failures=1),
    ],
}  # fmt: skip


@pytest.mark.parametrize("history", EXPLAINED.values(), ids=EXPLAINED)
def test_explained(history: list[Op]) -> None:
    assert judged(history) is None


@pytest.mark.parametrize("history", UNEXPLAINED.values(), ids=UNEXPLAINED)
def test_unexplained(history: list[Op]) -> None:
    assert isinstance(judged(history), Violated)


def test_a_setback_explains_what_it_may_have_undone() -> None:
    lost = [push(0, 1), GONE]
    assert judged(lost, setbacks=[Setback(10 * S, 0.5 * S)]) is None
    assert isinstance(judged(lost, setbacks=[Setback(10 * S, 2 * S)]), Violated)
    durable = [push(0, 1, durable=True), GONE]
    assert isinstance(judged(durable, setbacks=[Setback(10 * S, 0.5 * S)]), Violated)
    again = [push(0, 1), claim(2, 3), ack(3), claim(12, 13, token="u")]
    assert judged(again, setbacks=[Setback(10 * S, 1.5 * S)]) is None
    assert isinstance(judged(again, setbacks=[Setback(10 * S, 4.5 * S)]), Violated)


def test_a_claim_that_was_not_answered_explains_a_lease_of_nobody() -> None:
    history = [push(0, 1), op("cancel", 4, 5, "running"), claim(12, 13, lapses=1)]
    assert isinstance(judged(history), Violated)
    assert judged(history, Rules(unanswered=((2 * S, 3 * S),), lease_us=5 * S)) is None
    assert isinstance(judged(history, Rules(unanswered=((8 * S, 9 * S),), lease_us=5 * S)), Violated)


def test_clocks_that_are_apart_explain_what_is_early() -> None:
    early = [push(0, 1, delay_us=5 * S), claim(3, 4.5)]
    assert judged(early, Rules(skew_us=S)) is None


FAR = Rules(skew_us=7200 * S, unanswered=((0, 90 * S),), lease_us=5 * S)


@pytest.mark.parametrize("history", EXPLAINED.values(), ids=EXPLAINED)
def test_clocks_that_jump_take_no_explanation_away(history: list[Op]) -> None:
    assert judged(history, FAR) is None


def test_where_clocks_jump_leases_that_nobody_saw_are_not_told_apart() -> None:
    first = State(Task("waiting", 1, from_us=0.0))
    rules = FAR._replace(most_lapses=1, lease_us=0.0)
    seen, left = {first}, [first]
    while left:
        new = set(moved_by_time(left.pop(), 50 * S, rules)) - seen
        seen |= new
        left += new
    assert any(state.task and state.task.place == "dead" for state in seen)
    assert len(seen) < 12


def test_a_history_with_too_many_orders_is_given_up() -> None:
    pushes = [push(0, 80 + number, number, mode="replace", outcome="replaced") for number in range(1, 14)]
    pushes[0].outcome = "pushed"
    assert isinstance(judged([*pushes, GONE]), Undecided)


@dataclass
class _Id:
    """An id that behaves as the model says: histories of it are right."""

    draw: random.Random
    state: State = field(default_factory=State)
    now: float = 0.0
    history: list[Op] = field(default_factory=list)

    def live(self, steps: int) -> list[Op]:
        under_way: list[Op] = []
        for number in range(steps):
            self.now += self.draw.choice((0, 0.1, 1, 3)) * S
            if under_way and self.draw.random() < 0.6:
                self._take_effect(under_way.pop(self.draw.randrange(len(under_way))))
                continue
            under_way.append(self._drawn(number))
        while under_way:
            self._take_effect(under_way.pop())
        return self.history

    def _drawn(self, number: int) -> Op:
        kind: Kind = self.draw.choice(
            ("push", "push", "claim", "claim", "ack", "retry", "cancel", "reschedule", "requeue", "extend", "get")
        )
        task = self.state.task
        delay = self.draw.choice((0, 0, 2)) * S
        if kind == "push":
            mode = self.draw.choice(("keep", "reject", "replace"))
            return Op(
                "push",
                self.now,
                number=number,
                mode=mode,
                delay_us=delay,
                window_us=self.draw.choice((0, 5)) * S,
                limit=3,
            )
        token = task.token if task is not None and task.token else "t"
        made = Op(kind, self.now, token=token, delay_us=delay, lease_us=2 * S)
        if kind == "claim":
            made.token = f"t{number}"
        return made

    def _take_effect(self, op: Op) -> None:
        state = self.draw.choice([self.state, *moved_by_time(self.state, self.now, Rules())])
        if op.kind == "claim":
            if state.task is None:
                return
            op.number, op.failures, op.lapses = state.task.number, state.task.failures, state.task.lapses
        steps = list(applied(op, state, self.now, Rules()))
        if not steps:
            return
        self.state, answer = self.draw.choice(steps)
        op.end_us = self.now + self.draw.choice((0, 1, 3)) * S
        op.outcome = answer if self.draw.random() < 0.9 else ""
        self.history.append(op)


def test_what_the_model_does_is_explained_and_other_answers_mostly_are_not() -> None:
    caught = changed = 0
    for seed in range(300):
        history = _Id(random.Random(seed)).live(16)
        assert judged(history) is None, f"seed {seed}: {judged(history)}"
        heard = [op for op in history if op.outcome and op.kind not in ("claim", "get")]
        if heard:
            bent = random.Random(seed).choice(heard)
            bent.outcome = {"gone": "cancelled", "lost": "done", "done": "lost"}.get(bent.outcome, "gone")
            changed += 1
            caught += isinstance(judged(history), Violated)
    assert changed > 250
    assert caught > changed / 2
