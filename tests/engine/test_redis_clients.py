"""Engines on the settings of a client of redis-py, of each kind; whatever they connect with, the client's own
connections are not touched.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
import redis.asyncio
import redis.asyncio.sentinel
import redis.sentinel

from cluster.cluster import Cluster
from cluster.sentinels import Sentinels
from cluster.server import Server
from shardq import BadInput, Engine
from shardq.core.drivers.clients import read
from shardq.engine.inside import Inside
from shardq.errors import InvalidOption, Unavailable
from tests.support import certificates
from tests.support.engines import SHARDS, Engines

PASSWORD = "p@s%/?:ö"

Make = Callable[..., Any]

SINGLE: dict[str, Make] = {"Redis": redis.Redis, "asyncio.Redis": redis.asyncio.Redis}


def goes_round(engine: Engine) -> None:
    engine.start()
    id = engine.push("hi", delay=0.01)
    (delivery,) = engine.consumer().claim(1, wait=30)
    assert (delivery.id, delivery.payload) == (id, "hi")
    engine.consumer().ack(delivery)
    assert engine.health()


@pytest.fixture(scope="module")
def locked(server_binary: Path) -> Iterator[Server]:
    """A server with a user and a password."""
    with Server(server_binary, options={"databases": "4"}) as server:
        server.ask("ACL", "SETUSER", "app", "on", f">{PASSWORD}", "~*", "&*", "+@all")
        yield server


@pytest.mark.parametrize("make", SINGLE.values(), ids=SINGLE)
@pytest.mark.parametrize("kept_secret", [True, False])
def test_a_client_of_one_server(engines: Engines, locked: Server, name: str, make: Make, kept_secret: bool) -> None:
    words: dict[str, Any] = {"username": "app", "password": PASSWORD} if kept_secret else {}
    client = make(host="127.0.0.1", port=locked.port, db=3, decode_responses=True, socket_timeout=0.001, **words)
    engine = engines.opened(client, name=name, shards=SHARDS)
    goes_round(engine)
    assert PASSWORD not in repr(engine) + Inside(engine).options.safe_url
    assert set(locked.ask("INFO", "keyspace")) == {"db3"}
    engine.purge(everything=True)


@pytest.mark.slow
def test_a_client_on_a_unix_socket(engines: Engines, server_binary: Path, name: str) -> None:
    with Server(server_binary, unix=True) as server:
        goes_round(engines.opened(redis.Redis(unix_socket_path=str(server.socket), db=1), name=name, shards=SHARDS))
        assert set(server.ask("INFO", "keyspace")) == {"db1"}


@pytest.mark.parametrize("make", [redis.RedisCluster, redis.asyncio.RedisCluster], ids=["sync", "asyncio"])
def test_a_client_of_a_cluster(engines: Engines, cluster: Cluster, name: str, make: Make) -> None:
    first = cluster.masters[0]
    client = make(host="127.0.0.1", port=first.port)
    engine = engines.opened(client, name=name, shards=SHARDS)
    goes_round(engine)
    assert len({shard.node for shard in engine.stats().shards}) == len(cluster.masters)
    engine.purge(everything=True)
    if make is redis.RedisCluster:
        client.close()


@pytest.mark.slow
@pytest.mark.parametrize("kind", [redis.sentinel.Sentinel, redis.asyncio.sentinel.Sentinel], ids=["sync", "asyncio"])
def test_the_master_of_a_service(engines: Engines, server_binary: Path, name: str, kind: Make) -> None:
    with Sentinels(server_binary) as sentinels:
        service = kind([("127.0.0.1", each.port) for each in sentinels.sentinels])
        engine = engines.opened(service.master_for("main"), name=name, shards=SHARDS)
        goes_round(engine)
        with pytest.raises(InvalidOption, match="a client of replicas"):
            engines.make(service.slave_for("main"))
        engine.close()


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return certificates.made(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def secured(files: Path) -> Iterator[Server]:
    with certificates.serving(files) as server:
        yield server


@pytest.mark.parametrize("make", SINGLE.values(), ids=SINGLE)
@pytest.mark.parametrize("authority", ["a file", "its text", "none"])
def test_a_client_with_tls(
    engines: Engines, secured: Server, files: Path, name: str, make: Make, authority: str
) -> None:
    choices: dict[str, dict[str, Any]] = {
        "a file": {"ssl_ca_certs": str(files / "ca.pem"), "ssl_check_hostname": True},
        "its text": {"ssl_ca_data": (files / "ca.pem").read_text()},
        "none": {"ssl_cert_reqs": "none", "ssl_check_hostname": False, "ssl_min_version": ssl.TLSVersion.TLSv1_2},
    }
    shown = {"ssl_certfile": str(files / "client.pem"), "ssl_keyfile": str(files / "client.key")}
    client = make(host="127.0.0.1", port=secured.port, ssl=True, **choices[authority], **shown)
    engine = engines.opened(client, name=name, shards=SHARDS)
    goes_round(engine)
    engine.purge(everything=True)


def test_an_authority_that_the_client_does_not_trust_is_not_trusted(secured: Server, files: Path, name: str) -> None:
    client = redis.Redis(
        host="127.0.0.1",
        port=secured.port,
        ssl=True,
        ssl_ca_certs=str(files / "other.pem"),
        ssl_certfile=str(files / "client.pem"),
        ssl_keyfile=str(files / "client.key"),
    )
    with pytest.raises(Unavailable, match="not trusted"):
        Engine(client, name=name).open()


def test_what_no_engine_can_do_is_refused_at_once() -> None:
    with pytest.raises(InvalidOption, match="ssl_validate_ocsp"):
        Engine(redis.Redis(ssl=True, ssl_validate_ocsp=True))
    for given in (5, object(), redis, redis.Redis, redis.ConnectionPool()):
        with pytest.raises(BadInput, match="a client of redis-py, or None"):
            Engine(given)  # type: ignore[arg-type]  # on purpose


def test_the_url_of_a_client() -> None:
    assert read(redis.Redis(host="::1", db=2))[0] == "redis://[::1]:6379/2"
    assert read(redis.Redis(username="a:b", password="c@d"))[0] == "redis://a%3Ab:c%40d@localhost:6379"
    assert read(redis.Redis(password="x"))[0] == "redis://:x@localhost:6379"
    assert read(redis.Redis(unix_socket_path="/run/my redis", db=1))[0] == "unix:///run/my%20redis?db=1"
    assert read(redis.Redis(ssl=True))[0] == "rediss://localhost:6379"
