"""The stop signal of a worker may be set at any instant, also by signal handlers."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import pytest

from shardq.worker.supervisor import SignalSafeEvent


@contextmanager
def struck(event: SignalSafeEvent, every_s: float) -> Iterator[None]:
    """A signal handler gives the sign again and again."""
    before = signal.signal(signal.SIGALRM, lambda *_: event.set())
    signal.setitimer(signal.ITIMER_REAL, every_s, every_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@pytest.mark.timeout(30)
def test_a_handler_may_interrupt_whoever_waits_or_gives_it() -> None:
    event = SignalSafeEvent()
    with struck(event, 0.0002):
        for _ in range(2000):
            assert event.wait(5)
            event.set()
            event.clear()


def test_given_before_and_while_one_waits() -> None:
    event = SignalSafeEvent()
    assert not event.wait(0)
    assert not event.is_set()
    event.set()
    assert event.wait()
    assert event.wait()
    assert event.is_set()
    event.clear()
    assert not event.wait(0.001)
    giver = threading.Timer(0.05, event.set)
    giver.start()
    assert event.wait(10)
    giver.join()


@pytest.mark.timeout(30)
def test_it_is_new_to_one_alone() -> None:
    """A second signal interrupts the handler of the first, and must know that it is the second."""
    event = SignalSafeEvent()
    for _ in range(300):
        barrier = threading.Barrier(4)
        new: list[bool] = []

        def give() -> None:
            barrier.wait()  # noqa: B023  joined within the round
            new.append(event.set())  # noqa: B023

        givers = [threading.Thread(target=give) for _ in range(4)]
        for giver in givers:
            giver.start()
        for giver in givers:
            giver.join()
        assert sorted(new) == [False, False, False, True]
        event.clear()


def test_a_handler_that_interrupts_another() -> None:
    event, new = SignalSafeEvent(), list[bool]()
    with struck_at_every_line(event, new):
        new.append(event.set())
    assert sorted(new) == [False] * (len(new) - 1) + [True]
    assert len(new) > 2


@contextmanager
def struck_at_every_line(event: SignalSafeEvent, new: list[bool]) -> Iterator[None]:
    """A signal is handled wherever the main thread is in ``set``."""
    before = signal.signal(signal.SIGUSR1, lambda *_: new.append(event.set()))

    def trace(frame: FrameType, event: str, arg: object) -> Any:
        if frame.f_code is SignalSafeEvent.set.__code__ and not nested:
            nested.append(True)
            signal.raise_signal(signal.SIGUSR1)
            nested.clear()
        return trace

    nested: list[bool] = []
    outer = sys.gettrace()
    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(outer)
        signal.signal(signal.SIGUSR1, before)
