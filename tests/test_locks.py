"""What threads share on the way of a call; the rules of ``core/locks``, and where they hold."""

from __future__ import annotations

import ast
import signal
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue
from types import FrameType
from typing import Any

import pytest

from shardq.core.locks import Permits, SignalSafeEvent, Waiting
from shardq.core.threads import begun
from tests.support.waiting import wait_until


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


# ---- those who wait


def test_a_bell_that_was_lost_is_made_good() -> None:
    waiting, there = Waiting(), list[int]()
    with ThreadPoolExecutor(1) as apart:
        found = apart.submit(waiting.until, lambda: there[0] if there else None, time.monotonic() + 10)
        wait_until(lambda: waiting.bells, "it waits")
        there.append(1)  # and nobody rings
        assert found.result(timeout=5) == 1
    assert not waiting.bells


def test_one_who_leaves_passes_its_bell_on() -> None:
    waiting, there = Waiting(), list[int]()
    with ThreadPoolExecutor(2) as apart:
        found = [
            apart.submit(waiting.until, lambda: there.pop() if there else None, time.monotonic() + 10) for _ in "12"
        ]
        wait_until(lambda: len(waiting.bells) == 2, "both wait")
        there += [1, 2]
        waiting.wake()
        assert {each.result(timeout=5) for each in found} == {1, 2}
    assert waiting.until(lambda: None, time.monotonic() + 0.01) is None
    assert not waiting.bells


def test_the_callback_of_an_outcome_may_ask_for_it() -> None:
    began, asked = threading.Event(), SimpleQueue[Any]()
    outcome = begun(lambda: began.wait(10) and 5, "shardq-test")
    outcome.add_done_callback(lambda done: asked.put(done.result()))
    began.set()
    assert asked.get(timeout=10) == 5
    assert outcome.result(1) == 5


def test_a_permit_is_out_for_as_long_as_anybody_has_it() -> None:
    permits = Permits(2)
    first, second = permits.take(), permits.take()
    assert first is not None
    assert second is not None
    assert permits.take() is None
    permits.give(first)
    permits.give(first)
    assert len(permits) == 1
    del second
    assert len(permits) == 0


def test_a_thread_that_has_a_permit_is_given_an_extra_one() -> None:
    permits = Permits(1)
    held = permits.take()
    extra = permits.take_until()
    assert extra is not None
    assert extra.is_extra
    permits.give(extra)
    with ThreadPoolExecutor(1) as apart:
        assert apart.submit(permits.take_until, time.monotonic() + 0.05).result(timeout=5) is None
    permits.give(held)
    assert len(permits) == 0


def test_a_handler_within_take_is_given_an_extra_one() -> None:
    permits = Permits(1)
    with permits._guard:
        permit = permits.take()
    assert permit is not None
    assert permit.is_extra


# ---- the rules

CORE = Path(__file__).parents[1] / "shardq" / "core"

FREE = {"dispatcher", "resharding", "fleet", "layout"}
"""Folders of which no push, claim, settling or buffer goes through in the thread of its caller."""

APART = {
    "locks.py": "has the one lock that is a flag",
    "consumer/aio.py": "the asyncio part",
    "consumer/background.py": "of asyncio",
    "drivers/aio.py": "of asyncio",
    "drivers/aioconnection.py": "of asyncio",
    "producer/gathering.py": "of asyncio",
    "drivers/outages.py": "called by pollers and heartbeats",
    "drivers/owned.py": "the event of a poller's own connection",
    "drivers/credentials.py": "an RLock of C",
    "threads.py": "the event by which a loop ends, and the RLock of its start",
}

OF_PYTHON = {"Condition", "Event", "Semaphore", "BoundedSemaphore", "Barrier", "Timer"}


def on_the_way() -> dict[str, ast.Module]:
    found = {str(path.relative_to(CORE)): path for path in CORE.rglob("*.py")}
    return {
        name: ast.parse(path.read_text())
        for name, path in found.items()
        if name.partition("/")[0] not in FREE and name not in APART
    }


def test_there_is_no_lock_of_python_on_the_way_of_a_call() -> None:
    named = [
        f"{name}:{node.lineno} {node.attr}"
        for name, tree in on_the_way().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "threading" and node.attr in OF_PYTHON
    ]
    assert named == []


def test_a_plain_lock_is_held_for_an_instant() -> None:
    """No handler runs in a block without a call and without a loop: none that raises, and none that waits for it."""
    calls = (ast.Call, ast.For, ast.While, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp, ast.Yield)
    instants, long = 0, []
    for name, tree in on_the_way().items():
        plain = {
            ast.unparse(node.targets[0] if isinstance(node, ast.Assign) else node.target)
            for node in ast.walk(tree)
            if isinstance(node, ast.Assign | ast.AnnAssign)
            and node.value is not None
            and ast.unparse(node.value) == "threading.Lock()"
        }
        for block in (node for node in ast.walk(tree) if isinstance(node, ast.With)):
            if plain.intersection(ast.unparse(item.context_expr) for item in block.items):
                instants += 1
                within = [node for statement in block.body for node in ast.walk(statement)]
                long += [f"{name}:{node.lineno}" for node in within if isinstance(node, calls)]
    assert instants
    assert long == []
