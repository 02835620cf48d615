"""A clock that a test moves: what falls due on the way, in which order, and what else ages."""

from __future__ import annotations

import asyncio
import datetime as dt
import threading
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest
import redis

import shardq
from shardq.core.layout.keys import shard_keys
from shardq.engine.access import EngineAccess
from shardq.testing import AsyncClock, Clock
from tests.support.listed import listed

SHARDS = 4


@pytest.fixture
def clock(url: str) -> Iterator[Clock]:
    with Clock(url) as clock:
        yield clock


@pytest.fixture
def engine(clock: Clock) -> shardq.Engine:
    return clock.adopt(shardq.Engine(shards=SHARDS))


class Seen:
    """A worker that notes what it handled and when, in seconds from the beginning."""

    def __init__(self, clock: Clock, engine: shardq.Engine, *topics: str, **options: float) -> None:
        self.calls: list[tuple[float, object, int]] = []
        self.worker = engine.worker()
        self._clock = clock
        self._begun = clock.now()
        for topic in topics or ("",):
            self.worker.on(topic)(self.note)

    def note(self, delivery: shardq.Delivery) -> None:
        self.calls.append((self.seconds, delivery.payload, delivery.attempt))

    @property
    def seconds(self) -> float:
        return (self._clock.now() - self._begun).total_seconds()

    @property
    def payloads(self) -> list[object]:
        return [payload for _, payload, _ in self.calls]


def test_what_became_of_a_task_is_kept_for_its_age(clock: Clock, engine: shardq.Engine) -> None:
    engine.configure(done_age=3600)
    seen = Seen(clock, engine)
    clock.bind(seen.worker)
    id, other = engine.push("x", delay=86_400), engine.push("y", delay=90_000)
    engine.cancel(other)
    clock.advance(days=1)
    info = engine.get(id, ended=True)
    assert info is not None
    assert (info.state, info.ended) == ("done", clock.now())
    assert engine.get(other, ended=True) is None, "that was a day ago"
    clock.advance(minutes=59)
    assert [task.id for task in engine.tasks(state="done")] == [id]
    clock.advance(minutes=2)
    assert engine.get(id, ended=True) is None
    assert engine.tasks(state="done") == []


def test_each_task_is_handled_at_its_own_instant_in_due_order(clock: Clock, engine: shardq.Engine) -> None:
    seen = Seen(clock, engine)
    clock.bind(seen.worker)
    delays = [86_400.0 * n for n in (9, 1, 7, 3, 8, 2, 6, 4, 5)] + [0.001, 40 * 86_400.0]
    engine.push_many([shardq.Task(delay, delay=delay) for delay in delays])
    deliveries = clock.advance(days=30)
    assert seen.calls == [(delay, delay, 1) for delay in sorted(delays)[:-1]]
    assert [delivery.payload for delivery in deliveries] == seen.payloads
    assert seen.seconds == 30 * 86_400
    assert engine.stats().scheduled == 1


def test_what_a_handler_pushes_is_part_of_the_same_advance(clock: Clock, engine: shardq.Engine) -> None:
    seen = Seen(clock, engine, "other")

    @seen.worker.on("")
    def step(delivery: shardq.Delivery) -> None:
        seen.note(delivery)
        if delivery.payload < 5:
            engine.push(delivery.payload + 1, delay=60)

    clock.bind(seen.worker)
    engine.push(1, delay=60)
    engine.push("between", delay=150, topic="other")
    clock.advance(minutes=10)
    assert seen.calls == [(60, 1, 1), (120, 2, 1), (150, "between", 1), (180, 3, 1), (240, 4, 1), (300, 5, 1)]


def test_a_handler_can_cancel_and_move_what_is_due_later(clock: Clock, engine: shardq.Engine) -> None:
    seen = Seen(clock, engine)
    ids = [engine.push(n, delay=n) for n in (1, 2, 3)]
    worker = engine.worker()

    @worker.on("")
    def handle(delivery: shardq.Delivery) -> None:
        seen.note(delivery)
        if delivery.payload == 1:
            assert engine.cancel(ids[1])
            assert engine.reschedule(ids[2], delay=100)

    clock.bind(worker)
    clock.advance(hours=1)
    assert seen.calls == [(1, 1, 1), (101, 3, 1)]


def test_failures_come_back_after_their_backoff(clock: Clock, engine: shardq.Engine) -> None:
    seen = Seen(clock, engine, "other")

    class Doubling(shardq.Backoff):
        def delay_s(self, attempt: int) -> float:
            return 60.0 * 2.0**attempt

    @seen.worker.on("", max_attempts=4, backoff=Doubling())
    def fail(delivery: shardq.Delivery) -> None:
        seen.note(delivery)
        raise ValueError("no such address")

    clock.bind(seen.worker)
    id = engine.push("mail", delay=10)
    clock.advance(days=1)
    assert seen.calls == [(10, "mail", 1), (130, "mail", 2), (370, "mail", 3), (850, "mail", 4)]
    [dead] = listed(engine, state="dead")
    assert (dead.id, dead.failures) == (id, 4)
    assert dead.died is not None
    assert "no such address" in str(dead.reason)
    assert abs((dead.died - clock.now()).total_seconds() + 86_400 - 850) < 0.01


def test_an_exception_goes_on_to_the_test_if_it_is_to(clock: Clock, engine: shardq.Engine) -> None:
    worker = engine.worker()

    @worker.on("", backoff=shardq.Backoff(base=0, cap=0))
    def fail(delivery: shardq.Delivery) -> None:
        if delivery.attempt == 1:
            raise ValueError("the first time")

    clock.bind(worker, raising=True)
    engine.push("a", delay=5)
    engine.push("b", delay=6)
    with pytest.raises(ValueError, match="the first time"):
        clock.advance(seconds=20)
    with pytest.raises(ValueError, match="the first time"):
        clock.advance(seconds=20)
    assert [delivery.payload for delivery in clock.advance(seconds=20)] == ["b"]


def test_a_snoozed_task_comes_again_and_is_no_exception_for_the_test(clock: Clock, engine: shardq.Engine) -> None:
    worker = engine.worker(max_attempts=1)
    seen: list[tuple[dt.datetime, int]] = []

    @worker.on("")
    def not_yet(delivery: shardq.Delivery) -> None:
        seen.append((clock.now(), delivery.attempt))
        if len(seen) < 3:
            raise shardq.Snooze(60)

    clock.bind(worker, raising=True)
    began = clock.now()
    engine.push("a", delay=5)
    engine.push("b", delay=6, expires=7)
    clock.advance(minutes=1, seconds=4)
    shardq.testing.assert_pushed(engine, payload="a", delay=dt.timedelta(seconds=1))
    assert seen == [(began + dt.timedelta(seconds=s), 1) for s in (5, 6)]
    clock.advance(minutes=1)
    assert seen[2:] == [(began + dt.timedelta(seconds=65), 1)]
    [dead] = engine.dead()
    assert (dead.payload, dead.reason, dead.failures) == ("b", "expired", 0)


def test_a_call_that_no_worker_knows_is_an_exception_for_the_test(clock: Clock, engine: shardq.Engine) -> None:
    """It would come again for ever: nothing else serves the tasks of a test."""
    worker = engine.worker()
    worker.task(name="send")(print)
    clock.bind(worker, raising=True)
    engine.push({"task": "sent", "args": [], "kwargs": {}}, delay=5)
    with pytest.raises(shardq.Snooze, match="no function named 'sent' is known to this worker, which has: send"):
        clock.advance(seconds=5)


def test_ctrl_c_in_a_handler_ends_the_test_and_gives_its_task_back(clock: Clock, engine: shardq.Engine) -> None:
    seen = Seen(clock, engine)
    worker = engine.worker()

    @worker.on("")
    def interrupted(delivery: shardq.Delivery) -> None:
        seen.note(delivery)
        if len(seen.calls) == 1:
            raise KeyboardInterrupt

    clock.bind(worker)
    engine.push("a", delay=5)
    with pytest.raises(KeyboardInterrupt):
        clock.advance(seconds=20)
    clock.advance(seconds=1)
    assert [attempt for _, _, attempt in seen.calls] == [1, 1], "no attempt is counted"


def test_coroutine_functions_run_to_their_end_or_their_timeout(clock: Clock, engine: shardq.Engine) -> None:
    seen = Seen(clock, engine, "other")

    @seen.worker.on("", timeout=0.1, max_attempts=1)
    async def handle(delivery: shardq.Delivery) -> None:
        seen.note(delivery)
        await asyncio.sleep(0 if delivery.payload == "quick" else 1000)

    clock.bind(seen.worker)
    engine.push("slow", delay=1)
    engine.push("quick", delay=2)
    clock.advance(seconds=5)
    assert seen.calls == [(1, "slow", 1), (2, "quick", 1)]
    assert [dead.reason for dead in listed(engine, state="dead")] == ["timed out after 0.1 s"]


def test_named_tasks_are_handled(clock: Clock, engine: shardq.Engine) -> None:
    sent: list[tuple[str, dt.datetime]] = []

    @engine.task(topic="mail", name="send")
    def send(to: str) -> None:
        sent.append((to, clock.now()))

    clock.bind(engine.worker())
    send.options(delay=30).push("ann")
    begun = clock.now()
    clock.advance(minutes=1)
    assert sent == [("ann", begun + dt.timedelta(seconds=30))]


def test_a_lease_that_runs_out_is_redelivered(clock: Clock, engine: shardq.Engine) -> None:
    consumer = engine.consumer(lease=60)
    engine.push("hi")
    [first] = consumer.claim(10)
    clock.advance(seconds=59)
    assert consumer.claim(10) == []
    clock.advance(seconds=1)
    [second] = consumer.claim(10)
    assert (second.id, second.attempt) == (first.id, 2)
    with pytest.raises(shardq.LeaseLost):
        consumer.ack(first)
    consumer.extend(second, 3600)
    clock.advance(seconds=3599)
    consumer.ack(second)
    clock.advance(days=1)
    assert consumer.claim(10) == []


def test_leases_run_out_among_due_tasks_one_by_one(clock: Clock, engine: shardq.Engine) -> None:
    """Also where nothing is handled, and time moves in long steps."""
    consumer = engine.consumer(lease=60)
    engine.push("lost", max_attempts=1)
    [delivery] = consumer.claim(10)
    engine.push_many([shardq.Task(n, delay=n) for n in range(1, 200)])
    begun = clock.now()
    clock.advance(days=1)
    [dead] = listed(engine, state="dead")
    assert (dead.id, dead.died) == (delivery.id, begun + dt.timedelta(seconds=60))
    assert engine.stats().ready == 199


def test_a_dedup_window_ends(clock: Clock, engine: shardq.Engine) -> None:
    def push() -> str:
        return engine.push("hi", id="welcome-ann", dedup=3600).outcome

    assert push() == "pushed"
    assert len(shardq.testing.drain(engine)) == 1
    clock.advance(seconds=3599)
    assert push() == "seen"
    clock.advance(seconds=1)
    assert push() == "pushed"


def test_tasks_expire(clock: Clock, engine: shardq.Engine) -> None:
    engine.push("by length", expires=60)
    engine.push("by instant", expires=clock.now() + dt.timedelta(seconds=120))
    engine.push("in time", expires=clock.now() + dt.timedelta(days=2))
    clock.advance(seconds=90)
    assert sorted(delivery.payload for delivery in shardq.testing.drain(engine)) == ["by instant", "in time"]
    assert [(task.payload, task.reason) for task in listed(engine, state="dead")] == [("by length", "expired")]


def test_instants_are_those_of_the_clock(url: str) -> None:
    start = dt.datetime(2031, 3, 30, 0, 59, 59, 999_900, tzinfo=dt.UTC)
    with Clock(url, start=start) as clock:
        engine = clock.adopt(shardq.Engine())
        assert clock.now() == dt.datetime(2031, 3, 30, 1, tzinfo=dt.UTC), "due times are in whole ms"
        id = engine.push("hi", at=clock.now() + dt.timedelta(days=1))
        info = engine.get(id)
        assert info is not None
        assert info.due == dt.datetime(2031, 3, 31, 1, tzinfo=dt.UTC)
        clock.advance_to(dt.datetime(2031, 3, 31, 0, 59, 59, tzinfo=dt.UTC))
        assert shardq.testing.drain(engine) == []
        clock.advance_to(dt.datetime(2031, 3, 31, 3, tzinfo=dt.timezone(dt.timedelta(hours=2))))
        assert len(shardq.testing.drain(engine)) == 1


def test_a_rate_holds_in_virtual_time(clock: Clock, engine: shardq.Engine) -> None:
    engine.limit("mail", rate=2)
    seen = Seen(clock, engine, "mail")
    clock.bind(seen.worker)
    engine.push_many([shardq.Task(n, topic="mail") for n in range(20)])
    clock.advance(seconds=0)
    assert len(seen.calls) == 1
    clock.advance(seconds=5)
    assert 10 <= len(seen.calls) <= 12
    clock.advance(minutes=1)
    assert sorted(seen.payloads, key=str) == sorted(range(20), key=str)
    assert all(later - earlier >= 0.45 for (earlier, *_), (later, *_) in zip(seen.calls, seen.calls[1:], strict=False))


def test_paused_topics_wait_until_they_are_resumed(clock: Clock, engine: shardq.Engine) -> None:
    seen = Seen(clock, engine, "mail", "other")
    clock.bind(seen.worker)
    engine.pause("mail")
    engine.push("paused", delay=1, topic="mail")
    engine.push("open", delay=2, topic="other")
    clock.advance(seconds=10)
    assert seen.payloads == ["open"]
    engine.resume("mail")
    clock.advance()
    assert seen.payloads == ["open", "paused"]


def test_a_pause_ends_at_its_instant(clock: Clock, engine: shardq.Engine) -> None:
    seen = Seen(clock, engine, "mail")
    clock.bind(seen.worker)
    engine.pause("mail", until=clock.now() + dt.timedelta(minutes=1))
    engine.push("paused", delay=1, topic="mail")
    clock.advance(hours=1)
    assert seen.calls == [(60, "paused", 1)]


def test_dead_tasks_are_removed_at_their_age(clock: Clock) -> None:
    engine = clock.adopt(shardq.Engine(dead_age=86_400, shards=1))
    engine.push("hi", max_attempts=1)
    consumer = engine.consumer()
    consumer.bury(consumer.claim(1), "no such address")
    clock.advance(hours=23)
    assert len(listed(engine, state="dead")) == 1
    clock.advance(hours=2)
    assert listed(engine, state="dead") == []


def test_due_tasks_are_there_for_whoever_claims(clock: Clock, engine: shardq.Engine) -> None:
    """Without advance: pollers would have dispatched them."""
    engine.push_many([shardq.Task(n) for n in range(50)])
    assert len(engine.consumer().claim(100)) == 50


def test_start_runs_no_thread(clock: Clock, engine: shardq.Engine) -> None:
    before = set(threading.enumerate())
    engine.start()
    assert engine.stats().scheduled == 0
    assert {thread for thread in set(threading.enumerate()) - before if "poller" in thread.name} == set()
    engine.push("hi", delay=60)
    clock.advance(minutes=1)
    assert len(engine.consumer().claim(1)) == 1
    engine.stop()


def test_a_clock_goes_forward_only(clock: Clock, engine: shardq.Engine) -> None:
    with pytest.raises(shardq.errors.InvalidOption, match="can't go back"):
        clock.advance(seconds=-1)
    with pytest.raises(shardq.errors.InvalidOption, match="can't go back"):
        clock.advance_to(clock.now() - dt.timedelta(seconds=1))
    with pytest.raises(shardq.errors.NaiveDatetime):
        clock.advance_to(dt.datetime(2031, 1, 1))
    with pytest.raises(shardq.errors.InvalidOption, match="not both"):
        clock.advance(dt.timedelta(1), days=1)


def test_a_handler_can_not_move_the_clock(clock: Clock, engine: shardq.Engine) -> None:
    worker = engine.worker()
    worker.on("")(lambda _: clock.advance(seconds=1) and None)
    clock.bind(worker, raising=True)
    engine.push("hi")
    with pytest.raises(shardq.errors.InvalidOption, match="a handler can't move the clock"):
        clock.advance()


def test_a_worker_of_another_engine_is_refused(clock: Clock, url: str, name: str) -> None:
    with shardq.Engine(url, name=name, shards=1) as other:
        worker = other.worker()
        worker.on("")(print)
        with pytest.raises(shardq.errors.InvalidOption, match="adopt"):
            clock.bind(worker)


def test_inline_a_push_is_handled_before_it_returns(clock: Clock, engine: shardq.Engine) -> None:
    seen = Seen(clock, engine, "later")

    @seen.worker.on("")
    def handle(delivery: shardq.Delivery) -> None:
        seen.note(delivery)
        if delivery.payload == 1:
            engine.push(2)
            engine.push("soon", delay=1, topic="later")
            seen.calls.append((seen.seconds, "end of 1", 0))

    clock.bind(seen.worker, inline=True)
    engine.push(1)
    assert seen.payloads == [1, "end of 1", 2]
    engine.push_many([shardq.Task(n) for n in (3, 4)])
    assert sorted(map(str, seen.payloads[3:])) == ["3", "4"]
    clock.advance(seconds=1)
    assert seen.payloads[5:] == ["soon"]


def test_an_engine_of_the_program_is_given_back_as_it_was(url: str, name: str) -> None:
    engine = shardq.Engine(url, name=name, shards=2)
    with Clock(url) as clock:
        assert clock.adopt(engine) is engine
        with pytest.raises(shardq.errors.InvalidOption, match="goes by a clock already"):
            clock.adopt(engine)
        assert engine.name != name
        engine.push("in the test", delay=60)
        clock.advance(minutes=2)
        shardq.testing.assert_ready(engine, "in the test")
    assert (engine.name, EngineAccess(engine).options.shards) == (name, 2)
    with engine:
        with Clock(url) as clock, pytest.raises(shardq.errors.InvalidOption, match="is open"):
            clock.adopt(engine)
        assert engine.stats().scheduled + engine.stats().ready == 0
        engine.push("in earnest", delay=60)
        assert engine.stats().scheduled == 1


def test_nothing_is_left_on_the_server(own_server_url: str) -> None:
    with Clock(own_server_url) as clock:
        engine = clock.adopt(shardq.Engine(shards=3))
        engine.limit("mail", rate=10, concurrency=3)
        worker = engine.worker()
        worker.on("mail")(print)
        clock.bind(worker)
        engine.push_many([shardq.Task(n, topic="mail", delay=n, id=f"a{n}", dedup=1e6) for n in range(10)])
        engine.push("left", delay=1e6)
        engine.every("recurring", interval=3600)
        clock.advance(days=1)
        engine.close()  # as a program may do at its end
    with shardq.Engine(own_server_url, name="looks") as engine:
        pass
    assert keys_of(own_server_url) == {key for key in keys_of(own_server_url) if b"{looks" in key}


@pytest.fixture
def own_server_url(own_server: object) -> str:
    return str(own_server.url)  # type: ignore[attr-defined]


def keys_of(url: str) -> set[bytes]:
    with redis.Redis.from_url(url) as client:
        return set(client.keys("*"))


@pytest.mark.timeout(400)
def test_a_virtual_year_of_36_500_tasks(single_clock: Clock) -> None:
    engine = single_clock.adopt(shardq.Engine(shards=1))
    begun = single_clock.now()
    ids: list[bytes] = []
    for receipts in engine.push_iter(shardq.Task(n, delay=n * 864) for n in range(36_500)):
        ids += [receipt.encode() for receipt in receipts]
    single_clock.advance(days=100)
    assert engine.stats().ready == 10_001
    single_clock.advance(days=265)
    assert single_clock.now() == begun + dt.timedelta(days=365)
    stats = engine.stats()
    assert (stats.ready, stats.scheduled) == (36_500, 0)
    with redis.Redis.from_url(single_clock.url) as client:
        assert client.lrange(shard_keys(engine.name, 0).ready(""), 0, -1) == ids, "each once, in due order"
    assert [delivery.payload for delivery in engine.consumer().claim(1000)] == list(range(1000))


@pytest.fixture
def single_clock(single: object) -> Iterator[Clock]:
    with Clock(single.url) as clock:  # type: ignore[attr-defined]
        yield clock


def test_a_virtual_year_is_handled_in_order(single_clock: Clock) -> None:
    engine = single_clock.adopt(shardq.Engine(shards=3))
    worker, seen = engine.worker(concurrency=1000), []

    @worker.on("")
    def handle(delivery: shardq.Delivery) -> None:
        seen.append((delivery.payload, single_clock.now()))

    single_clock.bind(worker)
    begun = single_clock.now()
    for _ in engine.push_iter(shardq.Task(n, delay=n * 432_000) for n in range(73) for _ in range(100)):
        pass
    single_clock.advance(days=365)
    assert seen == [(n, begun + dt.timedelta(days=5 * n)) for n in range(73) for _ in range(100)]


def test_the_clock_goes_by_the_settings_of_the_engine(clock: Clock, engine: shardq.Engine) -> None:
    engine.configure(max_attempts=2, dead_age=3600)
    consumer = engine.consumer(lease=5)
    engine.push("lost with its worker")
    for attempt in (1, 2):
        assert [delivery.attempt for delivery in consumer.claim(1)] == [attempt]
        clock.advance(seconds=5)
    assert [task.state for task in shardq.testing.tasks(engine)] == ["dead"]
    clock.advance(hours=1, seconds=1)
    assert shardq.testing.tasks(engine) == []


NAN: Any = float("nan")
NOTHING: Any = None


@pytest.mark.parametrize(
    ("use", "said"),
    [
        (lambda clock: clock.advance(days=NAN), "days can't be nan; give a finite number"),
        (lambda clock: clock.advance(seconds=float("inf")), "seconds can't be inf"),
        (lambda clock: clock.advance(hours="1"), "hours can't be '1'"),
        (lambda clock: clock.advance(days=1e12), "ends with the year 9999"),
        (lambda clock: clock.advance(days=3_000_000), "ends with the year 9999"),
        (lambda clock: clock.advance_to(NAN), "is not an instant"),
        (lambda clock: clock.advance_to(dt.datetime(1960, 1, 1, tzinfo=dt.UTC)), "begins with 1970"),
        (lambda clock: Clock(clock.url, start=NAN), "is not an instant"),
        (lambda clock: Clock(NOTHING), "url can't be None"),
        (lambda clock: clock.adopt(shardq.AsyncEngine()), "an AsyncClock .shardq_async_clock. an AsyncEngine"),
        (
            lambda clock: AsyncClock(clock.url).adopt(cast("Any", shardq.Engine())),
            "a Clock .shardq_clock. moves an Engine",
        ),
        (lambda clock: clock.adopt(None), "None can't go by"),
        (lambda clock: clock.bind(shardq.Engine()), "is not a worker"),
        (lambda clock: clock.bind(shardq.Engine().worker()), "give that to clock.adopt"),
    ],
)
def test_a_wrong_argument_is_refused_in_words(clock: Clock, use: Callable[[Any], object], said: str) -> None:
    before = clock.now()
    with pytest.raises(shardq.errors.InvalidOption, match=said):
        use(clock)
    assert clock.now() == before


@pytest.mark.slow
def test_topics_that_nobody_has_used_for_a_day_leave_the_lists(clock: Clock, engine: shardq.Engine) -> None:
    """And still count in the totals. A topic with a task, wherever it is, or with a setting stays."""
    engine.limit("limited", rate=100)
    some = [shardq.Task(n, topic=f"topic-{n}") for n in range(2000)]
    engine.push_many([*some, shardq.Task("x", topic="limited"), shardq.Task("x", topic="far", delay=30 * 86_400)])
    clock.advance(seconds=1)
    consumer = engine.consumer(["topic-0", "topic-1"])
    first, second = [*consumer.claim(1), *consumer.claim(1)]
    consumer.bury([first, second], "no such address")
    shardq.testing.drain(engine)
    engine.purge(topic="topic-0")
    clock.advance(hours=2)
    clock.advance(hours=23)
    before = engine.stats()
    assert len(before.topics) == 2002
    clock.advance(hours=1)
    after = engine.stats()
    assert after.topics.keys() == {"limited", "far", "topic-1"}
    assert (after.dispatched, after.died) == (before.dispatched, before.died) == (2001, 2)
    assert sum(shard.dispatched or 0 for shard in after.shards) == 2001
    engine.push("again", topic="topic-7")
    assert "topic-7" in engine.stats().topics


def test_a_worker_begins_before_its_first_task_and_ends_with_the_clock(url: str) -> None:
    order: list[str] = []
    with Clock(url) as clock:
        engine = clock.adopt(shardq.Engine(shards=SHARDS))
        worker = engine.worker()

        @worker.on_startup
        async def begin() -> None:
            order.append("begin")

        @worker.on_shutdown
        def end() -> None:
            order.append("end")

        @worker.on("")
        def handle(delivery: shardq.Delivery) -> None:
            order.append(f"{delivery.payload} {shardq.current().id == delivery.id}")

        clock.bind(worker)
        engine.push(1, delay=60)
        clock.advance(minutes=1)
        engine.push(2)
        clock.advance()
    assert order == ["begin", "1 True", "2 True", "end"]
