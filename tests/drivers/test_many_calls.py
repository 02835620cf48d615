"""Many calls at once: each is answered, none waits for another's node, and no connection is left out of step."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any
from unittest import mock

import pytest

from cluster.cluster import Cluster
from cluster.server import Server
from shardq.core.calls.request import Call
from shardq.core.drivers.pipelines import DEPTH, LOOK_AHEAD
from shardq.core.drivers.settings import Settings
from shardq.core.drivers.sync import Driver
from shardq.errors import EngineClosed, ServerFault, Unanswered, Unavailable
from tests.drivers.calls import command, key_in, keys_of, script_call, store
from tests.drivers.carriers import Carrier, Carriers

COUNT = 2000


def stores(name: str, count: int) -> list[tuple[int, Call[Any]]]:
    keys = keys_of(name, 7)
    return [(number, store(keys[number % 7], f"f{number}")) for number in range(count)]


def stored(carrier: Carrier, name: str) -> int:
    return sum(carrier.call(command(key, "HLEN", key)) for key in keys_of(name, 7))


def test_every_call_is_answered_once(carrier: Carrier, name: str) -> None:
    answers = list(carrier.call_all(stores(name, COUNT)))
    assert sorted(number for number, _ in answers) == list(range(COUNT))
    assert [answer for _, answer in answers] == [1] * COUNT
    assert stored(carrier, name) == COUNT


def test_a_key_comes_back_as_it_was_given(carrier: Carrier, name: str) -> None:
    lists = [[number] for number in range(50)]
    calls = ((each, command(name, "ECHO", each[0])) for each in lists)
    found = {id(each): answer for each, answer in carrier.call_all(calls)}
    assert found == {id(each): b"%d" % each[0] for each in lists}


def test_no_calls(carrier: Carrier) -> None:
    assert list(carrier.call_all([])) == []


def test_scripts_flushed_on_the_way(carrier: Carrier, name: str) -> None:
    answers = []
    for number, (_, answer) in enumerate(carrier.call_all(stores(name, COUNT))):
        answers.append(answer)
        if number % 100 == 0:
            for key in keys_of(name, 7):
                carrier.call(command(key, "SCRIPT", "FLUSH"))
    assert answers == [1] * COUNT


def test_no_call_is_dropped_where_a_fault_can_not_be_handled(single: Server, name: str) -> None:
    driver = Driver(Settings.from_url(single.url))
    driver.open()
    try:
        driver.call(command(name, "SCRIPT", "FLUSH"))
        fails = mock.patch.object(driver, "act", side_effect=OSError("no slot map today"))
        with fails, pytest.raises(OSError, match="no slot map today"):
            list(driver.call_all([(1, store(name, "f"))]))
    finally:
        driver.close()


def test_errors_are_values(carrier: Carrier, name: str) -> None:
    keys = keys_of(name, 7)
    carrier.call(command(keys[3], "SET", keys[3], "text"))
    answers = list(carrier.call_all(stores(name, 70)))
    failed = [number for number, answer in answers if isinstance(answer, ServerFault)]
    assert sorted(failed) == list(range(3, 70, 7))
    assert len(answers) == 70


def test_an_answer_that_can_not_be_read_is_an_error_of_its_call_alone(carrier: Carrier, name: str) -> None:
    calls = stores(name, 10)
    calls[5][1].decode = lambda answer: answer["no such thing"]
    answers = dict(carrier.call_all(calls))
    assert {number for number, answer in answers.items() if answer != 1} == {5}
    assert isinstance(answers[5], ServerFault)
    assert "can't be read: TypeError" in str(answers[5])
    assert carrier.call(command(name, "ECHO", "in step")) == b"in step"


def test_calls_are_pulled_as_they_are_needed(carrier: Carrier, name: str) -> None:
    pulled = 0

    def source() -> Iterator[tuple[int, Call[Any]]]:
        nonlocal pulled
        for call in stores(name, COUNT):
            pulled += 1
            yield call

    ahead = (DEPTH + LOOK_AHEAD) * len(carrier.nodes())
    for taken, _ in enumerate(carrier.call_all(source()), 1):
        assert pulled - taken <= 2 * ahead


def test_an_iterator_that_has_none_left_is_asked_again_after_an_answer(carrier: Carrier, name: str) -> None:
    calls = iter(stores(name, 50))
    allowed = [1]

    class Source:
        """Has one call at first, two more after an answer, and one after each of the others."""

        def __iter__(self) -> Source:
            return self

        def __next__(self) -> tuple[int, Call[Any]]:
            if not allowed[0]:
                raise StopIteration
            allowed[0] -= 1
            return next(calls)

    answered = []
    for number, answer in carrier.call_all(Source()):
        assert answer == 1
        answered.append(number)
        allowed[0] += 2 if number == 0 else 1
    assert sorted(answered) == list(range(50))


def test_closed_early_it_leaves_nothing_half_read(carrier: Carrier, name: str) -> None:
    for taken in (0, 1, 5):
        answers = carrier.call_all(stores(name, 100))
        list(itertools.islice(answers, taken))
        answers.close()  # type: ignore[attr-defined]  # every driver's iterator is a generator
        for key in keys_of(name, 7):
            assert carrier.call(command(key, "ECHO", key)) == key.encode()


def test_big_calls_do_not_clog(carrier: Carrier, name: str) -> None:
    keys = keys_of(name, 5)
    payload = "x" * 1_000_000
    calls = [script_call("return {ARGV[1], ARGV[1]}", keys[n % 5], words=(payload,)) for n in range(20)]
    for _, answer in carrier.call_all(enumerate(calls)):
        assert answer == [payload.encode()] * 2


def test_a_stopped_node_holds_no_other_back(carriers: Carriers, own_cluster: Cluster, name: str) -> None:
    carrier = carriers.opened(own_cluster.url)
    slow, quick = key_in(name, range(100)), key_in(name, range(10000, 16384))
    carrier.call(store(slow, "f"))
    carrier.call(store(quick, "f"))
    stopped = own_cluster.node_of_slot(0)
    for node in own_cluster.nodes:  # else its replica takes over if all this is not done in two seconds
        node.ask("CONFIG", "SET", "cluster-node-timeout", "60000")
    calls = [(key, store(key, f"f{n}")) for n in range(100) for key in [slow if n % 25 == 0 else quick]]
    stopped.pause()
    answers = carrier.call_all(calls)
    assert [next(answers)[0] for _ in range(96)] == [quick] * 96
    stopped.resume()
    assert len(list(answers)) == 4


def test_a_hung_server(carriers: Carriers, own_server: Server, name: str) -> None:
    carrier = carriers.opened(own_server.url)
    carrier.call(store(name, "f"))
    own_server.pause()
    answers = [answer for _, answer in carrier.call_all(stores(name, 10), timeout=0.3)]
    assert len(answers) == 10
    assert {type(answer) for answer in answers} <= {Unanswered, Unavailable}
    assert Unanswered in {type(answer) for answer in answers}
    own_server.resume()
    assert [answer for _, answer in carrier.call_all([("g", store(name, "g"))])] == [1]


def test_a_closed_driver(carriers: Carriers, single: Server, name: str) -> None:
    carrier = carriers.opened(single.url)
    answers = carrier.call_all(stores(name, 100))
    next(answers)
    carrier.close()
    with pytest.raises(EngineClosed):
        list(answers)
