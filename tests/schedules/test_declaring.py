"""Schedules as a user declares, lists, changes, pauses, removes and runs them; on both engines."""

from __future__ import annotations

import datetime as dt
from typing import Any

import msgspec
import pytest

from shardq import BadInput, Engine, Schedule, TaskInfo
from shardq.core.consumer import wakeups
from shardq.core.layout.keys import control_keys
from shardq.errors import PayloadNotEncodable, UnknownSchedule
from shardq.features.schedules import known, scheduler
from tests.schedules.runs import server_ms
from tests.support.engines import SHARDS, Engines
from tests.support.servers import Servers
from tests.support.states import claim, ready_of
from tests.support.waiting import wait_until

FAR = dt.timedelta(days=300)


def only(engine: Engine) -> Schedule:
    (schedule,) = engine.schedules()
    return schedule


def stored(servers: Servers, name: str) -> dict[bytes, bytes]:
    keys = control_keys(name)
    flat = servers.ask(keys.slot, "HGETALL", keys.schedules)
    return flat if isinstance(flat, dict) else dict(zip(flat[::2], flat[1::2], strict=True))


def test_a_schedule_as_it_is_listed(engine: Engine, servers: Servers, name: str) -> None:
    assert engine.schedules() == []
    engine.every(
        "nightly",
        cron="0  3 * * *",
        tz="Europe/Berlin",
        topic="reports",
        payload={"all": True},
        jitter=60,
        catch_up="none",
    )
    schedule = only(engine)
    assert (schedule.name, schedule.cron, schedule.interval) == ("nightly", "0 3 * * *", None)
    assert (schedule.tz, schedule.topic, schedule.payload) == ("Europe/Berlin", "reports", {"all": True})
    assert (schedule.jitter, schedule.catch_up, schedule.paused) == (60.0, "none", False)
    assert (schedule.last, schedule.problem) == (None, None)
    assert schedule.next is not None
    now = dt.datetime.fromtimestamp(server_ms(servers, name) / 1000, dt.UTC)
    assert dt.timedelta(0) < schedule.next - now <= dt.timedelta(hours=26)
    engine.every("hourly", interval=dt.timedelta(hours=1))
    assert [(each.name, each.interval) for each in engine.schedules()] == [("hourly", 3600.0), ("nightly", None)]
    assert engine.stats().scheduled == 0, "without a dispatcher nothing is pushed"


def test_declared_again_it_stays_as_it_is(engine: Engine, servers: Servers, name: str) -> None:
    engine.every("tick", interval=FAR, payload=1)
    before = stored(servers, name)
    engine.every("tick", interval=FAR, payload=1)
    engine.every("tick", interval=FAR.total_seconds(), payload=1, tz=None, jitter=0)
    assert stored(servers, name) == before
    engine.schedule("tick").pause()
    engine.every("tick", interval=FAR, payload=1)
    assert only(engine).paused, "a deploy does not resume it"
    engine.every("tick", interval=FAR, payload=2)
    assert (only(engine).paused, only(engine).payload) == (True, 2)


def test_it_runs_and_says_when(running: Engine) -> None:
    running.every("tick", interval=0.2, topic="t", payload=[1])
    consumer = running.consumer("t")
    seen = [delivery for _ in range(3) for delivery in claim(consumer, 1)]
    assert all(delivery.payload == [1] for delivery in seen)
    assert all(delivery.id.startswith("t/every-tick@20") for delivery in seen)
    consumer.ack(seen)
    schedule = only(running)
    assert schedule.last is not None
    assert schedule.next is not None
    assert (schedule.next.timestamp() * 1000) % 200 == 0
    stats = running.stats()
    assert stats.schedules is not None
    assert (stats.schedules.count, stats.schedules.paused) == (1, 0)
    assert stats.schedules.pushed >= 3
    running.schedule("tick").remove()


def test_what_is_paused_or_removed_leaves_nothing_ahead(running: Engine) -> None:
    running.every("tick", interval=1, topic="t")
    wait_until(lambda: running.stats().scheduled > 5, "occurrences are pushed ahead")
    running.schedule("tick").pause()
    assert running.stats().scheduled == 0
    assert (only(running).paused, only(running).next) == (True, None)
    running.schedule("tick").pause()
    stats = running.stats()
    assert stats.schedules is not None
    assert stats.schedules.paused == 1
    running.schedule("tick").resume()
    running.schedule("tick").resume()
    wait_until(lambda: running.stats().scheduled > 5, "occurrences are pushed again")
    running.schedule("tick").remove()
    assert running.stats().scheduled == 0
    assert running.schedules() == []
    with pytest.raises(UnknownSchedule, match="there is no schedule named 'tick'"):
        running.schedule("tick").remove()
    running.every("tick", interval=1, topic="t")
    wait_until(lambda: running.stats().scheduled > 5, "declared anew it runs")
    running.schedule("tick").remove()


def test_what_is_removed_is_known_as_cancelled_where_ends_are_kept(running: Engine) -> None:
    running.configure(done_age=3600)
    running.every("tick", interval=1, topic="t")
    wait_until(lambda: running.stats().scheduled > 5, "occurrences are pushed ahead")
    ahead = [task.id for task in running.tasks("t", state="scheduled")]
    running.schedule("tick").remove()
    cancelled = {task.id for task in running.tasks("t", state="cancelled")}
    assert len(cancelled & set(ahead)) >= len(ahead) - 2, "one or two may have become due meanwhile"


@pytest.mark.slow
def test_a_changed_one_takes_the_place_of_the_other(running: Engine) -> None:
    running.every("tick", interval=1, topic="old")
    wait_until(lambda: running.stats().scheduled > 5, "occurrences are pushed ahead")
    running.every("tick", interval=2, topic="new", payload=2)
    assert only(running).interval == 2.0
    (delivery,) = claim(running.consumer("new"), 1)
    assert delivery.payload == 2
    before = ready_of(running, "old")
    assert claim(running.consumer("new"), 1)
    assert ready_of(running, "old") == before, "what was due in a moment ran still, and nothing else"
    running.schedule("tick").remove()


def test_run_now(running: Engine) -> None:
    running.every("tick", interval=FAR, topic="t", payload={"n": 1})
    ids = {running.schedule("tick").run(), running.schedule("tick").run()}
    running.schedule("tick").pause()
    ids.add(running.schedule("tick").run())
    consumer, seen = running.consumer("t"), list[Any]()
    while len(seen) < 3:
        seen += claim(consumer, 1)
    assert {delivery.id for delivery in seen} == ids
    assert {delivery.payload["n"] for delivery in seen} == {1}
    assert only(running).last is None, "that was no occurrence"


@pytest.mark.parametrize("url", ["single"], indirect=True)
def test_what_there_is_not(engine: Engine) -> None:
    weekly = engine.schedule("weekly")
    for ask in (weekly.pause, weekly.resume, weekly.run, weekly.remove):
        with pytest.raises(UnknownSchedule, match=r"there is no schedule named 'weekly'; engine\.schedules\(\)"):
            ask()
    with pytest.raises(BadInput, match="the name of a schedule can't be 'a/b'"):
        engine.schedule("a/b")
    with pytest.raises(BadInput, match="one of both"):
        engine.schedule("a", owner="b")  # type: ignore[call-overload]
    with pytest.raises(BadInput, match="a topic can't be"):
        engine.every("a", interval=1, topic="a b")
    with pytest.raises(PayloadNotEncodable):
        engine.every("a", interval=1, payload=object())
    with pytest.raises(BadInput, match="an interval, and not both"):
        engine.every("a")
    assert engine.schedules() == []


@pytest.mark.parametrize("url", ["single"], indirect=True)
def test_a_codec_of_ones_own_is_no_matter_to_who_pushes(engines: Engines, url: str, name: str) -> None:
    class Reversed:
        name = "reversed"

        def encode(self, payload: str) -> bytes:
            return payload[::-1].encode()

        def decode(self, data: bytes) -> str:
            return data.decode()[::-1]

    engines.opened(url, name=name, shards=SHARDS).start()
    own = engines.opened(url, name=name, codec=Reversed())
    own.every("tick", interval=0.2, topic="t", payload="hello")
    (delivery,) = claim(own.consumer("t"), 1)
    assert (delivery.payload, only(own).payload) == ("hello", "hello")
    own.schedule("tick").remove()


@pytest.mark.parametrize("url", ["single"], indirect=True)
def test_one_that_can_not_be_computed_is_left_to_others(
    engines: Engines, url: str, name: str, servers: Servers, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    engine = engines.opened(url, name=name, shards=SHARDS)
    engine.every("tick", interval=0.5, topic="t")
    keys = control_keys(name)
    declared = servers.ask(keys.slot, "HGET", keys.schedules, "tick/declared")
    strange = declared.replace(b'"cron":null', b'"cron":"* * * * *"').replace(b'"UTC"', b'"Mars/Olympus"')
    servers.ask(keys.slot, "HSET", keys.schedules, "strange", servers.ask(keys.slot, "HGET", keys.schedules, "tick"))
    servers.ask(keys.slot, "HSET", keys.schedules, "strange/declared", strange)
    engine.start()
    assert claim(engine.consumer("t"), 1)
    wait_until(lambda: engine.health().reasons, "it is a problem of this process")
    (problem,) = engine.health().reasons
    assert problem.startswith("schedule 'strange' can't be computed by this process: tz can't be 'Mars/Olympus'")
    assert sum("'strange' can't be computed here" in said for said in caplog.messages) == 1
    shown = {each.name: each.problem for each in engine.schedules()}
    assert shown["tick"] is None
    assert "Mars/Olympus" in str(shown["strange"])
    engine.schedule("strange").remove()
    wait_until(lambda: engine.health().ok, "it is gone")
    engine.schedule("tick").remove()


def overdue(engine: Engine) -> list[str]:
    return [reason for reason in engine.health().reasons if "occurrences are overdue" in reason]


@pytest.mark.slow
@pytest.mark.parametrize("url", ["single"], indirect=True)
def test_where_nobody_pushes_it_is_a_problem(engine: Engine, servers: Servers, name: str) -> None:
    engine.every("tick", interval=1, topic="t")
    engine.every("left-out", interval=1, topic="t", catch_up="none")
    assert overdue(engine) == []
    keys = control_keys(name)
    for each in ("tick", "left-out"):
        state = msgspec.json.decode(servers.ask(keys.slot, "HGET", keys.schedules, each))
        state["since_ms"] -= 60_000
        servers.ask(keys.slot, "HSET", keys.schedules, each, msgspec.json.encode(state))
    (problem,) = overdue(engine)
    assert problem.startswith("schedule 'tick': occurrences are overdue, and nobody has pushed them")
    engine.start()
    wait_until(lambda: engine.health().ok, "somebody does")
    engine.schedule("tick").remove()
    engine.schedule("left-out").remove()


@pytest.mark.parametrize("url", ["single"], indirect=True)
def test_without_schedules_nothing_is_asked(
    engine: Engine, url: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[float | None] = []
    step = scheduler.Scheduler._step

    def counted(self: scheduler.Scheduler) -> float | None:
        steps.append(step(self))
        return steps[-1]

    monkeypatch.setattr(scheduler.Scheduler, "_step", counted)
    engine.start()
    wait_until(lambda: steps, "it has read them")
    engine.pause("mail")
    engine.resume("mail")
    with Engine(url, name=name) as other:
        other.start()
        wait_until(lambda: len(engine.stats().dispatchers) == 2, "other news is heard")
    wait_until(lambda: len(engine.stats().dispatchers) == 1, "and again")
    # at its start, and when it is subscribed; and again at each start and subscription of the other
    assert len(steps) <= 4
    assert set(steps) == {None}, "it sleeps until there is news of schedules"


@pytest.mark.parametrize("url", ["single"], indirect=True)
def test_the_news_of_a_schedule_has_no_consumer_read_the_topology(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[tuple[str | None, bool]] = []
    hear = wakeups.Wakeups._on_news

    def noted(self: wakeups.Wakeups, message: str | None) -> None:
        self._news = False
        hear(self, message)
        heard.append((message, self._news))

    monkeypatch.setattr(wakeups.Wakeups, "_on_news", noted)
    engine.consumer().claim(1, wait=0.1)
    wait_until(lambda: heard, "it is subscribed")
    engine.every("tick", interval=FAR)
    engine.schedule("tick").pause()
    engine.pause("mail")
    wait_until(lambda: heard[-1][0] == "topology", "it hears of the topic")
    told = [(message, reads) for message, reads in heard if message is not None]
    assert told == [("schedules/tick", False), ("schedules/tick", False), ("topology", True)]


@pytest.mark.parametrize("url", ["single"], indirect=True)
def test_removed_ones_are_forgotten_in_the_end(
    running: Engine, servers: Servers, url: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    running.every("tick", interval=FAR)
    running.schedule("tick").remove()
    assert stored(servers, name), "its generation is kept"
    monkeypatch.setattr(known, "KEPT_REMOVED_MS", 0)
    # the running one may have read it before, and would come back to it in a day
    with Engine(url, name=name) as later:
        later.start()
        wait_until(lambda: not stored(servers, name), "nothing is left")


@pytest.mark.parametrize("url", ["single"], indirect=True)
@pytest.mark.parametrize(
    "fields",
    [
        {"odd": b"{}", "odd/declared": b"{}"},
        {"odd": b"\xff\x00", "odd/declared": b"[1]"},
        {"odd": b"{}"},
        {"odd/declared": b'{"cron": 5}'},
    ],
    ids=["other fields", "other types", "a state alone", "a declaration alone"],
)
def test_an_entry_that_can_not_be_read_breaks_only_itself(
    running: Engine, servers: Servers, name: str, fields: dict[str, bytes], caplog: pytest.LogCaptureFixture
) -> None:
    keys = control_keys(name)
    servers.ask(keys.slot, "HSET", keys.schedules, *(word for pair in fields.items() for word in pair))
    running.every("tick", interval=0.2, topic="t")
    assert claim(running.consumer("t"), 1)
    stats = running.stats()
    assert stats.schedules is not None
    assert (stats.schedules.count, stats.schedules.unreadable) == (1, ("odd",))
    (reason,) = running.health().reasons
    assert reason.startswith("schedule 'odd': what is stored can't be read here")
    odd, tick = running.schedules()
    assert (odd.name, odd.next, tick.name, tick.problem) == ("odd", None, "tick", None)
    assert odd.problem is not None
    assert odd.problem.startswith("it can't be read: another version of shardq, or another program, wrote it: ")
    for ask in (running.schedule("odd").pause, running.schedule("odd").run):
        with pytest.raises(UnknownSchedule, match=r"'odd' can't be read .*; upgrade shardq, declare it anew"):
            ask()
    running.schedule("odd").remove()
    assert running.health().reasons == []
    with pytest.raises(UnknownSchedule):
        running.schedule("odd").remove()
    servers.ask(keys.slot, "HSET", keys.schedules, *(word for pair in fields.items() for word in pair))
    running.every("odd", interval=0.2, topic="u", payload=2)
    assert claim(running.consumer("u"), 1)[0].payload == 2
    for each in ("odd", "tick"):
        running.schedule(each).remove()
    assert sum("'odd' can't be read here" in said for said in caplog.messages) <= 2


def later(seconds: float) -> dt.datetime:
    return dt.datetime.now(dt.UTC) + dt.timedelta(seconds=seconds)


@pytest.mark.parametrize("url", ["single"], indirect=True)
def test_the_options_of_its_tasks(running: Engine, servers: Servers, name: str) -> None:
    running.configure(done_age=3600)
    running.every(
        "tick",
        interval=0.2,
        topic="t",
        headers={"trace": "a"},
        tags=["user-42"],
        max_attempts=3,
        expires=600,
        start=dt.datetime(2020, 1, 1, tzinfo=dt.UTC),
        end=later(86_400),
    )
    [delivery] = claim(running.consumer("t"), 1)
    assert (dict(delivery.headers), list(delivery.tags)) == ({"trace": "a"}, ["user-42"])
    info = running.get(delivery.id)
    assert info is not None
    assert info.max_attempts == 3
    other = running.get(running.schedule("tick").run())
    assert other is not None
    for each in (info, other):
        assert each.pushed is not None
        assert abs(dt.datetime.now(dt.UTC) - each.pushed) < dt.timedelta(seconds=30)
    shown = only(running)
    assert shown.start == dt.datetime(2020, 1, 1, tzinfo=dt.UTC)
    running.every("tick", interval=0.2, topic="short", expires=0.001)
    consumer = running.consumer("short")

    def buried() -> list[TaskInfo]:
        consumer.claim(1)  # which meets what nobody has begun in time
        return [*running.dead("short")]

    wait_until(buried, "what nobody begins in time is buried")
    running.every("tick", interval=0.2, topic="t", end=1)
    assert (only(running).next, only(running).end) == (None, dt.datetime.fromtimestamp(1, dt.UTC))
    running.every("tick", interval=0.2, topic="t", start=later(86_400))
    following = only(running).next
    assert following is not None
    assert following > later(86_000)
    running.schedule("tick").remove()


@pytest.mark.slow
@pytest.mark.parametrize("url", ["single"], indirect=True)
def test_an_occurrence_is_left_out_while_the_one_before_it_is_not_finished(running: Engine) -> None:
    running.every("tick", interval=0.2, topic="t", overlap="skip", catch_up="all")
    consumer = running.consumer("t")
    for outcome in ("ack", "retry", "bury"):
        [delivery] = claim(consumer, 1)
        skipped = only(running).skipped
        wait_until(lambda: only(running).skipped >= skipped + 2, "occurrences are left out")  # noqa: B023
        stats = running.stats()
        assert stats.scheduled + stats.ready + stats.leased == 1, "one at a time"
        if outcome == "retry":
            consumer.retry(delivery, delay=0)
            [again] = claim(consumer, 1)
            assert again.id == delivery.id
            consumer.ack(again)
        elif outcome == "ack":
            consumer.ack(delivery)
        else:
            consumer.bury(delivery, "broken")
    assert claim(consumer, 1), "a dead one is finished"
    running.schedule("tick").remove()


@pytest.mark.parametrize("url", ["single"], indirect=True)
def test_a_program_prunes_what_it_declares_no_more(engines: Engines, url: str, name: str) -> None:
    before, now, other = (engines.opened(url, name=name, shards=SHARDS) for _ in range(3))
    for each in ("nightly", "poll", "weekly"):
        before.every(each, interval=FAR, owner="billing")
    other.every("nightly-of-others", interval=FAR, owner="billing-2")
    other.every("mine", interval=FAR)
    with pytest.raises(BadInput, match=r"this engine has declared no schedule with owner='billing'.*keep=\[\]"):
        now.schedule(owner="billing").prune()
    now.every("poll", interval=FAR, owner="billing")
    now.every("daily", interval=FAR, owner="billing")
    assert now.schedule(owner="billing").prune() == ["nightly", "weekly"]
    assert now.schedule(owner="billing").prune() == []
    assert [each.name for each in now.schedules()] == ["daily", "mine", "nightly-of-others", "poll"]
    assert now.schedule(owner="billing").prune(keep=[]) == ["daily", "poll"]
    for each in ("mine", "nightly-of-others"):
        now.schedule(each).remove()
