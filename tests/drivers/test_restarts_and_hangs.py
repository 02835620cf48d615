"""Servers that restart, die, hang and load: a fault that waiting can solve never reaches the caller."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis

from cluster.server import Server
from shardq.errors import ShardqError, Unavailable
from tests.drivers.calls import command, store
from tests.drivers.carriers import Carrier, Carriers
from tests.support.waiting import wait_until

COUNT = 3000


def test_a_restart_between_calls(carriers: Carriers, own_server: Server, name: str) -> None:
    carrier = carriers.opened(own_server.url)
    assert carrier.call(store(name, "f")) == 1
    own_server.restart()
    if (
        carriers.kind == "aio"
    ):  # its loop hears of the end by itself; a thread's connection is looked at before it is used
        wait_until(lambda: not any(each.shared for each in carrier.connections().values()), "the end is heard")
    assert carrier.call(store(name, "f")) == 2


def test_a_call_waits_for_the_server(carriers: Carriers, own_server: Server, name: str) -> None:
    carrier = carriers.opened(own_server.url)
    carrier.call(store(name, "f"))
    own_server.kill()
    starting = threading.Timer(0.3, own_server.start)
    starting.start()
    carrier.call(store(name, "g"))
    starting.join()
    assert carrier.call(command(name, "HLEN", name)) == 2


def test_killed_in_the_middle_of_many_calls(carriers: Carriers, own_server: Server, name: str) -> None:
    carrier = carriers.opened(own_server.url)
    answers = {}
    for number, answer in carrier.call_all((n, store(name, f"f{n}")) for n in range(COUNT)):
        answers[number] = answer
        if len(answers) in (COUNT // 3, COUNT // 2):
            own_server.kill()
            own_server.start()
    assert len(answers) == COUNT
    assert {answer for answer in answers.values() if isinstance(answer, ShardqError)} == set()
    assert carrier.call(command(name, "HLEN", name)) == COUNT
    # Sent again as after a loss, nothing was counted twice.
    assert set(carrier.call(command(name, "HVALS", name))) == {b"1"}


def test_a_server_that_stays_away(carriers: Carriers, own_server: Server, name: str) -> None:
    carrier = carriers.opened(own_server.url)
    carrier.call(store(name, "f"))
    own_server.kill()
    wait_until(lambda: not own_server.running, "the server is gone")
    with pytest.raises(ShardqError):  # the connection may be seen dead before sending, or not
        carrier.call(store(name, "f"), timeout=0.3)
    with pytest.raises(Unavailable, match=r"store was not done within 0\.3 s"):
        carrier.call(store(name, "f"), timeout=0.3)


@pytest.fixture
def slow_loader(server_binary: Path) -> Iterator[Server]:
    """A server that loads what it holds, for longer than any test takes, or until it is told to be quick."""
    options = {"appendonly": "yes", "key-load-delay": "1000", "loading-process-events-interval-bytes": "1024"}
    with Server(server_binary, options=options) as server:
        server.ask("DEBUG", "POPULATE", 20_000)
        server.ask("BGREWRITEAOF")
        wait_until(lambda: server.ask("INFO", "persistence")["aof_rewrite_in_progress"] == 0, "all is written")
        server.kill()
        load(server)
        yield server


def load(server: Server) -> None:
    """Starts it; returns when it loads."""
    server.launch()
    wait_until(lambda: is_loading(server), "it loads")


def is_loading(server: Server) -> bool:
    try:
        return bool(server.ask("INFO", "persistence")["loading"])
    except (redis.ConnectionError, redis.TimeoutError):  # not yet listening
        return False


def quick(server: Server) -> threading.Timer:
    """In a moment it will load what is left at once."""
    timer = threading.Timer(0.3, server.ask, ("CONFIG", "SET", "key-load-delay", "0"))
    timer.start()
    return timer


def failure(carrier: Carrier, name: str) -> str:
    """What a call came to: asked again where it matters, because one that is held up ends without an answer."""
    try:
        carrier.call(store(name, "f"), timeout=0.2)
    except ShardqError as exc:
        return str(exc)
    return ""


@pytest.mark.slow
def test_a_loading_server_is_waited_for(carriers: Carriers, slow_loader: Server, name: str) -> None:
    loading = quick(slow_loader)
    carrier = carriers.opened(slow_loader.url)
    loading.join()
    assert carrier.call(command(name, "DBSIZE")) == 20_000
    slow_loader.kill()
    load(slow_loader)
    wait_until(lambda: "the server is loading its data" in failure(carrier, name), "a call meets LOADING")
    loading = quick(slow_loader)
    assert carrier.call(store(name, "f")) == 1
    loading.join()


def test_a_server_that_loads_for_too_long(carriers: Carriers, slow_loader: Server) -> None:
    carrier = carriers.make(slow_loader.url, connect_timeout=30.0, timeout=0.3)

    def refusal() -> str:
        with pytest.raises(Unavailable, match=r"could not connect within 0\.3 s: ") as caught:
            carrier.open()
        return str(caught.value)

    # asked again: its word may come too late
    wait_until(lambda: "0.3 s: LOADING" in refusal(), "it says that it loads")


def test_a_full_server_is_waited_for(carriers: Carriers, own_server: Server, name: str) -> None:
    held = own_server.client()
    command_of: Callable[..., object] = held.execute_command
    try:
        command_of("CONFIG", "SET", "maxclients", "1")
        full = carriers.make(own_server.url, connect_timeout=0.2)

        def refusal() -> str:
            with pytest.raises(Unavailable) as caught:
                full.open()
            return str(caught.value)

        # asked again: its word may be lost when it closes while we send
        said = "max number of clients reached; raise its maxclients (CONFIG SET maxclients)"
        wait_until(lambda: said in refusal(), "the server says that it is full")
        freed = threading.Timer(0.2, command_of, ("CONFIG", "SET", "maxclients", "1000"))
        freed.start()
        carrier = carriers.opened(own_server.url, connect_timeout=60.0)
        freed.join()
        assert carrier.call(store(name, "f")) == 1
    finally:
        held.close()


def test_a_hung_server_is_left(carriers: Carriers, own_server: Server, name: str) -> None:
    carrier = carriers.opened(own_server.url)
    own_server.pause()
    resumed = threading.Timer(0.5, own_server.resume)
    resumed.start()
    carrier.call(store(name, "f"))
    resumed.join()


def test_a_read_only_server(carriers: Carriers, own_server: Server, name: str) -> None:
    carrier = carriers.opened(own_server.url)
    with Server(own_server.binary, options={"repl-diskless-sync-delay": "0"}) as master:
        own_server.ask("REPLICAOF", "127.0.0.1", master.port)
        wait_until(lambda: own_server.ask("ROLE")[3] == "connected", "it is a replica")
        wait_until(lambda: "within 0.2 s: READONLY" in failure(carrier, name), "a call meets READONLY")
        freed = threading.Timer(0.2, lambda: own_server.ask("REPLICAOF", "NO", "ONE"))
        freed.start()
        assert carrier.call(store(name, "f")) == 1
        freed.join()
