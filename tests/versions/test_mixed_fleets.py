"""Two builds that share a format are one fleet, while one takes the place of the other and while it goes back: each
task is handled once, whoever pushed, moved, or retried it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from shardq import Engine
from shardq.core.layout import formats
from shardq.engine.versions import upgrade
from tests.support.waiting import wait_until
from tests.versions.builds import BEFORE_FORMATS, ROOT, NoHistoryError, Process, carried_out, unpacked

COUNT = 12
SOON_S = 60.0


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> Path:
    try:
        return unpacked(BEFORE_FORMATS, tmp_path_factory.mktemp("old"))
    except NoHistoryError as exc:
        pytest.skip(str(exc))


class Fleet:
    """Two places, each with a process of some build."""

    def __init__(self, url: str, name: str, folder: Path) -> None:
        self.book = folder / "handled"
        self._words = url, name, self.book
        self._places: dict[int, ExitStack] = {}
        self.processes: dict[int, Process] = {}
        self.pushed: set[str] = set()
        self._rounds = 0

    def put(self, place: int, build: Path) -> Process:
        """A process of this build takes a place. That of another ends when it is there."""
        with ExitStack() as stack:
            process = stack.enter_context(Process(build, *self._words))
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


@pytest.mark.promise
@pytest.mark.slow
def test_up_and_back_and_up_again(fleet: Fleet, old: Path, url: str, name: str) -> None:
    new = ROOT
    fleet.put(0, old)
    fleet.put(1, old).asked("every")
    fleet.work()
    for build, shards in ((new, 7), (old, 3), (new, 5)):
        fleet.put(0, build)
        fleet.processes[1 if build is new else 0].asked("resize", shards)  # by the old one
        fleet.work()
        fleet.put(1, build)
        assert fleet.processes[0].asked("schedules") == ["tick"]
        fleet.work()
    with Engine(url, name=name) as engine:
        assert engine.topology.format == 0
        assert carried_out(engine, upgrade) == formats.FORMAT
        fleet.work()
        wait_until(lambda: fleet.handled().keys() >= fleet.pushed, "all are handled", timeout=SOON_S)
        assert fleet.handled() == Counter(fleet.pushed)
        assert engine.cancel_all(topic="ticks")
        engine.schedule("tick").remove()
        stats = engine.stats()
        assert (stats.leased, stats.dead) == (0, 0)
