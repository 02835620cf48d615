"""A forwarded topic keeps to its rate, takes no concurrency limit, and is given to no consumer."""

from __future__ import annotations

import logging
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from shardq import Delivery, Engine, Task
from shardq.core.layout.keys import control_keys
from shardq.core.layout.slots import slot_of, tag
from shardq.core.layout.topology import Limit
from shardq.errors import InvalidOption
from tests.support.engines import Engines
from tests.support.servers import Servers
from tests.support.states import claim
from tests.support.waiting import wait_until

FAST = 10_000


@pytest.fixture(params=["beside shard 0", "anywhere"])
def list_name(request: pytest.FixtureRequest, name: str) -> str:
    """On a cluster the forward script reaches the first list from one shard, and the forwarder is for all others."""
    return f"mine:{{{tag(name, 0)}}}" if request.param == "beside shard 0" else f"mine:{name}"


def length(servers: Servers, key: str) -> int:
    return int(servers.ask(slot_of(key), "LLEN", key))


def told(caplog: pytest.LogCaptureFixture, text: str) -> list[str]:
    return [record.getMessage() for record in caplog.records if text in record.getMessage()]


def test_a_rate_holds_over_all_shards_and_processes(
    running: Engine, other: Engine, servers: Servers, list_name: str
) -> None:
    rate, count = 20, 20
    other.start()
    running.limit("email", rate=rate)
    running.forward("email", to=list_name)
    began = time.monotonic()
    running.push_many([Task(n, topic="email") for n in range(count)])
    wait_until(lambda: length(servers, list_name) >= count, "all have arrived")
    # at first there is a tenth of a second's worth
    assert time.monotonic() - began >= (count - rate / 10) / rate
    payloads = servers.ask(slot_of(list_name), "LRANGE", list_name, 0, -1)
    assert sorted(map(int, payloads)) == list(range(count))
    wait_until(lambda: other.stats().ready == other.stats().leased == 0, "none is left with us")


def test_a_rate_that_is_high_is_used_up(running: Engine, servers: Servers, list_name: str) -> None:
    running.limit("email", rate=FAST)
    running.forward("email", to=list_name)
    running.push_many([Task(n, topic="email") for n in range(3000)])
    wait_until(lambda: length(servers, list_name) == 3000, "all have arrived", timeout=20)


def test_a_rate_that_is_set_and_ended_on_the_way(running: Engine, servers: Servers, list_name: str) -> None:
    running.forward("email", to=list_name)
    running.push("a", topic="email")
    wait_until(lambda: length(servers, list_name) == 1, "it has arrived")
    running.limit("email", rate=0.001)
    running.push_many([Task(n, topic="email") for n in range(40)])
    wait_until(lambda: running.stats().scheduled == 0, "all are dispatched")
    wait_until(lambda: running.stats().ready == 39, "one is let through, of all shards")
    running.limit("email", None)
    wait_until(lambda: length(servers, list_name) == 41, "all have arrived")


def test_a_list_that_refuses_uses_up_no_permit(running: Engine, servers: Servers, list_name: str) -> None:
    servers.ask(slot_of(list_name), "SET", list_name, "not a list")
    running.limit("email", rate=0.001)
    running.forward("email", to=list_name)
    running.push_many([Task(n, topic="email") for n in range(20)])
    wait_until(lambda: running.stats().failing_routes, "it refuses")
    running.forward("email", to=f"{list_name}:2")
    wait_until(lambda: length(servers, f"{list_name}:2") == 1, "the one that may go has arrived")


def test_other_topics_do_not_wait_for_a_rate(running: Engine, servers: Servers, list_name: str) -> None:
    running.limit("email", rate=0.001)
    running.forward("email", to=list_name)
    running.forward("sms", to=f"{list_name}:sms")
    running.push_many([Task(n, topic=topic) for n in range(40) for topic in ("email", "sms", "")])
    wait_until(lambda: length(servers, f"{list_name}:sms") == 40, "the other route is served")
    assert len(claim(running.consumer(), 40)) == 40
    assert length(servers, list_name) <= 1


def test_concurrency_is_refused(running: Engine, other: Engine) -> None:
    running.forward("email", to="mine")
    with pytest.raises(InvalidOption, match=r"'email' is forwarded to the list 'mine', so it can't be limited to 5 at"):
        # which has not heard of the route
        other.limit("email", rate=9, concurrency=5)
    assert running.topology.limits == {}
    other.limit("email", rate=9)
    running.limit("sms", rate=9, concurrency=1000)
    with pytest.raises(InvalidOption, match=r"'sms' is limited to 1,000 at once, so it can't be forwarded: .*; end"):
        other.forward("sms", to="mine")
    # nor of its end
    running.limit("sms", rate=9)
    other.forward("sms", to="mine")
    running.forward("email", to=None)
    other.limit("email", concurrency=5)
    assert other.topology.limits == {"email": Limit(concurrency=5), "sms": Limit(rate=9)}


def test_a_consumer_gets_nothing_of_a_forwarded_topic(
    running: Engine, other: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    running.limit("email", rate=0.001)
    running.forward("email", to="mine")
    running.push_many([Task(n, topic="email") for n in range(20)])
    running.push("x")
    wait_until(lambda: running.stats().scheduled == 0, "all are dispatched")
    with caplog.at_level(logging.WARNING):
        consumer = other.consumer(["email", ""])
        (delivery,) = claim(consumer, 1)
        assert delivery.payload == "x"
        assert consumer.claim(1) == other.consumer(["email", ""]).claim(1) == consumer.claim(1, wait=0.1) == []
        assert len(told(caplog, "topic 'email' is forwarded to the list 'mine': consumers get nothing")) == 1
        running.forward("email", to=None)
        running.limit("email", None)
        # also one that does not wait, and hears no news
        assert len(claim(consumer, 19)) == 19
        assert len(told(caplog, "topic 'email' is no longer forwarded")) == 1


@pytest.mark.parametrize("order", ["forward", "pause"])
def test_who_never_waits_finds_that_a_topic_is_given_out_again(running: Engine, other: Engine, order: str) -> None:
    """All its topics were held back: no call of it was refused for what it does not know."""
    if order == "forward":
        running.limit("email", rate=0.001)
        running.forward("email", to="mine")
    else:
        running.pause("email")
    consumer = other.consumer("email")
    running.push_many([Task(n, topic="email") for n in range(10)])
    wait_until(lambda: running.stats().scheduled == 0, "all are dispatched")
    assert consumer.claim(1) == []
    if order == "forward":
        running.forward("email", to=None)
        running.limit("email", None)
    else:
        running.resume("email")
    wait_until(lambda: consumer.claim(1), "it is given one")


@pytest.mark.parametrize("end", ["ended", "resumed and ended"])
def test_who_waits_gets_what_is_ready_when_a_route_ends(
    running: Engine, other: Engine, servers: Servers, list_name: str, end: str
) -> None:
    servers.ask(slot_of(list_name), "SET", list_name, "not a list")
    running.forward("email", to=list_name)
    running.push("x", topic="email")
    wait_until(lambda: running.stats().failing_routes, "it is ready, and the list does not take it")
    if end == "resumed and ended":
        running.pause("email")
    with ThreadPoolExecutor(1) as threads:
        claimed = threads.submit(other.consumer("email").claim, 1, wait=20)
        wait_until(lambda: other.topology.routes, "it knows of the route")
        running.forward("email", to=None)
        running.resume("email")
        # below the 8 s after which a waiter looks by itself at the earliest
        (delivery,) = claimed.result(7)
        assert delivery.payload == "x"


def test_a_worker_whose_topics_are_forwarded(
    engines: Engines, running: Engine, other: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    """It is told, and goes on: the next route may end any moment, and one that begins later ends no worker."""
    running.pause("email")
    for topic in ("email", "sms"):
        running.forward(topic, to="mine")
    running.push_many([Task(n, topic="email") for n in range(10)])
    wait_until(lambda: running.stats().scheduled == 0, "all are dispatched")
    handled: list[int] = []
    worker = running.worker()

    @worker.on("email")
    async def email(delivery: Delivery) -> None:
        handled.append(delivery.payload)

    @worker.on("sms")
    async def sms(delivery: Delivery) -> None: ...

    with caplog.at_level(logging.WARNING), engines.working(worker):
        wait_until(lambda: told(caplog, "every topic of this consumer is forwarded, so it gets nothing"), "it is told")
        assert told(caplog, "'email' to the list 'mine', 'sms' to the list 'mine'")
        other.forward("email", to=None)
        other.resume("email")
        wait_until(lambda: len(handled) == 10, "all are handled")
        other.forward("email", to="mine")
        running.push("x", topic="email")
        wait_until(lambda: told(caplog, "topic 'email' is forwarded to the list 'mine': consumers"), "it is told")
        assert running.health().ok
    assert sorted(handled) == list(range(10))


@pytest.mark.slow
def test_without_the_slot_of_permits_it_waits_and_says_so(running: Engine, servers: Servers, list_name: str) -> None:
    keys = control_keys(running.name)
    servers.ask(keys.slot, "SET", keys.bucket("email"), "no bucket")
    running.limit("email", rate=0.001)
    running.forward("email", to=list_name)
    running.push_many([Task(n, topic="email") for n in range(20)])
    wait_until(lambda: running.stats().failing_routes, "there is nobody to ask")
    assert length(servers, list_name) == 0
    servers.ask(keys.slot, "DEL", keys.bucket("email"))
    # the other shards wait for their turn, and that is no fault
    wait_until(lambda: running.health().ok, "all is well")
    wait_until(lambda: length(servers, list_name) == 1, "the one that may go has arrived")
