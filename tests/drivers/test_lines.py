"""A poller's line and a subscriber's ear: their own connections, and ending them from another thread."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from cluster.cluster import Cluster
from cluster.server import Server
from shardq.drivers.settings import Settings
from shardq.drivers.sync import Driver
from shardq.errors import AccessDenied, EngineClosed, Unavailable
from shardq.layout.slots import slot_of
from tests.drivers.calls import command, store
from tests.support.waiting import wait_until


@pytest.fixture
def driver(url: str) -> Iterator[Driver]:
    made = Driver(Settings.from_url(url))
    made.open()
    yield made
    made.close()


def opened(server: Server) -> Driver:
    made = Driver(Settings.from_url(server.url))
    made.open()
    return made


def test_a_line_has_one_connection_of_its_own(driver: Driver, name: str) -> None:
    line = driver.line(slot_of(name))
    first = line.call(command(name, "CLIENT", "ID"))
    assert line.call(store(name, "f")) == 1
    assert line.call(command(name, "CLIENT", "ID")) == first
    assert driver.call(command(name, "CLIENT", "ID")) != first
    line.close()


def test_a_line_connects_again(own_server: Server, name: str) -> None:
    driver = opened(own_server)
    line = driver.line(0)
    assert line.call(store(name, "f")) == 1
    own_server.restart()
    assert line.call(store(name, "f")) == 2
    line.close()
    driver.close()


def test_an_interrupt_ends_a_blocked_call(driver: Driver, name: str) -> None:
    line = driver.line(slot_of(name))
    ended = threading.Event()

    def block() -> None:
        try:
            line.call(command(name, "BLPOP", name, 0))
        except EngineClosed:
            ended.set()

    thread = threading.Thread(target=block)
    thread.start()
    pending = command(name, "CLIENT", "LIST")
    wait_until(lambda: b"cmd=blpop" in driver.call(pending), "the call blocks")
    line.interrupt()
    assert ended.wait(4)  # a silent server is left after five seconds
    thread.join()
    with pytest.raises(EngineClosed):
        line.call(store(name, "f"))
    line.close()


def test_an_interrupt_ends_a_pause(own_server: Server, name: str) -> None:
    driver = opened(own_server)
    line = driver.line(0)
    line.call(store(name, "f"))
    own_server.kill()
    threading.Timer(0.2, line.interrupt).start()
    begun = time.monotonic()
    with pytest.raises(EngineClosed):
        line.call(store(name, "f"))
    assert time.monotonic() - begun < 15  # half of a call's patience
    line.close()
    driver.close()


def test_a_loan_keeps_its_connection(own_server: Server, name: str) -> None:
    driver = opened(own_server)
    node = driver.nodes()[0]
    with driver.loan() as loan:
        first = loan.call(command(name, "CLIENT", "ID"))
        driver.call(command(name, "PING"))  # on another one, which waits in the pool then
        assert loan.call(command(name, "CLIENT", "ID")) == first
        assert (loan.address, loan.connects[node]) == (node, 1)
        own_server.restart()
        assert loan.call(store(name, "f")) == 1
        assert loan.connects[node] == 2
    shared = driver.connections()[node]
    assert (shared.shared, shared.own) == (1, 0)
    driver.close()


def test_half_of_the_connections_may_be_on_loan(own_server: Server, name: str) -> None:
    driver = Driver(Settings.from_url(own_server.url, connections=4, timeout=0.2))
    driver.open()
    with driver.loan() as one, driver.loan() as two:
        assert one.call(command(name, "CLIENT", "ID")) != two.call(command(name, "CLIENT", "ID"))
        with pytest.raises(Unavailable, match="half of the 4 shared connections"), driver.loan():
            pass
        assert driver.call(store(name, "f")) == 1
    with driver.loan() as three:
        assert three.call(command(name, "HLEN", name)) == 1
    driver.close()


def test_an_ear_hears(driver: Driver, name: str) -> None:
    ear = driver.ear(driver.node_of(slot_of(name)))
    ear.send("SSUBSCRIBE", name)
    assert ear.read(5) == [b"ssubscribe", name.encode(), 1]
    assert ear.read(0) is None
    assert ear.read(0.01) is None
    for text in ("one", "two"):
        driver.call(command(name, "SPUBLISH", name, text))
    assert ear.read(5) == [b"smessage", name.encode(), b"one"]
    assert ear.read(5) == [b"smessage", name.encode(), b"two"]
    ear.send("PING")
    assert ear.read(5) == [b"pong", b""]
    ear.close()


def test_an_ear_is_woken(driver: Driver) -> None:
    ear = driver.ear(driver.nodes()[0])
    threading.Timer(0.1, ear.wake).start()
    begun = time.monotonic()
    assert ear.read(30) is None
    assert time.monotonic() - begun < 15
    ear.wake()
    ear.wake()
    assert ear.read(30) is None  # woken before it was called, and twice is once
    ear.send("PING")
    assert ear.read(5) == [b"PONG"]
    ear.close()
    ear.wake()  # too late is harmless


def test_an_ear_dies_with_its_server(own_server: Server) -> None:
    driver = opened(own_server)
    ear = driver.ear(driver.nodes()[0])
    own_server.kill()
    with pytest.raises(Unavailable, match="connection is lost"):
        ear.read(5)
    ear.close()
    with pytest.raises(Unavailable, match="could not connect"):
        driver.ear(driver.nodes()[0])
    driver.close()


def test_an_ear_at_the_wrong_node(cluster: Cluster, name: str) -> None:
    driver = Driver(Settings.from_url(cluster.url))
    driver.open()
    wrong = next(node for node in driver.nodes() if node != driver.node_of(slot_of(name)))
    ear = driver.ear(wrong)
    ear.send("SSUBSCRIBE", name)
    with pytest.raises(Unavailable, match="MOVED"):
        ear.read(5)
    ear.close()
    driver.close()


def test_an_ear_that_may_not_listen(own_server: Server, name: str) -> None:
    own_server.ask("ACL", "SETUSER", "deaf", "on", ">pw9", "~*", "+@all", "resetchannels")
    driver = Driver(Settings.from_url(f"redis://deaf:pw9@{own_server.address}"))
    driver.open()
    ear = driver.ear(driver.nodes()[0])
    ear.send("SSUBSCRIBE", name)
    with pytest.raises(AccessDenied, match="the subscription was refused"):
        ear.read(5)
    ear.close()
    driver.close()
