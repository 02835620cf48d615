"""Which tasks of a lot are called together, and which of them fail after a call that raised. No I/O, no clock.

A call that raises does not say which of its tasks it was. Its halves are called, and the halves of what raises again,
until the poisoned task was called alone: 19 calls for one of 500. If both halves raise, one task of each is called
alone: if these raise, too, it is an outage, and no task's fault. All of them fail once, after five calls and not a
thousand. Many poisoned tasks would take calls without end, so there are at most four for each halving.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")

CALLS_A_HALVING = 4
"""Enough to find two poisoned tasks; more of them share their failure with what is left around them."""


@dataclass(frozen=True, slots=True)
class CallThese(Generic[T]):
    """Call the handler with these. To be answered with what it raised, None where the tasks have their settlements."""

    tasks: Sequence[T]


@dataclass(frozen=True, slots=True)
class Fail(Generic[T]):
    """What is left of these has failed with this."""

    tasks: Sequence[T]
    failure: BaseException


Steps = Generator[CallThese[T] | Fail[T], BaseException | None, None]


def parts(tasks: Sequence[T], failures: Callable[[T], int], size_after: Callable[[int], int]) -> list[Sequence[T]]:
    """The first calls of a lot: tasks that have failed as often are called together, the fewer the more often."""
    by_failures: dict[int, Sequence[T]] = {}
    counts = set(map(failures, tasks))
    for count in counts:
        by_failures[count] = tasks if len(counts) == 1 else [task for task in tasks if failures(task) == count]
    found: list[Sequence[T]] = []
    for count, some in sorted(by_failures.items()):
        size = size_after(count)
        found += [some[at : at + size] for at in range(0, len(some), size)]
    return found


def isolated(tasks: Sequence[T], is_open: Callable[[T], bool], failure: BaseException) -> Steps[T]:
    """The steps after a call with these has raised. ``is_open``: it has no settlement yet."""
    left = [task for task in tasks if is_open(task)]
    if len(left) < 2:
        yield Fail(left, failure)
        return
    budget = CALLS_A_HALVING * len(left).bit_length()
    suspects: list[tuple[Sequence[T], BaseException]] = []
    for half in _halves(left):
        if (raised := (yield CallThese(half))) is not None:
            suspects.append((half, raised))
    budget -= 2
    if len(suspects) == 2 and len(left) > 2:
        failed: list[tuple[T, BaseException]] = []
        for half, _ in suspects:
            probes = [task for task in half if is_open(task)]
            if len(half) == 1:
                continue  # it was called alone, and raised
            budget -= 1
            probe = random.choice(probes) if probes else None
            if probe is None or (raised := (yield CallThese([probe]))) is None:
                break
            failed.append((probe, raised))
        else:
            yield Fail(left, suspects[-1][1])
            return
        for probe, raised in failed:  # of its own: another one was taken meanwhile
            yield Fail([probe], raised)
    while suspects:
        # The largest first: what the calls don't suffice for is then small.
        suspects.sort(key=lambda suspect: len(suspect[0]))
        tasks, failure = suspects.pop()
        left = [task for task in tasks if is_open(task)]
        if len(left) < 2 or budget < 2:
            yield Fail(left, failure)
            continue
        budget -= 2
        for half in _halves(left):
            if (raised := (yield CallThese(half))) is not None:
                suspects.append((half, raised))


def _halves(tasks: Sequence[T]) -> tuple[Sequence[T], Sequence[T]]:
    middle = (len(tasks) + 1) // 2
    return tasks[:middle], tasks[middle:]
