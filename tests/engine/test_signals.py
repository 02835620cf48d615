"""Signals at any instant of a push, a claim, an ack or a buffer: handlers that raise, and handlers that push."""

from __future__ import annotations

import gc
import itertools
import json
import random
import signal
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from types import FrameType
from typing import Any, NoReturn

import pytest

from shardq import Delivery, Engine, Task
from shardq.core.consumer.prefetch import Ahead, AheadWatch
from shardq.core.locks import raised_by_handler
from shardq.errors import EngineClosed
from tests.support.states import make_ready
from tests.support.waiting import wait_until
from tests.support.workers import Worker

MOST = 100_000
"""The signals of each kind in the long run."""

LONGEST_S = 12.0
"""It ends with fewer by then, some ten thousand. `python -m tests.support.signalled` runs as long as you say."""

FEW, SOME_S = 400, 4.0


def check_storm(url: str, name: str, kind: str, signals: int, seconds: float) -> dict[str, Any]:
    """Runs the program, and checks what it said."""
    with Worker("tests.support.signalled", url, name, kind, signals, seconds) as worker:
        said = worker.said()
        assert said.startswith("{"), f"it stands still, or ended: {said}"
        found: dict[str, Any] = json.loads(said)
    assert found["foreign"] == []
    assert [errors for errors in found["errors"] if errors] == []
    if kind == "raises":
        assert found["struck"] == found["signals"], "what the handler raised was swallowed"
    else:
        assert found["nested"] == found["signals"]
    assert found["idle"] == found["open"], f"{found['held']}: a connection was taken and not given back"
    assert found["lost"] == [], "an acknowledged push is neither stored nor was it claimed"
    assert found["gc"], "the garbage collector was left paused"
    assert found["signals"]
    return found


@pytest.mark.parametrize("url", ["single"], indirect=True)
@pytest.mark.parametrize("kind", ["raises", "pushes"])
def test_a_few_of_each_kind(url: str, name: str, kind: str) -> None:
    check_storm(url, name, kind, FEW, SOME_S)


@pytest.mark.slow
@pytest.mark.timeout(LONGEST_S + 120)
@pytest.mark.parametrize("url", ["single"], indirect=True)
@pytest.mark.parametrize("kind", ["raises", "pushes"])
def test_as_many_of_each_kind_as_the_time_allows(url: str, name: str, kind: str) -> None:
    print(check_storm(url, name, kind, MOST, LONGEST_S))


# ---- at each instant


class LimitReached(Exception):
    """As soft time limits are."""


OPERATIONS = ("push", "push_many", "claim", "wait", "ack", "buffered", "opening")

AT_EACH_CHANGE, IN_THE_LONG_RUN = 80, 1500
"""The instants of one operation that are tried in ``make test`` and in ``make test-all``: evenly spread, from a random
one on.
"""


class Struck:
    """Runs an operation whose thread handles a signal at one instant: Python calls handlers as a function of Python is
    entered, and as one of C returns.
    """

    def __init__(self, handler: Callable[[], object]) -> None:
        self._handler = handler
        self._left = 0
        self.count = 0

    def run(self, work: Callable[[], object], at: int) -> bool:
        """Runs it. Returns True if it came so far."""
        self._left = self.count = at
        before = signal.signal(signal.SIGUSR1, self._handle)
        sys.setprofile(self._profile)
        try:
            work()
        except LimitReached:
            pass
        finally:
            sys.setprofile(None)
            signal.signal(signal.SIGUSR1, before)
        return self._left < 0

    def instants(self, work: Callable[[], object]) -> int:
        """The number of instants of an operation."""
        most = 1_000_000
        self.run(work, most)
        return most - self._left

    def _handle(self, number: int, frame: object) -> None:
        self._handler()

    def _profile(self, frame: FrameType, event: str, arg: object) -> None:
        if event in ("call", "c_return"):
            self._left -= 1
            if self._left == -1:
                signal.raise_signal(signal.SIGUSR1)


class Bench:
    """An engine and its operations."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.consumer = engine.consumer("mail", lease=600)
        self.buffer = engine.buffered()
        self._held: list[Delivery] = []

    def prepare(self, operation: str) -> None:
        """Before each strike: the connections are open, and there is something to ack."""
        if operation == "opening":
            self.buffer.close()
            self.engine.close()
            return
        list(self.engine.push_many([Task(n, topic="other", delay=3600) for n in range(8)]))
        if operation == "ack":
            self._held = self.consumer.claim(1)

    def push(self) -> None:
        self.engine.push("x", topic="other", delay=3600)

    def push_many(self) -> None:
        self.engine.push_many([Task(n, topic="other", delay=3600) for n in range(8)])

    def claim(self) -> None:
        self.consumer.claim(1)

    def wait(self) -> None:
        self.engine.consumer("nothing").claim(1, wait=0.002)

    def ack(self) -> None:
        held, self._held = self._held, []
        self.consumer.ack(held)

    def buffered(self) -> None:
        self.buffer.push("x", topic="other", delay=3600).result(timeout=10)

    def opening(self) -> None:
        self.engine.open()
        self.buffer = self.engine.buffered()
        self.consumer = self.engine.consumer("mail", lease=600)


def nested(bench: Bench) -> Callable[[], None]:
    """Handlers that push, each in another way."""
    ways = itertools.cycle((bench.push, bench.push_many, bench.buffered))

    def push() -> None:
        with suppress(EngineClosed):  # before an engine that was closed is opened again
            next(ways)()

    return push


def reached() -> NoReturn:
    raise LimitReached


def check_instants(engine: Engine, operation: str, kind: str, most: int) -> None:
    bench = Bench(engine)
    strike = Struck(reached if kind == "raises" else nested(bench))
    work = getattr(bench, operation)
    for _ in range(2):
        bench.prepare(operation)
        count = strike.instants(work)
    assert count > 20
    step = max(1, count // most)
    for at in range(random.randrange(step), count, step):
        bench.prepare(operation)
        if not strike.run(work, at):
            break  # this time it was shorter
    if operation == "opening":
        bench.buffer.close()
        bench.opening()
    # another thread has all it needs, and what was interrupted has left nothing behind
    with ThreadPoolExecutor(1) as apart:
        for each in ("push", "push_many", "claim", "wait", "ack", "buffered"):
            apart.submit(getattr(bench, each)).result(timeout=20)
    bench.buffer.close()
    gc.collect()
    driver = engine._redis.driver
    assert driver is not None
    for pool in driver._pools.values():  # which threads of the engine use for a moment, now and then
        wait_until(lambda: pool.open == len(pool._idle), "every connection was given back")  # noqa: B023  waits here


@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize(("engines", "url"), [("sync", "single")], indirect=True)
@pytest.mark.parametrize("kind", ["raises", "pushes"])
@pytest.mark.parametrize("operation", OPERATIONS)
def test_some_instants(running: Engine, operation: str, kind: str) -> None:
    make_ready(running, 200)
    check_instants(running, operation, kind, AT_EACH_CHANGE)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize(("engines", "url"), [("sync", "single")], indirect=True)
@pytest.mark.parametrize("kind", ["raises", "pushes"])
@pytest.mark.parametrize("operation", OPERATIONS)
def test_many_instants(running: Engine, operation: str, kind: str) -> None:
    make_ready(running, 2000)
    check_instants(running, operation, kind, IN_THE_LONG_RUN)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_what_is_claimed_ahead_is_watched_whenever_its_note_is_struck() -> None:
    """A note that was interrupted left it marked as watched: later ones did nothing, and nobody gave it back."""

    def noted(at: int) -> tuple[bool, list[float]]:
        watch, released = AheadWatch(), list[float]()
        ahead = Ahead[Any](1.0, released.append)
        try:
            is_struck = True  # Python 3.11 has a TypeError in place of what is raised as a function is entered
            with suppress(TypeError):
                is_struck = strike.run(lambda: watch.note(ahead), at)
            watch.note(ahead)
            wait_until(lambda: released, f"it is looked at, struck at {at}")
        finally:
            watch.close()
        return is_struck, released

    strike = Struck(reached)
    at = 0
    while noted(at)[0]:
        at += 1
    assert at > 5


# ---- what a handler raises is the caller's


class OutOfTime(TimeoutError):
    """Of a type that sockets raise, too."""


@pytest.mark.parametrize("error", [LimitReached, OutOfTime, ValueError])
@pytest.mark.parametrize(("engines", "url"), [("sync", "single")], indirect=True)
def test_it_is_no_error_of_a_codec(engine: Engine, error: type[Exception]) -> None:
    """A limit that strikes while a claim decodes made the task dead, and one while a push encodes was a BadInput."""

    def strike(number: int, frame: object) -> None:
        raise error

    class Slow:
        name = "slow"

        def encode(self, payload: object) -> bytes:
            if is_struck:
                signal.raise_signal(signal.SIGUSR1)
            return b"x"

        def decode(self, data: bytes) -> object:
            if is_struck:
                signal.raise_signal(signal.SIGUSR1)
            return "x"

    is_struck = False
    before = signal.signal(signal.SIGUSR1, strike)
    try:
        with Engine(engine._options.url, name=f"{engine.name}-slow", codec=Slow(), shards=1) as own:
            own.start()
            own.push("x")
            wait_until(lambda: own.stats().ready == 1, "it is ready")
            consumer = own.consumer(lease=1)
            is_struck = True
            with pytest.raises(error):
                own.push("x")
            with pytest.raises(error):
                consumer.claim(1)
            is_struck = False
            assert own.stats().dead == 0
            (delivery,) = consumer.claim(1, wait=10)
            consumer.ack(delivery)
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_whose_exception_it_is() -> None:
    class Called:
        def __call__(self, number: int, frame: object) -> None:
            raise LimitReached

        def method(self, number: int, frame: object) -> None:
            raise LimitReached

    def function(extra: object, number: int, frame: object) -> None:
        raise LimitReached

    for handler in (Called(), Called().method, partial(function, "extra")):
        before = signal.signal(signal.SIGUSR1, handler)
        try:
            with pytest.raises(LimitReached) as raised:
                signal.raise_signal(signal.SIGUSR1)
            assert raised_by_handler(raised.value)
        finally:
            signal.signal(signal.SIGUSR1, before)
    with pytest.raises(LimitReached) as raised:
        reached()
    assert not raised_by_handler(raised.value)
