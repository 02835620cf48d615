"""What each release has stored, and what this build stores, is read by this build as it was kept as text, and each task
of it is handled once.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from shardq import Engine, outbox
from shardq.core.layout.slots import slot_of
from shardq.engine.versions import upgrade
from tests.support.servers import Servers
from tests.support.waiting import wait_until
from tests.versions import golden
from tests.versions.builds import carried_out

RELEASES = sorted(path.name for path in golden.FOLDER.iterdir()) if golden.FOLDER.exists() else []

SOON_S = 60.0


class Release:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.expected: dict[str, Any] = self.json("expected.json")
        self.tasks: dict[str, dict[str, Any]] = self.expected["tasks"]
        """State → id → payload; under the name of a codec those that have it."""

    def json(self, name: str) -> Any:
        return json.loads(self.text(name))

    def text(self, name: str) -> str:
        return (self._folder / name).read_text(encoding="utf-8")

    def everything(self) -> dict[str, Any]:
        return {id: payload for tasks in self.tasks.values() for id, payload in tasks.items()}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What this build stores, as its release will keep it."""
    folder = tmp_path_factory.mktemp("golden")
    golden.make(folder / "made", folder)
    return folder / "made"


@pytest.fixture(params=[*RELEASES, pytest.param("", id="this build", marks=pytest.mark.slow)])
def release(request: pytest.FixtureRequest) -> Release:
    return Release(golden.FOLDER / request.param if request.param else request.getfixturevalue("made"))


@pytest.fixture
def name() -> str:
    """The names of keys follow from it."""
    return golden.NAME


@pytest.fixture
def filled(release: Release, url: str, servers: Servers) -> Iterator[Engine]:
    """An engine on what the release has stored."""
    for key, (kind, content) in release.json("keys.json").items():
        golden.store(partial(servers.ask, slot_of(key)), key, kind, content)
    with Engine(url, name=golden.NAME).open() as engine:
        yield engine
        engine.purge(everything=True)


def test_everything_is_there(filled: Engine, release: Release) -> None:
    engine, stats = filled, filled.stats()
    scheduled = len(release.tasks["scheduled"]) + len(release.tasks["msgpack"]) + len(release.tasks["raw"])
    assert (stats.ready, stats.leased, stats.dead) == (2, 2, 2)  # without the entry of a cancelled one
    assert stats.scheduled == scheduled - 1  # one is on its way to another shard
    for state in ("dead", "leased", "ready", "scheduled"):
        for id, payload in release.tasks[state].items():
            info = engine.get(id)
            assert info is not None
            assert (info.state, info.payload) == (state, payload)
    dead = list(engine.dead())
    assert {each.reason for each in dead} == {"of no use"}
    assert {each.headers["trace"] for each in dead} == {"π"}
    topology = engine.topology
    assert (topology.shards, topology.priors) == (golden.MORE, (golden.SHARDS,))
    assert set(topology.routes) == {"out", "rows"}
    assert (topology.paused, topology.limits["slow"].rate, topology.settings.max_attempts) == (
        frozenset({"slow"}),
        5,
        7,
    )
    schedules = {schedule.name: schedule for schedule in engine.schedules()}
    assert set(schedules) == {"nightly", "often"}
    assert (schedules["nightly"].cron, schedules["nightly"].tz) == ("0 3 * * *", "Europe/Berlin")
    assert schedules["often"].paused
    assert engine.history("month").points
    assert [change.what for change in engine.changes()][-1:] == ["topic slow: limits: rate 5, concurrency 2"]


@pytest.mark.slow
def test_each_task_is_handled_once(filled: Engine, release: Release) -> None:
    engine = filled
    carried_out(engine, upgrade)
    seen = release.expected["seen"]
    assert engine.push({"what": "once"}, id=seen, dedup=1).outcome == "seen"
    assert engine.requeue_all(topic="mail").done == 2
    engine.start()
    engine.reschedule_all(everything=True, delay=0)
    expected = {id: payload for id, payload in release.everything().items() if id not in release.tasks["leased"]}
    handled: dict[str, Any] = {}
    consumer = engine.consumer(["mail", "", "calls"], lease=60)

    def all_handled() -> bool:
        for delivery in consumer.claim(50):
            assert delivery.id not in handled
            payload = delivery.payload
            handled[delivery.id] = payload.decode("latin-1") if isinstance(payload, bytes) else payload
            consumer.ack(delivery)
        return handled.keys() >= expected.keys()

    wait_until(all_handled, "all but the two that others hold are handled", timeout=SOON_S)
    # what was missed since the release stored its schedules is pushed now
    assert {id: payload for id, payload in handled.items() if "every-" not in id} == expected
    engine.stop()


def test_what_was_spooled_is_replayed(filled: Engine, release: Release, url: str, tmp_path: Path) -> None:
    path = golden.restored(release.text("spool.sql"), tmp_path / "spool.db")
    first, second = release.expected["spooled"].items()
    with closing(Engine(url, name=golden.NAME, spool=path).open()) as engine:
        wait_until(lambda: engine.get(second[0]), "it is replayed", timeout=SOON_S)
        info = engine.get(second[0])
        assert info is not None
        assert info.payload == second[1]
        wait_until(lambda: engine.get(first[0]) is None, "what was cancelled is gone", timeout=SOON_S)


def test_rows_of_the_outbox_are_moved(filled: Engine, release: Release, tmp_path: Path) -> None:
    path = golden.restored(release.text("outbox.sql"), tmp_path / "outbox.db")
    database = sa.create_engine(f"sqlite:///{path}")
    ((id, payload),) = release.expected["outbox"].items()
    with outbox.OutboxRelay(filled, database):
        wait_until(lambda: filled.get(id), "the row is moved", timeout=SOON_S)
    info = filled.get(id)
    assert info is not None
    assert info.payload == payload
    database.dispose()
