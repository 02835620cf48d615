"""Many forwarded topics in one process: threads go with what is in flight, an idle one costs nothing, and an endpoint
that stands still holds up no other.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import ClassVar

import pytest

from cluster.server import Server
from shardq import Engine, Task
from shardq.features.sinks import Message, Result, Sent, Sink, registry, routes
from tests.sinks.seen import left
from tests.sinks.test_http import Endpoint
from tests.support.waiting import wait_until

ROUTES = 300


def forward_many(engine: Engine, sink: Server, count: int) -> list[str]:
    topics = [f"mail-{n}" for n in range(count)]
    for topic in topics:
        engine.forward(topic, to=f"{sink.url}#{topic}")
    return topics


def test_threads_go_with_what_is_in_flight(feeding: Engine, sink: Server) -> None:
    before = threading.active_count()
    topics = forward_many(feeding, sink, ROUTES)
    feeding.push_many([Task(n, topic=topic) for n, topic in enumerate(topics)])
    wait_until(lambda: left(feeding) == 0, "all are taken")
    # a burst has threads and connections, as many as are on their way; those that nobody needs end
    wait_until(lambda: threading.active_count() - before < 20, "few threads stay")
    wait_until(lambda: int(sink.ask("INFO", "clients")["connected_clients"]) < 100, "few connections stay")
    assert [sink.ask("LLEN", topic) for topic in topics] == [1] * ROUTES


def scripts(server: Server) -> int:
    """The scripts and look-ups that the server has run."""
    seen = server.ask("INFO", "commandstats")
    return sum(seen[name]["calls"] for name in ("cmdstat_evalsha", "cmdstat_exists") if name in seen)


@pytest.mark.parametrize("here", [True, False])
def test_idle_routes_cost_no_scripts(own_server: Server, name: str, here: bool) -> None:
    with Engine(own_server.url, name=name, shards=4) as engine:
        engine.start()
        for n in range(ROUTES):
            engine.forward(f"mail-{n}", to=f"list-{n}" if here else f"{own_server.url}#list-{n}")
        seen = [(time.monotonic(), scripts(own_server))]

        def is_quiet() -> bool:
            if time.monotonic() - seen[-1][0] > 1.0:
                seen.append((time.monotonic(), scripts(own_server)))
            return len(seen) > 1 and seen[-1][1] - seen[-2][1] < 40

        wait_until(is_quiet, "every route was looked at")
        # one task rings a shard's bell: its own topic is looked at, and not every other one
        before = scripts(own_server)
        engine.push(1, topic="mail-7", delay=0.05)
        wait_until(lambda: own_server.ask("LLEN", "list-7") == 1, "it has come")
        assert scripts(own_server) - before < 60


def test_a_route_that_waits_for_permits_asks_for_nothing(own_server: Server, name: str) -> None:
    with Engine(own_server.url, name=name, shards=4) as engine:
        engine.start()
        engine.limit("mail", rate=20)
        engine.forward("mail", to=f"{own_server.url}#list")
        engine.push_many([Task(n, topic="mail") for n in range(20)])
        wait_until(lambda: engine.stats().ready > 0, "some wait for permits")
        before = scripts(own_server)
        wait_until(lambda: own_server.ask("LLEN", "list") == 20, "all have come")
        assert scripts(own_server) - before < 300


def test_endpoints_that_stand_still_hold_up_no_other(feeding: Engine, sink: Server, tmp_path: Path) -> None:
    endpoint = Endpoint(tmp_path / "requests")
    try:
        topics = forward_many(feeding, sink, 40)
        for n in range(10):
            feeding.forward(f"hooks-{n}", to=f"http://127.0.0.1:{endpoint.port}/#timeout=60&connections=32")
        feeding.push_many([Task({"hold": True}, topic=f"hooks-{n % 10}") for n in range(500)])
        wait_until(lambda: len(endpoint.requests()) > 100, "requests are under way")
        for n in range(5):
            began = time.monotonic()
            feeding.push_many([Task(n, topic=topic) for topic in topics])
            wait_until(lambda: sink.ask("LLEN", topics[-1]) == n + 1, "it has come")  # noqa: B023  called at once
            wait_until(lambda: all(sink.ask("LLEN", topic) == n + 1 for topic in topics), "all have")  # noqa: B023
            assert time.monotonic() - began < 10.0
        feeding.push({"release": True}, topic="hooks-0")
    finally:
        endpoint.end()


class SlowSink(Sink):
    """Is slow at first, and then stands still until it is let go on; or is quick."""

    goes_on: ClassVar[threading.Event]

    def __init__(self, url: str) -> None:
        self._longest_s = 0.2 if url.startswith("slow:") else 0.0

    def send(self, batch: Sequence[Message]) -> Sequence[Result]:
        if self._longest_s:
            self.goes_on.wait(self._longest_s)
            self._longest_s = 30.0
        return [Sent()] * len(batch)


def test_slow_sinks_have_part_in_half_of_the_threads(
    single: Server, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    points = [EntryPoint(scheme, f"{__name__}:SlowSink", registry.GROUP) for scheme in ("slow", "quick")]
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: points if group == registry.GROUP else [])
    monkeypatch.setattr(routes, "THREADS", 8)
    monkeypatch.setattr(routes, "SLOW_S", 0.1)
    monkeypatch.setattr(SlowSink, "goes_on", threading.Event(), raising=False)
    with Engine(single.url, name=name, shards=2) as engine:
        engine.start()
        slow, quick = [f"slow-{n}" for n in range(20)], [f"quick-{n}" for n in range(4)]
        for topic in (*slow, *quick):
            engine.forward(topic, to=f"{topic.partition('-')[0]}://here")

        def sent(topics: Sequence[str]) -> int:
            return sum(each.sent for each in engine.stats().sinks if each.topic in topics)

        engine.push_many([Task(topic, topic=topic) for topic in slow])
        wait_until(lambda: sent(slow) == len(slow), "they were slow")
        engine.push_many([Task(topic, topic=topic) for topic in slow])
        for n in range(20):
            engine.push(n, topic=quick[n % 4])
            wait_until(lambda: sent(quick) == n + 1, "it has come", timeout=5)  # noqa: B023  called at once
        SlowSink.goes_on.set()
        wait_until(lambda: left(engine) == 0, "the slow ones have had their turns")
