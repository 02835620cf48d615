"""``Hold``: the key of a task waits, and its other tasks with it; others go on."""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections import Counter

import pytest

from shardq import Delivery, Engine, Hold, Task
from shardq.cli.acl import rules
from shardq.errors import InvalidDelay
from tests.support.engines import Engines
from tests.support.servers import Servers
from tests.support.states import FAR_S, claim, state_of
from tests.support.waiting import wait_until
from tests.worker.flavours import Flavour, handler

HELD_S, WORK_S = 2, 0.03


def test_the_key_waits_and_others_go_on(engines: Engines, running: Engine, flavour: Flavour) -> None:
    running.limit("webhook", per_key=2)
    seen: list[tuple[str | None, int, int]] = []

    def send(delivery: Delivery) -> None:
        seen.append((delivery.key, delivery.payload, delivery.attempt))
        if delivery.key == "full":
            raise Hold(FAR_S)

    worker = running.worker(concurrency=1)
    worker.on("webhook", max_attempts=1)(handler(flavour, send))
    ids = running.push_many([Task(n, topic="webhook", key="full") for n in range(8)])
    running.push_many([Task(n, topic="webhook", key=f"other-{n}") for n in range(20)])
    with engines.working(worker):
        wait_until(lambda: Counter(key == "full" for key, *_ in seen)[False] == 20, "the others are handled")
        wait_until(lambda: all(state_of(running, id) not in ("ready", "leased") for id in ids), "its tasks are back")
    held = [payload for key, payload, _ in seen if key == "full"]
    assert len(held) <= 2, "what was ready or claimed when it began to wait goes back unbegun"
    assert {attempt for *_, attempt in seen} == {1}
    running.hold("webhook", key="full", until=None)
    again = claim(running.consumer("webhook"), 2)
    assert {each.payload for each in again} == {0, 1}, "they stand before all others of the key"
    assert {(each.attempt, each.failures) for each in again} == {(1, 0)}


def test_it_goes_on_after_the_time(engines: Engines, running: Engine, flavour: Flavour) -> None:
    running.limit("webhook", per_key=1)
    seen: list[tuple[float, int]] = []

    def send(delivery: Delivery) -> None:
        seen.append((time.monotonic(), delivery.payload))
        if len(seen) == 1:
            raise Hold(1)

    worker = running.worker()
    worker.on("webhook")(handler(flavour, send))
    with engines.working(worker):
        running.push_many([Task(n, topic="webhook", key="a", id=f"{n}") for n in range(3)])
        wait_until(lambda: len(seen) == 4, "all are handled")
    assert [payload for _, payload in seen] == [0, 0, 1, 2]
    assert 0.9 < seen[1][0] - seen[0][0] < 5


def test_a_consumer_holds(running: Engine) -> None:
    running.limit("webhook", per_key=1)
    running.push_many([Task(n, topic="webhook", key="a", id=f"{n}") for n in range(2)])
    consumer = running.consumer("webhook")
    (first,) = claim(consumer, 1)
    began = time.monotonic()
    consumer.hold(first, 0.5)
    assert [each.payload for each in claim(consumer, 1)] == [0]
    assert time.monotonic() - began > 0.4
    with consumer.settling([]):
        raise Hold(1)


@pytest.mark.parametrize("delay", [-1, "soon", None, float("nan")])
def test_a_wrong_delay_is_refused_where_it_is_raised(delay: object) -> None:
    with pytest.raises(InvalidDelay, match="a delay can't be"):
        Hold(delay)  # type: ignore[arg-type]


def test_what_is_claimed_and_not_begun_goes_back(engines: Engines, running: Engine, flavour: Flavour) -> None:
    """A worker claims ahead for quick handlers: it holds many tasks of a key that may have many at once."""
    running.limit("webhook", per_key=1000)
    seen: list[int] = []
    full = threading.Event()

    def send(delivery: Delivery) -> None:
        if delivery.payload < 0:
            full.set()
        if full.is_set():
            seen.append(delivery.payload)
            raise Hold(FAR_S)

    worker = running.worker(concurrency=1)
    worker.on("webhook")(handler(flavour, send))
    tasks = [Task(-1 if n == 1500 else n, topic="webhook", key="a", id=f"{n:04}") for n in range(3000)]
    ids = running.push_many(tasks)
    with engines.working(worker):
        full.wait(60)
        out = {"ready", "leased"}
        wait_until(lambda: out.isdisjoint(state_of(running, id) for id in ids[1500:]), "all are back", timeout=90)
    assert seen[0] == -1
    assert len(seen) <= 3, "a claim under way may bring some more"


def test_without_a_key_the_topic_waits_for_the_whole_fleet(
    engines: Engines, running: Engine, other: Engine, flavour: Flavour
) -> None:
    seen: list[tuple[float, int, int]] = []

    def begun(delivery: Delivery) -> None:
        seen.append((time.time(), delivery.payload, delivery.attempt))
        if len(seen) == 1:
            raise Hold(HELD_S)

    def send(delivery: Delivery) -> None:
        begun(delivery)
        time.sleep(WORK_S)

    async def send_later(delivery: Delivery) -> None:
        begun(delivery)
        await asyncio.sleep(WORK_S)

    worker = running.worker(concurrency=1)
    worker.on("mail", max_attempts=1)(send if flavour == "function" else send_later)
    running.push_many([Task(n, topic="mail") for n in range(20)])
    with engines.working(worker):
        until = wait_until(lambda: running.topology.pauses.get("mail", 0), "the topic is paused") / 1000
        known = time.time()
        consumer = other.consumer(["mail", ""])
        other.push("open")
        assert [each.topic for each in claim(consumer, 1)] == [""]
        assert consumer.claim(1) == [], "it is paused for others, too"
        wait_until(lambda: len(seen) == 21, "all are handled afterwards")
    # what was begun before the pause was known may be any number: the hold is settled beside the work
    assert len([at for at, *_ in seen if known < at < until]) <= 2, "what was claimed and not begun goes back"
    assert {attempt for *_, attempt in seen} == {1}
    assert HELD_S - 0.1 < until - seen[0][0] < HELD_S + 10


def test_a_pause_that_lasts_longer_stays(running: Engine) -> None:
    running.push_many([Task(n, topic="mail") for n in range(3)])
    consumer = running.consumer("mail")
    deliveries = claim(consumer, 3)
    running.pause("mail", until=time.time() + FAR_S)
    before = running.topology.pauses
    consumer.hold(deliveries[0], 60)
    assert running.topology.pauses == before
    running.pause("mail")
    with consumer.settling(deliveries[1]):
        raise Hold(60)
    assert running.topology.paused == {"mail"}
    assert not running.topology.pauses


def test_many_that_ask_at_once_make_one_pause(running: Engine) -> None:
    running.push_many([Task(n, topic="mail") for n in range(30)])
    consumer = running.consumer("mail")
    deliveries = claim(consumer, 30)
    before = running.topology.epoch
    for delivery in deliveries:
        consumer.hold(delivery, 60)
    assert running.topology.epoch == before + 1


def test_who_may_not_pause_takes_nothing_itself(
    engines: Engines, running: Engine, servers: Servers, url: str, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A user of the role worker may not write the topology."""
    servers.ask_all("ACL", "SETUSER", "hands", ">x", *rules(["worker"], name=name, fsynced=False))
    try:
        mine = engines.opened(url.replace("://", "://hands:x@"), name=name)
        seen: list[tuple[float, int]] = []

        def send(delivery: Delivery) -> None:
            seen.append((time.monotonic(), delivery.payload))
            if len(seen) <= 2:
                raise Hold(0.5)

        worker = mine.worker(concurrency=1)
        worker.on("mail", max_attempts=1)(send)
        worker.on("other")(lambda _: None)
        running.push_many([Task(n, topic="mail") for n in range(3)])
        with engines.working(worker):
            wait_until(lambda: seen, "it holds the topic")
            id = running.push("x", topic="other")
            wait_until(lambda: state_of(running, id) == "gone", "other topics go on")
            assert running.topology.paused == frozenset()
            wait_until(lambda: len(seen) == 5, "all are handled, two of them twice")
        times = [at for at, _ in seen]
        assert any(later - earlier > 0.45 for earlier, later in itertools.pairwise(times))
        said = [record.getMessage() for record in caplog.records if "takes nothing of the topic" in record.getMessage()]
        assert [text.partition(":")[0] for text in said] == [
            "this consumer takes nothing of the topic 'mail' for 0.5 s, and others go on"
        ]
        assert "dispatcher or operator" in said[0]
        mine.close()
    finally:
        servers.ask_all("ACL", "DELUSER", "hands")


def test_outside_of_a_handler_it_says_what_to_do() -> None:
    with pytest.raises(Hold, match=r"only a worker's handler.* can raise this; elsewhere call .*engine.hold"):
        raise Hold(60)


def test_a_key_that_is_on_hold_for_longer_stays_so(running: Engine) -> None:
    """An operator holds a key while one of its handlers runs, which asks for less, or two ask for more and for less."""
    running.limit("webhook", per_key=2)
    running.push_many([Task(n, topic="webhook", key="a") for n in range(3)])
    consumer = running.consumer("webhook")
    one, two = claim(consumer, 2)
    running.hold("webhook", key="a", until=time.time() + FAR_S)
    consumer.hold([one, two], 0.1)
    assert consumer.claim(1, wait=0.5) == []
    running.hold("webhook", key="a", until=None)
    assert len(claim(consumer, 2)) == 2
