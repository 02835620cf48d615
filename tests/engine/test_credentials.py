"""Credentials that run out: each token is a user of the server, who is removed two seconds after the next one came.
That ends every connection that was not given the next one by then.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
import redis.asyncio
from redis.credentials import CredentialProvider

from cluster.cluster import Cluster
from cluster.server import Server
from shardq import Engine
from shardq.core.drivers import credentials
from shardq.errors import AccessDenied, InvalidOption
from tests.support.engines import SHARDS, Engines
from tests.support.waiting import wait_until

LASTS_S = 2.0
"""The time of a token, less the moment in which the next one is there, too."""

OVERLAP_S = 1.5

LONG_S = 9.0
"""Some lives of a token."""


class Tokens(CredentialProvider):
    """A provider of tokens, and the servers that take them."""

    def __init__(self, servers: list[Server]) -> None:
        self._servers = servers
        self._numbers = itertools.count()
        self._stopping = threading.Event()
        self.token = ("", "")
        self.given = 0
        self.failing = False
        self._issue()
        self._thread = threading.Thread(target=self._rotate)
        self._thread.start()

    def get_credentials(self) -> tuple[str, str]:
        self.given += 1
        if self.failing:
            raise OSError("the identity service is away")
        return self.token

    def _issue(self) -> None:
        user, secret = f"app-{next(self._numbers)}", f"token {time.time()}"
        for server in self._servers:
            server.ask("ACL", "SETUSER", user, "on", f">{secret}", "~*", "&*", "+@all")
        self.token = user, secret

    def _rotate(self) -> None:
        while not self._stopping.wait(LASTS_S - OVERLAP_S):
            old = self.token[0]
            self._issue()
            self._stopping.wait(OVERLAP_S)
            for server in self._servers:
                server.ask("ACL", "DELUSER", old)

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()
        for server in self._servers:
            server.ask("ACL", "SETUSER", "default", "on", "nopass", "~*", "&*", "+@all")


@pytest.fixture(params=["single", "cluster"])
def servers(request: pytest.FixtureRequest, server_binary: Path) -> Iterator[tuple[str, list[Server]]]:
    if request.param == "single":
        with Server(server_binary) as server:
            yield server.url, [server]
    else:
        with Cluster(server_binary, masters=3, replicas=0) as cluster:
            yield cluster.url, list(cluster.nodes)


@pytest.fixture
def tokens(servers: tuple[str, list[Server]]) -> Iterator[Tokens]:
    tokens = Tokens(servers[1])
    yield tokens
    tokens.stop()


def connections(servers: list[Server]) -> dict[str, str]:
    """The id of each connection of ours but the subscribers' → its user."""
    rows = [
        (number, dict(word.split("=", 1) for word in row.split()))
        for number, server in enumerate(servers)
        for row in str(server.ask("CLIENT", "LIST")).splitlines()
    ]
    ours = [(number, row) for number, row in rows if row["name"] == "shardq" and row["ssub"] == "0"]
    return {f"{number}/{row['id']}": row["user"] for number, row in ours}


@pytest.mark.slow
@pytest.mark.parametrize(("engines", "servers"), [("sync", "single"), ("asyncio", "cluster")], indirect=True)
def test_live_connections_are_given_the_next_token(
    engines: Engines, servers: tuple[str, list[Server]], tokens: Tokens, name: str
) -> None:
    url, nodes = servers
    engine = engines.opened(url, name=name, shards=SHARDS, credentials=tokens)
    engine.start()
    consumer, handled, pushed = engine.consumer("mail"), set[str](), set[str]()

    def work(count: int = 5) -> bool:
        pushed.update(map(str, (engine.push(n, topic="mail", delay=0.05) for n in range(count))))
        for delivery in consumer.claim(20, wait=0.2):
            assert delivery.id not in handled
            handled.add(delivery.id)
            consumer.ack(delivery)
        return handled == pushed

    work()
    first = connections(nodes)
    end = time.monotonic() + LONG_S
    while time.monotonic() < end:
        work()
        assert engine.health().ok, engine.health().reasons
    last = connections(nodes)
    assert len(first.keys() & last.keys()) >= SHARDS  # of pollers, and more
    assert all(last[each] != first[each] for each in first.keys() & last.keys())
    wait_until(lambda: work(0), "all are handled")
    assert tokens.given > LONG_S / 2


Given = Callable[[int, Tokens], Any]

CLIENTS: dict[str, Given] = {
    "Redis": lambda port, tokens: redis.Redis(host="127.0.0.1", port=port, credential_provider=tokens),
    "asyncio.Redis": lambda port, tokens: redis.asyncio.Redis(host="127.0.0.1", port=port, credential_provider=tokens),
}


@pytest.mark.slow
@pytest.mark.parametrize("servers", ["single"], indirect=True)
@pytest.mark.parametrize("make", CLIENTS.values(), ids=CLIENTS)
def test_the_provider_of_a_client(
    engines: Engines, servers: tuple[str, list[Server]], tokens: Tokens, name: str, make: Given
) -> None:
    (server,) = servers[1]
    engine = engines.opened(make(server.port, tokens), name=name, shards=SHARDS)
    end = time.monotonic() + 2 * LASTS_S
    while time.monotonic() < end:
        engine.push("x", delay=60)
        time.sleep(0.05)
    assert {user for user in connections([server]).values() if user.startswith("app-")}


@pytest.mark.slow
@pytest.mark.parametrize("servers", ["single"], indirect=True)
def test_a_provider_that_fails_is_told_and_asked_again(
    engines: Engines, servers: tuple[str, list[Server]], tokens: Tokens, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    tokens.failing = True
    engine = engines.make(servers[0], name=name, shards=SHARDS, credentials=tokens, timeout=2, connect_timeout=1)
    with pytest.raises(AccessDenied, match="the provider of credentials fails: OSError: the identity service is away"):
        engine.open()
    tokens.failing = False
    engine.open()
    engine.push("x", delay=60)
    tokens.failing = True
    wait_until(lambda: engine.push("x", delay=60) and "identity service" in caplog.text, "the failure is logged")
    tokens.failing = False
    wait_until(lambda: engine.push("x", delay=60) and "works again" in caplog.text, "its end is logged")


@pytest.mark.slow
@pytest.mark.parametrize("servers", ["single"], indirect=True)
def test_what_a_server_refuses_is_asked_for_anew(servers: tuple[str, list[Server]], name: str) -> None:
    class Wrong:
        given = 0

        def get_credentials(self) -> tuple[str, str]:
            self.given += 1
            return "nobody", "x"

    provider = Wrong()
    with pytest.raises(AccessDenied, match=r"does not accept the user 'nobody' with what .*credentials of Wrong"):
        Engine(servers[0], name=name, credentials=provider, connect_timeout=1).open()
    assert provider.given > 1


@pytest.mark.slow
def test_a_slow_provider_is_asked_seldom() -> None:
    class Slow:
        given = 0

        def get_credentials(self) -> tuple[str]:
            self.given += 1
            time.sleep(0.1)
            return (f"token {self.given}",)

    provider = Slow()
    provided = credentials.Provided(provider)
    held = provided.ask().result(5)
    assert (held.username, held.password) == (None, "token 1")
    for _ in range(30):
        assert provided.newer(held) is None
        time.sleep(0.1)
    assert provider.given == 1


def test_what_is_given_twice_is_refused() -> None:
    class Provider(CredentialProvider):
        def get_credentials(self) -> tuple[str]:
            return ("x",)

    for url in ("redis://:pw@127.0.0.1", redis.Redis(password="pw"), redis.Redis(credential_provider=Provider())):
        with pytest.raises(InvalidOption, match="leave out one of them"):
            Engine(url, credentials=Provider())
    with pytest.raises(InvalidOption, match="an embedded one has no password"):
        Engine("embedded://", credentials=Provider())
    with pytest.raises(InvalidOption, match=r"get_credentials\(\)"):
        Engine("redis://127.0.0.1", credentials="token")  # type: ignore[arg-type]  # on purpose


@pytest.mark.slow
@pytest.mark.parametrize("servers", ["single"], indirect=True)
def test_connections_that_can_not_be_renewed_are_made_anew(
    engines: Engines, servers: tuple[str, list[Server]], name: str
) -> None:
    """The next token comes some seconds before the server knows it."""
    url, (server,) = servers

    class Provider:
        user = "app-0"

        def get_credentials(self) -> tuple[str, str]:
            return self.user, "secret"

    provider = Provider()
    server.ask("ACL", "SETUSER", "app-0", "on", ">secret", "~*", "&*", "+@all")
    engine = engines.opened(url, name=name, shards=SHARDS, credentials=provider)
    engine.push("x", delay=60)
    before = set(connections([server]))
    provider.user = "app-1"
    known = threading.Timer(3.0, server.ask, ["ACL", "SETUSER", "app-1", "on", ">secret", "~*", "&*", "+@all"])
    known.start()

    def has_the_next() -> bool:
        engine.push("x", delay=60)
        return "app-1" in connections([server]).values()

    wait_until(has_the_next, "a connection has the next one")
    assert not before & connections([server]).keys()
    known.join()
