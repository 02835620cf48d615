"""The threads that many handlers share: as many as have work, of which slow handlers have half at most."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from shardq.delivery import runners
from shardq.delivery.hooks import Hooks
from shardq.delivery.in_flight import InFlight
from shardq.delivery.runners import SharedThreads
from shardq.delivery.strays import Strays
from tests.support.waiting import wait_until

MOST = 8


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[SharedThreads]:
    monkeypatch.setattr(runners, "IDLE_S", 0.05)
    threads = SharedThreads(InFlight(MOST), Hooks(), Strays(MOST), lambda lot, size, seconds: None, concurrency=MOST)
    yield threads
    threads.end()


def alive() -> int:
    return sum(thread.name == "shardq-sink" for thread in threading.enumerate())


def test_slow_ones_have_half_and_idle_threads_end(threads: SharedThreads) -> None:
    goes_on, slow, quick, freed = threading.Event(), threading.Semaphore(0), threading.Semaphore(0), list[int]()
    threads.freed = lambda: freed.append(1)

    def stands_still() -> None:
        slow.release()
        goes_on.wait(30)

    for _ in range(2 * MOST):
        threads.submit(stands_still, slow=True)
    for _ in range(MOST // 2):
        assert slow.acquire(timeout=10)
    assert threads.places(slow=True) <= 0
    assert threads.places(slow=False) == MOST // 2
    for _ in range(3 * MOST):
        threads.submit(quick.release)
    for _ in range(3 * MOST):
        assert quick.acquire(timeout=10), "others go on"
    assert not slow.acquire(blocking=False), "no more than half stand still"
    assert alive() <= MOST
    goes_on.set()
    wait_until(lambda: len(freed) == 5 * MOST, "all is done")
    wait_until(lambda: alive() == 0, "threads without work end")
    assert threads.places(slow=True) == MOST // 2
    threads.submit(quick.release)
    assert quick.acquire(timeout=10), "and are begun again"


def test_work_that_fails_takes_no_thread(threads: SharedThreads) -> None:
    done = threading.Semaphore(0)

    def fails() -> None:
        raise SystemExit(3)

    for _ in range(3 * MOST):
        threads.submit(fails)
    threads.submit(done.release)
    assert done.acquire(timeout=10)
    wait_until(lambda: threads.places(slow=False) == MOST, "every place is free")
