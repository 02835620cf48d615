"""Whatever a user's code does, in a policy, a hook, an exception or a filter of logging: its task is settled, and no
thread of the worker ends by it."""

from __future__ import annotations

import asyncio
import gc
import logging
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from shardq import Backoff, Bury, Delivery, Engine, Retry
from tests.support.engines import Engines
from tests.support.states import state_of
from tests.support.waiting import wait_until
from tests.worker.flavours import Flavour, Gate, handler


class Policy(Backoff):
    """Answers what it is told to, or raises it."""

    __slots__ = ("answer",)
    answer: Any

    def delay_s(self, attempt: int) -> float:
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer  # type: ignore[no-any-return]  # that is the point


def policy(answer: Any) -> Policy:
    made = Policy()
    object.__setattr__(made, "answer", answer)
    return made


ANSWERS = [ValueError("boom"), SystemExit(), KeyboardInterrupt(), -1.0, float("nan"), float("inf"), "5", None, True]


def dead(engine: Engine, id: str) -> str | None:
    """Why it is dead; None while it is not."""
    task = engine.get(id)
    return task.reason if task is not None and task.state == "dead" else None


def failed_once(engine: Engine, id: str) -> bool:
    """Also when it fails again and again meanwhile: it is not kept by who failed."""
    task = engine.get(id)
    return task is not None and task.failures >= 1


@pytest.mark.parametrize("url", ["single"], indirect=True)
def test_policies_that_fail(
    engines: Engines, running: Engine, flavour: Flavour, caplog: pytest.LogCaptureFixture
) -> None:
    def divide(delivery: Delivery) -> float:
        return float(delivery.payload / 0)

    handled: list[Any] = []
    worker = running.worker(concurrency=1)
    for n, answer in enumerate(ANSWERS):
        worker.on(f"bad{n}", backoff=policy(answer))(handler(flavour, divide))
    worker.on("good")(handler(flavour, lambda delivery: handled.append(delivery.payload)))
    with engines.working(worker):
        ids = [running.push(payload, topic=f"bad{n}") for n in range(len(ANSWERS)) for payload in (1, 2)]
        wait_until(lambda: all(failed_once(running, id) for id in ids), "all have failed and are let go")
        running.push("x", topic="good")
        wait_until(lambda: handled == ["x"], "the only place works on")
    name = "test_policies_that_fail.<locals>.divide" if flavour == "function" else "handler.<locals>.coroutine"
    said = [record.getMessage() for record in caplog.records if "backoff" in record.getMessage()]
    assert len(said) == len(ANSWERS)  # once for each policy
    assert all(name in line for line in said)


@pytest.mark.slow
@pytest.mark.parametrize("url", ["single"], indirect=True)
def test_a_policy_that_fails_at_a_timeout(engines: Engines, running: Engine, flavour: Flavour) -> None:
    """Whoever ends what is overdue also extends leases, and gives back what is not begun."""
    slow, long = Gate(flavour), Gate(flavour)
    worker = running.worker(concurrency=4, lease=4.0)
    worker.on("slow", timeout=0.1, backoff=policy(ValueError("boom")))(slow.handler)
    worker.on("long")(long.handler)
    with engines.working(worker):
        kept = running.push("x", topic="long")
        wait_until(lambda: long.begun, "the long one runs")
        overdue = running.push("x", topic="slow")
        wait_until(lambda: failed_once(running, overdue), "it counts as failed")
        for _ in range(3):
            before = _deadline(running, kept)
            assert before
            wait_until(lambda: _deadline(running, kept) > before, "the other's lease is extended")  # noqa: B023  called at once
        slow.open()
        long.open()
        wait_until(lambda: state_of(running, kept) == "gone", "it is acknowledged")


def _deadline(engine: Engine, id: str) -> float:
    task = engine.get(id)
    return task.deadline.timestamp() if task is not None and task.deadline is not None else 0.0


class Mute(Exception):
    def __str__(self) -> str:
        raise ValueError("no text")

    def __repr__(self) -> str:
        raise ValueError("no text either")


class Fatal(BaseException):
    def __str__(self) -> str:
        raise SystemExit("of a text")


class Masked(Exception):
    @property  # type: ignore[misc]  # that is the point
    def __class__(self) -> Any:
        raise ValueError("no class")


class Shy(Exception):
    def __bool__(self) -> bool:
        raise ValueError("neither")

    @property
    def __notes__(self) -> Any:  # type: ignore[override]
        raise ValueError("no notes")


class Bare(Retry):
    def __init__(self) -> None:
        """Calls no other."""


class BareBury(Bury):
    def __init__(self) -> None:
        """Calls no other."""


def several() -> BaseException:
    return BaseExceptionGroup("several", [SystemExit(), KeyboardInterrupt(), Bury("one of two")])


class Broken(Retry):
    def __getattribute__(self, name: str) -> Any:
        raise ValueError(f"no {name}")


class Negative(Retry):
    delay = -5.0


class Wordless(Bury):
    def __init__(self) -> None:
        self.reason = None  # type: ignore[assignment]  # that is the point


RAISED: list[Callable[[], BaseException]] = [
    Mute, Fatal, Masked, Shy, Bare, BareBury, Broken, Negative, Wordless,
    SystemExit, KeyboardInterrupt, GeneratorExit, StopIteration, StopAsyncIteration, asyncio.CancelledError,
    several,
]  # fmt: skip


@pytest.mark.parametrize("url", ["single"], indirect=True)
def test_whatever_a_handler_raises_its_task_is_settled(engines: Engines, running: Engine, flavour: Flavour) -> None:
    """One place, and one after the other: each would take it along."""

    def fail(delivery: Delivery) -> None:
        raise RAISED[delivery.payload]()

    worker = running.worker(concurrency=1, max_attempts=1)
    worker.on("")(handler(flavour, fail))
    with engines.working(worker):
        for n, kind in enumerate(RAISED):
            id = running.push(n)
            wait_until(lambda: dead(running, id), f"{kind} is settled")  # noqa: B023  called at once
        assert worker.healthy


def test_the_intent_of_a_bare_exception_counts(running: Engine, engines: Engines) -> None:
    def decide(delivery: Delivery) -> None:
        raise {"retry": Bare, "bury": BareBury}[delivery.payload]()

    worker = running.worker(backoff=Backoff(base=3600, cap=3600))
    worker.on("")(decide)
    with engines.working(worker):
        again, never = running.push("retry"), running.push("bury")
        wait_until(lambda: dead(running, never) == "the handler asked for a burial", "one is buried")
        wait_until(lambda: failed_once(running, again), "the other is put off")
    assert state_of(running, again) == "scheduled"


def test_the_intent_of_a_task_group_with_one_exception_counts(running: Engine, engines: Engines) -> None:
    """A group is what comes out of it, however few they are."""

    async def decide(word: str) -> None:
        raise {"retry": Retry(3600, "busy"), "bury": Bury("of no use"), "error": ValueError("boom")}[word]

    async def handle(delivery: Delivery) -> None:
        async with asyncio.TaskGroup() as outer:
            async with asyncio.TaskGroup() as group:
                for word in delivery.payload:
                    group.create_task(decide(word))
            outer.create_task(asyncio.sleep(0))

    worker = running.worker(max_attempts=1)
    worker.on("many", max_attempts=2)(handle)
    worker.on("")(handle)
    with engines.working(worker):
        again, never = running.push(["retry"], topic="many"), running.push(["bury"], topic="many")
        failed, both = running.push(["error"]), running.push(["bury", "error"])
        wait_until(lambda: dead(running, never) == "of no use", "one is buried")
        wait_until(lambda: failed_once(running, again), "another is put off")
        wait_until(lambda: dead(running, failed) and dead(running, both), "the others have failed")
    assert state_of(running, again) == "scheduled"
    assert "ValueError: boom" in str(dead(running, failed))
    assert "Traceback" in str(dead(running, both))


def test_a_coroutine_that_cancels_itself(running: Engine, engines: Engines) -> None:
    """What it comes to is what counts: a cancellation is a failure, a return is none."""

    async def cancel(delivery: Delivery) -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        if delivery.payload == "waits":
            await asyncio.sleep(60)

    async def give_up(delivery: Delivery) -> None:
        try:
            async with asyncio.timeout(0.01):
                await asyncio.sleep(60)
        except TimeoutError:
            if delivery.payload == "raises":
                raise
        await asyncio.sleep(0)

    worker = running.worker(concurrency=1, max_attempts=1)
    worker.on("cancels")(cancel)
    worker.on("", timeout=30)(give_up)
    with engines.working(worker):
        returns, waits = running.push("returns", topic="cancels"), running.push("waits", topic="cancels")
        goes_on, raises = running.push("goes on"), running.push("raises")
        wait_until(lambda: {state_of(running, id) for id in (returns, goes_on)} == {"gone"}, "these are handled")
        wait_until(lambda: dead(running, waits) and dead(running, raises), "these have failed")
    assert "CancelledError" in str(dead(running, waits))
    assert "TimeoutError" in str(dead(running, raises))


@pytest.fixture
def filtered() -> Iterator[None]:
    """A filter of the user's own on our logger, which raises: nothing can be logged."""

    def refuse(record: logging.LogRecord) -> bool:
        raise SystemExit("of a filter")

    log = logging.getLogger("shardq.worker")
    log.addFilter(refuse)
    yield
    log.removeFilter(refuse)


class Hook:
    def before(self, delivery: Delivery) -> None:
        raise ValueError("of the hook")

    def error(self, delivery: Delivery, exc: BaseException) -> None:
        raise GeneratorExit("of the hook")

    def __repr__(self) -> str:
        raise SystemExit("of a repr")


@pytest.mark.usefixtures("filtered")
@pytest.mark.parametrize("url", ["single"], indirect=True)
def test_what_can_not_be_logged(engines: Engines, running: Engine, flavour: Flavour) -> None:
    def fail(delivery: Delivery) -> None:
        raise ValueError("boom")

    gate = Gate(flavour)
    worker = running.worker(concurrency=1, max_attempts=1, lease=4.0)
    worker.use(Hook())
    worker.on("", backoff=policy(ValueError()))(handler(flavour, fail))
    worker.on("slow", timeout=0.1)(gate.handler)
    with engines.working(worker):
        for payload in (1, 2):
            id = running.push(payload)
            wait_until(lambda: dead(running, id), "it is settled")  # noqa: B023  called at once
        slow = running.push(3, topic="slow")
        wait_until(lambda: dead(running, slow) == "timed out after 0.1 s", "it has timed out")
        gate.open()
        wait_until(lambda: gate.ended, "the handler has ended")


@pytest.mark.parametrize("url", ["single"], indirect=True)
def test_what_a_payload_keeps_of_its_handler_is_freed(
    engines: Engines, running: Engine, flavour: Flavour, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An exception knows the frames that it went through, down to those of the worker."""
    # pytest keeps what is logged
    monkeypatch.setattr(logging.getLogger("shardq.worker"), "disabled", True)
    kept: list[weakref.ref[BaseException]] = []

    class Kept(Exception):
        pass

    def fail(delivery: Delivery) -> None:
        try:
            raise Kept
        except Kept as exc:
            delivery.payload["error"] = exc
            kept.append(weakref.ref(exc))
            raise

    def freed() -> bool:
        gc.collect()
        return not any(ref() for ref in kept)

    worker = running.worker(max_attempts=1)
    worker.on("")(handler(flavour, fail))
    with engines.working(worker):
        for id in [running.push({}) for _ in range(10)]:
            wait_until(lambda: dead(running, id), "it is settled")  # noqa: B023  called at once
    assert len(kept) == 10
    wait_until(freed, "they are freed")


@pytest.mark.parametrize("how", ["exit", "stop"])
@pytest.mark.parametrize("url", ["single"], indirect=True)
def test_the_loop_of_a_worker_on_threads_does_not_end_by_a_coroutine(url: str, name: str, how: str) -> None:
    """On asyncio the loop is the caller's, who is told."""

    async def leave() -> None:
        raise SystemExit("of a task of its own")

    async def handle(delivery: Delivery) -> None:
        if how == "exit":
            await asyncio.sleep(0)
            task = asyncio.create_task(leave())
            await asyncio.wait([task])
        else:
            asyncio.get_running_loop().stop()

    engines = Engines("sync")
    engine = engines.opened(url, name=name, shards=1)
    engine.start()
    worker = engine.worker()
    worker.on("")(handle)
    try:
        with engines.working(worker):
            for n in range(3):
                id = engine.push(n)
                wait_until(lambda: state_of(engine, id) == "gone", "it is handled")  # noqa: B023  called at once
            assert worker.healthy
    finally:
        engines.end()
