"""What became of a task that has ended: kept where the engine asks for it, and found in every shard."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest

from shardq import Backoff, Delivery, Engine, Retry, Task, TaskInfo
from shardq.core.consumer.settling import settle_acks
from shardq.core.producer.commands_by_id import ends_rule
from shardq.errors import InvalidOption
from tests.support.engines import SHARDS, Engines
from tests.support.servers import Servers, keys_of
from tests.support.states import FAR_S, claim, put
from tests.support.waiting import wait_until

pytestmark = pytest.mark.parametrize("url", ["single"], indirect=True)


def done(engine: Engine, *, topic: str = "", **options: Any) -> str:
    """A task that was handled."""
    id = engine.push("private", topic=topic, **options)
    consumer = engine.consumer(topic)
    consumer.ack(claim(consumer, 1))
    return id


def kept(engine: Engine, topic: str | None = None, state: str = "done", **options: Any) -> list[TaskInfo]:
    """All pages."""
    page = engine.tasks(topic, state=state, **options)  # type: ignore[arg-type]  # one of two
    found = list(page)
    while page.cursor is not None:
        page = engine.tasks(topic, state=state, cursor=page.cursor, **options)  # type: ignore[arg-type]
        found += page
    return found


def slots(servers: Servers, engine: Engine, shards: int = SHARDS) -> list[int]:
    """The number of ends in each slot that is there."""
    found = []
    for keys in keys_of(engine.name, shards):
        found += [servers.ask(keys.slot, "HLEN", slot) for slot in keys.ends]
    return [count for count in found if count]


def test_none_are_kept_at_first(running: Engine, servers: Servers) -> None:
    id = done(running)
    assert running.get(id, ended=True) is None
    assert running.tasks(state="done") == []
    assert slots(servers, running) == []
    assert running.stats().ends_since is None


def test_what_became_of_it(running: Engine) -> None:
    running.configure(done_age=3600)
    before = dt.datetime.now(dt.UTC).replace(microsecond=0)
    id = done(running, topic="mail", tags=["secret"], headers={"a": "b"})
    info = running.get(id, ended=True)
    assert info is not None
    assert (info.id, info.topic, info.state, info.key) == (id, "mail", "done", None)
    assert info.ended is not None
    assert info.pushed is not None
    assert before <= info.pushed <= info.ended <= dt.datetime.now(dt.UTC) + dt.timedelta(seconds=1)
    assert (info.attempt, info.failures, info.lapses, info.failure) == (1, 0, 0, None)
    assert info.holder
    assert info.seconds is None, "no worker has called a handler"
    assert (info.payload, info.headers, info.tags, info.reason) == (None, {}, (), None)
    # asked for otherwise, it is as gone as before
    assert running.get(id) is None
    assert running.cancel(id) == "gone"
    assert running.push("again", topic="mail", id="x", on_conflict="reject")


def test_how_long_it_ran_and_how_it_failed(running: Engine, engines: Engines) -> None:
    running.configure(done_age=3600)
    worker = running.worker(concurrency=1)

    @worker.on("mail", backoff=Backoff(base=0, cap=0))
    def send(delivery: Any) -> None:
        if delivery.attempt == 1:
            raise TimeoutError(delivery.payload)
        if delivery.attempt == 2:
            raise Retry(0, "in words, about ann@example.org")

    id = running.push("private", topic="mail")
    with engines.working(worker):
        wait_until(lambda: running.get(id) is None, "it is done")
    info = running.get(id, ended=True)
    assert info is not None
    assert (info.attempt, info.failures) == (3, 2)
    assert info.failure is None, "a reason in words has no class"
    assert info.seconds is not None
    assert 0 <= info.seconds < 5
    assert "private" not in repr(info)
    assert "ann@" not in repr(info)


@pytest.mark.parametrize("key", [None, "customer-7"])
def test_an_id_of_ones_own_says_when_it_was_pushed(
    running: Engine, engines: Engines, url: str, key: str | None
) -> None:
    running.configure(done_age=3600)
    # looks like one of ours, of February 2024
    mine = done(running, topic="mail", key=key, id="ORDER-1234567")
    first = engines.make(url, name=running.name).push("x", topic="sms", id="of-the-first-push", delay=FAR_S)
    now = dt.datetime.now(dt.UTC)
    for id in (mine, first):
        info = running.get(id, ended=True)
        assert info is not None
        assert info.pushed is not None
        assert abs(now - info.pushed) < dt.timedelta(seconds=10)
    # pushed while none were kept: it is not known
    running.configure(topics={"sms": {"done_age": 0}})
    other = running.get(running.push("x", topic="sms", id="ORDER-1234567", delay=FAR_S))
    assert other is not None
    assert other.pushed is None


def test_a_cancelled_one(running: Engine) -> None:
    running.configure(done_age=3600)
    scheduled = running.push("x", delay=FAR_S)
    dead = put(running, "dead")
    assert running.cancel(scheduled)
    assert running.cancel_all(state="dead").done == 1
    assert {task.id for task in kept(running, state="cancelled")} == {scheduled, dead}
    info = running.get(dead, ended=True)
    assert info is not None
    assert (info.state, info.failures, info.holder) == ("cancelled", 1, None)
    # not what a tag's walk or a purge removes: these go without a record of each
    running.push("x", delay=FAR_S, tags=["t"])
    running.push("x", delay=FAR_S, topic="p")
    assert running.cancel_all(tag="t").done == 1
    assert running.purge("p") == 1
    assert len(kept(running, state="cancelled")) == 2


def test_pages_are_in_order_and_whole(running: Engine) -> None:
    running.configure(done_age=3600, done_count=100_000)
    consumer = running.consumer(["mail", ""])
    ids = running.push_many([Task(n, topic=("mail", "")[n % 3 == 0]) for n in range(300)])
    for delivery in claim(consumer, 300):
        consumer.ack(delivery)
    found = kept(running, limit=7)
    assert [task.id for task in found] == [task.id for task in kept(running, limit=1000)]
    assert sorted(task.id for task in found) == sorted(ids)
    ended = [task.ended for task in found if task.ended]
    assert ended == sorted(ended, reverse=True)
    assert {task.id for task in kept(running, "mail")} == {id for id in ids if id.startswith("mail/")}
    assert kept(running, "sms") == kept(running, state="cancelled") == []
    first = running.tasks(state="done", limit=5)
    assert first.since is not None
    assert first.since <= ended[-1]
    assert running.stats().ends_since == first.since
    # a list without a state is of tasks that live
    assert running.tasks() == []


def test_no_more_than_the_number(running: Engine, servers: Servers) -> None:
    running.configure(done_age=3600, done_count=8 * SHARDS * 2)
    consumer = running.consumer()
    running.push_many([Task(n) for n in range(600)])
    for _ in range(6):
        consumer.ack(claim(consumer, 100))
    counts = slots(servers, running)
    assert max(counts) <= 2
    assert 7 * SHARDS * 2 <= len(kept(running, limit=1000)) <= sum(counts) <= 8 * SHARDS * 2
    since = running.stats().ends_since
    assert since is not None


def test_none_after_their_age(running: Engine) -> None:
    running.configure(done_age=0.2)
    id = done(running)
    wait_until(lambda: running.get(id, ended=True) is None, "it is too old")
    assert running.tasks(state="done") == []


def test_an_age_of_nothing_removes_at_once(running: Engine, servers: Servers) -> None:
    running.configure(done_age=3600)
    id = done(running)
    assert slots(servers, running)
    running.configure(done_age=0)
    assert slots(servers, running) == []
    assert running.get(id, ended=True) is None
    done(running)
    assert slots(servers, running) == []


def test_a_topic_keeps_them_for_a_shorter_time_or_none(running: Engine, servers: Servers) -> None:
    running.configure(done_age=3600, topics={"sms": {"done_age": 0}, "mail": {"done_age": 60}})
    ids = {topic: done(running, topic=topic) for topic in ("", "mail", "sms")}
    assert sum(slots(servers, running)) == 2
    assert running.get(ids["mail"], ended=True)
    assert running.get(ids["sms"], ended=True) is None
    running.configure(topics={"mail": {"done_age": 0}})
    assert running.get(ids["mail"], ended=True) is None
    assert [task.id for task in kept(running)] == [ids[""]]
    # what is kept is shown again, where the setting goes
    assert running.configure(topics={"mail": {"done_age": None}})
    assert running.get(ids["mail"], ended=True)


def test_purging_everything_removes_them(running: Engine, servers: Servers) -> None:
    running.configure(done_age=3600)
    done(running)
    running.purge("")
    assert slots(servers, running)
    running.purge(everything=True)
    assert slots(servers, running) == []
    done(running)
    assert len(kept(running)) == 1


def test_a_forwarded_topic_keeps_none(running: Engine, servers: Servers) -> None:
    running.configure(done_age=3600)
    running.forward("log", to="log-queue")
    id = running.push("x", topic="log")
    scheduled = running.push("x", topic="log", delay=FAR_S)
    wait_until(lambda: running.get(id) is None, "it is forwarded")
    assert running.cancel(scheduled)
    assert slots(servers, running) == []
    with pytest.raises(InvalidOption, match=r"'log': it can't be forwarded to .* and keep the ends of its tasks"):
        running.configure(topics={"log": {"done_age": 60}})
    running.configure(topics={"mail": {"done_age": 60}})
    with pytest.raises(InvalidOption, match=r"'mail': it can't be forwarded to .* give done_age=None, or stop"):
        running.forward("mail", to="mail-queue")


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "an age": ({"done_age": -1}, "done_age can't be -1"),
    "a word": ({"done_age": "1d"}, "done_age can't be '1d'"),
    "a number": ({"done_count": -1}, "done_count=-1 is not possible; give an int from 0"),
    "too many": ({"done_count": 10**9}, f"give 80,000 for each shard at most, which is {80_000 * SHARDS:,} here"),
    "of a topic, more than the engine's": (
        {"topics": {"mail": {"done_age": 7200}}},
        "topic 'mail': done_age=7200 is not possible; give the engine's, which is 3600 s, at most",
    ),
    "of a topic, a word": ({"topics": {"mail": {"done_age": "1d"}}}, "topic 'mail': done_age can't be '1d'"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused(engine: Engine, case: str) -> None:
    engine.configure(done_age=3600)
    given, told = REFUSED[case]
    with pytest.raises(InvalidOption) as refused:
        engine.configure(**given)
    assert told in str(refused.value)


@pytest.mark.parametrize(
    "filter",
    [{"tag": "t"}, {"failed": True}, {"holder": "me"}, {"due": (None, 5)}],
    ids=lambda filter: next(iter(filter)),
)
@pytest.mark.parametrize("state", ["done", "cancelled"])
def test_filters_that_ends_do_not_have_are_refused_in_words(engine: Engine, state: Any, filter: Any) -> None:
    with pytest.raises(InvalidOption, match=f"was given with state='{state}': .* is listed by topic= and key= alone"):
        engine.tasks(state=state, **filter)


def test_what_is_not_kept_can_not_be_requeued(running: Engine) -> None:
    running.configure(done_age=3600)
    id = done(running)
    assert running.requeue(id) == "gone"
    with pytest.raises(InvalidOption, match="the payloads of such tasks are not kept: push them again"):
        running.requeue_all(state="done")


def test_they_are_found_after_changes_of_the_number_of_shards(running: Engine, engines: Engines) -> None:
    running.configure(done_age=3600)
    consumer = running.consumer()
    ids = []
    for shards in (SHARDS + 3, 2):
        ids += running.push_many([Task(n) for n in range(40)])
        held = claim(consumer, 40)
        consumer.ack(held[:20])
        change = running.resize(shards)
        consumer.ack(held[20:])
        assert engines.done(change.wait(timeout=60))
    wait_until(lambda: len(running.topology.ended) == 2, "the earlier numbers are noted")
    assert sorted(task.id for task in kept(running, limit=9)) == sorted(ids)
    assert all(running.get(id, ended=True) for id in ids)


@pytest.mark.parametrize("engines", ["sync"], indirect=True)
def test_a_topology_that_is_learnt_while_a_call_is_made_leaves_none_out(engine: Engine) -> None:
    """A shard may still be of the one before, and take the call: that says how ends are kept, too."""
    engine.configure(done_age=3600)
    cache = engine._map()
    before = cache.topology
    engine.pause("other")
    assert cache.topology.stamp != before.stamp
    delivery = Delivery("id", "", None, 1, {}, "token", 0, 0, 0)
    for call in (settle_acks(cache, [delivery], cache.keys(0), before.stamp), ends_rule(cache, "id", before.stamp)):
        words = [call] if isinstance(call, str) else [str(word) for word in call.words]
        assert any(before.ends_rule in word for word in words), words
