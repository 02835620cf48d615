"""A waiting claim is woken at once by a task that arrives, and alone; until then it asks no server."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial

import pytest
import redis

from cluster.server import Server
from shardq import AsyncEngine, Consumer, Delivery, Engine, EngineClosed, Task
from shardq.consumer.waiting import registry, wakeups
from tests.support.engines import SHARDS, Engines
from tests.support.servers import Servers, keys_of
from tests.support.states import FAR_S, counted, put, state_of
from tests.support.traffic import script_calls, waiting, wake_ups
from tests.support.waiting import wait_until

LONG_S = 30.0
PROMPT_S = 5.0
"""Below the 8 s after which a waiter looks by itself at the earliest; a few ms on an idle machine."""

Claim = Future[list[Delivery]]


@pytest.fixture
def claims() -> Iterator[Callable[[Consumer], Claim]]:
    """Begins a claim that strategy, in a thread."""
    with ExitStack() as stack:
        threads = stack.enter_context(ThreadPoolExecutor(32))

        def begin(consumer: Consumer, *, max: int = 1) -> Claim:
            stack.callback(consumer.close)
            return threads.submit(consumer.claim, max, wait=LONG_S)

        yield begin


def idle(servers: Servers, name: str, processes: int, topic: str = "") -> set[str]:
    """Waits until so many processes are known to be idle everywhere; their names."""

    def known() -> set[str]:
        names = waiting(servers, name, SHARDS, topic)
        return names if len(names) == processes else set()

    return wait_until(known, f"{processes} processes wait")


@pytest.fixture
def all_wait(servers: Servers, name: str) -> Callable[..., set[str]]:
    return partial(idle, servers, name)


def leave_name(engine: Engine, all_wait: Callable[[int], set[str]]) -> None:
    """Claims that find nothing, until every list knows this process, the first that does; then nobody strategy here."""
    consumer, ended = engine.consumer(), threading.Event()

    def claim() -> None:
        # one claim may end before its wake channels are confirmed, and then it leaves no name
        while not ended.is_set():
            assert consumer.claim(1, wait=0.2) == []

    with ThreadPoolExecutor(1) as threads:
        claims = threads.submit(claim)
        try:
            all_wait(1)
        finally:
            ended.set()
        claims.result()


def others(engines: Engines, url: str, name: str, count: int) -> list[Engine]:
    """More processes of the same fleet, as the servers see it."""
    return [engines.opened(url, name=name, shards=SHARDS) for _ in range(count)]


def prompt(claim: Claim) -> Delivery:
    (delivery,) = claim.result(PROMPT_S)
    return delivery


def test_what_comes_wakes(running: Engine, claims: Callable[..., Claim], all_wait: Callable[..., set[str]]) -> None:
    consumer = running.consumer()
    for n in range(5):
        claim = claims(consumer)
        all_wait(1)
        running.push(n)
        delivery = prompt(claim)
        assert delivery.payload == n
        consumer.ack(delivery)


@pytest.mark.parametrize("way", ["dispatch", "retry", "requeue", "lapse"])
def test_whatever_makes_a_task_ready_wakes(
    running: Engine, claims: Callable[..., Claim], all_wait: Callable[..., set[str]], way: str
) -> None:
    other = running.consumer(lease=0.3 if way == "lapse" else 60)
    id = put(running, "dead") if way == "requeue" else running.push("x")
    held = other.claim(1, wait=PROMPT_S) if way in ("retry", "lapse") else []
    if way == "dispatch":
        running.consumer().claim(1, wait=PROMPT_S)
    claim = claims(running.consumer())
    if way != "lapse":
        all_wait(1)
    match way:
        case "dispatch":
            id = running.push("y")
        case "retry":
            other.retry(held)
        case "requeue":
            running.requeue(id)
    assert prompt(claim).id == id


@pytest.mark.parametrize("url", ["single"], indirect=True)
def test_while_it_waits_it_asks_nobody(
    engine: Engine, servers: Servers, claims: Callable[..., Claim], all_wait: Callable[..., set[str]]
) -> None:
    claim = claims(engine.consumer())
    all_wait(1)
    # a shard whose confirmation is still being told about is looked at once more
    wait_until(lambda: asked_during(servers, 0.5) == 0, "all confirmations are told")
    assert asked_during(servers, 2.0) == 0
    assert not claim.done()


def asked_during(servers: Servers, seconds: float) -> int:
    """Scripts run in a span of time."""
    before = script_calls(servers)
    time.sleep(seconds)
    return script_calls(servers) - before


def test_a_whole_wait_costs_two_looks(engine: Engine, servers: Servers, all_wait: Callable[..., set[str]]) -> None:
    leave_name(engine, all_wait)  # opens the registry, and subscribes
    consumer = engine.consumer()
    before = script_calls(servers)
    consumer.claim(1, wait=0.5)
    # the name was left by the claims before: at most some shards whose confirmation is still being told about
    assert script_calls(servers) - before <= 2 * SHARDS


@pytest.mark.parametrize("whole", [1, 1000])
def test_what_wakes_nobody_is_found_all_the_same(
    running: Engine,
    servers: Servers,
    name: str,
    claims: Callable[..., Claim],
    all_wait: Callable[..., set[str]],
    monkeypatch: pytest.MonkeyPatch,
    whole: int,
) -> None:
    """Its name is lost: by the look that leaves it again, and by the one that asks for lengths."""
    monkeypatch.setattr(registry, "RECHECK_S", 0.5)
    monkeypatch.setattr(registry, "FULL_RECHECK_EVERY", whole)
    claim = claims(running.consumer())
    all_wait(1)
    for keys in keys_of(name, SHARDS):
        servers.ask(keys.slot, "DEL", keys.waiting(""))
    id = running.push("x")
    assert prompt(claim).id == id


def test_each_topic_it_waits_for_wakes(
    running: Engine, claims: Callable[..., Claim], all_wait: Callable[..., set[str]]
) -> None:
    for topic in ("a", "b", "c"):
        claim = claims(running.consumer("a", "b", "c"))
        for each in ("a", "b", "c"):
            all_wait(1, each)
        running.push("x", topic=topic)
        assert prompt(claim).topic == topic


def test_another_topic_does_not_wake(
    running: Engine, claims: Callable[..., Claim], all_wait: Callable[..., set[str]]
) -> None:
    claim, mine = claims(running.consumer("a")), claims(running.consumer("b"))
    all_wait(1, "a")
    all_wait(1, "b")
    running.push("x", topic="b")
    assert prompt(mine).topic == "b"
    assert not claim.done()


def test_one_task_wakes_one_of_three_processes(
    engines: Engines,
    running: Engine,
    servers: Servers,
    url: str,
    name: str,
    claims: Callable[..., Claim],
    all_wait: Callable[..., set[str]],
) -> None:
    begun = [claims(engine.consumer()) for engine in others(engines, url, name, 3)]
    processes = all_wait(3)
    with wake_ups(servers, running, processes) as wakes:
        running.push("x")
        wait_until(lambda: sum(claim.done() for claim in begun) == 1, "one has it", timeout=PROMPT_S)
        assert len(wakes.look().heard) == 1
    running.push_many([Task("y"), Task("z")])
    wait_until(lambda: all(claim.done() for claim in begun), "each has one", timeout=PROMPT_S)
    assert sorted(prompt(claim).payload for claim in begun) == ["x", "y", "z"]


def test_a_wake_up_is_passed_on_when_nobody_here_waits_any_more(
    engines: Engines,
    running: Engine,
    url: str,
    name: str,
    claims: Callable[..., Claim],
    all_wait: Callable[..., set[str]],
) -> None:
    gone, other = others(engines, url, name, 2)
    leave_name(gone, all_wait)  # it stays behind, and is the first to be drawn
    claim = claims(other.consumer())
    all_wait(2)
    running.push("x")
    assert prompt(claim).payload == "x"


def test_a_wake_up_that_could_not_be_passed_on_is_tried_again(
    engines: Engines,
    own_server: Server,
    name: str,
    claims: Callable[..., Claim],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(wakeups, "GRACE_S", 1.0)
    running, gone, other = others(engines, own_server.url, name, 3)
    running.start()
    with Servers(own_server.url) as servers:
        leave_name(gone, lambda count: idle(servers, name, count))
        began = time.monotonic()
        claim = claims(other.consumer())
        idle(servers, name, 2)
    receipt = running.push("x")
    wait_until(lambda: state_of(running, receipt) == "ready", "the one who is gone has heard")
    # a command that comes meanwhile is dropped with its connection; one that a stopped process reads later is not
    with redis.Redis.from_url(own_server.url) as client:
        client.client_pause(int(1000 * (wakeups.GRACE_S + wakeups.CALL_TIMEOUT_S + 0.5)), all=True)
    assert claim.result(LONG_S)[0].payload == "x"
    # by itself it looks after 16 s at the earliest, being one of two
    assert time.monotonic() - began < 14


def test_a_process_that_is_gone_is_passed_over(
    engines: Engines,
    running: Engine,
    url: str,
    name: str,
    claims: Callable[..., Claim],
    all_wait: Callable[..., set[str]],
) -> None:
    gone, other = others(engines, url, name, 2)
    leave_name(gone, all_wait)
    gone.close()
    claim = claims(other.consumer())
    all_wait(2)
    running.push("x")
    assert prompt(claim).payload == "x"


def test_a_wave_goes_through_all_who_wait(
    engines: Engines, running: Engine, url: str, name: str, all_wait: Callable[..., set[str]]
) -> None:
    """More than one takes: who comes first wakes the next, and so on."""
    consumers = [engine.consumer() for engine in others(engines, url, name, 3)]
    notes = [0, 0, 0]
    everybody, ended = threading.Barrier(3), threading.Event()

    def consume(place: int) -> None:
        consumer = consumers[place]
        deliveries = consumer.claim(3, wait=LONG_S)
        # two could have taken all before the third is up
        everybody.wait(PROMPT_S)
        while sum(notes) < 200 and not ended.is_set():
            consumer.ack(deliveries)
            notes[place] += len(deliveries)
            deliveries = consumer.claim(3, wait=0.2)

    with ThreadPoolExecutor(3) as threads:
        runs = [threads.submit(consume, place) for place in range(3)]
        try:
            all_wait(3)
            running.push_many([Task(n) for n in range(200)])
            for run in runs:
                run.result(LONG_S)
        finally:
            ended.set()
            for consumer in consumers:
                consumer.close()
    assert sum(notes) == 200
    assert min(notes) > 0


def test_many_who_wait_in_one_process(
    running: Engine,
    claims: Callable[..., Claim],
    all_wait: Callable[..., set[str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # By themselves they do not look again here, so a busy machine has time.
    monkeypatch.setattr(registry, "RECHECK_S", 600.0)
    begun = [claims(running.consumer()) for _ in range(16)]
    all_wait(1)
    ids = running.push_many([Task(n) for n in range(16)])
    wait_until(lambda: all(claim.done() for claim in begun), "each has one", timeout=LONG_S)
    assert sorted(prompt(claim).id for claim in begun) == sorted(ids)


def test_who_has_lost_its_subscriptions_subscribes_again(
    running: Engine, servers: Servers, claims: Callable[..., Claim], all_wait: Callable[..., set[str]]
) -> None:
    claim = claims(running.consumer())
    all_wait(1)
    servers.ask_all("CLIENT", "KILL", "TYPE", "pubsub")
    running.push("x")
    assert prompt(claim).payload == "x"


@pytest.mark.parametrize("where", ["here", "elsewhere"])
def test_after_the_server_has_lost_everything_what_comes_wakes(
    engines: Engines,
    own_server: Server,
    name: str,
    claims: Callable[..., Claim],
    monkeypatch: pytest.MonkeyPatch,
    where: str,
) -> None:
    """The names of those who wait are lost, too; by themselves they do not look again here."""
    monkeypatch.setattr(registry, "RECHECK_S", 600.0)
    running, other = others(engines, own_server.url, name, 2)
    running.start()
    with Servers(own_server.url) as servers:
        claim = claims((running if where == "here" else other).consumer())
        idle(servers, name, 1)
    own_server.ask("FLUSHALL")
    running.push("x")
    assert claim.result(LONG_S)[0].payload == "x"


def test_closing_ends_the_wait(
    running: Engine, claims: Callable[..., Claim], all_wait: Callable[..., set[str]]
) -> None:
    consumer = running.consumer()
    claim = claims(consumer)
    all_wait(1)
    consumer.close()
    assert claim.result(PROMPT_S) == []
    assert consumer.claim(1, wait=LONG_S) == []
    put(running, "scheduled", id="later")
    running.reschedule("later", delay=FAR_S)


def test_a_loop_over_a_consumer(running: Engine) -> None:
    """What is done is acknowledged; what the body of the loop breaks off comes again."""
    running.push_many([Task(n) for n in range(5)])
    consumer = running.consumer()
    seen: list[str] = []

    def see(until: int) -> None:
        for delivery in consumer:
            seen.append(delivery.id)
            if len(seen) == until:
                raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        see(until=3)
    with pytest.raises(ZeroDivisionError):
        see(until=6)
    assert len(set(seen)) == 5
    assert seen.count(seen[2]) == 2
    wait_until(lambda: running.stats().ready == 1, "the last one is ready again")
    stats = counted(running)
    assert (stats.leased, stats.dead, stats.scheduled) == (0, 0, 0)


def test_closing_ends_a_loop(running: Engine, all_wait: Callable[[int], set[str]]) -> None:
    consumer = running.consumer()
    with ThreadPoolExecutor(1) as threads:
        looped = threads.submit(list, consumer)
        all_wait(1)
        consumer.close()
        assert looped.result(PROMPT_S) == []


def test_any_thread_closes_a_consumer_of_asyncio(url: str, name: str, all_wait: Callable[[int], set[str]]) -> None:
    async def claim(threads: ThreadPoolExecutor) -> list[Delivery]:
        async with AsyncEngine(url, name=name, shards=SHARDS) as engine:
            consumer = engine.consumer()

            def close() -> None:
                all_wait(1)
                consumer.close()

            closing = threads.submit(close)
            deliveries = await consumer.claim(1, wait=LONG_S)
            closing.result()
            return deliveries

    with ThreadPoolExecutor(1) as threads:
        # a loop in debug mode refuses what only its own thread may do
        assert asyncio.run(claim(threads), debug=True) == []


def test_closing_the_engine_ends_every_claim_that_waits(
    engines: Engines, url: str, name: str, claims: Callable[..., Claim], all_wait: Callable[..., set[str]]
) -> None:
    engine = engines.opened(url, name=name, shards=SHARDS)
    waiting = [claims(engine.consumer()) for _ in range(3)]
    all_wait(1)
    engine.close()
    for claim in waiting:
        with pytest.raises(EngineClosed, match="closed"):
            claim.result(PROMPT_S)
    with pytest.raises(EngineClosed, match="closed"):
        engine.consumer().claim(1, wait=LONG_S)
