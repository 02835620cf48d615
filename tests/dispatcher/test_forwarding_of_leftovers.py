"""Ready tasks of a routed topic are forwarded at once, also when the process that dispatched them left or got no
answer.
"""

from __future__ import annotations

import itertools
import time

import pytest

from cluster.server import Server
from shardq import Engine, Task
from shardq.core.calls import dispatch
from shardq.core.dispatcher.forwarding import MAX_ROUTED
from shardq.core.dispatcher.poller import CALL_TIMEOUT_S, LONGEST_SLEEP_S
from shardq.core.drivers.settings import Settings
from shardq.core.drivers.sync import Driver
from shardq.core.layout.keys import shard_keys
from shardq.core.layout.slots import slot_of, tag
from tests.support.engines import Engines
from tests.support.servers import Servers
from tests.support.states import FAR_S, ready_of
from tests.support.waiting import wait_until

AT_ONCE_S = LONGEST_SLEEP_S / 2
"""Well below the time after which a poller looks by itself."""


def on_list(servers: Servers, key: str) -> list[bytes]:
    return list(servers.ask(slot_of(key), "LRANGE", key, 0, -1))


def moved_by_another(engine: Engine, url: str, servers: Servers, topic: str, payload: str, *, shard: int) -> None:
    """As a process does that gives the shard up, and ends before it has forwarded anything."""
    keys = shard_keys(engine.name, shard)
    beside = (f"mine-{n}" for n in itertools.count())
    own = next(id for id in beside if engine.topology.shard_of(f"{topic}/{id}") == shard)
    engine.push(payload, topic=topic, id=own, delay=FAR_S)
    later_us = int(servers.now_ms(keys.slot) + 2 * FAR_S * 1000) * 1000
    call = dispatch.dispatch(
        keys,
        engine.topology.stamp,
        [topic],
        limit=10,
        max_attempts=9,
        routed=[topic],
        caller="another",
    ).at(str(later_us))
    driver = Driver(Settings.from_url(url))
    driver.open()
    assert driver.call(call).moved == 1
    driver.close()


@pytest.mark.parametrize("place", ["beside shard 0", "anywhere"])
def test_what_another_process_makes_ready_as_it_leaves(
    running: Engine, url: str, servers: Servers, name: str, place: str
) -> None:
    list_name = f"mine:{{{tag(name, 0)}}}" if place == "beside shard 0" else f"mine:{name}"
    running.forward("email", to=list_name)
    running.push("a", topic="email")
    wait_until(lambda: on_list(servers, list_name) == [b'"a"'], "its poller has looked")
    for shard in (0, 1):
        before = len(on_list(servers, list_name))
        moved_by_another(running, url, servers, "email", "b", shard=shard)
        wait_until(lambda: len(on_list(servers, list_name)) > before, "it goes at once", timeout=AT_ONCE_S)  # noqa: B023


def test_with_more_routes_than_go_into_one_call(engines: Engines, url: str, servers: Servers, name: str) -> None:
    engine = engines.opened(url, name=name, shards=1)
    topics = [f"t{n}" for n in range(2 * MAX_ROUTED + 3)]
    for topic in topics:
        engine.forward(topic, to=f"mine:{name}")
    engine.start()
    engine.push_many([Task("a", topic=topic) for topic in topics])
    wait_until(lambda: len(on_list(servers, f"mine:{name}")) == len(topics), "one of each has arrived")
    for topic in (topics[0], topics[MAX_ROUTED], topics[-1]):
        before = len(on_list(servers, f"mine:{name}"))
        moved_by_another(engine, url, servers, topic, "b", shard=0)
        wait_until(lambda: len(on_list(servers, f"mine:{name}")) > before, "it goes at once", timeout=AT_ONCE_S)  # noqa: B023
    engine.push("c", topic="no-route")
    wait_until(lambda: ready_of(engine, "no-route") == 1, "the others have room, too")


def test_while_processes_come_and_go(engines: Engines, url: str, servers: Servers, name: str) -> None:
    engine = engines.opened(url, name=name, shards=4)
    engine.start()
    engine.forward("email", to=f"mine:{name}")
    other = engines.opened(url, name=name)
    count = 0
    for _ in range(3):
        engine.push_many([Task(n, topic="email", delay=n / 200) for n in range(100)])
        other.start()
        engine.push_many([Task(n, topic="email", delay=n / 200) for n in range(100)])
        other.stop()
        count += 200
    wait_until(lambda: len(on_list(servers, f"mine:{name}")) >= count, "all have arrived", timeout=AT_ONCE_S)
    assert len(on_list(servers, f"mine:{name}")) == count


def test_a_server_that_was_frozen(engines: Engines, own_server: Server, name: str) -> None:
    """It may have done what it was asked and nobody heard it, in whatever order."""
    engine = engines.opened(own_server.url, name=name, shards=4)
    engine.start()
    engine.forward("email", to=f"mine:{name}")
    with Servers(own_server.url) as servers:
        engine.push_many([Task(n, topic="email") for n in range(40)])
        wait_until(lambda: len(on_list(servers, f"mine:{name}")) == 40, "the pollers have looked")
        for round in (2, 3):
            engine.push_many([Task(n, topic="email", delay=0.3) for n in range(40)])
            own_server.pause()
            time.sleep(CALL_TIMEOUT_S + 1.0)  # each poller gives up a dispatch, and is about to send the next
            own_server.resume()
            wait_until(
                lambda: len(on_list(servers, f"mine:{name}")) == round * 40,  # noqa: B023  called at once
                "what fell due meanwhile goes at once",
                timeout=AT_ONCE_S,
            )
