"""Two builds are one fleet, while one takes the place of the other and while it goes back: each task is handled once,
whoever pushed, moved, or retried it. What the older format can say is changed while both run; what it can't is refused.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from shardq import Engine
from shardq.core.layout import formats
from tests.support.waiting import wait_until
from tests.versions.builds import NEXT, PLANTED, PRESENT, Process

COUNT = 12
SOON_S = 60.0


class Fleet:
    """Two places, each with a process of some build."""

    def __init__(self, url: str, name: str, folder: Path) -> None:
        self.book = folder / "handled"
        self._words = url, name, self.book
        self._places: dict[int, ExitStack] = {}
        self.processes: dict[int, Process] = {}
        self.pushed: set[str] = set()
        self._rounds = 0

    def put(self, place: int, format: int) -> Process:
        """A process of this build takes a place. That of another ends when it is there."""
        with ExitStack() as stack:
            process = stack.enter_context(Process(format, *self._words))
            self.empty(place)
            self._places[place] = stack.pop_all()
        self.processes[place] = process
        return process

    def empty(self, place: int) -> None:
        if place in self._places:
            self._places.pop(place).close()
            del self.processes[place]

    def work(self) -> None:
        """Both push, and change what the other has pushed."""
        self._rounds += 1
        one, other = self.processes.values()
        mine, yours = (
            process.asked("push", f"{self._rounds}.{number}", COUNT) for number, process in enumerate((one, other))
        )
        # those with a tag are not due for long
        assert set(one.asked("cancel", *yours[-COUNT : -COUNT // 2])) == {"cancelled"}
        assert set(other.asked("reschedule", *yours[-COUNT // 2 :])) == {"moved"}
        assert set(other.asked("cancel", *mine[-COUNT : -COUNT // 2])) == {"cancelled"}
        assert set(one.asked("reschedule", *mine[-COUNT // 2 :])) == {"moved"}
        self.pushed |= {*mine, *yours} - {*mine[-COUNT : -COUNT // 2], *yours[-COUNT : -COUNT // 2]}

    def handled(self) -> Counter[str]:
        return Counter(self.book.read_text().split()) if self.book.exists() else Counter()


@pytest.fixture
def fleet(url: str, name: str, tmp_path: Path) -> Iterator[Fleet]:
    fleet = Fleet(url, name, tmp_path)
    yield fleet
    for place in list(fleet.processes):
        fleet.empty(place)


@pytest.fixture(autouse=True)
def newer(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process reads what both builds write."""
    monkeypatch.setattr(formats, "FORMAT", NEXT)
    monkeypatch.setattr(formats, "FEATURES", frozenset({PLANTED}))


@pytest.mark.promise
@pytest.mark.slow
def test_up_and_back_and_up_again(fleet: Fleet, url: str, name: str) -> None:
    fleet.put(0, PRESENT)
    fleet.put(1, PRESENT).asked("every")
    fleet.work()
    for format, shards in ((NEXT, 7), (PRESENT, 3), (NEXT, 5)):
        fleet.put(0, format)
        fleet.processes[1 if format == NEXT else 0].asked("resize", shards)  # by the older one
        fleet.work()
        fleet.put(1, format)
        assert fleet.processes[0].asked("schedules") == ["tick"]
        fleet.work()
    with Engine(url, name=name) as engine:
        assert engine.topology.format == PRESENT
        assert fleet.processes[1].asked("upgrade") == ""
        fleet.work()
        wait_until(lambda: fleet.handled().keys() >= fleet.pushed, "all are handled", timeout=SOON_S)
        assert fleet.handled() == Counter(fleet.pushed)
        assert engine.stats().leased == 0
        assert engine.topology.format == NEXT
        assert engine.cancel_all(topic="ticks")
        engine.schedule("tick").remove()
        assert engine.stats().dead == 0


@pytest.mark.promise
@pytest.mark.slow
def test_what_the_older_format_can_say_is_changed_while_both_run(fleet: Fleet, url: str, name: str) -> None:
    """And what it can't is refused, with the name of the process that has to go first."""
    older, newer = fleet.put(0, PRESENT), fleet.put(1, NEXT)  # each has declared another limit, and is there
    with Engine(url, name=name).open() as engine:
        wait_until(lambda: len(engine.fleet()) == 4, "all are members", timeout=SOON_S)
        declared = engine.topology.limits["declared"].rate
        assert declared == NEXT
        for number, (one, other) in enumerate(((newer, older), (older, newer)), start=2):
            one.asked("change", number)
            names = [f"tick-{each}" for each in range(2, number + 1)]
            told = [number, number, number, f"stream:rows-{number}", number, number, bool(number % 2), names]
            assert other.asked("seen") == one.asked("seen") == told
        fleet.work()
        for what, command in ((f"format {NEXT}", "upgrade"), (f"the feature {PLANTED!r}", "take up")):
            refused = newer.asked(command)
            assert refused.startswith(
                f"IncompatibleVersion: nothing is changed: processes that do not know {what} live"
            )
            assert f":{older.pid} (shardq" in refused
            assert f":{newer.pid}" not in refused
        assert (engine.topology.format, engine.topology.features) == (PRESENT, ())
        fleet.empty(0)
        wait_until(lambda: len(engine.fleet()) == 2, "it has signed off", timeout=SOON_S)
        assert (newer.asked("upgrade"), newer.asked("take up")) == ("", "")
        engine.stats()
        assert (engine.topology.format, engine.topology.features) == (NEXT, (PLANTED,))
        for schedule in engine.schedules():
            engine.schedule(schedule.name).remove()
        engine.purge(everything=True)
