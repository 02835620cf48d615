"""Servers that restart, die, hang and load: a fault that waiting can solve never reaches the caller."""

from __future__ import annotations

import threading

import pytest

from cluster.server import Server
from shardq.errors import ShardqError, Unavailable
from tests.drivers.calls import command, store
from tests.drivers.carriers import Carriers
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


def test_a_hung_server_is_left(carriers: Carriers, own_server: Server, name: str) -> None:
    carrier = carriers.opened(own_server.url)
    own_server.pause()
    resumed = threading.Timer(0.5, own_server.resume)
    resumed.start()
    carrier.call(store(name, "f"))
    resumed.join()
