"""The far store is restored from a backup: it is the engine's still. A copy of it that is used beside it is told."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from cluster.postgres import Postgres
from shardq import Engine, Outcome, Task
from shardq.errors import InvalidUrl
from tests.far.conftest import Make
from tests.support.findings import red
from tests.support.waiting import wait_until

FAR_S = 30 * 86_400.0

FILES = ("", "-wal")
"""A database of SQLite, and its log, while it is open."""


def _copied(path: str, to: str) -> None:
    for end in FILES:
        if Path(path + end).exists():
            shutil.copy(path + end, to + end)


def _restored(path: str, backup: str) -> None:
    """As one does it: what is there is removed, and its log with it."""
    for end in (*FILES, "-shm"):
        Path(path + end).unlink(missing_ok=True)
    _copied(backup, path)


@pytest.fixture
def backed_up(request: pytest.FixtureRequest, database: str, tmp_path: Path) -> Callable[[], Callable[[str], None]]:
    """Makes a backup. What it returns restores that into a database."""

    def make() -> Callable[[str], None]:
        if not database.startswith("postgresql"):
            backup = str(tmp_path / "backup")
            _copied(database, backup)
            return partial(_restored, backup=backup)
        server: Postgres = request.getfixturevalue("postgres")
        dump = server.dump(database.rpartition("/")[2])
        return lambda to: server.restore(dump, to.rpartition("/")[2])

    return make


Backed = Callable[[], Callable[[str], None]]


@pytest.mark.parametrize("is_open", [False, True], ids=["while it is closed", "while it is open"])
def test_it_is_the_engine_s_still(make: Make, database: str, backed_up: Backed, is_open: bool) -> None:
    engine = make()
    ids = engine.push_many([Task(number, delay=FAR_S) for number in range(3)])
    if not is_open:
        engine.close()
    restore = backed_up()
    if not is_open:
        engine = make()
    assert engine.cancel(ids[0]) is Outcome.CANCELLED
    assert engine.reschedule(ids[1], delay=60) is Outcome.MOVED
    later = engine.push("later", delay=FAR_S)
    engine.close()
    restore(database)
    engine = make()
    assert {id for id in [*ids, later] if engine.get(id) is not None} == set(ids), "what was cancelled since is back"
    new = engine.push("new", delay=FAR_S)
    assert [engine.cancel(id) for id in (*ids, new)] == [Outcome.CANCELLED] * 4
    assert engine.stats().far.tasks == 0  # type: ignore[union-attr]


def test_a_copy_that_is_used_beside_it_is_refused(
    request: pytest.FixtureRequest, make: Make, database: str, backed_up: Backed
) -> None:
    """Until what uses the other one has ended: the table may have moved."""
    engine = make()
    id = engine.push("x", delay=FAR_S)
    restore = backed_up()
    if database.startswith("postgresql"):
        copy = request.getfixturevalue("postgres").make_database(f"{database.rpartition('/')[2]}-copy")
    else:
        copy = f"{database}-copy"
    restore(copy)
    engine.start()
    wait_until(lambda: any(each.loads_from for each in engine.fleet()), "it loads")
    beside = make()
    beside.start()
    assert beside.get(id) is not None
    beside.close()
    other: Engine = make(far=copy)
    with pytest.raises(InvalidUrl, match="a copy"):
        other.get(id)
    other.start()
    wait_until(lambda: any("is a copy" in text for text in other.health().reasons), "it is told")
    assert other.stats().far.loaded == 0  # type: ignore[union-attr]
    engine.close()
    wait_until(lambda: not red(other.health()), "it goes on")
    assert other.cancel(id) is Outcome.CANCELLED
