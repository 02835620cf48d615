"""URLs that are well formed and wrong fail at once, with the address and what to write instead."""

from __future__ import annotations

from collections.abc import Iterator
from http.server import ThreadingHTTPServer
from pathlib import Path

import pytest

from cluster.cluster import Cluster
from cluster.sentinels import sentinel_of
from cluster.server import Server
from shardq.errors import AccessDenied, InvalidUrl, ServerFault, Unavailable
from tests.drivers.carriers import Carriers
from tests.drivers.not_redis import Banner, Echo, TcpServer, Web, serving
from tests.drivers.refusals import SECRET, told_at_once


@pytest.fixture(scope="module")
def guarded(server_binary: Path) -> Iterator[Server]:
    """A server with a password, and a user beside."""
    with Server(server_binary, options={"requirepass": "right9"}) as server:
        server.ask("ACL", "SETUSER", "me", "on", ">right9", "~*", "+@all")
        yield server


@pytest.fixture(scope="module")
def sentinel(server_binary: Path, guarded: Server) -> Iterator[Server]:
    with sentinel_of(server_binary, guarded) as sentinel:
        yield sentinel


# ---- passwords


@pytest.mark.parametrize("protocol", [2, 3])
def test_no_password(carriers: Carriers, guarded: Server, protocol: int) -> None:
    told = told_at_once(carriers, guarded.url.replace(":right9@", ""), AccessDenied, protocol=protocol)
    assert f"redis://{guarded.address}: could not connect: it asks for a password, and the URL has no password" in told
    assert f"write redis://:password@{guarded.address}" in told


@pytest.mark.parametrize("protocol", [2, 3])
@pytest.mark.parametrize(
    ("login", "named"),
    [
        (f":{SECRET}@", "the password of the URL"),
        (f"me:{SECRET}@", "the user 'me' with the password of the URL"),
        (f"nobody:{SECRET}@", "the user 'nobody' with the password of the URL"),
        ("me@", "the user 'me' without a password"),
    ],
)
def test_a_login_that_is_wrong(carriers: Carriers, guarded: Server, login: str, named: str, protocol: int) -> None:
    told = told_at_once(carriers, f"redis://{login}{guarded.address}", AccessDenied, protocol=protocol)
    assert f"{guarded.address}: could not connect: it does not accept {named}" in told
    assert "check the user, the password" in told
    assert "percent-encoded" in told


def test_a_password_where_none_is_set(carriers: Carriers, single: Server) -> None:
    told = told_at_once(carriers, f"redis://:{SECRET}@{single.address}", AccessDenied, protocol=2)
    assert "it has no password, and the URL has one" in told
    assert "leave out what stands before the @" in told


# ---- another kind of server, and databases


@pytest.fixture
def addresses(single: Server, sentinel: Server, cluster: Cluster) -> dict[str, str]:
    node = cluster.url.partition("://")[2].split(",")[0]
    return {"single": single.address, "sentinel": sentinel.address, "node": node}


@pytest.mark.parametrize("protocol", [2, 3])
@pytest.mark.parametrize(
    ("kind", "url", "why", "instead"),
    [
        ("single", "redis+cluster://{}", "{}: it is not a node of a Redis Cluster", "server write redis://host:port"),
        (
            "sentinel",
            "redis+cluster://{}",
            "{}: it is not a node of a Redis Cluster",
            "write redis+sentinel://host:port/",
        ),
        (
            "single",
            "redis+sentinel://{}/main",
            "{}: it is not a sentinel",
            "for a single server write redis://host:port",
        ),
        ("node", "redis://{}", "{} is a node of a Redis Cluster", "; write redis+cluster://{}"),
        ("sentinel", "redis://{}", "{} is a sentinel", "; write redis+sentinel://{}/service"),
        ("single", "redis://{}/99", "redis://{}/99: could not connect: it has no database 99", "a smaller number"),
        ("node", "redis://{}/3", "it has no database 3", "a node of a cluster has database 0 only"),
        ("sentinel", "redis://{}/3", "it has no database 3", "a sentinel has none"),
    ],
)
def test_what_the_server_is_not(
    carriers: Carriers, addresses: dict[str, str], kind: str, url: str, why: str, instead: str, protocol: int
) -> None:
    address = addresses[kind]
    refused = ServerFault if "no database" in why else InvalidUrl
    told = told_at_once(carriers, url.format(address), refused, protocol=protocol)
    assert why.format(address) in told
    assert instead.format(address) in told


def test_a_database_of_a_unix_socket_that_is_not_there(carriers: Carriers, server_binary: Path) -> None:
    with Server(server_binary, unix=True) as server:
        told = told_at_once(carriers, f"{server.url}?db=99", ServerFault)
    assert "it has no database 99" in told
    assert "db=" in told


# ---- no Redis at all


@pytest.fixture
def web() -> Iterator[str]:
    yield from serving(ThreadingHTTPServer(("127.0.0.1", 0), Web))


@pytest.fixture(params=[Banner, Echo])
def other_server(request: pytest.FixtureRequest) -> Iterator[str]:
    yield from serving(TcpServer(("127.0.0.1", 0), request.param))


@pytest.mark.parametrize("protocol", [2, 3])
@pytest.mark.parametrize("scheme", ["redis", "redis+cluster"])
def test_a_web_server(carriers: Carriers, web: str, scheme: str, protocol: int) -> None:
    told = told_at_once(carriers, f"{scheme}://:{SECRET}@{web}", Unavailable, protocol=protocol)
    assert web in told
    assert "it is no Redis server but an HTTP server" in told
    assert "check the host and the port" in told


@pytest.mark.parametrize("protocol", [2, 3])
def test_another_server(carriers: Carriers, other_server: str, protocol: int) -> None:
    told = told_at_once(carriers, f"redis://:{SECRET}@{other_server}", Unavailable, protocol=protocol)
    assert "it is no Redis server" in told
    assert "check the host and the port" in told
