"""Dedicated connections of pollers and of the subscriber, and interrupting them from another thread."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from cluster.cluster import Cluster
from cluster.server import Server
from shardq.core.drivers.settings import Settings
from shardq.core.drivers.sync import Driver
from shardq.core.layout.slots import slot_of
from shardq.errors import AccessDenied, EngineClosed, Unavailable
from tests.drivers.calls import command, store
from tests.support.waiting import wait_until


def opened(server: Server) -> Driver:
    made = Driver(Settings.from_url(server.url))
    made.open()
    return made


def test_a_line_has_one_connection_of_its_own(driver: Driver, name: str) -> None:
    dedicated = driver.dedicated(slot_of(name))
    first = dedicated.call(command(name, "CLIENT", "ID"))
    assert dedicated.call(store(name, "f")) == 1
    assert dedicated.call(command(name, "CLIENT", "ID")) == first
    assert driver.call(command(name, "CLIENT", "ID")) != first
    dedicated.close()


def test_a_line_connects_again(own_server: Server, name: str) -> None:
    driver = opened(own_server)
    dedicated = driver.dedicated(0)
    assert dedicated.call(store(name, "f")) == 1
    own_server.restart()
    assert dedicated.call(store(name, "f")) == 2
    dedicated.close()
    driver.close()


def test_an_interrupt_ends_a_blocked_call(driver: Driver, name: str) -> None:
    dedicated = driver.dedicated(slot_of(name))
    ended = threading.Event()

    def block() -> None:
        try:
            dedicated.call(command(name, "BLPOP", name, 0))
        except EngineClosed:
            ended.set()

    thread = threading.Thread(target=block)
    thread.start()
    pending = command(name, "CLIENT", "LIST")
    wait_until(lambda: b"cmd=blpop" in driver.call(pending), "the call blocks")
    dedicated.interrupt()
    assert ended.wait(4)  # a silent server is left after five seconds
    thread.join()
    with pytest.raises(EngineClosed):
        dedicated.call(store(name, "f"))
    dedicated.close()


def test_an_interrupt_ends_a_pause(own_server: Server, name: str) -> None:
    driver = opened(own_server)
    dedicated = driver.dedicated(0)
    dedicated.call(store(name, "f"))
    own_server.kill()
    threading.Timer(0.2, dedicated.interrupt).start()
    begun = time.monotonic()
    with pytest.raises(EngineClosed):
        dedicated.call(store(name, "f"))
    assert time.monotonic() - begun < 15  # half of a call's patience
    dedicated.close()
    driver.close()


def test_a_loan_keeps_its_connection(own_server: Server, name: str) -> None:
    driver = opened(own_server)
    node = driver.nodes()[0]
    with driver.borrow(time.monotonic() + 30) as borrow:
        first = borrow.call(command(name, "CLIENT", "ID"))
        driver.call(command(name, "PING"))  # on another one, which waits in the pool then
        assert borrow.call(command(name, "CLIENT", "ID")) == first
        assert (borrow.address, borrow.connects[node]) == (node, 1)
        own_server.restart()
        assert borrow.call(store(name, "f")) == 1
        assert borrow.connects[node] == 2
    shared = driver.connections()[node]
    assert (shared.shared, shared.own) == (1, 0)
    driver.close()


def test_half_of_the_connections_may_be_on_loan(own_server: Server, name: str) -> None:
    driver = Driver(Settings.from_url(own_server.url, connections=4, timeout=2.0))
    driver.open()
    deadline = time.monotonic() + 30
    with driver.borrow(deadline) as one, driver.borrow(deadline) as two:
        assert one.call(command(name, "CLIENT", "ID")) != two.call(command(name, "CLIENT", "ID"))
        # in another thread: one that has some would wait for itself, and gets another
        with ThreadPoolExecutor(1) as other, pytest.raises(Unavailable, match="half of the 4 shared connections"):
            other.submit(driver.borrow(time.monotonic() + 2).__enter__).result()
        assert driver.call(store(name, "f")) == 1
    with driver.borrow(time.monotonic() + 30) as three:
        assert three.call(command(name, "HLEN", name)) == 1
    driver.close()


def test_a_subscription_gets_messages(driver: Driver, name: str) -> None:
    pubsub = driver.pubsub(driver.node_of(slot_of(name)))
    pubsub.send("SSUBSCRIBE", name)
    assert pubsub.read(5) == [b"ssubscribe", name.encode(), 1]
    assert pubsub.read(0) is None
    assert pubsub.read(0.01) is None
    for text in ("one", "two"):
        driver.call(command(name, "SPUBLISH", name, text))
    assert pubsub.read(5) == [b"smessage", name.encode(), b"one"]
    assert pubsub.read(5) == [b"smessage", name.encode(), b"two"]
    pubsub.send("PING")
    assert pubsub.read(5) == [b"pong", b""]
    pubsub.close()


def test_a_subscription_is_woken(driver: Driver) -> None:
    pubsub = driver.pubsub(driver.nodes()[0])
    threading.Timer(0.1, pubsub.wake).start()
    begun = time.monotonic()
    assert pubsub.read(30) is None
    assert time.monotonic() - begun < 15
    pubsub.wake()
    pubsub.wake()
    assert pubsub.read(30) is None  # woken before it was called, and twice is once
    pubsub.send("PING")
    assert pubsub.read(5) == [b"PONG"]
    pubsub.close()
    pubsub.wake()  # too late is harmless


def test_a_subscription_ends_with_its_server(own_server: Server) -> None:
    driver = opened(own_server)
    pubsub = driver.pubsub(driver.nodes()[0])
    own_server.kill()
    with pytest.raises(Unavailable, match="connection is lost"):
        pubsub.read(5)
    pubsub.close()
    with pytest.raises(Unavailable, match="could not connect"):
        driver.pubsub(driver.nodes()[0])
    driver.close()


def test_a_subscription_at_the_wrong_node(cluster: Cluster, name: str) -> None:
    driver = Driver(Settings.from_url(cluster.url))
    driver.open()
    wrong = next(node for node in driver.nodes() if node != driver.node_of(slot_of(name)))
    pubsub = driver.pubsub(wrong)
    pubsub.send("SSUBSCRIBE", name)
    with pytest.raises(Unavailable, match="MOVED"):
        pubsub.read(5)
    pubsub.close()
    driver.close()


def test_a_subscription_that_is_not_permitted(own_server: Server, name: str) -> None:
    own_server.ask("ACL", "SETUSER", "unsubscribed", "on", ">pw9", "~*", "+@all", "resetchannels")
    driver = Driver(Settings.from_url(f"redis://unsubscribed:pw9@{own_server.address}"))
    driver.open()
    pubsub = driver.pubsub(driver.nodes()[0])
    pubsub.send("SSUBSCRIBE", name)
    with pytest.raises(AccessDenied, match="the subscription was refused"):
        pubsub.read(5)
    pubsub.close()
    driver.close()
