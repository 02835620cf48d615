"""A waiting claim is woken at once by a task that arrives, and alone; until then it asks no server."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from cluster.server import Server
from shardq import Engine
from shardq.core.consumer import waiter_registry as registry
from tests.consumer.waiters import LONG_S, PROMPT_S, Claim, idle, leave_name, others, prompt
from tests.support.engines import SHARDS, Engines
from tests.support.servers import Servers, keys_of
from tests.support.states import put
from tests.support.traffic import script_calls
from tests.support.waiting import wait_until

pytestmark = pytest.mark.square


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


@pytest.mark.slow
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
        claim = claims(running.consumer(["a", "b", "c"]))
        for each in ("a", "b", "c"):
            all_wait(1, each)
        running.push("x", topic=topic)
        assert prompt(claim).topic == topic


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
