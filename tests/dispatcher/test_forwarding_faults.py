"""Routes that can't be served are in stats() with topic, list and reason, and in the log once for each cause."""

from __future__ import annotations

import logging

import pytest

from shardq import Engine, Task
from shardq.core.layout.slots import slot_of, tag
from tests.support.engines import Engines
from tests.support.servers import Servers
from tests.support.waiting import wait_until

pytestmark = pytest.mark.square


@pytest.fixture(params=["by the script", "by the forwarder", "within a rate"])
def list_name(request: pytest.FixtureRequest, name: str, running: Engine) -> str:
    """On a cluster the forward script serves one shard of the first list, and the forwarder all others."""
    if request.param == "within a rate":
        running.limit("email", rate=10_000)
    return f"mine:{{{tag(name, 0)}}}" if request.param == "by the script" else f"mine:{name}"


def problems(engine: Engine) -> list[str]:
    return [problem for problem in engine.health().reasons if "forwarded" in problem]


@pytest.mark.slow
def test_a_list_of_the_wrong_type(
    running: Engine, engines: Engines, servers: Servers, url: str, list_name: str, caplog: pytest.LogCaptureFixture
) -> None:
    slot = slot_of(list_name)
    servers.ask(slot, "SET", list_name, "not a list")
    running.forward("email", to=list_name)
    with caplog.at_level(logging.WARNING):
        running.push_many([Task(n, topic="email") for n in range(40)])
        wait_until(lambda: len(shards_of(running)) == 4, "stats tell it of each shard")
        (fault,) = running.stats().failing_routes
        assert (fault.topic, fault.to) == ("email", list_name)
        assert "WRONGTYPE" in fault.error
        (problem,) = problems(running)
        assert problem.startswith(f"topic 'email' can't be forwarded to the list '{list_name}' by this process: ")
        assert "WRONGTYPE" in problem
        assert not running.health().ok
        # the shards themselves are served
        assert {shard.poller for shard in running.stats().shards} == {"running"}
        for _ in range(3):
            running.pause("other")
            running.resume("other")
        running.pause("email")
        assert running.stats().failing_routes == ()
        running.resume("email")
        wait_until(lambda: running.stats().failing_routes, "it still fails")
        assert len(told(caplog, "can't be forwarded")) == 1
        # a process without pollers serves no route
        assert engines.opened(url, name=running.name).stats().failing_routes == ()
        assert told(caplog, "is forwarded") == []
        servers.ask(slot, "DEL", list_name)
        wait_until(lambda: servers.ask(slot, "LLEN", list_name) == 40, "all have arrived")
        wait_until(lambda: running.health().ok, "all is well")
        assert running.stats().failing_routes == ()
        assert told(caplog, "is forwarded") == [f"topic 'email' is forwarded to the list '{list_name}' again"]
        assert len(told(caplog, "can't be forwarded")) == 1


def shards_of(engine: Engine) -> tuple[int, ...]:
    return next((fault.shards for fault in engine.stats().failing_routes if "WRONGTYPE" in fault.error), ())


def told(caplog: pytest.LogCaptureFixture, text: str) -> list[str]:
    """What the log says of the topic."""
    messages = [record.getMessage() for record in caplog.records]
    return [message for message in messages if "topic 'email'" in message and text in message]


@pytest.mark.parametrize("way", ["corrected", "ended"])
def test_a_fault_that_is_over_without_the_list(running: Engine, servers: Servers, list_name: str, way: str) -> None:
    servers.ask(slot_of(list_name), "SET", list_name, "not a list")
    running.forward("email", to=list_name)
    running.push_many([Task(n, topic="email") for n in range(40)])
    wait_until(lambda: running.stats().failing_routes, "it fails")
    if way == "corrected":
        running.forward("email", to=f"{list_name}:right")
    else:
        running.forward("email", to=None)
    wait_until(lambda: running.stats().failing_routes == (), "it is over")
    wait_until(lambda: running.health().ok, "all is well")


@pytest.mark.slow
@pytest.mark.parametrize("url", ["cluster"], indirect=True)
def test_two_topics_of_one_list_that_is_on_another_node(running: Engine, servers: Servers, name: str) -> None:
    to = f"mine:{name}"
    servers.ask(slot_of(to), "SET", to, "not a list")
    running.forward("email", to=to)
    running.forward("sms", to=to)
    running.push_many([Task(n, topic=topic) for n in range(20) for topic in ("email", "sms")])
    wait_until(lambda: [f.topic for f in running.stats().failing_routes] == ["email", "sms"], "both are told")
    servers.ask(slot_of(to), "DEL", to)
    wait_until(lambda: servers.ask(slot_of(to), "LLEN", to) == 40, "all have arrived")
    wait_until(lambda: running.health().ok, "all is well")
