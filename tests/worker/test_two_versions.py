"""Two versions of one program, with tasks pushed by both: a canary and a rollback lose nothing."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from shardq import BadInput, Engine
from shardq.errors import InvalidOption
from tests.support.engines import Engines
from tests.support.listed import listed
from tests.support.states import counted
from tests.support.versions import CALLS, TOPIC, lines
from tests.support.waiting import wait_until
from tests.support.workers import SOON_S, Worker

OLD_CALLS, NEW_CALLS = 2 * CALLS, 4 * CALLS

Begin = Callable[[str], Worker]


@pytest.fixture
def served(url: str, name: str) -> Iterator[Engine]:
    """Its pollers serve both versions."""
    with Engine(url, name=name, shards=2) as engine:
        engine.start()
        yield engine


@pytest.fixture
def begin(served: Engine, url: str, name: str, tmp_path: Path) -> Iterator[Begin]:
    with ExitStack() as stack:

        def begin(version: str) -> Worker:
            worker = stack.enter_context(Worker("tests.support.versions", version, url, name, tmp_path))
            assert worker.said() == "ready"
            return worker

        yield begin


def pushes(*workers: Worker) -> None:
    for worker in workers:
        worker.tell()
    for worker in workers:
        assert worker.said() == "pushed"


class Hurry:
    """Tasks that wait for the backoff of a failed attempt wait for a second at most. Not for less: the old version
    fails calls with a parameter that it does not know, and they have 25 attempts, which it must not use up alone.
    """

    EACH_S = 1.0

    def __init__(self, engine: Engine, folder: Path) -> None:
        self._engine, self._folder = engine, folder
        self._next = time.monotonic()

    def all_handled(self) -> bool:
        if time.monotonic() >= self._next:
            self._engine.reschedule_all(topic=TOPIC, state="scheduled", delay=0)
            self._next = time.monotonic() + self.EACH_S
        assert counted(self._engine).dead == 0, list(self._engine.dead())
        return set(lines(self._folder, "handled")) == set(lines(self._folder, "pushed"))


@pytest.mark.slow
@pytest.mark.parametrize("url", ["cluster"], indirect=True)
def test_a_canary_and_a_rollback_lose_nothing(served: Engine, begin: Begin, tmp_path: Path) -> None:
    old = begin("old")
    pushes(old)
    canary = begin("new")
    pushes(old, canary, old)
    # the rollback: calls that only the new version knows have come before
    pushes(canary)
    assert canary.stop() == 0

    def met() -> list[str]:
        """The calls that only the new version knows, and that were given back to wait."""
        waiting = ((task, task.due.timestamp()) for task in listed(served, state="scheduled", limit=1000) if task.due)
        return [task.id for task, due in waiting if due > time.time() and task.payload["task"] == "shop.thank"]

    wait_until(met, "the old version has met a call that it does not know", timeout=SOON_S)
    pushes(old)
    wait_until(lambda: counted(served).ready + counted(served).leased == 0, "it has had a look at all")
    assert counted(served).dead == 0
    assert counted(served).scheduled >= CALLS
    # forward again
    again = begin("new")
    wait_until(Hurry(served, tmp_path).all_handled, "all are handled", timeout=SOON_S)
    assert len(set(lines(tmp_path, "pushed"))) == 4 * OLD_CALLS + 2 * NEW_CALLS
    assert (old.stop(), again.stop()) == (0, 0)


def test_what_the_old_version_pushed_is_for_the_new_one(served: Engine, begin: Begin, tmp_path: Path) -> None:
    """Tasks that wait for weeks: nothing of the old version runs any more."""
    served.pause(TOPIC)
    old = begin("old")
    pushes(old)
    assert old.stop() == 0
    served.resume(TOPIC)
    new = begin("new")
    wait_until(Hurry(served, tmp_path).all_handled, "all are handled", timeout=SOON_S)
    assert new.stop() == 0
    failures = [file.read_text() for file in tmp_path.glob("*.log")]
    assert failures == ["", ""]


# ---- names


def nothing() -> None: ...


def test_calls_of_an_earlier_name_are_its_own(engines: Engines, running: Engine) -> None:
    seen: list[int] = []
    task = running.task(topic="mail", name="deliver", aliases=["send", "ship"], timeout=60)(seen.append)
    other = running.task(topic="mail", name="other", aliases=())(seen.append)
    with engines.working(running.worker()):
        for number, name in enumerate(("deliver", "send", "ship", "other")):
            running.push({"task": name, "args": [number], "kwargs": {}}, topic="mail")
        engines.done(task.push(4))
        engines.done(other.push(5))
        wait_until(lambda: sorted(seen) == [0, 1, 2, 3, 4, 5], "all are called")


@pytest.mark.parametrize(
    ("aliases", "text"),
    [
        ("old", "aliases='old' is not possible; give a list or a tuple of names"),
        (5, "aliases=5 is not possible; give a list or a tuple of names"),
        ([5], "5 is not a name; give str"),
        ([""], "'' is not a name; give str"),
        (["send"], "send has the name 'send' already"),
        (["old", "old"], "send has the name 'old' already"),
    ],
    ids=str,
)
def test_aliases_that_are_none(engines: Engines, url: str, name: str, aliases: list[str], text: str) -> None:
    with pytest.raises(InvalidOption, match=text):
        engines.make(url, name=name).task(name="send", aliases=aliases)(nothing)


def test_a_name_is_one_functions(engines: Engines, url: str, name: str) -> None:
    engine = engines.make(url, name=name)
    engine.task(topic="mail", name="send", aliases=["old"])(nothing)
    with pytest.raises(BadInput, match="a function named 'old' is registered already; give name= another"):
        engine.task(topic="mail", name="old")(nothing)
    for taken in ("send", "old"):
        with pytest.raises(
            BadInput, match=f"the alias '{taken}' of other is a name of another function of topic 'mail'"
        ):
            engine.worker().task(topic="mail", name="other", aliases=["older", taken])(nothing)
    engine.task(topic="other", name="old")(nothing)
