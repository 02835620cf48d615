"""A call that is begun is sent at once, and its answer is read later, whatever has happened meanwhile."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from cluster.server import Server
from shardq.core.calls.request import Command
from shardq.core.drivers.settings import Settings
from shardq.core.drivers.sync import Driver
from tests.support.waiting import wait_until


@pytest.fixture
def driver(own_server: Server) -> Iterator[Driver]:
    driver = Driver(Settings.from_url(own_server.url))
    driver.open()
    driver.call(count())
    yield driver
    driver.close()


def count() -> Command[int]:
    return Command(0, ("INCR", "calls"), int)


def test_it_is_sent_at_once_and_read_later(driver: Driver, own_server: Server) -> None:
    begun = driver.begin(count())
    assert begun is not None
    wait_until(lambda: int(own_server.ask("GET", "calls")) == 2, "it is carried out")
    assert driver.call(count()) == 3, "others go on"
    assert driver.finish(begun) == 2
    assert [each.shared for each in driver.connections().values()] == [2]
    again = driver.begin(count())
    assert again is not None, "its connection is back"
    assert driver.finish(again) == 4


def test_one_whose_connection_is_lost_is_sent_again(driver: Driver, own_server: Server) -> None:
    own_server.ask("CLIENT", "PAUSE", 600_000, "WRITE")
    begun = driver.begin(count())
    assert begun is not None
    wait_until(lambda: "flags=b" in str(own_server.ask("CLIENT", "LIST")), "the server has it, and waits")
    own_server.ask("CLIENT", "KILL", "TYPE", "normal")
    own_server.ask("CLIENT", "UNPAUSE")
    assert driver.finish(begun) == 2


def test_one_that_is_left_is_decoded_and_gives_its_connection_up(driver: Driver) -> None:
    answers: list[int] = []
    begun = driver.begin(Command(0, ("INCR", "calls"), answers.append))
    assert begun is not None
    begun.leave()
    assert answers == [2]
    assert [each.shared for each in driver.connections().values()] == [0]
    assert driver.call(count()) == 3


def test_without_an_idle_connection_nothing_is_sent(driver: Driver, own_server: Server) -> None:
    begun = driver.begin(count())
    assert begun is not None
    assert driver.begin(count()) is None
    assert driver.finish(begun) == 2
    assert int(own_server.ask("GET", "calls")) == 2


def test_a_quarter_of_the_connections_at_most(driver: Driver) -> None:
    most = driver.settings.connections // 4
    begun = []
    while (each := driver.begin(count())) is not None:
        begun.append(each)
        if len(begun) > most:
            break
        driver.call(count())
    assert len(begun) <= most
    for each in begun:
        driver.finish(each)
