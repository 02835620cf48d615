"""Engines on the settings of a client of redis-py, of each kind that it makes: what an engine keeps of them, in which
words it refuses the others, and that it shares nothing with the client. Runs with redis-py 5.0.1, too.
"""

from __future__ import annotations

import inspect
import logging
import ssl
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import redis
import redis.asyncio
import redis.asyncio.sentinel
import redis.sentinel
from redis.credentials import UsernamePasswordCredentialProvider

from cluster.cluster import Cluster
from cluster.sentinels import Sentinels
from cluster.server import Server
from shardq import BadInput, Engine
from shardq.core.drivers.clients import read
from shardq.core.drivers.settings import Tls
from shardq.engine.access import EngineAccess
from shardq.errors import InvalidOption, InvalidUrl, Unavailable
from tests.support import certificates
from tests.support.engines import SHARDS, Engines
from tests.support.waiting import wait_until

PASSWORD = "p@s%/?:ö"
QUOTED = "p%40s%25%2F%3F%3A%C3%B6"
WORDS: dict[str, Any] = {"username": "app", "password": PASSWORD}
THEIRS = "theirs"
"""The name of the client's own connections."""


def goes_round(engine: Engine) -> None:
    engine.start()
    id = engine.push("hi", delay=0.01)
    (delivery,) = engine.consumer().claim(1, wait=30)
    assert (delivery.id, delivery.payload) == (id, "hi")
    engine.consumer().ack(delivery)


@dataclass
class Place:
    """Where clients are led, and the settings by which they get there."""

    servers: Sequence[Server]
    words: dict[str, Any] = field(default_factory=dict)
    url: str = ""
    """The same, for ``from_url``."""

    @property
    def port(self) -> int:
        return self.servers[0].port

    @property
    def address(self) -> dict[str, Any]:
        return {"host": "127.0.0.1", "port": self.port}

    def names(self) -> set[str]:
        """The names of all connections."""
        rows = [row for each in self.servers for row in str(each.ask("CLIENT", "LIST")).splitlines()]
        return {word.partition("=")[2] for row in rows for word in row.split() if word.startswith("name=")}


@pytest.fixture(scope="module")
def one(server_binary: Path) -> Iterator[Place]:
    """A server with a user and a password."""
    with Server(server_binary, options={"databases": "4"}) as server:
        server.ask("ACL", "SETUSER", "app", "on", f">{PASSWORD}", "~*", "&*", "+@all")
        url = f"redis://app:{QUOTED}@127.0.0.1:{server.port}/3?client_name={THEIRS}"
        yield Place([server], {"db": 3, **WORDS}, url)


@pytest.fixture(scope="module")
def local(server_binary: Path) -> Iterator[Place]:
    """A server on a unix socket."""
    with Server(server_binary, unix=True) as server:
        words = {"unix_socket_path": str(server.socket), "db": 1}
        yield Place([server], words, f"unix://{server.socket}?db=1&client_name={THEIRS}")


@pytest.fixture(scope="module")
def nodes(cluster: Cluster) -> Iterator[Place]:
    """A cluster."""
    for node in cluster.nodes:
        node.ask("ACL", "SETUSER", "app", "on", f">{PASSWORD}", "~*", "&*", "+@all")
    port = cluster.masters[0].port
    yield Place(cluster.masters, WORDS, f"redis://app:{QUOTED}@127.0.0.1:{port}?client_name={THEIRS}")
    for node in cluster.nodes:
        node.ask("ACL", "DELUSER", "app")


@pytest.fixture(scope="module")
def service(server_binary: Path) -> Iterator[Place]:
    """A service of Sentinel; the sentinels have a password of their own."""
    with Sentinels(server_binary, password="servers", sentinel_password="sentinels") as sentinels:
        hosts = [("127.0.0.1", each.port) for each in sentinels.sentinels]
        words = {"sentinels": hosts, "sentinel_kwargs": {"password": "sentinels"}, "password": "servers"}
        yield Place([sentinels.master], {**words, "db": 2})


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return certificates.made(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def secured(files: Path) -> Iterator[Place]:
    """A server with TLS."""
    with certificates.serving(files) as server:
        shown = {"ssl_certfile": str(files / "client.pem"), "ssl_keyfile": str(files / "client.key")}
        query = "&".join(f"{name}={value}" for name, value in shown.items())
        url = f"rediss://127.0.0.1:{server.port}?{query}&ssl_ca_certs={files}/ca.pem&client_name={THEIRS}"
        yield Place([server], {"ssl": True, **shown}, url)


class Theirs(redis.Redis):
    """A client class of a program's own."""


Make = Callable[..., Any]


def known(make: Make, words: dict[str, Any]) -> dict[str, Any]:
    """Those settings that this version of redis-py has."""
    names = inspect.signature(make).parameters
    return {name: value for name, value in words.items() if name in names}


def of_node(kind: Any, pools: Any) -> dict[str, Callable[[Place], Any]]:
    provider = UsernamePasswordCredentialProvider("app", PASSWORD)
    return {
        "words": lambda at: kind(**at.address, **at.words, client_name=THEIRS, decode_responses=True),
        "a URL": lambda at: kind.from_url(at.url),
        "a pool": lambda at: kind(connection_pool=pools.BlockingConnectionPool(**at.address, **at.words, timeout=1)),
        "a provider": lambda at: kind(**at.address, db=3, credential_provider=provider),
    }


def of_cluster(kind: Any, node: Any) -> dict[str, Callable[[Place], Any]]:
    provider = UsernamePasswordCredentialProvider("app", PASSWORD)
    return {
        "a host": lambda at: kind(**at.address, **at.words, client_name=THEIRS),
        "nodes": lambda at: kind(startup_nodes=[node("127.0.0.1", each.port) for each in at.servers], **at.words),
        "a URL": lambda at: kind.from_url(at.url),
        "a provider": lambda at: kind(**at.address, credential_provider=provider),
    }


def of_tls(kind: Any) -> dict[str, Callable[[Place], Any]]:
    choices: dict[str, Callable[[Path], dict[str, Any]]] = {
        "its file": lambda folder: {"ssl_ca_certs": str(folder / "ca.pem"), "ssl_check_hostname": True},
        "its text": lambda folder: {"ssl_ca_data": (folder / "ca.pem").read_text()},
        "no check": lambda folder: {"ssl_cert_reqs": "none", "ssl_check_hostname": False},
        "a version and flags": lambda folder: {
            "ssl_ca_certs": str(folder / "ca.pem"),
            "ssl_min_version": ssl.TLSVersion.TLSv1_2,
            "ssl_ciphers": "ECDHE+AESGCM",
            "ssl_include_verify_flags": [ssl.VerifyFlags.VERIFY_X509_TRUSTED_FIRST],
            "ssl_exclude_verify_flags": [ssl.VerifyFlags.VERIFY_X509_STRICT],
        },
    }

    def made(at: Place, choice: Callable[[Path], dict[str, Any]]) -> Any:
        return kind(**at.address, **at.words, **known(kind, choice(Path(at.words["ssl_keyfile"]).parent)))

    return {name: lambda at, choice=choice: made(at, choice) for name, choice in choices.items()} | {
        "a URL": lambda at: kind.from_url(at.url)
    }


def of_socket(kind: Any) -> dict[str, Callable[[Place], Any]]:
    return {"words": lambda at: kind(**at.words, client_name=THEIRS), "a URL": lambda at: kind.from_url(at.url)}


def of_service(kind: Any) -> dict[str, Callable[[Place], Any]]:
    return {"words": lambda at: kind(**at.words).master_for("main", client_name=THEIRS)}


@pytest.fixture
def at(request: pytest.FixtureRequest, server_binary: Path) -> Place:
    """The place of a name."""
    place: Place = request.getfixturevalue(request.param)
    return place


class Named(redis.Redis):
    """A client of a class of one's own."""


CLIENTS: list[tuple[str, str, dict[str, Callable[[Place], Any]]]] = [
    ("sync", "one", of_node(redis.Redis, redis)),
    ("sync", "one", {"a subclass": lambda at: Named(**at.address, **at.words)}),
    ("asyncio", "one", of_node(redis.asyncio.Redis, redis.asyncio)),
    ("sync", "local", of_socket(redis.Redis)),
    ("asyncio", "local", of_socket(redis.asyncio.Redis)),
    ("sync", "nodes", of_cluster(redis.RedisCluster, redis.cluster.ClusterNode)),
    ("asyncio", "nodes", of_cluster(redis.asyncio.RedisCluster, redis.asyncio.cluster.ClusterNode)),
    ("sync", "service", of_service(redis.sentinel.Sentinel)),
    ("asyncio", "service", of_service(redis.asyncio.sentinel.Sentinel)),
    ("sync", "secured", of_tls(redis.Redis)),
    ("asyncio", "secured", of_tls(redis.asyncio.Redis)),
]
KEPT = [
    pytest.param(
        engines, place, make, id=f"{engines}-{place}-{how}", marks=[pytest.mark.slow] if place == "service" else []
    )
    for engines, place, makes in CLIENTS
    for how, make in makes.items()
]


@pytest.mark.parametrize(("engines", "at", "make"), KEPT, indirect=["engines", "at"])
def test_an_engine_goes_where_the_client_goes_and_shares_no_connection(
    engines: Engines, at: Place, make: Callable[[Place], Any], name: str
) -> None:
    client = make(at)
    engine = engines.opened(client, name=name, shards=SHARDS)
    id = engine.push("hi", delay=3600)
    found = engine.get(id)
    assert found is not None
    assert found.payload == "hi"
    assert PASSWORD not in repr(engine) + EngineAccess(engine).options.safe_url
    databases = set().union(*(each.ask("INFO", "keyspace") for each in at.servers))
    assert databases == {f"db{at.words.get('db', 0)}"}
    if len(at.servers) > 1:
        assert {shard.node for shard in engine.stats().shards} == {node.address for node in at.servers}
        if engines.kind == "sync":
            for node in client.get_nodes():  # it has connected before; redis-py 5 does not do it in close()
                node.redis_connection.connection_pool.disconnect()
            wait_until(lambda: THEIRS not in at.names(), "its connections are gone")
    assert THEIRS not in at.names()
    engine.purge(everything=True)


@pytest.mark.parametrize(
    ("engines", "at", "make"),
    [
        ("sync", "one", of_node(redis.Redis, redis)["a provider"]),
        ("asyncio", "nodes", of_cluster(redis.asyncio.RedisCluster, redis.asyncio.cluster.ClusterNode)["a host"]),
        ("sync", "secured", of_tls(redis.Redis)["its file"]),
    ],
    indirect=["engines", "at"],
    ids=["a provider", "a cluster", "TLS"],
)
def test_tasks_go_round(engines: Engines, at: Place, make: Callable[[Place], Any], name: str) -> None:
    engine = engines.opened(make(at), name=name, shards=SHARDS)
    goes_round(engine)
    engine.purge(everything=True)


@pytest.mark.parametrize("engines", ["sync"], indirect=True)
def test_the_client_and_the_engine_end_each_by_itself(engines: Engines, one: Place, name: str) -> None:
    client = redis.Redis(**one.address, **one.words, client_name=THEIRS)
    client.ping()
    first = engines.opened(client, name=name, shards=SHARDS)
    first.push("hi")
    first.close()
    assert client.ping()  # by the same connection
    second = engines.opened(client, name=name)
    client.connection_pool.disconnect()
    client.close()
    assert second.purge(everything=True)


def test_an_authority_that_the_client_does_not_trust_is_not_trusted(secured: Place, files: Path, name: str) -> None:
    client = redis.Redis(**secured.address, **secured.words, ssl_ca_certs=str(files / "other.pem"))
    with pytest.raises(Unavailable, match="not trusted"):
        Engine(client, name=name).open()


class Tunnel(redis.Connection):
    """Connections that take a way of their own, such as through a proxy."""


def service_of(**words: Any) -> Any:
    kind: Any = redis.sentinel.Sentinel
    return kind([("h", 26379), ("i", 26379)], **words)


def remapped() -> Any:
    return redis.asyncio.RedisCluster(host="h", address_remap=lambda address: address)


PROVIDER = UsernamePasswordCredentialProvider("app", PASSWORD)
REFUSED: dict[str, tuple[Make, str]] = {
    "ssl_validate_ocsp": (lambda: redis.Redis(ssl=True, ssl_validate_ocsp=True), "ssl_validate_ocsp= of the client"),
    "redis_connect_func": (lambda: redis.Redis(redis_connect_func=print), "redis_connect_func= of the client"),
    "connection_class": (
        lambda: redis.Redis(connection_pool=redis.ConnectionPool(Tunnel)),
        r"connects by tests\.engine\.test_redis_clients\.Tunnel, which is not redis-py's",
    ),
    "address_remap": (remapped, "address_remap= of the client"),
    "replicas": (
        lambda: service_of().slave_for("main"),
        r"a client of replicas .* give Sentinel.master_for\(service\)",
    ),
    "min_other_sentinels": (
        lambda: service_of(min_other_sentinels=1).master_for("main"),
        "min_other_sentinels= of the client",
    ),
    "a provider for sentinels": (
        lambda: service_of(sentinel_kwargs={"credential_provider": PROVIDER}).master_for("main"),
        "credential_provider= of the sentinels",
    ),
    "TLS for the master alone": (lambda: service_of(ssl=True).master_for("main"), "the same TLS settings"),
    "TLS of another kind": (
        lambda: service_of(ssl=True, sentinel_kwargs={"ssl": True, "ssl_ca_certs": "a.pem"}).master_for("main"),
        "the same TLS settings",
    ),
}


@pytest.mark.parametrize(("make", "words"), REFUSED.values(), ids=REFUSED)
def test_what_an_engine_cannot_keep_is_refused_in_words(make: Make, words: str) -> None:
    client = make()
    with pytest.raises(InvalidOption, match=words):
        Engine(client)


def test_the_addresses_that_a_service_is_forced_to_are_refused() -> None:
    words = known(redis.sentinel.Sentinel, {"force_master_ip": "10.0.0.1"})
    if not words:
        pytest.skip("this redis-py has no force_master_ip=")
    with pytest.raises(InvalidOption, match="force_master_ip= of the client"):
        Engine(service_of(**words).master_for("main"))


@pytest.mark.parametrize(
    "given",
    [5, object(), redis, redis.Redis, redis.ConnectionPool(password=PASSWORD), service_of(password=PASSWORD)],
    ids=["int", "object", "module", "class", "pool", "Sentinel"],
)
def test_what_is_no_client_is_refused(given: Any) -> None:
    with pytest.raises(BadInput, match=r"a client of redis-py: a Redis, a RedisCluster or a Sentinel's master") as told:
        Engine(given)
    assert PASSWORD not in str(told.value)


OWN: dict[str, tuple[Make, str]] = {
    "nothing": (redis.Redis, ""),
    "nothing, asyncio": (redis.asyncio.Redis, ""),
    "nothing, cluster": (lambda: redis.asyncio.RedisCluster(host="h"), ""),
    "nothing, sentinel": (lambda: service_of().master_for("main"), ""),
    "nothing, TLS": (lambda: redis.Redis(ssl=True), ""),
    "times": (
        lambda: redis.Redis(socket_timeout=0.5, socket_connect_timeout=0.25),
        "socket_timeout, socket_connect_timeout",
    ),
    "a URL": (
        lambda: redis.asyncio.Redis.from_url("redis://h?socket_timeout=7&client_name=a"),
        "socket_timeout, client_name",
    ),
    "a cluster": (lambda: redis.asyncio.RedisCluster(host="h", health_check_interval=9), "health_check_interval"),
    "a service": (
        lambda: service_of(socket_timeout=0.1).master_for("main", client_name="a"),
        "socket_timeout, client_name",
    ),
    "a subclass": (lambda: Named(client_name="a"), "client_name"),
}


@pytest.mark.parametrize(("make", "names"), OWN.values(), ids=OWN)
def test_what_an_engine_has_itself_is_told_in_the_log(caplog: pytest.LogCaptureFixture, make: Make, names: str) -> None:
    client = make()
    with caplog.at_level(logging.INFO, "shardq"):
        Engine(client)
    told = f"the engine has its own in place of these settings of the client: {names}"
    assert [record.getMessage() for record in caplog.records] == ([told] if names else [])


URLS: dict[str, Make] = {
    "redis://[::1]:6379/2": lambda: redis.Redis(host="::1", db=2),
    "redis://a%3Ab:c%40d@localhost:6379": lambda: redis.Redis(username="a:b", password="c@d"),
    "redis://:x@localhost:6379": lambda: redis.Redis(password="x"),
    "redis://:1234@localhost:6379": lambda: redis.asyncio.Redis(password=1234),  # type: ignore[arg-type]  # it works
    "redis://me@h:6380": lambda: redis.Redis(host="h", port="6380", username="me"),  # type: ignore[arg-type]  # so do they
    "unix:///run/my%20redis?db=1": lambda: redis.Redis(unix_socket_path="/run/my redis", db=1),
    "unix://u:p@/run/redis": lambda: redis.Redis.from_url("unix://u:p@/run/redis"),
    "rediss://localhost:6379": lambda: redis.Redis(ssl=True),
    "redis+cluster://h:7000,i:7001": lambda: redis.asyncio.RedisCluster(
        startup_nodes=[redis.asyncio.cluster.ClusterNode(*each) for each in (("h", 7000), ("i", 7001))]
    ),
    "redis+sentinel://:p@h:26379,i:26379/main/2?sentinel_user=u&sentinel_password=s": lambda: service_of(
        password="p", db=2, sentinel_kwargs={"username": "u", "password": "s"}
    ).master_for("main"),
}


@pytest.mark.parametrize(("url", "make"), URLS.items(), ids=URLS)
def test_the_url_of_a_client(url: str, make: Make) -> None:
    assert read(make())[0] == url


def test_the_host_is_the_given_one_while_a_service_moves_it_for_a_moment() -> None:
    client = redis.Redis(host="cache.example")
    if "orig_host_address" not in inspect.signature(redis.connection.AbstractConnection.__init__).parameters:
        pytest.skip("this redis-py has no notifications of maintenance")
    # what the pool does when a managed server tells that it moves
    client.connection_pool.connection_kwargs.update(host="10.0.0.9", orig_host_address="cache.example")
    assert read(client)[0] == "redis://cache.example:6379"


def test_the_tls_settings_of_a_client() -> None:
    words = known(redis.Redis, {"ssl_ciphers": "ALL", "ssl_min_version": ssl.TLSVersion.TLSv1_3})
    client = redis.Redis(ssl=True, ssl_cert_reqs="none", ssl_ca_path="/certs", ssl_password="x", **words)
    tls = read(client)[1].tls
    newest: dict[str, Any] = {"ciphers": "ALL", "oldest": ssl.TLSVersion.TLSv1_3} if words else {}
    assert tls == Tls(folder="/certs", pass_phrase="x", verify=ssl.CERT_NONE, check_hostname=False, **newest)


@pytest.mark.parametrize(
    ("words", "told"), [({"ssl_ca_certs": "/none.pem"}, "/none.pem"), ({"ssl_ciphers": "?"}, "'?'")]
)
def test_tls_settings_that_can_not_be_used_are_told_at_once(words: dict[str, Any], told: str, name: str) -> None:
    if not known(redis.Redis, words):
        pytest.skip("this redis-py has no such setting")
    with pytest.raises(InvalidUrl, match=told.replace("?", r"\?")):
        Engine(redis.Redis(port=1, ssl=True, **words), name=name, connect_timeout=0.5).open()
