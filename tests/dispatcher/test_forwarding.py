"""forward puts a topic's payloads on a list of the user's, byte for byte, by the script and by the forwarder."""

from __future__ import annotations

import itertools
import json
import time
from typing import Any

import pytest

from shardq import Engine, Task
from shardq.core.calls.request import Call
from shardq.core.dispatcher.forwarding import MAX_TOPICS, RETRY_S
from shardq.core.layout.slots import slot_of, tag
from shardq.core.layout.topology import Route
from tests.support.engines import Engines
from tests.support.servers import Servers
from tests.support.states import claim, put, state_of
from tests.support.waiting import wait_until


@pytest.fixture(params=["beside shard 0", "anywhere"])
def list_name(request: pytest.FixtureRequest, name: str) -> str:
    """On a cluster the forward script serves one shard of the first list, and the forwarder all others."""
    return f"mine:{{{tag(name, 0)}}}" if request.param == "beside shard 0" else f"mine:{name}"


def on_list(servers: Servers, key: str) -> list[bytes]:
    return list(servers.ask(slot_of(key), "LRANGE", key, 0, -1))


def test_payloads_arrive_as_they_were_encoded(engines: Engines, url: str, servers: Servers, list_name: str) -> None:
    engine = engines.opened(url, name=tag_free(list_name), shards=4, codec="raw")
    engine.start()
    engine.forward("email", to=list_name)
    payloads = [bytes([n]) * n + b"\r\n\x00" for n in range(200)]
    ids = engine.push_many(
        [Task(p, topic="email", headers={"not": "sent"} if n % 2 else None) for n, p in enumerate(payloads)]
    )
    wait_until(lambda: len(on_list(servers, list_name)) >= 200, "all have arrived", timeout=20)
    wait_until(lambda: {state_of(engine, id) for id in ids} == {"gone"}, "none is left with us")
    assert sorted(on_list(servers, list_name)) == sorted(payloads)
    stats = engine.stats()
    assert (stats.scheduled, stats.ready, stats.leased, stats.dead) == (0, 0, 0, 0)


def test_a_list_on_the_node_of_a_shard_takes_one_script(
    engines: Engines, url: str, name: str, servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The shard's poller forwards to it in its own step. Only other lists need a claim and a settlement, too."""
    sent = set[str]()
    packed = Call.packed

    def packing(call: Call[Any]) -> bytes:
        sent.add(call.script.name)
        return packed(call)

    key = f"mine:{{{tag(name, 0)}}}"
    engine = engines.opened(url, name=name, shards=1)
    engine.start()
    engine.forward("email", to=key)
    monkeypatch.setattr(Call, "packed", packing)
    engine.push("x", topic="email")
    wait_until(lambda: on_list(servers, key), "it has arrived")
    assert "forward" in sent
    assert not sent & {"claim", "settle"}


def tag_free(list_name: str) -> str:
    """The name of the engine that a list of the fixture was named after."""
    return list_name.removeprefix("mine:").strip("{}").partition(":")[0]


def test_what_takes_from_a_list_gets_it(running: Engine, servers: Servers, name: str) -> None:
    running.forward("email", to=f"queue:{name}")
    running.push({"to": "ann"}, topic="email", delay=0.1)
    key, payload = servers.ask(slot_of(f"queue:{name}"), "BLPOP", f"queue:{name}", 10)
    assert (key.decode(), json.loads(payload)) == (f"queue:{name}", {"to": "ann"})
    assert payload == b'{"to":"ann"}'


@pytest.mark.parametrize(("side", "expected"), [("right", [b"1", b"2", b"3"]), ("left", [b"3", b"2", b"1"])])
def test_the_end_of_the_list(
    engines: Engines, url: str, name: str, servers: Servers, list_name: str, side: str, expected: list[bytes]
) -> None:
    engine = engines.opened(url, name=name, shards=1)
    engine.start()
    engine.forward("email", to=list_name, side=side)  # type: ignore[arg-type]  # a str
    for n in (1, 2, 3):
        engine.push(n, topic="email")
        wait_until(lambda: len(on_list(servers, list_name)) == n, f"{n} have arrived")  # noqa: B023  called at once
    assert on_list(servers, list_name) == expected


def test_a_route_takes_what_is_ready_already(running: Engine, servers: Servers, list_name: str) -> None:
    running.push_many([Task(n, topic="email") for n in range(50)])
    wait_until(lambda: running.stats().ready == 50, "all are ready")
    kept = put(running, "leased", topic="sms")
    running.forward("email", to=list_name)
    wait_until(lambda: len(on_list(servers, list_name)) == 50, "all have arrived")
    assert sorted(map(int, on_list(servers, list_name))) == list(range(50))
    assert state_of(running, kept) == "leased"


def test_a_stream(running: Engine, servers: Servers, list_name: str) -> None:
    running.forward("email", to=f"stream:{list_name}")
    ids = running.push_many([Task(n, topic="email", headers={"n": str(n)}) for n in range(50)])
    slot = slot_of(list_name)
    wait_until(lambda: servers.ask(slot, "XLEN", list_name) == 50, "all have arrived")
    entries = [fields for _, fields in servers.ask(slot, "XRANGE", list_name, "-", "+")]
    assert {fields[b"id"].decode(): fields[b"payload"] for fields in entries} == {
        id: b"%d" % n for n, id in enumerate(ids)
    }
    assert all(json.loads(fields[b"headers"]) == {"n": fields[b"payload"].decode()} for fields in entries)
    assert running.stats().topics["email"].route == Route(f"stream:{list_name}")


def test_headers_of_ours_do_not_leave(running: Engine, servers: Servers, list_name: str) -> None:
    """Also a task that was pushed before its topic got the route has a URL."""
    url = "https://customer.example/in"
    running.push_many([Task(n, topic="email", url=url, headers={"n": "1"} if n else None) for n in range(2)])
    running.forward("email", to=f"stream:{list_name}")
    slot = slot_of(list_name)
    wait_until(lambda: servers.ask(slot, "XLEN", list_name) == 2, "both have arrived")
    entries = [fields for _, fields in servers.ask(slot, "XRANGE", list_name, "-", "+")]
    assert [fields.get(b"headers") for fields in entries] == [None, b'{"n":"1"}']


def test_other_topics_stay(running: Engine, servers: Servers, name: str) -> None:
    running.forward("email", to=f"mine:{name}")
    running.push_many([Task("a"), Task("b", topic="sms"), Task("c", topic="email")])
    wait_until(lambda: on_list(servers, f"mine:{name}") == [b'"c"'], "the routed one has arrived")
    assert [d.payload for d in claim(running.consumer(["sms", ""]), 2)] in (["b", "a"], ["a", "b"])


def test_a_route_that_was_taken_back(running: Engine, servers: Servers, list_name: str) -> None:
    running.forward("email", to=list_name)
    running.push("a", topic="email")
    wait_until(lambda: on_list(servers, list_name) == [b'"a"'], "it has arrived")
    running.forward("email", to=None)
    assert running.topology.routes == {}
    running.push("b", topic="email")
    assert claim(running.consumer("email"), 1)[0].payload == "b"
    assert on_list(servers, list_name) == [b'"a"']


def test_every_process_follows_a_route(engines: Engines, url: str, name: str, servers: Servers) -> None:
    engines.opened(url, name=name, shards=4).start()
    other = engines.opened(url, name=name)
    other.start()
    other.forward("email", to=f"mine:{name}")
    other.push_many([Task(n, topic="email") for n in range(40)])
    wait_until(lambda: len(on_list(servers, f"mine:{name}")) == 40, "all have arrived")


@pytest.mark.slow
def test_a_list_that_refuses_holds_back_its_own_topic_only(
    running: Engine, servers: Servers, list_name: str, caplog: pytest.LogCaptureFixture
) -> None:
    slot = slot_of(list_name)
    servers.ask(slot, "SET", list_name, "not a list")
    running.forward("email", to=list_name)
    ids = running.push_many([Task(n, topic="email") for n in range(20)])
    wait_until(lambda: "scheduled" not in {state_of(running, id) for id in ids}, "all are dispatched")
    wait_until(lambda: "WRONGTYPE" in caplog.text, "the refusal is in the log")
    # of a shard that holds something back, so that a poller that pauses for it would be met each time
    home = running.topology.shard_of(ids[0])
    beside = (id for n in itertools.count() if running.topology.shard_of(id := f"mine-{n}") == home)

    def at_once() -> bool:
        other, began = running.push("x", id=next(beside)), time.monotonic()
        wait_until(lambda: state_of(running, other) == "ready", "it is dispatched")
        return time.monotonic() - began < RETRY_S / 2

    wait_until(lambda: all(at_once() for _ in range(5)), "other topics are dispatched at once, five in a row")
    assert "gone" not in {state_of(running, id) for id in ids}
    said = caplog.text.count("WRONGTYPE")
    servers.ask(slot, "DEL", list_name)
    wait_until(lambda: len(on_list(servers, list_name)) == 20, "all have arrived", timeout=20)
    assert sorted(map(int, on_list(servers, list_name))) == list(range(20))
    wait_until(lambda: running.health().ok, "no poller fails any more")
    assert said <= 5  # once for each poller, and for the forwarder


def test_a_route_that_was_wrong_can_be_corrected(running: Engine, servers: Servers, list_name: str) -> None:
    servers.ask(slot_of(list_name), "SET", list_name, "not a list")
    running.forward("email", to=list_name)
    ids = running.push_many([Task(n, topic="email") for n in range(20)])
    wait_until(lambda: not running.stats().scheduled, "all are dispatched")
    running.forward("email", to=f"{list_name}:right")
    wait_until(lambda: len(on_list(servers, f"{list_name}:right")) == 20, "all have arrived on the other list")
    wait_until(lambda: {state_of(running, id) for id in ids} == {"gone"}, "none is left with us")
    running.forward("email", to=list_name)
    again = running.push("x", topic="email", max_attempts=1)
    wait_until(lambda: state_of(running, again) != "scheduled", "it is dispatched")
    running.forward("email", to=None)
    (delivery,) = claim(running.consumer("email"), 1)
    # to have been held for a list that did not take it is nobody's attempt
    assert (delivery.id, delivery.attempt) == (again, 1)


def test_what_could_not_be_forwarded_is_there_after_a_stop(running: Engine, servers: Servers, list_name: str) -> None:
    servers.ask(slot_of(list_name), "SET", list_name, "not a list")
    running.forward("email", to=list_name)
    running.push_many([Task(n, topic="email") for n in range(20)])
    wait_until(lambda: not running.stats().scheduled, "all are dispatched")
    running.stop()
    wait_until(lambda: not running.stats().leased, "what the forwarder held is back")
    servers.ask(slot_of(list_name), "DEL", list_name)
    running.start()
    wait_until(lambda: len(on_list(servers, list_name)) == 20, "all have arrived")


def test_more_topics_than_a_poller_knows_at_a_time(engines: Engines, url: str, name: str, servers: Servers) -> None:
    engine = engines.opened(url, name=name, shards=1)
    for n in range(10):
        engine.forward(f"t{n}", to=f"mine:{name}")
    engine.start()
    engine.push_many([Task(n, topic=f"t{n}") for n in range(MAX_TOPICS)])
    wait_until(lambda: len(on_list(servers, f"mine:{name}")) == 10, "one of each routed topic has arrived")
    # Now the poller knows as many as it can, and meets more of them in one step than that.
    at = time.time() + 0.3
    engine.push_many([Task(n, at=at, topic=f"t{n}") for n in range(MAX_TOPICS + 30)])
    wait_until(lambda: len(on_list(servers, f"mine:{name}")) == 20, "another one of each has arrived")
    wait_until(lambda: engine.stats().scheduled == 0, "all are dispatched")
    left = MAX_TOPICS - 10 + MAX_TOPICS + 30 - 10
    wait_until(lambda: engine.stats().ready == left, "all that no route takes is ready")
