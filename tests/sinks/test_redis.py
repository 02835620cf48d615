"""A topic that is forwarded to a list or a stream of another Redis: everything arrives, whoever is killed."""

from __future__ import annotations

import json
from contextlib import ExitStack

import pytest

from cluster.cluster import Cluster
from cluster.server import Server
from shardq import Engine, Task
from shardq.core.layout.slots import slot_of
from shardq.engine.access import EngineAccess
from tests.sinks.seen import ids_in, left, sink_stats
from tests.support.servers import Servers
from tests.support.waiting import wait_until
from tests.support.workers import Worker

TASKS = 300


def test_a_list_and_a_stream_elsewhere(feeding: Engine, sink: Server) -> None:
    feeding.forward("mail", to=f"{sink.url}#mail")
    feeding.forward("first", to=f"{sink.url}#first", side="left")
    feeding.forward("events", to=f"{sink.url}#stream:events")
    for number in (1, 2):
        feeding.push({"n": number}, topic="mail")
        wait_until(lambda: sink.ask("LLEN", "mail") == number, "it has arrived")  # noqa: B023  called at once
        feeding.push({"n": number}, topic="first")
        wait_until(lambda: sink.ask("LLEN", "first") == number, "it has arrived")  # noqa: B023
    assert sink.ask("LRANGE", "mail", 0, -1) == ['{"n":1}', '{"n":2}']
    assert sink.ask("LRANGE", "first", 0, -1) == ['{"n":2}', '{"n":1}']
    plain = feeding.push("a", topic="events")
    wait_until(lambda: sink.ask("XLEN", "events") == 1, "it has arrived")
    headed = feeding.push("b", topic="events", headers={"trace": "é/1"})
    wait_until(lambda: sink.ask("XLEN", "events") == 2, "it has arrived")
    (_, first), (_, second) = sink.ask("XRANGE", "events", "-", "+")
    assert first == {"id": str(plain), "payload": '"a"'}
    assert {**second, "headers": json.loads(second["headers"])} == {
        "id": str(headed),
        "payload": '"b"',
        "headers": {"trace": "é/1"},
    }
    wait_until(lambda: left(feeding) == 0, "nothing is left here")
    seen = sink_stats(feeding, "events")
    assert (seen.to, seen.sent, seen.failed, seen.circuit) == (f"{sink.url}#stream:events", 2, 0, "closed")


def test_a_stream_is_trimmed(feeding: Engine, sink: Server) -> None:
    for to in (f"{sink.url}#stream:events", f"stream:{feeding.name}"):
        feeding.forward("events", to=to, maxlen=100)
        ids = feeding.push_many([Task(n, topic="events") for n in range(1000)])
        wait_until(lambda: left(feeding) == 0, "all have arrived")
        with Servers(EngineAccess(feeding).options.url or "") as servers:
            kept = (
                ids_in(sink, "events")
                if "#" in to
                else [
                    fields[b"id"].decode()
                    for _, fields in servers.ask(slot_of(feeding.name), "XRANGE", feeding.name, "-", "+")
                ]
            )
            servers.ask(slot_of(feeding.name), "DEL", feeding.name)
        # whole nodes of a hundred entries are trimmed, once for each batch
        assert 100 <= len(kept) < 1000
        assert set(kept) <= set(ids)


def test_a_cluster_elsewhere(feeding: Engine, cluster: Cluster, name: str) -> None:
    key = f"sink:{name}"
    feeding.forward("mail", to=f"{cluster.url}#stream:{key}")
    ids = feeding.push_many([Task(n, topic="mail") for n in range(50)])
    with Servers(cluster.url) as servers:
        wait_until(lambda: servers.ask(slot_of(key), "XLEN", key) >= 50, "all have arrived")
        found = {fields[b"id"].decode() for _, fields in servers.ask(slot_of(key), "XRANGE", key, "-", "+")}
    assert found == set(ids)


def test_a_sink_that_is_down_costs_no_attempt(feeding: Engine, sink: Server) -> None:
    feeding.forward("mail", to=f"{sink.url}?timeout=0.5#stream:mail")
    feeding.push("first", topic="mail")
    wait_until(lambda: sink_stats(feeding, "mail").sent == 1, "it works")
    sink.kill()
    ids = feeding.push_many([Task(n, topic="mail", max_attempts=1) for n in range(TASKS)])
    wait_until(lambda: sink_stats(feeding, "mail").circuit != "closed", "it is noticed")
    failures = sink_stats(feeding, "mail").failed
    wait_until(lambda: sink_stats(feeding, "mail").circuit == "open", "it is down")
    (fault,) = feeding.stats().failing_routes
    assert (fault.topic, fault.to) == ("mail", f"{sink.url}?***#stream:mail")
    assert any("'mail' can't be forwarded to redis://" in reason for reason in feeding.health().reasons)

    def all_wait() -> bool:
        seen = feeding.stats()
        return (seen.topics["mail"].ready, seen.leased, seen.dead) == (TASKS, 0, 0)

    wait_until(all_wait, "all wait as ready")
    wait_until(lambda: any(s.circuit != "closed" for m in feeding.fleet() for s in m.sinks), "the fleet is told")
    sink.start()
    wait_until(lambda: sink_stats(feeding, "mail").circuit == "closed", "it is up again", timeout=60)
    wait_until(lambda: left(feeding) == 0, "nothing is left here")
    assert set(ids) <= set(ids_in(sink, "mail"))
    assert feeding.stats().failing_routes == ()
    now = sink_stats(feeding, "mail")
    assert (now.sent, now.retried, now.buried, now.error) == (TASKS + 1, 0, 0, "")
    assert now.failed >= failures


def test_a_key_of_another_type_holds_the_topic_back(feeding: Engine, sink: Server) -> None:
    sink.ask("SET", "mail", "not a list")
    feeding.forward("mail", to=f"{sink.url}#mail")
    feeding.push_many([Task(n, topic="mail") for n in range(20)])
    wait_until(lambda: "WRONGTYPE" in sink_stats(feeding, "mail").error, "it refuses")
    sink.ask("DEL", "mail")
    wait_until(lambda: sink.ask("LLEN", "mail") == 20, "all have arrived", timeout=60)
    wait_until(lambda: left(feeding) == 0, "nothing is left here")


def test_pause_limits_and_another_route(feeding: Engine, sink: Server) -> None:
    feeding.pause("mail")
    feeding.forward("mail", to=f"{sink.url}#one")
    feeding.push_many([Task(n, topic="mail") for n in range(10)])
    wait_until(lambda: feeding.stats().topics["mail"].ready == 10, "they are ready")
    assert sink_stats(feeding, "mail").sent == 0
    feeding.limit("mail", rate=1000, concurrency=2)
    feeding.resume("mail")
    wait_until(lambda: sink.ask("LLEN", "one") == 10, "they have arrived")
    feeding.forward("mail", to=f"{sink.url}#other")
    feeding.push_many([Task(n, topic="mail") for n in range(10)])
    wait_until(lambda: sink.ask("LLEN", "other") == 10, "they have arrived")
    feeding.forward("mail", to=None)
    feeding.push("mine", topic="mail")
    (delivery,) = feeding.consumer("mail").claim(1, wait=30)
    assert delivery.payload == "mine"
    assert feeding.stats().sinks == ()
    assert sink.ask("LLEN", "one") == 10


@pytest.mark.ledger
def test_the_sink_and_the_relays_are_killed(single: Server, sink: Server, name: str) -> None:
    """Every task arrives; one that arrives twice has the same id."""
    with ExitStack() as stack, Engine(single.url, name=name, shards=4, timeout=30.0) as engine:
        first, second = [stack.enter_context(_dispatcher(single.url, name)) for _ in range(2)]
        engine.forward("mail", to=f"{sink.url}#stream:mail")
        ids: list[str] = []

        def push() -> None:
            ids.extend(engine.push_many([Task(n, topic="mail", delay=n / TASKS) for n in range(TASKS)]))
            wait_until(lambda: sink.ask("XLEN", "mail") > len(ids) - TASKS / 2, "some arrive", timeout=60)

        push()
        first.kill()
        push()
        sink.kill()
        sink.start()
        third = stack.enter_context(_dispatcher(single.url, name))
        push()
        second.kill()
        wait_until(lambda: left(engine) == 0, "nothing is left here", timeout=80)
        assert third.running
        assert set(ids_in(sink, "mail")) == set(ids)


def _dispatcher(url: str, name: str) -> Worker:
    worker = Worker("tests.support.dispatching", url, name, 4)
    assert worker.said()
    return worker


@pytest.mark.ledger
def test_the_engines_own_server_is_killed(single: Server, sink: Server, name: str) -> None:
    """Here ``sink`` is the engine's, and breaks; what was sent and not acknowledged is sent again."""
    with Engine(sink.url, name=name, shards=4, timeout=30.0) as engine:
        engine.start()
        engine.forward("mail", to=f"{single.url}#stream:{name}")
        ids: list[str] = []
        for _ in range(3):
            ids += engine.push_many([Task(n, topic="mail") for n in range(TASKS)])
            sink.kill()
            sink.start()
        wait_until(lambda: left(engine) == 0, "nothing is left here", timeout=100)
        assert set(ids_in(single, name)) == set(ids)
