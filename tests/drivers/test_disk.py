"""Both drivers say that a disk has what was written when an fsync has covered it: whatever the server answers, whatever
its user may ask, and whatever else it does meanwhile.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import cycle
from pathlib import Path

import pytest

from cluster import servers
from shardq.core.calls import node_info
from shardq.core.calls.request import Call
from shardq.core.layout.keys import ShardKeys, shard_keys
from tests.drivers.carriers import Carrier, Carriers
from tests.lua.shard import EPOCH, opening
from tests.support.disk import WatchedServer
from tests.support.waiting import wait_until

ROUNDS = 4


@pytest.mark.parametrize(
    ("info", "knows", "is_early"),
    [
        ("redis_version:7.0.15", False, False),
        ("redis_version:7.2.6", True, False),
        ("redis_version:7.4.0", True, True),
        ("redis_version:7.4.9", True, True),
        ("redis_version:8.0.0", True, False),
        ("redis_version:8.2.3", True, False),
        ("redis_version:7.2.4\r\nvalkey_version:7.2.11", True, False),
        ("redis_version:7.2.4\r\nvalkey_version:8.0.0", True, True),
        ("redis_version:7.2.4\r\nvalkey_version:8.1.8", True, True),
        ("redis_version:7.2.4\r\nvalkey_version:9.1.2", True, True),
        ("redis_version:255.255.255", True, False),
        ("redis_version:unstable", False, False),
        ("", False, False),
    ],
)
def test_the_versions_that_answer_early(info: str, knows: bool, is_early: bool) -> None:
    fields = node_info.info_fields(info.encode())
    assert (node_info.knows_waitaof(fields), node_info.answers_early(fields)) == (knows, is_early)


def opened(carrier: Carrier, name: str) -> ShardKeys:
    keys = shard_keys(name, 0)
    carrier.call(opening(keys))
    return keys


def sealed(keys: ShardKeys) -> list[Call[None]]:
    return [node_info.seal(keys.meta, keys.slot, EPOCH)]


SYNCED = [
    *((kind, "everysec", "") for kind in servers.found()),
    ("valkey9", "everysec", "-waitaof"),
    ("valkey9", "everysec", "-config"),
    ("redis8", "everysec", "-waitaof"),
    ("valkey9", "always", ""),
    ("valkey9", "always", "-config"),
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("carriers", "kind", "policy", "refused"),
    [(carrier, *row) for carrier, row in zip(cycle(["sync", "aio"]), SYNCED, strict=False)],
    indirect=["carriers"],
)
def test_what_is_confirmed_was_synced(
    carriers: Carriers, tmp_path: Path, name: str, kind: str, policy: str, refused: str
) -> None:
    with WatchedServer(servers.binary(kind), tmp_path, options={"appendfsync": policy}) as server:
        rules = ["on", ">secret", "~*", "&*", "+@all", *refused.split()]
        server.ask("ACL", "SETUSER", "me", *rules)
        carrier = carriers.opened(server.url.replace("://", "://me:secret@"))
        keys = opened(carrier, name)
        for number in range(ROUNDS):
            time.sleep(0.13 * number)
            server.ask("SET", "k", f"value{number}.")
            assert None not in carrier.confirm(sealed(keys), disk=True).values()
            assert server.has_on_disk(server.file, f"value{number}.".encode())


@pytest.mark.slow
def test_with_appendfsync_no_the_disk_does_not_matter(carriers: Carriers, tmp_path: Path, name: str) -> None:
    with WatchedServer(servers.binary(), tmp_path, options={"appendfsync": "no"}) as server:
        carrier = carriers.opened(server.url)
        assert None not in carrier.confirm(sealed(opened(carrier, name)), disk=True).values()


ON_A_BUSY_DISK = pytest.mark.parametrize(("carriers", "busy"), [("sync", "valkey9"), ("aio", "redis7")], indirect=True)
"""The servers differ in what they tell, the carriers in who waits for it: each is tried once."""


@pytest.fixture
def busy(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[WatchedServer]:
    """A server on a disk that takes its time, whose children take seconds."""
    options = {"rdb-key-save-delay": "20000"}
    with WatchedServer(servers.binary(request.param), tmp_path, options=options, sync_ms=400) as server:
        for number in range(200):
            server.ask("SET", f"key{number}", "x")
        yield server


@pytest.mark.slow
@ON_A_BUSY_DISK
@pytest.mark.parametrize("after_s", [0.1, 0.6, 1.2])
def test_a_rewrite_that_begins_meanwhile(carriers: Carriers, busy: WatchedServer, name: str, after_s: float) -> None:
    """The write is in a file that is closed then, and what INFO tells is about the next one."""
    carrier = carriers.opened(busy.url)
    keys, file = opened(carrier, name), busy.file
    with ThreadPoolExecutor(1) as threads:
        busy.ask("SET", "k", "the value.")
        confirmed = threads.submit(carrier.confirm, sealed(keys), disk=True)
        time.sleep(after_s)
        busy.ask("BGREWRITEAOF")
        is_confirmed = None not in confirmed.result().values()
    assert not is_confirmed or busy.has_on_disk(file, b"the value.")
    wait_until(lambda: None not in carrier.confirm(sealed(keys), disk=True).values(), "it is confirmed", timeout=30)


@pytest.mark.slow
@ON_A_BUSY_DISK
def test_fsyncs_that_are_skipped_while_there_is_a_child(carriers: Carriers, busy: WatchedServer, name: str) -> None:
    busy.ask("CONFIG", "SET", "no-appendfsync-on-rewrite", "yes")
    carrier = carriers.opened(busy.url)
    keys = opened(carrier, name)
    assert None not in carrier.confirm(sealed(keys), disk=True).values()
    busy.ask("BGSAVE")
    busy.ask("SET", "k", "the value.")
    assert list(carrier.confirm(sealed(keys), disk=True).values()) == [None]
    assert not busy.has_on_disk(busy.file, b"the value.")
    wait_until(lambda: None not in carrier.confirm(sealed(keys), disk=True).values(), "it is confirmed", timeout=30)
    assert busy.has_on_disk(busy.file, b"the value.")


@pytest.mark.slow
@ON_A_BUSY_DISK
def test_a_server_that_stands_still_meanwhile(carriers: Carriers, busy: WatchedServer, name: str) -> None:
    carrier = carriers.opened(busy.url)
    keys = opened(carrier, name)
    with ThreadPoolExecutor(1) as threads:
        busy.ask("SET", "k", "the value.")
        confirmed = threads.submit(carrier.confirm, sealed(keys), disk=True)
        time.sleep(0.2)
        busy.pause()
        time.sleep(2.0)
        busy.resume()
        is_confirmed = None not in confirmed.result().values()
        assert not is_confirmed or busy.has_on_disk(busy.file, b"the value.")
