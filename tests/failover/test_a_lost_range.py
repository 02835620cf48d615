"""The master of a range of slots and its replica are gone: every view answers soon, shows what answers, and no zero for
what does not; the verdict names the node, its slots and its shards.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import pytest

from cluster.cluster import Cluster
from cluster.node import Node
from cluster.ports import free_port
from cluster.server import Server
from shardq import Engine, ShardqError, Task, Unavailable
from shardq.core.layout.keys import control_keys, shard_keys
from shardq.core.layout.topology import Topology
from shardq.http import app
from tests.cli.shell import Shell
from tests.dashboard.browsing import browsing
from tests.metrics.scraping import registry_of, scraped, total
from tests.support.engines import Engines
from tests.support.states import FAR_S
from tests.support.waiting import wait_until

SHARDS = 12
TASKS = 600

SOON_S = 25.0
"""Views answer within three seconds. On a busy machine a process takes some to start; without a bound it is 30."""

ONE = pytest.mark.parametrize("engines", ["sync"], indirect=True)
"""The other views are for threads; ``test_another_server_at_the_address_of_a_lost_master`` has both engines."""

T = TypeVar("T")


def soon(call: Callable[[], T]) -> T:
    began = time.monotonic()
    result = call()
    assert time.monotonic() - began < SOON_S
    return result


def awaited(look: Callable[[], T], test: Callable[[T], bool], sentence: str) -> T:
    """Looks until the test is true: a look does not wait for a shard that is slow for a moment."""
    last: list[T] = []

    def is_seen() -> bool:
        last[:] = [soon(look)]
        return test(last[0])

    wait_until(is_seen, sentence)
    return last[0]


def lose(cluster: Cluster, victim: Node) -> None:
    """Ends a master and its replicas, and waits until the cluster has declared it failed."""
    for replica in [node for node in cluster.replicas if node.group == victim.group]:
        replica.kill()
    victim.kill()
    other = next(node for node in cluster.nodes if node.running)
    wait_until(lambda: f"{victim.address}@" in failed(other), "the master is declared failed")


def failed(node: Node) -> str:
    return "\n".join(row for row in str(node.ask("CLUSTER", "NODES")).splitlines() if ",fail " in row)


def cover(cluster: Cluster, answer: str) -> None:
    """``no``: the slots of other masters are served without those that are lost."""
    for node in cluster.nodes:
        if node.running:
            node.ask("CONFIG", "SET", "cluster-require-full-coverage", answer)


@contextmanager
def filled(engines: Engines, cluster: Cluster, name: str, timeout: float = 30.0) -> Iterator[Engine]:
    engine = engines.opened(cluster.url, name=name, shards=SHARDS, timeout=timeout)
    engine.push_many([Task(n, delay=FAR_S, topic="mail") for n in range(TASKS)])
    yield engine
    engine.close()


def away_with(cluster: Cluster, victim: Node, name: str) -> list[int]:
    """The shards that a master holds."""
    return [
        shard for shard in range(SHARDS) if cluster.node_of_slot(shard_keys(name, shard).slot).address == victim.address
    ]


@ONE
def test_what_answers_is_shown(engines: Engines, own_cluster: Cluster, name: str, tmp_path: Path) -> None:
    cover(own_cluster, "no")
    control = own_cluster.node_of_slot(control_keys(name).slot)
    victim = next(node for node in own_cluster.masters if node.address != control.address)
    shards = away_with(own_cluster, victim, name)
    with filled(engines, own_cluster, name) as engine:
        before = engine.stats()
        kept = sum(shard.scheduled or 0 for shard in before.shards if shard.shard not in shards)
        lose(own_cluster, victim)

        stats = awaited(engine.stats, lambda stats: stats.scheduled == kept, "all that is left is seen")
        assert (list(stats.missing), stats.is_blind) == (shards, False)
        assert stats.shown(stats.scheduled) == f"≥ {kept}"
        for shard in stats.shards:
            assert (shard.scheduled is None, shard.error is None) == (shard.shard in shards, shard.shard not in shards)
        health = soon(engine.health)
        (verdict,) = [reason for reason in health.reasons if f"the node {victim.address} (master) failed" in reason]
        assert "no replica has taken over its slots " in verdict
        assert f"what is stored in shards {', '.join(map(str, shards[:5]))}" in verdict
        assert soon(engine.fleet) == []
        forecast = soon(lambda: engine.forecast("month"))
        assert (list(forecast.missing), forecast.total) == (shards, kept)

        samples = awaited(
            lambda: scraped(registry_of(engine)),
            lambda samples: total(samples, "shardq_unseen_shards") == len(shards),
            "a scrape sees all that is left",
        )
        assert total(samples, "shardq_up") == 0
        assert total(samples, "shardq_tasks", state="scheduled") == kept
        with browsing(app(engine)) as browser:
            page = awaited(
                lambda: browser.get("/").text, lambda page: f"≥ {kept}" in page, "the page shows all that is left"
            )
            assert f"the node {victim.address} (master) failed" in page
            assert "data-partial" in page
            for path in ("/shards", "/nodes", "/topics"):
                page = soon(lambda path=path: browser.get(path).text)  # type: ignore[misc]
                assert "–" in page or "≥" in page

        shell = Shell(tmp_path, {"SHARDQ_URL": own_cluster.url, "SHARDQ_NAME": name})
        for words in ("health", "stats", "shards", "topics", "doctor"):
            done = soon(lambda words=words: shell.run(words))  # type: ignore[misc]
            assert f"the node {victim.address} (master) failed" in done.out + done.err, words
        told = shell.run("stats", "--json").object
        assert (told["missing"], told["scheduled"]) == (shards, kept)
        assert {shard["scheduled"] for shard in told["shards"] if shard["shard"] in shards} == {None}
        assert soon(lambda: shell.run("fleet")).code == 0
        done = soon(lambda: shell.run("forecast", "month"))
        assert f"{kept:,} scheduled" in done.out
        assert "could not be seen" in done.err
        done = soon(lambda: shell.run("list", "--state", "scheduled"))
        assert f"the node {victim.address} (master) failed" in done.err


@ONE
def test_where_nothing_answers_there_is_no_zero(engines: Engines, own_cluster: Cluster, name: str) -> None:
    """As clusters are set up by default: without one range none is served."""
    victim = own_cluster.masters[1]
    with filled(engines, own_cluster, name) as engine:
        lose(own_cluster, victim)
        wait_until(lambda: engine.stats().is_blind, "the cluster is down", timeout=60.0)
        stats = soon(engine.stats)
        assert (stats.missing, stats.rates) == (tuple(range(SHARDS)), None)
        assert stats.shown(stats.scheduled) == "–"
        health = soon(engine.health)
        assert [f"the node {victim.address} (master) failed" in reason for reason in health.reasons].count(True) == 1
        samples = soon(lambda: scraped(registry_of(engine)))
        assert not {name for name, _ in samples} & {"shardq_tasks", "shardq_head_age_seconds", "shardq_died_total"}
        with browsing(app(engine)) as browser:
            page = soon(lambda: browser.get("/").text)
            assert page.count("<dd>–") >= 4
            assert "data-partial" in page


@ONE
def test_the_slot_of_the_topology_is_lost(engines: Engines, own_cluster: Cluster, name: str, tmp_path: Path) -> None:
    cover(own_cluster, "no")
    victim = own_cluster.node_of_slot(control_keys(name).slot)
    shards = away_with(own_cluster, victim, name)
    with filled(engines, own_cluster, name) as engine:
        lose(own_cluster, victim)
        stats = soon(engine.stats)
        assert list(stats.missing) == shards
        assert stats.schedules is None
        health = soon(engine.health)
        assert any("and the topology and the fleet's reports is away" in reason for reason in health.reasons)
        with pytest.raises(ShardqError, match=str(victim.address)):
            soon(engine.fleet)
        # a process that only starts now can't know the shards
        shell = Shell(tmp_path, {"SHARDQ_URL": own_cluster.url, "SHARDQ_NAME": name})
        for words, code in (("health", 2), ("stats", 1), ("doctor", 2), ("topics", 1), ("fleet", 1)):
            done = soon(lambda words=words: shell.run(words))  # type: ignore[misc]
            said = done.out + done.err
            assert f"the node {victim.address} (master) failed, and no replica has taken over its slots" in said
            assert f"the topology of '{name}' is in slot {control_keys(name).slot}" in said
            assert done.code == code


LOOKS = 6
"""A look at any node would ask the other server in some of so many."""


@pytest.mark.parametrize(
    ("engines", "kind"), [("sync", "no cluster"), ("asyncio", "another cluster")], indirect=["engines"]
)
def test_another_server_at_the_address_of_a_lost_master(
    engines: Engines, own_cluster: Cluster, name: str, kind: str, tmp_path: Path
) -> None:
    """As with containers, which get addresses that others had. Those who know the cluster are not led astray; one that
    only starts can't know which of two clusters the nodes of its URL mean.
    """
    cover(own_cluster, "no")
    control = own_cluster.node_of_slot(control_keys(name).slot)
    victim = next(node for node in own_cluster.masters if node.address != control.address)
    shards = away_with(own_cluster, victim, name)
    with filled(engines, own_cluster, name, timeout=3.0) as engine:
        before = engine.stats()
        kept = sum(shard.scheduled or 0 for shard in before.shards if shard.shard not in shards)
        lose(own_cluster, victim)
        options = {"cluster-enabled": "yes", "cluster-port": str(free_port())} if kind == "another cluster" else {}
        with Server(victim.binary, port=victim.port, options=options) as other:
            if options:
                other.ask("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
                wait_until(lambda: "cluster_state:ok" in other.ask("CLUSTER", "INFO"), "it serves all slots")
            awaited(engine.stats, lambda stats: stats.scheduled == kept, "all that is left is seen")
            there = next(id for id in map(str, range(TASKS)) if Topology(epoch=1, shards=SHARDS).shard_of(id) in shards)
            with pytest.raises(Unavailable, match=f"{victim.address}.*another server listens at the address"):
                engine.push("there", id=there, delay=FAR_S)
            for _ in range(LOOKS):
                stats = soon(engine.stats)
                assert list(stats.missing) == shards
                verdicts = soon(engine.health).reasons
                assert any(f"the node {victim.address} (master) failed" in reason for reason in verdicts), verdicts
            if not options:
                shell = Shell(tmp_path, {"SHARDQ_URL": own_cluster.url, "SHARDQ_NAME": name})
                done = soon(lambda: shell.run("stats"))
                assert f"the node {victim.address} (master) failed" in done.out + done.err
                with engines.opened(own_cluster.url, name=name) as second:
                    assert list(soon(second.stats).missing) == shards
            assert other.ask("DBSIZE") == 0
