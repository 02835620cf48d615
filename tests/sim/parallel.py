"""Work in several processes, with its progress on the screen."""

from __future__ import annotations

import contextlib
import itertools
import multiprocessing
import os
import queue
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, fields
from typing import Self, TypeVar

T = TypeVar("T")
R = TypeVar("R")

EVERY_S = 2.0
"""How often progress is told; on no terminal ten times as seldom."""


def cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def in_processes(work: Callable[[T], R], items: Iterable[T], *, jobs: int) -> Iterator[R]:
    """The results, as they come; items are taken as they are needed, so there may be no end of them. Ends all processes
    when the caller needs no more.
    """
    results: queue.SimpleQueue[R | BaseException] = queue.SimpleQueue()
    left = iter(items)
    with multiprocessing.get_context("spawn").Pool(jobs, initializer=_quietly) as pool:
        under_way = 0
        for item in itertools.islice(left, 2 * jobs):
            pool.apply_async(work, (item,), callback=results.put, error_callback=results.put)
            under_way += 1
        while under_way:
            result = results.get()
            if isinstance(result, BaseException):
                raise result
            under_way -= 1
            for item in itertools.islice(left, 1):
                pool.apply_async(work, (item,), callback=results.put, error_callback=results.put)
                under_way += 1
            yield result


def _quietly() -> None:
    """Ctrl-C is for the first process, which ends the others."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with contextlib.suppress(OSError):
        os.nice(5)


@dataclass
class Counts:
    """What pieces of work come to: each field can be added up."""

    def add(self, other: Self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            value += getattr(other, each.name)
            setattr(self, each.name, value)


class Progress:
    """One line that is written again and again."""

    def __init__(self) -> None:
        self._is_terminal = sys.stderr.isatty()
        self._next = time.monotonic() + EVERY_S

    def show(self, line: Callable[[], str]) -> None:
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + (EVERY_S if self._is_terminal else 10 * EVERY_S)
        if self._is_terminal:
            sys.stderr.write(f"\r\x1b[K{line()[:150]}")
            sys.stderr.flush()
        else:
            print(line(), file=sys.stderr, flush=True)

    def over(self) -> None:
        if self._is_terminal:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
