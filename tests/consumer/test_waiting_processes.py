"""One task wakes one of several processes that wait; who does not need a wake-up passes it on."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import redis

from cluster.server import Server
from shardq import Engine, Task
from shardq.core.consumer import waiter_registry as registry
from shardq.core.consumer import wakeups
from tests.consumer.waiters import LONG_S, PROMPT_S, Claim, idle, leave_name, others, prompt
from tests.support.engines import SHARDS, Engines
from tests.support.servers import Servers
from tests.support.states import state_of
from tests.support.traffic import wake_ups
from tests.support.waiting import wait_until

pytestmark = pytest.mark.square


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


def test_who_leaves_with_a_task_leaves_the_name_of_its_process_to_others_that_wait_here(
    running: Engine, claims: Callable[..., Claim], all_wait: Callable[..., set[str]]
) -> None:
    """A list that woke the process has its name no more: the next task there would wake nobody for ten seconds."""
    begun = [claims(running.consumer()) for _ in range(SHARDS + 2)]
    all_wait(1)
    for count in range(1, len(begun) + 1):
        running.push(count)
        wait_until(lambda: sum(claim.done() for claim in begun) == count, "the next has it", timeout=PROMPT_S)  # noqa: B023


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
