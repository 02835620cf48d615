"""A route to a function ends with the last process that serves it, however that ends, and no sooner."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from cluster.server import Server
from shardq import Engine, Task
from shardq.errors import InvalidOption
from shardq.features.sinks import senders
from tests.support.engines import Engines
from tests.support.states import claim, ready_of
from tests.support.waiting import wait_until
from tests.support.workers import SOON_S, Worker

Start = Callable[..., Worker]


@pytest.fixture
def start(single: Server, name: str, tmp_path: Path) -> Iterator[Start]:
    """Starts a program that serves the route."""
    with ExitStack() as stack:

        def begin(*, keep: bool = False) -> Worker:
            words = (single.url, name, tmp_path / "taken", "keep" if keep else "")
            program = stack.enter_context(Worker("tests.support.feeding_function", *words))
            assert program.said() == "ready"
            return program

        yield begin


@pytest.fixture
def taken(tmp_path: Path) -> Callable[[], list[str]]:
    """The payloads that the programs have taken."""
    file = tmp_path / "taken"
    return lambda: file.read_text().split() if file.exists() else []


def routed(engine: Engine) -> bool:
    """True while the topic has a route, as a look finds it."""
    seen = engine.stats().topics.get("mail")
    return seen is not None and seen.route is not None


@pytest.fixture
def missed_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(senders, "MISSED_S", 1.0)


def take(batch: object) -> None: ...


def test_it_ends_with_its_process(engines: Engines, single: Server, name: str, feeding: Engine) -> None:
    ending = engines.opened(single.url, name=name)
    ending.forward("mail", to=take)
    ending.start()
    wait_until(lambda: routed(feeding), "the others know it")
    ending.close()
    wait_until(lambda: not routed(feeding), "it has ended")
    feeding.push("hello", topic="mail")
    assert [each.payload for each in claim(feeding.consumer("mail"), 1)] == ["hello"]
    assert feeding.health(), "nothing is wrong"


def test_it_ends_where_nobody_else_dispatches(engines: Engines, single: Server, name: str) -> None:
    ending = engines.opened(single.url, name=name, shards=2)
    ending.start()
    ending.forward("mail", to=take)
    ending.stop()
    with Engine(single.url, name=name) as engine:
        assert not routed(engine)
    ending.start()
    with Engine(single.url, name=name) as engine:
        wait_until(lambda: routed(engine), "it is taken up by the same process")


def test_it_goes_on_while_another_process_has_the_function(
    feeding: Engine, start: Start, taken: Callable[[], list[str]]
) -> None:
    first, second = start(), start()
    first.stop()
    assert routed(feeding)
    feeding.push("a", topic="mail")
    wait_until(lambda: taken() == ["a"], "the second takes it", timeout=SOON_S)
    assert routed(feeding)
    second.stop()
    wait_until(lambda: not routed(feeding), "the last one has ended it", timeout=SOON_S)


@pytest.mark.slow
def test_a_rolling_restart_loses_and_delays_nothing(
    feeding: Engine, start: Start, taken: Callable[[], list[str]]
) -> None:
    program = start()
    wanted = 0
    for _ in range(4):
        following = start()
        ids = feeding.push_many([Task(wanted + n, topic="mail") for n in range(50)])
        program.stop()
        wanted += len(ids)
        program = following
        wait_until(lambda: len(taken()) >= wanted, "the new one takes them", timeout=SOON_S)  # noqa: B023  at once
        assert routed(feeding)
    assert sorted(set(map(int, taken()))) == [*range(wanted)]


@pytest.mark.slow
@pytest.mark.usefixtures("missed_soon")
def test_it_ends_when_its_process_is_killed(feeding: Engine, start: Start, caplog: pytest.LogCaptureFixture) -> None:
    program = start()
    wait_until(lambda: routed(feeding), "it is there")
    program.kill()
    feeding.push("hello", topic="mail")
    wait_until(lambda: not routed(feeding), "it is missed", timeout=SOON_S)
    assert [each.payload for each in claim(feeding.consumer("mail"), 1)] == ["hello"]
    assert "topic 'mail' is no longer forwarded to the function tests.support.feeding_function.take" in caplog.text


@pytest.mark.slow
@pytest.mark.usefixtures("missed_soon")
def test_a_process_that_was_silent_takes_it_up_again(
    feeding: Engine, start: Start, taken: Callable[[], list[str]]
) -> None:
    program = start()
    wait_until(lambda: routed(feeding), "it is there")
    os.kill(program.pid, signal.SIGSTOP)
    try:
        wait_until(lambda: not routed(feeding), "it is missed", timeout=SOON_S)
    finally:
        os.kill(program.pid, signal.SIGCONT)
    wait_until(lambda: routed(feeding), "it is taken up", timeout=SOON_S)
    feeding.push("hello", topic="mail")
    wait_until(lambda: taken() == ["hello"], "it is served", timeout=SOON_S)


def test_one_that_was_ended_on_purpose_is_not_taken_up(feeding: Engine, single: Server, start: Start) -> None:
    start()
    wait_until(lambda: routed(feeding), "it is there")
    feeding.forward("mail", to=None)
    feeding.push("hello", topic="mail")
    wait_until(lambda: ready_of(feeding, "mail") == 1, "it is ready")
    start().stop()  # forwards again, and ends: the first still serves it
    assert feeding.topology.ended == {}


@pytest.mark.slow
@pytest.mark.usefixtures("missed_soon")
def test_one_that_is_kept_stays_and_health_names_it(
    feeding: Engine, start: Start, taken: Callable[[], list[str]]
) -> None:
    start(keep=True).stop()
    feeding.push("hello", topic="mail")
    wait_until(lambda: "unserved_route" in feeding.health().kinds, "nobody serves it", timeout=SOON_S)
    assert routed(feeding)
    start(keep=True)
    wait_until(lambda: taken() == ["hello"], "it is served again", timeout=SOON_S)
    wait_until(lambda: feeding.health().ok, "all is well", timeout=SOON_S)


@pytest.mark.slow
@pytest.mark.usefixtures("missed_soon")
def test_one_of_a_process_that_has_not_started_is_taken_up_when_it_does(
    engines: Engines, single: Server, name: str, feeding: Engine
) -> None:
    engine = engines.opened(single.url, name=name)
    engine.forward("mail", to=take)
    wait_until(lambda: not routed(feeding), "nobody serves it", timeout=SOON_S)
    engine.start()
    wait_until(lambda: routed(feeding), "it is served", timeout=SOON_S)


def test_what_can_not_be_kept(engine: Engine) -> None:
    for to in ("a-list", "nats://127.0.0.1:4222#mail"):
        with pytest.raises(InvalidOption, match="keep=True is for functions"):
            engine.forward("mail", to=to, keep=True)
    with pytest.raises(InvalidOption, match="keep=1 is not possible"):
        engine.forward("mail", to=take, keep=1)  # type: ignore[arg-type]
