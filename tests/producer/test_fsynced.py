"""A push with durability="fsynced" returns when an fsync has covered it, on every server, whatever that answers."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from cluster import servers
from shardq.errors import DurabilityUnavailable, NotReplicated
from tests.support.disk import WatchedServer
from tests.support.engines import SHARDS, Engines
from tests.support.states import FAR_S

PUSHES, THREADS = 200, 20


ONE = pytest.mark.parametrize("engines", ["sync"], indirect=True)
"""Durable pushes of both engines run in threads, through the same driver."""


@pytest.mark.slow
@pytest.mark.promise
@ONE
@pytest.mark.parametrize("disk", ["everysec", "always", "busy"])
@pytest.mark.parametrize("kind", servers.found())
def test_what_is_acknowledged_is_on_the_disk(engines: Engines, tmp_path: Path, name: str, kind: str, disk: str) -> None:
    """Bytes of the file that no fsync had covered when the push returned are what a loss of power takes. A busy disk
    makes the server postpone its writes, and confirms some of the pushes too late.
    """
    draw, confirmed = random.Random(7), []
    policy, sync_ms = ("everysec", 700) if disk == "busy" else (disk, 0)
    with WatchedServer(servers.binary(kind), tmp_path, options={"appendfsync": policy}, sync_ms=sync_ms) as server:
        engine = engines.opened(server.url, name=name, shards=SHARDS)

        def early(number: int) -> str:
            try:
                id = engine.push(number, delay=FAR_S + draw.random(), durability="fsynced")
            except NotReplicated:
                assert disk == "busy"
                return ""
            is_there = server.has_on_disk(server.file, id.encode())
            confirmed.append(id)
            return "" if is_there else id

        if kind == "redis7":
            with pytest.raises(DurabilityUnavailable, match="does not know WAITAOF"):
                early(0)
            return
        with ThreadPoolExecutor(THREADS) as threads:
            assert [id for id in threads.map(early, range(PUSHES)) if id] == []
        assert len(confirmed) > (0 if disk == "busy" else PUSHES - 1)


@pytest.mark.slow
@ONE
def test_with_appendfsync_no_nothing_is_confirmed(engines: Engines, tmp_path: Path, name: str) -> None:
    with WatchedServer(servers.binary(), tmp_path, options={"appendfsync": "no"}) as server:
        engine = engines.opened(server.url, name=name, shards=SHARDS)
        with pytest.raises(NotReplicated):
            engine.push(1, delay=FAR_S, durability="fsynced")
