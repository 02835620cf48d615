"""The poisoned tasks of a batch are found in a bounded number of calls, and an outage is no task's fault."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardq.delivery.handler import Batching
from shardq.delivery.isolation import CALLS_A_HALVING, CallThese, Fail, isolated, parts


class Played:
    """One isolation, carried out with a handler."""

    def __init__(self, tasks: Sequence[int], handler: Callable[[Sequence[int]], None]) -> None:
        self.calls: list[Sequence[int]] = []
        self.done: set[int] = set()
        self.failed: dict[int, BaseException] = {}
        steps = isolated(tasks, lambda task: task not in self.done and task not in self.failed, RuntimeError("first"))
        answer: BaseException | None = None
        while True:
            try:
                step = steps.send(answer)
            except StopIteration:
                return
            answer = None
            if isinstance(step, Fail):
                assert not self.failed.keys() & set(step.tasks) - self.done, "each fails once"
                self.failed |= {task: step.failure for task in step.tasks if task not in self.done}
                continue
            assert isinstance(step, CallThese)
            called = [task for task in step.tasks if task not in self.done and task not in self.failed]
            self.calls.append(called)
            try:
                handler(called)
                self.done |= set(called)
            except RuntimeError as exc:
                answer = exc


def poisoned(*poison: int) -> Callable[[Sequence[int]], None]:
    def handle(tasks: Sequence[int]) -> None:
        if bad := [task for task in tasks if task in poison]:
            raise RuntimeError(f"poison {bad[0]}")

    return handle


@pytest.mark.parametrize("place", [0, 1, 249, 250, 498, 499])
def test_one_of_five_hundred_is_found(place: int) -> None:
    played = Played(range(500), poisoned(place))
    assert played.failed.keys() == {place}
    assert str(played.failed[place]) == f"poison {place}", "it is told by the exception that it made alone"
    assert len(played.done) == 499
    assert len(played.calls) <= 18


def test_an_outage_costs_few_calls() -> None:
    def down(tasks: Sequence[int]) -> None:
        raise RuntimeError("the database is down")

    played = Played(range(500), down)
    assert len(played.failed) == 500
    assert len(played.calls) == 4


def test_a_task_alone_is_not_called_again() -> None:
    played = Played([7], poisoned())
    assert (played.calls, list(played.failed)) == ([], [7])
    assert str(played.failed[7]) == "first"


def test_two_that_both_fail_are_called_alone() -> None:
    assert Played([1, 2], poisoned(1, 2)).calls == [[1], [2]]


@given(st.integers(1, 1000), st.sets(st.integers(0, 999), max_size=60))
def test_what_is_called_ends_and_is_bounded(count: int, poison: set[int]) -> None:
    played = Played(range(count), poisoned(*poison))
    assert played.done | played.failed.keys() == set(range(count)), "each has one end"
    assert not played.done & played.failed.keys()
    assert played.failed.keys() >= poison & set(range(count))
    assert len(played.calls) <= CALLS_A_HALVING * count.bit_length() + 2
    alone = [call[0] for call in played.calls if len(call) == 1]
    assert len(set(alone)) == len(alone), "who was called alone is not asked again"
    if len(poison & set(range(count))) == 1:
        assert played.failed.keys() == poison & set(range(count)), "no innocent task pays for one"


def test_tasks_that_have_failed_are_called_in_smaller_parts() -> None:
    failures = dict.fromkeys(range(500), 0) | dict.fromkeys(range(10), 1) | {10: 3, 11: 3}
    made = parts(range(500), failures.__getitem__, Batching(size=500).size_after)
    assert [len(part) for part in made] == [488, 10, 1, 1]
    many = parts(range(500), lambda task: 1, Batching(size=500).size_after)
    assert [len(part) for part in many] == [62] * 8 + [4]
