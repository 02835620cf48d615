"""Server settings that can lose tasks are in a warning at open and in stats(); they are never an error."""

from __future__ import annotations

from pathlib import Path

import pytest

from cluster.cluster import Cluster
from cluster.server import Server
from shardq import Engine
from shardq.core.layout.keys import control_keys, shard_keys
from tests.support.engines import Engines
from tests.support.waiting import wait_until

KEPT = {"appendonly": "yes"}


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "shardq.advice"]


def opened(engines: Engines, url: str, name: str) -> Engine:
    return engines.opened(url, name=name, shards=2)


def test_a_server_that_evicts(
    engines: Engines, server_binary: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    options = KEPT | {"maxmemory": "20mb", "maxmemory-policy": "allkeys-lru"}
    with Server(server_binary, options=options) as server:

        def warned() -> list[str]:
            opened(engines, server.url, name).close()  # one that was slow to answer is not waited for
            return said(caplog)

        (text,) = wait_until(warned, "it is said")
        assert text.startswith(f"{server.address} evicts tasks without an error")
        assert "maxmemory-policy allkeys-lru" in text
        engine = opened(engines, server.url, name)
        assert said(caplog) == [text], "once"
        assert engine.health().warnings == [text]
        assert not any("evict" in reason for reason in engine.health().reasons)
        # what is evicted is what will expire, and nothing of ours does
        server.ask("CONFIG", "SET", "maxmemory-policy", "volatile-lru")
        assert engine.health().warnings == []
        server.ask("CONFIG", "SET", "maxmemory-policy", "allkeys-random", "maxmemory", "0")
        assert engine.health().warnings == []
        engine.close()


def test_a_server_that_keeps_nothing(
    engines: Engines, server_binary: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    with Server(server_binary) as server:

        def warned() -> list[str]:
            opened(engines, server.url, name).close()
            return said(caplog)

        (text,) = wait_until(warned, "it is said")
        assert text.startswith(f"{server.address} keeps nothing on its disk, so a restart loses every task")
        engine = opened(engines, server.url, name)
        assert engine.health().warnings == [text]
        server.ask("CONFIG", "SET", "save", "3600 1")
        assert engine.health().warnings == []
        server.ask("CONFIG", "SET", "save", "", "appendonly", "yes")
        assert engine.health().warnings == []
        assert said(caplog) == [text]
        engine.close()


def test_a_server_that_may_not_say(
    engines: Engines, server_binary: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    with Server(server_binary) as server:
        server.ask("ACL", "SETUSER", "me", "on", ">secret9", "~*", "&*", "+@all", "-config")
        engine = opened(engines, f"redis://me:secret9@{server.address}", name)
        assert engine.health().warnings == []
        assert said(caplog) == []
        engine.close()


def test_an_embedded_server_is_as_it_should_be(
    engines: Engines, tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    engine = opened(engines, f"embedded://{tmp_path}", name)
    assert engine.health().warnings == []
    assert said(caplog) == []
    engine.close()


@pytest.mark.slow
def test_slots_that_nobody_serves(engines: Engines, server_binary: Path, name: str) -> None:
    options = KEPT | {"cluster-require-full-coverage": "no"}
    with Cluster(server_binary, masters=2, replicas=0, options=options) as cluster:
        used = {control_keys(name).slot, *(shard_keys(name, shard).slot for shard in range(2))}
        free = [slot for slot in range(100, 110) if slot not in used]
        for node in cluster.nodes:
            node.ask("CLUSTER", "DELSLOTS", *free)
        engine = opened(engines, cluster.url, name)
        (text,) = engine.health().warnings
        assert text.startswith(f"{len(free)} slots of the cluster are served by no node")
        engine.close()
