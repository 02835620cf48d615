"""The commands of an engine on what is far: one statement each, and Redis is not asked."""

from __future__ import annotations

import datetime as dt
import time
from typing import Any

import pytest

from shardq import Engine, Outcome, PushError, Task
from shardq.errors import MissingLink, Unavailable
from shardq.features.far.rows import is_made
from tests.far.conftest import DAY_S, Make
from tests.support.findings import red
from tests.support.servers import Servers
from tests.support.states import counted

FAR_S = 30 * DAY_S


def in_redis(url: str, name: str) -> int:
    """Tasks that Redis has."""
    with Servers(url) as servers:
        held = [key for key in servers.held(name) if key.decode().rpartition(":")[2] in ("task", "due")]
    return len(held)


def test_a_far_task_is_a_row(engine: Engine, url: str, name: str) -> None:
    before = dt.datetime.now(dt.UTC)
    id = engine.push({"user": 7}, delay=FAR_S, topic="mail", headers={"a": "b"}, tags=["vip"], max_attempts=3)
    assert is_made(id)
    assert (id.topic, id.outcome) == ("mail", Outcome.PUSHED) if hasattr(id, "topic") else True
    info = engine.get(id)
    assert info is not None
    assert (info.id, info.topic, info.state, info.payload) == (id, "mail", "scheduled", {"user": 7})
    assert (info.headers, info.tags, info.max_attempts, info.attempt) == ({"a": "b"}, ("vip",), 3, 1)
    assert info.due is not None
    assert abs((info.due - before).total_seconds() - FAR_S) < 5
    undecoded = engine.get(id, decode=False)
    assert undecoded is not None
    assert undecoded.payload == b'{"user":7}'
    assert in_redis(url, name) == 0
    assert engine.cancel(id) is Outcome.CANCELLED
    assert engine.get(id) is None
    assert engine.cancel(id) is Outcome.GONE


def test_a_near_task_is_redis_own(engine: Engine) -> None:
    for delay in (0, 60, 3600, 3600 + 899):
        id = engine.push("near", delay=delay)
        assert not is_made(id)
        assert engine.cancel(id) is Outcome.CANCELLED
    assert engine.stats().far.tasks == 0  # type: ignore[union-attr]


def test_ids_of_the_callers_own_stay_in_redis(engine: Engine) -> None:
    id = engine.push("mine", id="mine", delay=FAR_S)
    assert id == "mine"
    assert counted(engine).scheduled == 1
    assert engine.cancel(id) is Outcome.CANCELLED


def test_rescheduled_far_and_near(engine: Engine) -> None:
    engine.start()
    id = engine.push("later", delay=FAR_S)
    assert engine.reschedule(id, delay=2 * FAR_S) is Outcome.MOVED
    assert engine.reschedule(id, at=dt.datetime(2199, 1, 1, tzinfo=dt.UTC)) is Outcome.MOVED
    info = engine.get(id)
    assert info is not None
    assert info.due == dt.datetime(2199, 1, 1, tzinfo=dt.UTC)
    assert engine.reschedule(id, delay=0.2) is Outcome.MOVED
    [delivery] = engine.consumer().claim(1, wait=20)
    assert (delivery.id, delivery.payload) == (id, "later")
    assert engine.cancel(id) is Outcome.RUNNING
    assert engine.reschedule(id, delay=FAR_S) is Outcome.RUNNING
    engine.consumer().ack(delivery)
    assert engine.cancel(id) is Outcome.GONE
    assert engine.reschedule(id, delay=5) is Outcome.GONE


def test_a_task_that_came_near_stays_in_redis(engine: Engine) -> None:
    id = engine.push("x", delay=FAR_S)
    assert engine.reschedule(id, delay=60) is Outcome.MOVED
    assert counted(engine).scheduled == 1
    assert engine.reschedule(id, delay=FAR_S) is Outcome.MOVED
    assert counted(engine).scheduled == 1
    assert engine.stats().far.tasks == 0  # type: ignore[union-attr]
    assert engine.requeue(id) is Outcome.SCHEDULED


def test_requeue_of_a_far_one(engine: Engine) -> None:
    assert engine.requeue(engine.push("x", delay=FAR_S)) is Outcome.SCHEDULED


@pytest.mark.parametrize("way", ["many", "iter"])
def test_far_and_near_together(engine: Engine, way: str) -> None:
    def tasks() -> list[Task]:
        return [
            Task(n, delay=FAR_S * (n % 3), topic="mail" if n % 2 else "", id=f"own-{n}" if n % 5 == 0 else None)
            for n in range(100)
        ]

    stored = [engine.push_many(tasks())] if way == "many" else list(engine.push_iter(tasks()))
    ids = [id for some in stored for id in some]
    for n, id in enumerate(ids):
        info = engine.get(id)
        assert info is not None
        assert info.payload == n
        assert (is_made(id)) == bool(n % 3 and n % 5)
    far = sum(1 for n in range(100) if n % 3 and n % 5)
    assert engine.stats().far.tasks == far  # type: ignore[union-attr]
    assert counted(engine).scheduled == 100 - far


def test_expiries_count_from_the_push(engine: Engine) -> None:
    engine.start()
    id = engine.push("x", delay=FAR_S, expires=FAR_S + 60)
    assert engine.reschedule(id, delay=0) is Outcome.MOVED
    [delivery] = engine.consumer().claim(1, wait=20)
    assert delivery.payload == "x"
    engine.consumer().ack(delivery)


# ---- many


def walked(engine: Engine, **options: Any) -> list[Any]:
    found, cursor = list[Any](), None
    while True:
        page = engine.tasks(cursor=cursor, **options)
        found += page
        if (cursor := page.cursor) is None:
            return found


def test_lists_have_both(engine: Engine) -> None:
    far = engine.push_many([Task(n, delay=FAR_S + n, topic=f"t{n % 2}", tags=["a"]) for n in range(30)])
    near = engine.push_many([Task(n, delay=60, topic=f"t{n % 2}", tags=["a"]) for n in range(30)])
    engine.reschedule(far[0], delay=2 * FAR_S)
    assert sorted(task.id for task in walked(engine, limit=7)) == sorted([*far, *near])
    assert sorted(task.id for task in walked(engine, topic="t1")) == sorted([*far[1::2], *near[1::2]])
    assert sorted(task.id for task in walked(engine, tag="a", limit=50)) == sorted([*far, *near])
    assert walked(engine, tag="b") == []
    assert walked(engine, state="ready") == []
    now = dt.datetime.now(dt.UTC)
    span = (now + dt.timedelta(days=1), now + dt.timedelta(days=60))
    assert sorted(task.id for task in walked(engine, due=span)) == sorted(far[1:] + far[:1])[:30]


def test_a_forecast_has_both(engine: Engine) -> None:
    engine.push_many([Task(n, delay=n * DAY_S + 7200) for n in range(5)])
    engine.push("near", delay=60)
    month = engine.forecast("month")
    assert month.total == 6
    assert sum(count for _, count in month.buckets) == 6
    assert engine.forecast("day").total == 6
    assert engine.forecast("hour").later == 5


@pytest.mark.parametrize("given", [{"topic": "t1"}, {"tag": "a"}, {"everything": True}])
def test_cancel_all(engine: Engine, given: dict[str, Any]) -> None:
    for delay in (60, FAR_S, 3 * 365 * DAY_S):
        engine.push_many([Task(n, delay=delay, topic="t1", tags=["a"]) for n in range(10)])
    moved = engine.push("moved", delay=FAR_S, topic="t1", tags=["a"])
    engine.reschedule(moved, delay=2 * FAR_S)
    other = engine.push("other", delay=FAR_S, topic="t2")
    if "everything" not in given:
        assert engine.cancel_all(dry_run=True, **given).matched == 31
    met: list[int] = []
    result = engine.cancel_all(progress=lambda so_far: met.append(so_far.done), **given)
    assert (result.matched, result.done, bool(result)) == (31 + ("everything" in given),) * 2 + (True,)
    assert met == sorted(met)
    assert met[-1] == result.done
    left = [task.id for task in walked(engine)]
    assert left == ([] if "everything" in given else [other])


def test_purge(engine: Engine) -> None:
    for delay in (60, FAR_S):
        engine.push_many([Task(n, delay=delay, topic=f"t{n % 2}") for n in range(10)])
    assert engine.purge("t1") == 10
    assert engine.purge(everything=True) == 10
    assert walked(engine) == []


@pytest.mark.parametrize("to_s", [60, 2 * FAR_S])
def test_reschedule_all(engine: Engine, to_s: float) -> None:
    for delay in (600, FAR_S):
        engine.push_many([Task(n, delay=delay, topic=f"t{n % 2}") for n in range(10)])
    assert engine.reschedule_all("t1", delay=to_s, dry_run=True).matched == 10
    result = engine.reschedule_all("t1", delay=to_s)
    assert (result.matched, result.done) == (10, 10)
    dues = {task.due for task in walked(engine, topic="t1")}
    assert len(dues) == 1
    assert abs((dues.pop() - dt.datetime.now(dt.UTC)).total_seconds() - to_s) < 20
    assert len(walked(engine, topic="t0")) == 10


# ---- who is told


def test_stats(engine: Engine, database: str) -> None:
    engine.push_many([Task(n, delay=FAR_S) for n in range(3)])
    far = engine.stats().far
    assert far is not None
    assert (far.tasks, far.exact, far.ahead, far.loaded, far.problems) == (3, True, 3600, None, ())
    assert far.first is not None
    assert abs((far.first - dt.datetime.now(dt.UTC)).total_seconds() - FAR_S) < 3700
    assert far.database in database.replace("+psycopg", "").replace("shardq@", "")
    engine.start()
    assert engine.stats().far.loaded == 0  # type: ignore[union-attr]
    assert "far_unloaded" not in red(engine.health())


@pytest.mark.slow
def test_an_engine_that_was_opened_without_it(engine: Engine, make: Make) -> None:
    id = engine.push("x", delay=FAR_S)
    other = make(far=None)
    for call in (other.cancel, other.get, other.requeue, lambda id: other.reschedule(id, delay=5)):
        with pytest.raises(MissingLink, match="opened without it here; give far="):
            call(id)
    for many in (
        other.tasks,
        other.forecast,
        lambda: other.cancel_all(everything=True),
        lambda: other.reschedule_all(everything=True, delay=5),
        lambda: other.purge(everything=True),
    ):
        with pytest.raises(MissingLink, match="which tasks wait"):
            many()
    assert other.tasks(state="ready") == []
    near = other.push("near", delay=FAR_S)
    assert other.cancel(near) is Outcome.CANCELLED
    assert "far_unloaded" not in red(engine.health())
    other.start()
    seen = engine.health()
    assert [text for text in seen.reasons if "can't load from the far store of this engine" in text]
    assert "far_unloaded" in red(seen)
    assert "far_unloaded" in red(other.health())


@pytest.mark.slow
@pytest.mark.usefixtures("soon")
def test_what_was_read_too_long_ago_is_not_moved(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that stands still behind its look at the row: Redis may have forgotten what was moved since."""
    engine = make(ahead=0.5)
    id = engine.push("x", delay=1.7)
    time.sleep(0.4)  # it is near now
    assert engine._far is not None
    store = engine._far.store
    found = store.find

    def slow(*arguments: Any, **options: Any) -> Any:
        row = found(*arguments, **options)
        time.sleep(0.7)
        return row

    monkeypatch.setattr(store, "find", slow)
    with pytest.raises(Unavailable, match="too long ago"):
        engine.cancel(id)
    assert engine.stats().far.tasks == 1  # type: ignore[union-attr]
    monkeypatch.undo()


@pytest.mark.slow
def test_another_table_is_refused(engine: Engine, make: Make, tmp_path: Any) -> None:
    engine.push("x", delay=FAR_S)
    other = make(far=str(tmp_path / "other.db"))
    with pytest.raises(ValueError, match="is not the one of the engine"):
        other.push("x", delay=FAR_S)
    assert engine.cancel(other.push("near", delay=60)) is Outcome.CANCELLED
    other.start()
    assert [text for text in other.health().reasons if "is not the one of the engine" in text]


def test_the_ahead_of_the_first_counts(engine: Engine, make: Make, caplog: pytest.LogCaptureFixture) -> None:
    engine.push("x", delay=FAR_S)
    other = make(ahead=7200)
    other.push("x", delay=FAR_S)
    assert [each for each in caplog.messages if "ahead=7200 of this program is not used: the engine has 3600" in each]
    assert other.stats().far.ahead == 3600  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"far": 5}, "far=5 is not possible"),
        ({"far": ""}, "far='' is not possible"),
        ({"far": None, "ahead": 3600}, "give far= as well"),
        ({"ahead": 5}, "give 60 seconds or more"),
        ({"ahead": "x"}, "ahead can't be 'x'"),
        ({"far": "mysql://x/y"}, "can't be a URL of the kind"),
    ],
    ids=str,
)
def test_options_that_are_not_possible(make: Make, options: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        make(**options)


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_a_database_that_can_not_be_opened(make: Make) -> None:
    engine = make(far="/nowhere/far.db", timeout=2)
    engine.cancel(engine.push("near", delay=60))
    with pytest.raises(Exception, match="can't be opened"):
        engine.push("far", delay=FAR_S)
    with pytest.raises(PushError) as caught:
        engine.push_many([Task(1), Task(2, delay=FAR_S)])
    assert len(caught.value.stored) == 1
