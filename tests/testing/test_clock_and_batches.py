"""Handlers of batches under a clock that a test moves, of either kind: what they get at an instant, and what becomes of
it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

import shardq
from cluster.server import Server
from shardq import Backoff, Batch, Delivery, Task
from shardq.testing import AsyncClock, Clock


class Minutes(Backoff):
    """A minute, always."""

    def delay_s(self, attempt: int) -> float:
        return 60.0


A_MINUTE = Minutes()


@dataclass
class Bench:
    """A clock of either kind, and an engine of it. ``do`` returns the outcome of a call, awaited if need be."""

    clock: Any
    engine: Any
    do: Callable[[Any], Any]
    calls: list[tuple[float, list[object]]] = field(default_factory=list)
    """The seconds since the beginning, and the payloads, of each call of a handler."""

    def __post_init__(self) -> None:
        self._began = self.clock.now()

    def advance(self, seconds: float = 0) -> list[object]:
        """The payloads of what was handled."""
        return [delivery.payload for delivery in self.do(self.clock.advance(seconds=seconds))]

    def push(self, *payloads: object, delay: float = 0, topic: str = "events", **options: Any) -> None:
        """In one call, so that all of them are due at one instant."""
        self.do(self.engine.push_many([Task(payload, topic=topic, delay=delay, **options) for payload in payloads]))

    def worker(self, handle: Callable[[Batch[Any]], object], kind: str = "function", **options: Any) -> Any:
        """A worker whose handler notes its calls, and does what ``handle`` does."""
        worker = self.engine.worker()

        def noted(batch: Batch[Any]) -> object:
            current: object = shardq.current()
            assert current is batch
            self.calls.append(((self.clock.now() - self._began).total_seconds(), batch.payloads))
            return handle(batch)

        async def awaited(batch: Batch[Any]) -> object:
            await asyncio.sleep(0)
            return noted(batch)

        worker.on("events", **options)(noted if kind == "function" else awaited)
        return worker

    def states(self) -> dict[object, tuple[str, int]]:
        """Payload → the state of the task, and its failures."""
        pages = [self.do(self.engine.tasks(state=state)) for state in ("scheduled", "ready", "leased", "dead")]
        return {task.payload: (task.state, task.failures) for page in pages for task in page}


@pytest.fixture(scope="session")
def url(single: Server) -> str:
    """One kind of server will do."""
    return single.url


@pytest.fixture(params=["threads", "asyncio"])
def bench(request: pytest.FixtureRequest, url: str) -> Iterator[Bench]:
    if request.param == "threads":
        with Clock(url) as clock:
            yield Bench(clock, clock.adopt(shardq.Engine(shards=1)), lambda outcome: outcome)
        return
    with asyncio.Runner() as runner:
        aclock = AsyncClock(url)
        yield Bench(aclock, aclock.adopt(shardq.AsyncEngine(shards=1)), runner.run)
        runner.run(aclock.close())


@pytest.mark.parametrize("kind", ["function", "coroutine"])
def test_what_is_due_at_an_instant_is_a_batch(bench: Bench, kind: str) -> None:
    bench.clock.bind(bench.worker(lambda batch: None, kind, batch=3, linger=60))
    bench.push(*"abcdefg", delay=10)
    bench.push("later", delay=11)
    assert bench.advance(20) == [*"abcdefg", "later"]
    assert bench.calls == [(10, [*"abc"]), (10, [*"def"]), (10, ["g"]), (11, ["later"])]
    assert bench.states() == {}


def test_single_handlers_beside_it(bench: Bench) -> None:
    """Each at its instants; of topics that have something at once, in the order of registration."""
    worker = bench.worker(lambda batch: None, batch=10)
    single: list[object] = []

    @worker.on("single")  # type: ignore[untyped-decorator]  # the worker is of either kind
    def one(delivery: Delivery) -> None:
        single.append(delivery.payload)

    bench.clock.bind(worker)
    bench.push(*"ab", delay=10)
    bench.push(*"xyz", delay=10, topic="single")
    bench.push("c", delay=20)
    assert bench.advance(30) == [*"abxyz", "c"]
    assert (bench.calls, single) == ([(10, [*"ab"]), (20, ["c"])], [*"xyz"])


def test_a_rate_holds_beside_a_topic_without(bench: Bench) -> None:
    worker = bench.worker(lambda batch: None, batch=10)

    @worker.on("single")  # type: ignore[untyped-decorator]  # the worker is of either kind
    def one(delivery: Delivery) -> None: ...

    bench.do(bench.engine.limit("events", rate=1))
    bench.clock.bind(worker)
    bench.push(*range(10))
    bench.push("single", topic="single")
    # the second begins between two permits, with a look at both topics
    assert len(bench.advance(2.5) + bench.advance(9.5)) == 11
    assert len(bench.calls) > 5, "the permits came one by one"


def decided(batch: Batch[Any]) -> list[Any] | None:
    if len(batch) == 1:
        return None  # they come again one by one
    found = {delivery.payload: delivery for delivery in batch}
    assert batch.ack(found["acked"])
    assert not batch.ack(found["acked"]), "it counts once"
    assert batch.retry(found["retried"], delay=30, reason="locked")
    assert batch.bury(found["buried"], "no such account")
    assert batch.snooze(found["snoozed"], 30)
    with batch.attempt(found["attempted"]):
        assert shardq.current() is found["attempted"]
        raise ValueError("in its block")
    return [ValueError("in the list") if payload == "listed" else None for payload in batch.payloads]


class Middleware:
    def __init__(self) -> None:
        self.heard: list[tuple[str, object]] = []

    def before(self, delivery: Delivery) -> None:
        self._note("before", delivery)

    def after(self, delivery: Delivery) -> None:
        self._note("after", delivery)

    def error(self, delivery: Delivery, failure: BaseException) -> None:
        self._note(type(failure).__name__, delivery)

    def _note(self, name: str, delivery: Delivery) -> None:
        assert shardq.current() is delivery
        self.heard.append((name, delivery.payload))


@pytest.mark.parametrize("kind", ["function", "coroutine"])
def test_verdicts_about_single_deliveries(bench: Bench, kind: str) -> None:
    payloads = ["acked", "retried", "buried", "snoozed", "attempted", "listed", "done"]
    worker, middleware = bench.worker(decided, kind, batch=10, backoff=A_MINUTE), Middleware()
    worker.use(middleware)
    bench.clock.bind(worker)
    bench.push(*payloads)
    assert bench.advance() == payloads, "each is handled once, whatever was decided about it"
    assert middleware.heard[:7] == [("before", payload) for payload in payloads]
    assert middleware.heard[7:] == [
        ("after", "acked"),
        ("Retry", "retried"),
        ("Bury", "buried"),
        ("after", "snoozed"),
        ("ValueError", "attempted"),
        ("ValueError", "listed"),
        ("after", "done"),
    ]
    assert bench.states() == {
        "retried": ("scheduled", 1),
        "buried": ("dead", 1),
        "snoozed": ("scheduled", 0),
        "attempted": ("scheduled", 1),
        "listed": ("scheduled", 1),
    }
    bench.advance(100)
    assert sorted(bench.calls[1:]) == [(30, ["retried"]), (30, ["snoozed"]), (60, ["attempted"]), (60, ["listed"])]


def poisoned(batch: Batch[Any]) -> None:
    if "poison" in batch.payloads:
        raise ValueError("no such event")


@pytest.mark.parametrize("kind", ["function", "coroutine"])
def test_the_poisoned_task_of_a_batch_is_found(bench: Bench, kind: str) -> None:
    bench.clock.bind(bench.worker(poisoned, kind, batch=8, max_attempts=2, backoff=A_MINUTE))
    bench.push("poison", *range(7))
    assert bench.advance() == ["poison", *range(7)]
    assert [payloads for _, payloads in bench.calls] == [
        ["poison", *range(7)],
        ["poison", 0, 1, 2],
        [3, 4, 5, 6],
        ["poison", 0],
        [1, 2],
        ["poison"],
        [0],
    ]
    assert bench.states() == {"poison": ("scheduled", 1)}
    bench.push(7, 8, delay=60)
    bench.advance(100)
    assert bench.calls[7:] == [(60, [7, 8]), (60, ["poison"])], "it is called alone now"
    assert bench.states() == {"poison": ("dead", 2)}


def test_without_isolation_all_fail(bench: Bench) -> None:
    bench.clock.bind(bench.worker(poisoned, batch=8, isolate=False, backoff=A_MINUTE))
    bench.push("poison", *range(3))
    bench.advance()
    assert len(bench.calls) == 1
    assert set(bench.states().values()) == {("scheduled", 1)}


def test_a_failure_goes_on_to_the_test_if_it_is_to(bench: Bench) -> None:
    """After the whole batch is settled, the halves of one that raised, too."""
    bench.clock.bind(bench.worker(poisoned, batch=8, max_attempts=2, backoff=A_MINUTE), raising=True)
    bench.push("poison", *range(7))
    with pytest.raises(ValueError, match="no such event"):
        bench.advance()
    assert bench.states() == {"poison": ("scheduled", 1)}
    assert bench.advance() == []


def test_a_failure_of_one_delivery_goes_on_to_the_test_and_a_snooze_does_not(bench: Bench) -> None:
    def handle(batch: Batch[Any]) -> None:
        for delivery in batch:
            with batch.attempt(delivery):
                raise shardq.Snooze(60) if delivery.payload == "snoozed" else shardq.Bury("not an event")

    bench.clock.bind(bench.worker(handle, batch=8), raising=True)
    bench.push("snoozed")
    assert bench.advance() == ["snoozed"]
    bench.push("buried", "other")
    with pytest.raises(shardq.Bury, match="not an event"):
        bench.advance()
    assert bench.states() == {"snoozed": ("scheduled", 0), "buried": ("dead", 1), "other": ("dead", 1)}


def test_inline_a_push_of_many_is_a_batch_before_it_returns(bench: Bench) -> None:
    def handle(batch: Batch[Any]) -> None:
        if batch.payloads == ["first"]:
            raise ValueError("it is the first")

    bench.clock.bind(bench.worker(handle, batch=8), inline=True, raising=True)
    bench.push(*"abc")
    bench.push("d")
    assert [payloads for _, payloads in bench.calls] == [[*"abc"], ["d"]]
    with pytest.raises(ValueError, match="it is the first"):
        bench.push("first")


def test_what_is_meant_for_the_test_gives_back_what_is_not_decided(bench: Bench) -> None:
    def handle(batch: Batch[Any]) -> None:
        if len(bench.calls) == 1:
            batch.ack(batch[0])
            pytest.fail("it must not come here")

    bench.clock.bind(bench.worker(handle, batch=8))
    bench.push(*"abc")
    with pytest.raises(pytest.fail.Exception, match="it must not come here"):
        bench.advance()
    assert bench.states() == {"b": ("scheduled", 0), "c": ("scheduled", 0)}, "no attempt is counted, and they are due"
    assert bench.advance() == ["b", "c"]


def test_a_coroutine_that_takes_too_long_is_ended(bench: Bench) -> None:
    worker = bench.engine.worker(backoff=A_MINUTE)

    @worker.on("events", batch=8, timeout=0.1)  # type: ignore[untyped-decorator]  # the worker is of either kind
    async def hang(batch: Batch[Any]) -> None:
        batch.ack(batch[0])
        await asyncio.sleep(1000)

    bench.clock.bind(worker)
    bench.push(*"abc")
    assert bench.advance() == [*"abc"]
    assert bench.states() == {"b": ("scheduled", 1), "c": ("scheduled", 1)}


def test_a_topic_that_is_held_gives_back_what_has_not_begun(bench: Bench) -> None:
    """Those that have failed before are called apart, and go back when the others hold the topic."""

    def handle(batch: Batch[Any]) -> None:
        if len(bench.calls) == 1:
            raise shardq.Retry(delay=10)
        if len(bench.calls) == 2:
            raise shardq.Hold(60)

    bench.clock.bind(bench.worker(handle, batch=8))
    bench.push("failed")
    bench.push("new", delay=10)
    assert bench.advance(20) == ["failed", "new"]
    assert bench.calls == [(0, ["failed"]), (10, ["new"])]
    assert bench.states() == {"failed": ("ready", 1), "new": ("scheduled", 0)}
    bench.advance(60)
    assert sorted(bench.calls[2:]) == [(70, ["failed"]), (70, ["new"])]


def test_a_topic_that_is_held_gives_back_single_tasks_that_were_claimed_with_it(bench: Bench) -> None:
    worker = bench.engine.worker()
    seen: list[tuple[float, object]] = []

    @worker.on("single")  # type: ignore[untyped-decorator]  # the worker is of either kind
    def one(delivery: Delivery) -> None:
        seen.append(((bench.clock.now() - bench._began).total_seconds(), delivery.payload))
        if len(seen) == 1:
            raise shardq.Hold(60)

    bench.clock.bind(worker)
    bench.push(*"ab", topic="single")
    bench.advance(120)
    assert seen[:1] == [(0, "a")]
    assert sorted(seen[1:], key=str) == [(60, "a"), (60, "b")]


def test_a_key_gives_a_batch_one_task_at_a_time(bench: Bench) -> None:
    """The next of a key is in the next batch of the same instant, or waits for as long as the key is held."""

    fences: list[int] = []

    def handle(batch: Batch[Any]) -> None:
        for delivery in batch:
            if delivery.payload == "ann 2" and delivery.fence not in fences:
                fences.append(delivery.fence)
            if delivery.payload == "ann 2" and len(fences) == 1:
                assert batch.hold(delivery, 60)

    bench.do(bench.engine.limit("events", per_key=1))
    bench.clock.bind(bench.worker(handle, batch=8))
    for n in (1, 2, 3):
        for key in ("ann", "bob"):
            bench.push(f"{key} {n}", delay=10 + n / 100, key=key)
    bench.push("carl", "carl", delay=5, key="carl")
    bench.advance(10.03)
    assert [(at, sorted(map(str, payloads))) for at, payloads in bench.calls] == [
        (5, ["carl"]),
        (5, ["carl"]),
        (10.01, ["ann 1", "bob 1"]),
        (10.02, ["ann 2", "bob 2"]),
        (10.03, ["bob 3"]),
    ]
    bench.advance(100)
    assert bench.calls[5:] == [(70.02, ["ann 2"]), (70.02, ["ann 3"])]


def test_in_real_time(url: str) -> None:
    sizes: list[int] = []
    with Clock(url, real_time=True) as clock:
        engine = clock.adopt(shardq.Engine(shards=1))
        worker = engine.worker()

        @worker.on("events", batch=8)
        def handle(batch: Batch[Any]) -> None:
            sizes.append(len(batch))

        clock.bind(worker)
        engine.push_many([Task(n, topic="events", delay=0.2) for n in range(20)])
        assert len(clock.advance(seconds=0.3)) == 20
    assert sum(sizes) == 20
    assert max(sizes) == 8
