"""The pollers of one process: exact sleep, wake-ups, errors, and a prompt end. On threads only, as the asyncio engine
has the same pollers.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator

import pytest

from cluster.server import Server
from shardq import Engine, Stats, Task
from shardq.core.layout.keys import shard_keys
from tests.dispatcher.shards import id_in
from tests.support.engines import SHARDS
from tests.support.servers import Servers, keys_of
from tests.support.stalls import Stopwatch
from tests.support.states import FAR_S, claim, state_of
from tests.support.waiting import wait_until

STOP_S = 0.8
"""Half a second is the promise; a machine that stands still is left out of it, one that is busy is not. What waits for
an answer, or for a poller's sleep to end, takes a second at least.
"""

NOT_ASLEEP_S = 10.0
"""Far more than it takes, and well below the 18 s that a poller sleeps at least when nothing wakes it."""


@pytest.fixture
def engine(url: str, name: str) -> Iterator[Engine]:
    with Engine(url, name=name, shards=SHARDS, timeout=10.0) as engine:
        yield engine


def started(engine: Engine) -> Engine:
    """All its pollers have made a step."""
    engine.start()
    wait_until(lambda: {s.poller for s in engine.stats().shards} == {"running"}, "all pollers run")
    return engine


def dispatched_after(engine: Engine, push: Task) -> float:
    """Seconds from the push, as this process sees it, until the task is ready: no poller sleeps over it."""
    (id,) = engine.push_many([push])
    began = time.monotonic()
    wait_until(lambda: state_of(engine, id) == "ready", f"{id} is ready", timeout=NOT_ASLEEP_S)
    return time.monotonic() - began


def wake_at(servers: Servers, name: str, shard: int) -> float:
    keys = shard_keys(name, shard)
    return float(servers.ask(keys.slot, "HGET", keys.meta, "wake_at") or 0)


def test_windows_that_end_together_are_forgotten_together(engine: Engine, servers: Servers, name: str) -> None:
    """They are trimmed 500 at a time, and no faster than they end if that were once a second."""
    keys = shard_keys(name, 0)
    ended = servers.now_ms(keys.slot) - 60_000
    for first in range(0, 60_000, 20_000):
        words = [word for n in range(first, first + 20_000) for word in (ended + n / 1000, f"w{n}")]
        servers.ask(keys.slot, "ZADD", keys.seen, *words)
    started(engine)
    wait_until(lambda: servers.ask(keys.slot, "ZCARD", keys.seen) == 0, "all windows that have ended are forgotten")


def test_a_hot_shard_is_left_in_peace_for_moments(own_server: Server, name: str) -> None:
    """A poller that comes as often as something is due, each ms, keeps a server busy with dispatches of a few tasks."""
    per_ms, ms = 20, 1000
    with Engine(own_server.url, name=name, shards=1) as engine, own_server.client(decode=True) as client:
        begin = time.time() + 1.5
        engine.push_many([Task(0, at=begin + n / per_ms / 1000) for n in range(per_ms * ms)])
        started(engine)
        time.sleep(max(0.0, begin - time.time()))
        client.config_resetstat()
        ready = shard_keys(name, 0).ready("")
        wait_until(lambda: client.llen(ready) == per_ms * ms, "all tasks are ready")
        # a rest takes up to 6 ms
        assert client.info("commandstats")["cmdstat_zremrangebyrank"]["calls"] < ms * 0.4


@pytest.mark.slow
def test_an_earlier_task_is_dispatched_at_once(engine: Engine, servers: Servers, name: str) -> None:
    started(engine)
    engine.push_many([Task(n, delay=FAR_S) for n in range(200)])
    hour = time.time() * 1000 + FAR_S * 900
    wait_until(lambda: all(wake_at(servers, name, n) > hour for n in range(SHARDS)), "all pollers sleep for an hour")
    for n in range(20):
        assert dispatched_after(engine, Task(n)) < NOT_ASLEEP_S
        assert dispatched_after(engine, Task(n, delay=0.05)) < NOT_ASLEEP_S


def test_operations_that_make_something_due_wake_the_poller(engine: Engine) -> None:
    started(engine)
    id = engine.push("x", delay=FAR_S)
    engine.reschedule(id, delay=0)
    consumer = engine.consumer()
    (delivery,) = consumer.claim(1, wait=NOT_ASLEEP_S)
    consumer.retry(delivery, delay=0.05)
    (delivery,) = consumer.claim(1, wait=NOT_ASLEEP_S)
    consumer.bury(delivery, "no")
    engine.requeue(id)
    (delivery,) = engine.consumer(lease=0.2).claim(1, wait=NOT_ASLEEP_S)
    (delivery,) = consumer.claim(1, wait=NOT_ASLEEP_S)
    assert (delivery.id, delivery.lapses) == (id, 1)


def test_a_lost_subscription_heals(engine: Engine, servers: Servers, caplog: pytest.LogCaptureFixture) -> None:
    started(engine)
    for _ in range(3):
        # a poller may run before its bell is heard
        wait_until(lambda: sum(servers.ask_all("CLIENT", "KILL", "TYPE", "pubsub")), "there was something to lose")
        # Unsubscribed pollers look every 250 ms, so nothing is much late; and then they are subscribed again.
        assert dispatched_after(engine, Task("x")) < NOT_ASLEEP_S
        wait_until(lambda: prompt(engine), "pushes ring the pollers again", timeout=60)
    # a server that stands still is an error of others
    errors = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert not [record for record in errors if record.name == "shardq.subscriber" or record.exc_info]


def prompt(engine: Engine) -> bool:
    """Ten tasks in a row are dispatched faster than an unsubscribed poller would."""
    return all(dispatched_after(engine, Task(n)) < 0.1 for n in range(10))


@pytest.mark.slow
def test_an_error_is_said_once_and_shown(
    engine: Engine, servers: Servers, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    started(engine)
    broken = keys_of(name, SHARDS)[1]
    servers.ask(broken.slot, "SET", broken.due, "not a sorted set")
    servers.ask(broken.slot, "SPUBLISH", broken.bell, "")

    def errors() -> list[str]:
        of = [r.getMessage() for r in caplog.records if r.name.startswith("shardq") and r.levelno >= logging.ERROR]
        # a server that stands still is an error too, of the heartbeat and of any shard
        return [said for said in of if said.startswith("shard 1 ") or "WRONGTYPE" in said]

    wait_until(errors, "the log says it")
    tries = refusals(servers)
    wait_until(lambda: refusals(servers) > tries + 3, "it is tried again, several times")
    assert len(errors()) == 1
    assert errors()[0].startswith("shard 1 can't be dispatched, trying again: ")
    assert "WRONGTYPE" in errors()[0]
    good = next(id for n in range(99) if engine.topology.shard_of(id := f"mine-{n}") != 1)
    engine.push("x", id=good)
    wait_until(lambda: state_of(engine, good) == "ready", "the other shards go on")

    servers.ask(broken.slot, "DEL", broken.due)
    wait_until(lambda: "shard 1 is dispatched again" in caplog.text, "it says that it is well again")
    bad = id_in(engine, 1)
    engine.push("x", id=bad)
    wait_until(lambda: state_of(engine, bad) == "ready", "its shard goes on too")
    stats = wait_until(lambda: (seen := engine.health()) and seen.stats, "every poller is well")
    assert stats
    assert (stats.shards[1].poller, stats.shards[1].poller_error) == ("running", None)
    assert len(errors()) == 1


def refusals(servers: Servers) -> int:
    """How often a server has answered that a key is of the wrong type."""
    told = [client.info("errorstats").get("errorstat_WRONGTYPE", {}) for client in servers.masters]
    return sum(int(counts.get("count", 0)) for counts in told)


def test_it_stops_and_starts_again(engine: Engine) -> None:
    for n in range(3):
        started(engine)
        engine.start()  # once more is once
        assert dispatched_after(engine, Task(n)) < NOT_ASLEEP_S
        engine.stop()
        engine.stop()
        id = engine.push("x")
        assert state_of(engine, id) == "scheduled"
    started(engine)
    assert len(claim(engine.consumer(), 6)) == 6


def test_stopping_is_prompt(engine: Engine) -> None:
    started(engine)
    engine.push_many([Task(n) for n in range(20_000)])  # in the middle of work
    with Stopwatch() as watch:
        engine.stop()
    assert watch.took < STOP_S


@pytest.mark.parametrize("seconds", [0.0, 0.3, 3.0])
def test_stopping_is_prompt_while_the_server_says_nothing(own_server: Server, name: str, seconds: float) -> None:
    with Engine(own_server.url, name=name, shards=SHARDS) as engine:
        started(engine)
        own_server.pause()
        paused = time.monotonic()
        # from the first instant to the moment when every call has failed once
        wait_until(lambda: time.monotonic() - paused >= seconds, "the silence has lasted")
        with Stopwatch() as watch:
            engine.stop()
        own_server.resume()
    assert watch.took < STOP_S


def test_closing_is_prompt_while_the_server_is_gone(own_server: Server, name: str) -> None:
    engine = Engine(own_server.url, name=name, shards=SHARDS).open()
    started(engine)
    own_server.kill()
    with Stopwatch() as watch:
        engine.close()
    assert watch.took < STOP_S


def test_sixty_four_shards(url: str, name: str, servers: Servers) -> None:
    threads = threading.active_count()
    with Engine(url, name=name, shards=64) as engine:
        with Stopwatch() as watch:
            engine.start()
            wait_until(lambda: {s.poller for s in engine.stats().shards} == {"running"}, "every poller has made a step")
        assert watch.took < 5.0
        pollers = [thread for thread in threading.enumerate() if thread.name.startswith("shardq-poller-")]
        assert len(pollers) == 64
        nodes = len(servers.masters)
        # a thread for each poller and each node's subscriptions, heartbeat, scheduler, history, unused topics, pauses
        assert threading.active_count() - threads <= 64 + nodes + 6
        own = 64 + nodes + 1  # pollers, subscribers, heartbeat; a poller may run before its subscriber has connected
        wait_until(lambda: counted("own", engine.stats()) == own, "every one has its connection")
        stats = engine.stats()
        assert len(stats.connections) == nodes
        assert counted("shared", stats) <= 2 * nodes < counted("bound", stats)
        ids = engine.push_many([Task(n) for n in range(640)])
        assert sorted(d.id for d in claim(engine.consumer(), 640)) == sorted(ids)
        with Stopwatch() as watch:
            engine.stop()
        assert watch.took < STOP_S


def counted(what: str, stats: Stats) -> int:
    """A number of stats().connections, over all nodes."""
    return sum(getattr(count, what) for count in stats.connections.values())
