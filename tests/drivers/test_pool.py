"""The bound of connections, and forks. On the sync driver only, as a loop does not survive a fork."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from cluster.server import Server
from shardq.core.drivers.aioconnection import AsyncConnectionPool
from shardq.core.drivers.connection import CONNECTING, Connection, ConnectionPool
from shardq.core.drivers.faults import OVERDUE
from shardq.core.drivers.settings import Settings
from shardq.core.drivers.sync import Driver
from shardq.errors import EngineClosed, Unavailable
from tests.drivers.calls import command, in_blpop, store
from tests.support.waiting import wait_until


@pytest.fixture
def opened(single: Server) -> Iterator[Callable[..., Driver]]:
    made: list[Driver] = []

    def make(**options: Any) -> Driver:
        driver = Driver(Settings.from_url(single.url, **options))
        driver.open()
        made.append(driver)
        return driver

    yield make
    for driver in made:
        driver.close()


def test_never_more_than_the_bound(opened: Callable[..., Driver], name: str) -> None:
    driver = opened(connections=3)
    most = 0

    def work(number: int) -> None:
        nonlocal most
        driver.call(store(name, f"f{number}"))
        most = max(most, *(counted.shared for counted in driver.connections().values()))

    with ThreadPoolExecutor(12) as threads:
        list(threads.map(work, range(500)))
    assert 1 <= most <= 3
    assert driver.call(command(name, "HLEN", name)) == 500


def test_a_caller_waits_for_a_connection(opened: Callable[..., Driver], single: Server, name: str) -> None:
    driver = opened(connections=1)
    before = in_blpop(single)
    blocked = threading.Thread(target=driver.call, args=(command(name, "BLPOP", name, 0),))
    blocked.start()
    wait_until(lambda: in_blpop(single) - before, "the only connection is in use")
    with pytest.raises(Unavailable, match=r"all 1 connections to .* are in use"):
        driver.call(command(name, "ECHO", "x"), timeout=0.1)
    freed = threading.Timer(0.1, lambda: single.ask("RPUSH", name, "x"))
    freed.start()
    assert driver.call(command(name, "ECHO", "x")) == b"x"
    freed.join()
    blocked.join()


def test_few_threads_connect_at_a_time_and_the_others_take_what_is_given_back() -> None:
    lock, others, connecting, most = threading.Lock(), [], 0, 0
    answering = threading.Event()
    answering.set()

    def connect(address: str, _: float) -> Connection:
        nonlocal connecting, most
        ours, theirs = socket.socketpair()
        with lock:
            others.append(theirs)
            connecting += 1
            most = max(most, connecting)
        assert answering.wait(60)
        with lock:
            connecting -= 1
        return Connection(ours, address)

    def take() -> Connection:
        taken = pool.take(time.monotonic() + 60)
        assert isinstance(taken, Connection)
        return taken

    pool = ConnectionPool("here", bound=64, connect=connect)
    first = take()
    answering.clear()
    with ThreadPoolExecutor(40) as threads:
        taken = [threads.submit(take) for _ in range(40)]
        try:
            wait_until(lambda: connecting == CONNECTING, f"{CONNECTING} threads connect")
            pool.give(first)
            wait_until(lambda: any(one.done() for one in taken), "a thread has the connection that was given back")
            assert connecting == CONNECTING
        finally:
            answering.set()
        assert len({one.result() for one in taken}) == 40
    assert most == CONNECTING
    for one in taken:
        pool.drop(one.result())
    for end in others:
        end.close()


def test_many_calls_of_two_threads_on_one_connection_each(opened: Callable[..., Driver], name: str) -> None:
    driver = opened(connections=1)

    def work(part: int) -> int:
        return len(list(driver.call_all((n, store(name, f"{part}.{n}")) for n in range(200))))

    with ThreadPoolExecutor(2) as threads:
        assert list(threads.map(work, range(2))) == [200, 200]


def test_a_thread_that_has_the_only_connection_does_not_wait_for_itself(
    opened: Callable[..., Driver], single: Server, name: str
) -> None:
    """As the handler of a signal would that interrupts a call: it gets one beyond the bound, which is then closed."""
    driver = opened(connections=1)
    driver.call(store(name, "f"))
    (pool,) = driver._pools.values()
    held = pool.take(time.monotonic() + 10)
    assert isinstance(held, Connection)
    began = time.monotonic()
    assert driver.call(command(name, "ECHO", "x")) == b"x"
    assert dict(driver.call_all([("one", command(name, "ECHO", "y"))])) == {"one": b"y"}
    assert time.monotonic() - began < 5
    assert (pool.open, sum(connection.open for connection in driver._connections)) == (1, 1)
    pool.give(held)
    assert (pool.open, len(pool._idle)) == (1, 1)


def test_a_connection_that_nobody_refers_to_leaves_its_place(opened: Callable[..., Driver], name: str) -> None:
    """Its user was interrupted before it could be given back: the next caller, who waits, gets another."""
    driver = opened(connections=1)
    driver.call(store(name, "f"))
    (pool,) = driver._pools.values()
    held: list[Any] = [pool.take(time.monotonic() + 10)]
    with ThreadPoolExecutor(1) as apart:
        waits = apart.submit(driver.call, command(name, "ECHO", "x"))
        wait_until(lambda: pool._waiting.bells, "it waits")
        held.pop().sock.close()  # as its end would, but for the ResourceWarning
        assert waits.result(timeout=5) == b"x"
    assert pool.open == 1


def test_a_connection_out_of_step_is_not_used_again(opened: Callable[..., Driver], single: Server, name: str) -> None:
    driver = opened(connections=1)
    driver.call(store(name, "f"))
    (pool,) = driver._pools.values()
    held = pool.take(time.monotonic() + 10)
    assert isinstance(held, Connection)
    assert held.send(command(name, "ECHO", "of another call").packed(), deadline=time.monotonic() + 10) is None
    pool.give(held)
    assert driver.call(command(name, "ECHO", "x")) == b"x"
    assert not held.open


def test_a_fork(opened: Callable[..., Driver], name: str) -> None:
    driver = opened()
    dedicated = driver.dedicated(0)
    driver.call(store(name, "parent"))
    dedicated.call(store(name, "line"))
    pid = os.fork()
    if pid == 0:  # whatever happens, the child must not go on as a second test run
        try:
            with pytest.raises(EngineClosed, match="before a fork"):
                driver.call(store(name, "too soon"))
            assert driver.connections() == {}
            driver.open()
            driver.call(store(name, "child"))
            os._exit(0)
        finally:
            os._exit(1)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    # The parent's connections were left alone.
    assert driver.call(store(name, "parent")) == 2
    assert dedicated.call(store(name, "line")) == 2
    fields = driver.call(command(name, "HKEYS", name))
    assert set(fields) == {b"parent", b"line", b"child"}
    dedicated.close()


def test_connections_are_counted(opened: Callable[..., Driver], name: str) -> None:
    driver = opened(connections=5)
    dedicated = driver.dedicated(0)
    dedicated.call(store(name, "f"))
    driver.call(store(name, "f"))
    (counted,) = driver.connections().values()
    assert (counted.shared, counted.bound, counted.own) == (1, 5, 1)
    dedicated.close()
    (counted,) = driver.connections().values()
    assert counted.own == 0


def test_whose_time_is_over_makes_no_attempt() -> None:
    """Neither on threads nor on asyncio: what was met before is told, and not that nothing was connected in 0 s."""
    attempts = []

    def connect(*_: object) -> Any:
        attempts.append("sync")

    async def connect_async(_: str) -> Any:
        attempts.append("async")

    pool = ConnectionPool("127.0.0.1:1", bound=2, connect=connect)
    assert pool.take(time.monotonic() - 0.1) is OVERDUE

    async def late() -> object:
        return await AsyncConnectionPool("127.0.0.1:1", bound=2, connect=connect_async).connection(0.0)

    assert asyncio.run(late()) is OVERDUE
    assert attempts == []
