"""Producers and workers, whose users may not write the topology, work through kills, resizes and failovers, and where a
server has lost the topology: nothing that they need is refused, and a dispatcher restores what they can't.
"""

from __future__ import annotations

import itertools
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import shardq
from cluster.cluster import Cluster
from cluster.server import Server
from shardq import Engine
from shardq.cli.acl import rules
from shardq.core.layout.keys import control_keys
from shardq.core.roles import ROLES
from shardq.errors import AccessDenied, Unavailable
from tests.support.servers import Servers, keys_of
from tests.support.states import FAR_S, state_of
from tests.support.waiting import wait_until

SHARDS = 4

pytestmark = pytest.mark.timeout(120)


class Site:
    """One server, or a cluster, with a user of each role for the engine ``day``, also after a restart."""

    def __init__(self, servers: Server | Cluster) -> None:
        self.servers = servers
        self.nodes = [servers] if isinstance(servers, Server) else [*servers.masters, *servers.replicas]
        self._engines: list[Engine] = []

    def engine(self, role: str, shards: int | None = None) -> Engine:
        url = self.servers.url.replace("://", f"://{role}:x@")
        engine = Engine(url, name="day", timeout=60.0, shards=shards)
        self._engines.append(engine)
        return engine.open()

    def kill(self) -> None:
        """A single server comes back; of a cluster's master the replica is promoted."""
        if isinstance(self.servers, Server):
            self.servers.kill()
            self.servers.start()
        else:
            lost = self.servers.node_of_slot(keys_of("day", SHARDS)[0].slot)
            lost.kill()
            self.servers.wait_promoted(lost)
            lost.start()

    def refused(self) -> list[str]:
        """Who was refused what, by the nodes that run. CONFIG is asked and done without: it shows passwords, too."""
        return [
            f"{entry['username']}: {entry['object']}"
            for node in self.nodes
            if node.running
            for entry in node.ask("ACL", "LOG")
            if entry["object"] != "config|get"
        ]

    def close(self) -> None:
        for engine in self._engines:
            engine.close()


@pytest.fixture(params=["single", "cluster"])
def site(request: pytest.FixtureRequest, server_binary: Path) -> Iterator[Site]:
    options = {"appendonly": "yes", "appendfsync": "always"}
    told = subprocess.run([server_binary, "--version"], check=True, capture_output=True, text=True).stdout
    fsynced = " v=7.0." not in told  # that does not know WAITAOF
    options |= {f"user {role}": " ".join(("nopass", *rules([role], name="day", fsynced=fsynced))) for role in ROLES}
    started: Server | Cluster
    if request.param == "single":
        started = Server(server_binary, options=options)
    else:
        started = Cluster(server_binary, masters=3, replicas=1, options=options)
    with started:
        site = Site(started)
        yield site
        site.close()


class Work:
    """A producer that pushes all the time, and a worker that handles it."""

    def __init__(self, site: Site) -> None:
        self.pushed: list[str] = []
        self.handled: set[str] = set()
        self._producer, self._stop = site.engine("producer"), threading.Event()
        self._worker = site.engine("worker").worker(concurrency=4, lease=5.0)

        @self._worker.on("mail")
        def handle(delivery: shardq.Delivery) -> None:
            self.handled.add(delivery.id)

        @self._worker.on("events", batch=20, linger=0.05)
        def store(batch: shardq.Batch[int]) -> None:
            self.handled.update(delivery.id for delivery in batch)

    def push(self) -> None:
        for number in itertools.count():
            if self._stop.is_set():
                return
            topic = "events" if number % 4 == 0 else "mail"
            self.pushed.append(self._producer.push(number, topic=topic, id=f"n{number}", delay=0.2))
            time.sleep(0.005)

    def run(self, during: Callable[[], None]) -> None:
        with ThreadPoolExecutor(2) as threads:
            running = [threads.submit(self.push), threads.submit(self._worker.run)]
            try:
                wait_until(lambda: self.handled, "the first is handled", timeout=30)
                during()
                self._stop.set()
                running[0].result(70)
                wait_until(lambda: self.handled >= set(self.pushed), "all are handled", timeout=60)
            finally:
                self._stop.set()
                self._worker.stop()
            running[1].result(70)


@pytest.mark.slow
def test_kills_resizes_and_failovers(site: Site) -> None:
    dispatcher = site.engine("dispatcher", shards=SHARDS)
    dispatcher.start()
    operator = site.engine("operator")
    operator.limit("mail", rate=1000, concurrency=20)
    work = Work(site)

    def day() -> None:
        for shards in (2 * SHARDS, SHARDS - 1):
            operator.resize(shards)
            site.kill()
            wait_until(lambda: operator.resize(dry_run=True).progress().done, "all is moved", timeout=60)

    work.run(day)
    assert site.refused() == []


@pytest.fixture
def lone(site: Site) -> Iterator[tuple[Engine, Servers]]:
    """A producer with an engine whose dispatcher has ended."""
    dispatcher = site.engine("dispatcher", shards=SHARDS)
    dispatcher.limit("mail", rate=1000)
    producer = site.engine("producer")
    dispatcher.close()
    with Servers(site.servers.url) as servers:
        yield producer, servers


def lose(servers: Servers, *, everything: bool) -> None:
    control = control_keys("day")
    servers.ask(control.slot, "DEL", control.topology)
    for keys in keys_of("day", SHARDS) if everything else ():
        servers.ask(keys.slot, "DEL", keys.meta, keys.task, keys.due, keys.topics)


@pytest.mark.parametrize("everything", [False, True], ids=["the topology", "everything"])
def test_they_go_on_without_the_topology_until_a_dispatcher_restores_it(
    site: Site, lone: tuple[Engine, Servers], everything: bool
) -> None:
    producer, servers = lone
    control, handled = control_keys("day"), set[str]()
    worker = site.engine("worker").worker(concurrency=4, lease=5.0)

    @worker.on("mail")
    def handle(delivery: shardq.Delivery) -> None:
        handled.add(delivery.id)

    lose(servers, everything=everything)
    ids = {str(producer.push(number, topic="mail", delay=0)) for number in range(20)}
    assert {state_of(producer, id) for id in ids} == {"scheduled"}
    with ThreadPoolExecutor(1) as threads:
        running = threads.submit(worker.run)
        try:
            with pytest.raises(AccessDenied, match="users of the role dispatcher or operator"):
                producer.pause("mail")
            assert not servers.ask(control.slot, "EXISTS", control.topology)
            site.engine("dispatcher").start()
            wait_until(lambda: handled >= ids, "all are handled", timeout=30)
        finally:
            worker.stop()
        running.result(30)
    assert servers.ask(control.slot, "HLEN", control.settings) > 0
    assert {refusal.rpartition(" ")[2] for refusal in site.refused()} <= {control.topology}
    producer.push("x", delay=FAR_S)


@pytest.mark.slow
@pytest.mark.parametrize("site", ["single"], indirect=True)
def test_a_shard_that_came_back_older_waits_for_a_dispatcher(site: Site) -> None:
    dispatcher = site.engine("dispatcher", shards=SHARDS)
    producer = site.engine("producer")
    with Servers(site.servers.url) as servers:
        keys = keys_of("day", SHARDS)[0]
        before = servers.ask(keys.slot, "HGETALL", keys.meta)
        dispatcher.start()
        assert dispatcher.resize(2 * SHARDS).wait(30)
        dispatcher.stop()
        producer.push("x", delay=FAR_S)
        servers.ask(keys.slot, "DEL", keys.meta)
        servers.ask(keys.slot, "HSET", keys.meta, *(word for pair in before.items() for word in pair))
        id = next(f"n{n}" for n in itertools.count() if producer.topology.shard_of(f"n{n}") == 0)
        with pytest.raises(Unavailable, match=r"see that a dispatcher runs.*users of the role dispatcher or operator"):
            producer.push("x", delay=FAR_S, id=id)
        with ThreadPoolExecutor(1) as threads:
            pushing = threads.submit(producer.push, "x", delay=FAR_S, id=id)
            dispatcher.start()
            assert pushing.result(30).outcome == "pushed"
