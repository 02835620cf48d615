"""The sign to stop may be given in the midst of anything, by signal handlers too."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from shardq.worker.sign import Sign


@contextmanager
def struck(sign: Sign, every_s: float) -> Iterator[None]:
    """A signal handler gives the sign again and again."""
    before = signal.signal(signal.SIGALRM, lambda *_: sign.set())
    signal.setitimer(signal.ITIMER_REAL, every_s, every_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@pytest.mark.timeout(30)
def test_a_handler_may_interrupt_whoever_waits_or_gives_it() -> None:
    sign = Sign()
    with struck(sign, 0.0002):
        for _ in range(2000):
            assert sign.wait(5)
            sign.set()
            sign.clear()


def test_given_before_and_while_one_waits() -> None:
    sign = Sign()
    assert not sign.wait(0)
    assert not sign.is_set()
    sign.set()
    assert sign.wait()
    assert sign.wait()
    assert sign.is_set()
    sign.clear()
    assert not sign.wait(0.001)
    giver = threading.Timer(0.05, sign.set)
    giver.start()
    assert sign.wait(10)
    giver.join()
