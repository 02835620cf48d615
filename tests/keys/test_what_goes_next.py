"""What a key gives next, after each way in which a task of it can stop being ready or leased."""

from __future__ import annotations

import time
from typing import Any

import pytest

from shardq import Consumer, Delivery, Engine, LeaseLost, Task
from shardq.core.layout.keys import shard_keys
from shardq.core.layout.lanes import of_key
from tests.keys.account import TOPIC
from tests.support.servers import Servers
from tests.support.states import FAR_S, claim, state_of
from tests.support.waiting import wait_until

PAUSE_S = 0.3
"""Longer than a claim and a dispatch take."""


@pytest.fixture
def keyed(running: Engine) -> Engine:
    running.limit(TOPIC, per_key=1)
    return running


@pytest.fixture
def taker(keyed: Engine) -> Consumer:
    return keyed.consumer(TOPIC, lease=60)


def pushed(engine: Engine, *payloads: str, **options: Any) -> list[str]:
    """Each in a millisecond of its own, as within one the ids count."""
    ids = []
    for payload in payloads:
        ids.append(str(engine.push(payload, topic=TOPIC, key="k", **options)))
        next_s = time.time() + 0.002
        wait_until(lambda next_s=next_s: time.time() > next_s, "the clock has gone on")  # type: ignore[misc]
    return ids


def one(consumer: Consumer) -> Delivery:
    """What is given, which is one: the key has more."""
    (delivery,) = claim(consumer, 1)
    assert consumer.claim(5, wait=0.02) == []
    return delivery


def rest_of(consumer: Consumer, count: int) -> list[str]:
    """The payloads of what follows, so many and no more, each acked before the next."""
    found: list[str] = []
    for _ in range(count):
        delivery = one(consumer)
        found.append(delivery.payload)
        consumer.ack(delivery)
    assert consumer.claim(5, wait=0.02) == []
    return found


def unbegun(consumer: Consumer, delivery: Delivery) -> None:
    with pytest.raises(KeyboardInterrupt), consumer.settling(delivery):
        raise KeyboardInterrupt


@pytest.mark.parametrize("on_failure", ["wait", "skip"])
def test_a_retry(running: Engine, on_failure: str) -> None:
    running.limit(TOPIC, per_key=1, on_failure=on_failure)  # type: ignore[arg-type]
    consumer = running.consumer(TOPIC, lease=60)
    pushed(running, "a", "b", "c")
    first, began = one(consumer), time.monotonic()
    consumer.retry(first, delay=PAUSE_S)
    if on_failure == "wait":
        again = one(consumer)
        assert (again.payload, again.attempt) == ("a", 2)
        assert time.monotonic() - began >= PAUSE_S
        consumer.ack(again)
        assert rest_of(consumer, 2) == ["b", "c"]
    else:
        assert sorted(rest_of(consumer, 3)) == ["a", "b", "c"]
        assert time.monotonic() - began >= PAUSE_S


def test_a_retry_of_a_key_with_a_rate_waits_for_its_backoff(running: Engine) -> None:
    running.limit(TOPIC, per_key=1, per_key_rate=50)
    consumer = running.consumer(TOPIC, lease=60)
    pushed(running, "a", "b")
    first, began = one(consumer), time.monotonic()
    consumer.retry(first, delay=0.8)
    again = one(consumer)
    assert again.payload == "a"
    assert time.monotonic() - began >= 0.8
    consumer.ack(again)
    assert rest_of(consumer, 1) == ["b"]


def test_a_retry_that_was_the_last(keyed: Engine, taker: Consumer) -> None:
    first, _ = pushed(keyed, "a", "b", max_attempts=1)
    taker.retry(one(taker), delay=FAR_S)
    assert state_of(keyed, first) == "dead"
    assert rest_of(taker, 1) == ["b"]


def test_a_burial_and_its_requeueing(keyed: Engine, taker: Consumer) -> None:
    first, *_ = pushed(keyed, "a", "b", "c")
    taker.bury(one(taker), "of no use")
    second = one(taker)
    assert second.payload == "b"
    # it comes when its key has room, and by its new due time: behind what waits
    assert keyed.requeue(first)
    assert taker.claim(5, wait=0.05) == []
    taker.ack(second)
    assert rest_of(taker, 2) == ["c", "a"]


def test_what_was_given_back_unbegun_keeps_its_place(keyed: Engine, taker: Consumer) -> None:
    pushed(keyed, "a", "b", "c")
    unbegun(taker, one(taker))
    assert rest_of(taker, 3) == ["a", "b", "c"]


def test_a_snooze_lets_others_pass(keyed: Engine, taker: Consumer) -> None:
    pushed(keyed, "a", "b")
    taker.snooze(one(taker), PAUSE_S)
    assert rest_of(taker, 2) == ["b", "a"]


def test_a_lease_that_lapses_keeps_its_place(keyed: Engine) -> None:
    pushed(keyed, "a", "b")
    short = keyed.consumer(TOPIC, lease=0.2)
    lapsed, began = one(short), time.monotonic()
    again = one(keyed.consumer(TOPIC, lease=60))
    assert (again.payload, again.attempt) == ("a", 2)
    assert time.monotonic() - began >= 0.15
    with pytest.raises(LeaseLost):
        short.ack(lapsed)
    # who lost it frees nothing
    taker = keyed.consumer(TOPIC)
    assert taker.claim(5, wait=0.05) == []
    taker.ack(again)
    assert rest_of(taker, 1) == ["b"]


def test_a_lease_that_lapses_for_the_last_time(keyed: Engine) -> None:
    first, _ = pushed(keyed, "a", "b", max_attempts=1)
    one(keyed.consumer(TOPIC, lease=0.2))
    taker = keyed.consumer(TOPIC, lease=60)
    assert one(taker).payload == "b"
    assert state_of(keyed, first) == "dead"


@pytest.mark.parametrize("which", ["ready", "held"])
def test_a_cancel(keyed: Engine, taker: Consumer, which: str) -> None:
    ids = pushed(keyed, "a", "b", "c")
    wait_until(lambda: state_of(keyed, ids[0]) == "ready", "the first is ready")
    assert keyed.cancel(ids[0 if which == "ready" else 1])
    assert rest_of(taker, 2) == (["b", "c"] if which == "ready" else ["a", "c"])


@pytest.mark.parametrize("which", ["ready", "held"])
@pytest.mark.parametrize("delay", [0, PAUSE_S])
def test_a_reschedule(keyed: Engine, taker: Consumer, which: str, delay: float) -> None:
    ids = pushed(keyed, "a", "b", "c")
    wait_until(lambda: state_of(keyed, ids[0]) == "ready", "the first is ready")
    assert keyed.reschedule(ids[0 if which == "ready" else 1], delay=delay)
    # by its new time, which is later than the others'
    assert rest_of(taker, 3) == (["b", "c", "a"] if which == "ready" else ["a", "c", "b"])


@pytest.mark.parametrize("which", ["ready", "held", "dead"])
def test_a_replacement(keyed: Engine, taker: Consumer, which: str) -> None:
    pushed(keyed, "a", id="first")
    pushed(keyed, "b", id="second")
    if which == "dead":
        taker.bury(one(taker), "of no use")
    else:
        wait_until(lambda: state_of(keyed, f"{TOPIC}/k/first") == "ready", "the first is ready")
    replaced = keyed.push(
        "new", topic=TOPIC, key="k", id="second" if which == "held" else "first", on_conflict="replace"
    )
    assert replaced.outcome == "replaced"
    assert rest_of(taker, 2) == (["a", "new"] if which == "held" else ["b", "new"])


def test_a_replaced_lease_keeps_its_place_until_its_holder_is_told(keyed: Engine, taker: Consumer) -> None:
    pushed(keyed, "a", id="first")
    pushed(keyed, "b", id="second")
    running = one(taker)
    assert keyed.push("new", topic=TOPIC, key="k", id="first", on_conflict="replace").outcome == "replaced"
    assert taker.claim(5, wait=PAUSE_S) == [], "its handler runs on"
    taker.ack(running)  # replaced is no error of an ack
    assert rest_of(taker, 2) == ["b", "new"]


def test_a_replaced_lease_keeps_its_place_until_its_end(keyed: Engine, taker: Consumer) -> None:
    pushed(keyed, "a", id="first")
    pushed(keyed, "b", id="second")
    one(keyed.consumer(TOPIC, lease=0.5))
    began = time.monotonic()
    keyed.push("new", topic=TOPIC, key="k", id="first", on_conflict="replace")
    assert one(taker).payload == "b"
    assert time.monotonic() - began >= 0.3


@pytest.mark.parametrize("by", ["cancel", "tag", "purge"])
def test_a_replaced_lease_whose_new_task_is_taken_away(
    keyed: Engine, taker: Consumer, servers: Servers, name: str, by: str
) -> None:
    """Its handler runs on, and the key waits for it: not for the end of the lease."""
    pushed(keyed, "a", id="first")
    running = one(taker)
    replaced = keyed.push("new", topic=TOPIC, key="k", id="first", tags=["t"], on_conflict="replace")
    assert replaced.outcome == "replaced"
    if by == "cancel":
        assert keyed.cancel(replaced)
    elif by == "tag":
        assert keyed.cancel_all(tag="t").done == 1
    else:
        assert keyed.purge(TOPIC) == 1
    pushed(keyed, "b")
    assert taker.claim(5, wait=PAUSE_S) == [], "its handler runs on"
    (stats,) = keyed.keys(TOPIC)
    assert (stats.ready, stats.leased) == (0, 1)
    taker.ack(running)  # replaced is no error of an ack
    assert rest_of(taker, 1) == ["b"]
    assert left_of(servers, keyed, name) == {}


def test_a_replaced_lease_whose_new_task_is_taken_away_and_whose_holder_says_nothing(
    keyed: Engine, taker: Consumer, servers: Servers, name: str
) -> None:
    pushed(keyed, "a", id="first")
    one(keyed.consumer(TOPIC, lease=0.5))
    assert keyed.cancel(keyed.push("new", topic=TOPIC, key="k", id="first", on_conflict="replace"))
    pushed(keyed, "b")
    assert rest_of(taker, 1) == ["b"]
    assert left_of(servers, keyed, name) == {}


def test_the_id_of_a_replaced_lease_is_pushed_again(keyed: Engine, taker: Consumer) -> None:
    """What is pushed after the cancel waits for the handler, too."""
    pushed(keyed, "a", id="first")
    running = one(taker)
    assert keyed.cancel(keyed.push("new", topic=TOPIC, key="k", id="first", on_conflict="replace"))
    assert keyed.push("newer", topic=TOPIC, key="k", id="first").outcome == "pushed"
    assert taker.claim(5, wait=PAUSE_S) == [], "its handler runs on"
    taker.ack(running)
    assert rest_of(taker, 1) == ["newer"]


def left_of(servers: Servers, engine: Engine, name: str) -> dict[str, int]:
    """What a shard that has no task still has: leases and places."""
    keys = shard_keys(name, engine.topology.shard_of(of_key(TOPIC, "k")), keyed=True)
    counts = {"lease": servers.ask(keys.slot, "HLEN", keys.lease)}
    counts |= {each: servers.ask(keys.slot, "ZCARD", getattr(keys, each)) for each in ("keys", "placed", "alarms")}
    return {each: count for each, count in counts.items() if count}


@pytest.mark.parametrize("which", ["ready", "leased"])
def test_a_purge(keyed: Engine, taker: Consumer, which: str) -> None:
    ids = pushed(keyed, "a", "b", "c")
    wait_until(lambda: state_of(keyed, ids[0]) == "ready", "the first is ready")
    given = one(taker) if which == "leased" else None
    assert keyed.purge(TOPIC) == (2 if given else 3)
    pushed(keyed, "d")
    if given:
        assert taker.claim(5, wait=0.05) == []
        taker.ack(given)
    assert rest_of(taker, 1) == ["d"]


def test_what_is_forwarded_is_freed(keyed: Engine, servers: Servers, name: str) -> None:
    """All of a backlog leave, in their order."""
    to = f"{{{name}}}-list"
    keyed.push_many([Task(f"{n:02}", topic=TOPIC, key="k") for n in range(30)])
    keyed.forward(TOPIC, to=to)

    def forwarded() -> list[Any]:
        lists = [(each, key) for each in servers.masters for key in each.scan_iter(match=f"*{name}*-list*")]
        return [payload for each, key in lists for payload in each.lrange(key, 0, -1)]

    wait_until(lambda: len(forwarded()) == 30, "all are forwarded")
    assert [each.decode().strip('"') for each in forwarded()] == [f"{n:02}" for n in range(30)]


def test_what_expires_while_it_waits(keyed: Engine, taker: Consumer) -> None:
    pushed(keyed, "a")
    pushed(keyed, *["late"] * 20, expires=0.05)
    pushed(keyed, "b")
    given = one(taker)
    time.sleep(0.1)
    taker.ack(given)
    assert rest_of(taker, 1) == ["b"]


def test_what_a_tag_cancels(keyed: Engine, taker: Consumer) -> None:
    ids = pushed(keyed, "a", "b", tags=["t"])
    pushed(keyed, "c")
    wait_until(lambda: state_of(keyed, ids[0]) == "ready", "the first is ready")
    assert keyed.cancel_all(tag="t").done == 2
    assert rest_of(taker, 1) == ["c"]
