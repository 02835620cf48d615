"""Processes that wait for a topic: claim registers them, and each task that becomes ready wakes one, the longest
waiting first.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence

import pytest

from shardq.core.calls import consume
from shardq.core.calls.consume import Claim
from shardq.core.calls.request import Call
from shardq.core.layout.keys import ShardKeys
from tests.lua.shard import EPOCH, NOW, Shard, State, T, at, meta, named, record
from tests.lua.test_dispatch import dispatch

A = record("a")

HOUR = 3_600_000


def claim(
    keys: ShardKeys, topics: Sequence[str] = ("",), *, max: int = 10, waiter: str = "me", now_us: str = NOW
) -> Call[Claim]:
    return consume.claim(
        keys,
        EPOCH,
        dict.fromkeys(topics, max),
        max=max,
        lease_ms=30_000,
        token="tok",
        waiter=waiter,
    ).at(now_us)


def waiting(shard: Shard, topic: str = "") -> list[str]:
    return list(shard.state().get(f"waiting/{topic}", {}))


def ready(*ids: str) -> State:
    return {"ready/": list(ids), "task": dict.fromkeys(ids, A)}


def test_a_claim_waits_for_each_list_it_leaves_empty(shard: Shard, keys: ShardKeys) -> None:
    shard.seed({"meta": meta()} | ready("a") | {"ready/full": ["full/b", "full/c"]})
    answer = shard.run(claim(keys, ["", "full", "none"], max=1))
    assert (answer.left, answer.crowds) == ([0, 2, 0], [1, 0, 1])
    state = shard.state()
    assert {name: state[name] for name in state if name.startswith("waiting/")} == {
        "waiting/": {"me": T},
        "waiting/none": {"me": T},
    }


def test_who_does_not_wait_is_not_noted(shard: Shard, keys: ShardKeys) -> None:
    shard.seed({"meta": meta(), "waiting/": {"other": T}})
    answer = shard.run(claim(keys, waiter=""))
    assert (answer.left, answer.crowds) == ([0], [0])
    assert waiting(shard) == ["other"]


def test_twice_keeps_its_place(shard: Shard, keys: ShardKeys) -> None:
    assert shard.run(claim(keys)).crowds == [1]
    assert shard.run(claim(keys, waiter="other", now_us=at(5))).crowds == [2]
    assert shard.run(claim(keys, now_us=at(10))).crowds == [2]
    assert shard.state()["waiting/"] == {"me": T, "other": T + 5}


def test_who_did_not_come_back_for_an_hour_is_gone(shard: Shard, keys: ShardKeys) -> None:
    shard.seed({"meta": meta(), "waiting/": {"gone": T - HOUR, "there": T - HOUR + 1}})
    assert shard.run(claim(keys)).crowds == [2]
    assert waiting(shard) == ["there", "me"]


@pytest.mark.parametrize("due", [1, 2, 5])
def test_dispatch_wakes_one_for_each_task(shard: Shard, keys: ShardKeys, due: int) -> None:
    names = ["p1", "p2", "p3"]
    shard.seed(
        {
            "meta": meta(),
            "due": {f"i{n}": T for n in range(due)},
            "waiting/": {name: T - 9 + n for n, name in enumerate(names)},
            "waiting/mail": {"p1": T - 9},
        }
    )
    with shard.listener(*map(keys.wake, names)) as wakes:
        shard.run(dispatch(keys, ["", "mail"]))
        woken = names[:due]
        assert wakes.heard() == [(keys.wake(name), "") for name in woken]
    assert waiting(shard) == names[due:]
    assert waiting(shard, "mail") == ["p1"]


def test_topics_wake_in_the_order_in_which_they_had_something(shard: Shard, keys: ShardKeys) -> None:
    due, lapsed = ["sms", "mail", "a", "push", "b"], ["c", "mail", "fax"]
    order = [*due, "c", "fax"]
    shard.seed(
        {
            "meta": meta(),
            "due": {f"{topic}/i": T - 9 + n for n, topic in enumerate(due)},
            "leased": {f"{topic}/l": T - 9 + n for n, topic in enumerate(lapsed)},
            "lease": {f"{topic}/l": "0:0::tok" for topic in lapsed},
            **{f"waiting/{topic}": {"p": T} for topic in order},
        }
    )
    with shard.listener(keys.wake("p")) as wakes:
        shard.run(dispatch(keys, order))
        assert wakes.heard() == [(keys.wake("p"), topic) for topic in order]


def test_what_lapses_wakes_too_and_says_its_topic(shard: Shard, keys: ShardKeys) -> None:
    shard.seed(
        {
            "meta": meta(),
            "leased": {"mail/a": T},
            "lease": {"mail/a": "0:0::tok"},
            "waiting/mail": {"p1": T - 9, "p2": T - 8},
        }
    )
    with shard.listener(keys.wake("p1"), keys.wake("p2")) as wakes:
        shard.run(dispatch(keys, ["mail"]))
        assert wakes.heard() == [(keys.wake("p1"), "mail")]


def test_a_process_that_is_not_subscribed_is_passed_over(shard: Shard, keys: ShardKeys) -> None:
    shard.seed({"meta": meta(), "due": {"a": T}, "waiting/": {"gone": T - 9, "p1": T - 8, "p2": T - 7}})
    with shard.listener(keys.wake("p1"), keys.wake("p2")) as wakes:
        shard.run(dispatch(keys))
        assert wakes.heard() == [(keys.wake("p1"), "")]
    assert waiting(shard) == ["p2"]


def test_at_most_eight_wake_a_call(shard: Shard, keys: ShardKeys) -> None:
    names = [f"p{n}" for n in range(9)]
    due = {f"i{n}": T for n in range(9)}
    shard.seed({"meta": meta(), "due": due, "waiting/": {name: T + n for n, name in enumerate(names)}})
    with shard.listener(*map(keys.wake, names)) as wakes:
        shard.run(dispatch(keys))
        assert len(wakes.heard()) == 8
    assert waiting(shard) == ["p8"]


@pytest.mark.parametrize(("gone", "calls"), [(9, 1), (127, 1), (128, 2), (255, 2), (256, 3)])
def test_names_of_the_gone_are_passed_over(shard: Shard, keys: ShardKeys, gone: int, calls: int) -> None:
    """Where one call may draw no more of them, it says so, and wake goes on."""
    left = {f"gone{n}": T + n for n in range(gone)}
    shard.seed({"meta": meta(), "due": {"a": T}, "waiting/": left | {"p": T + gone}})
    with shard.listener(keys.wake("p")) as wakes:
        assert shard.run(dispatch(keys)).unheard == ("",) * (calls > 1)
        for call in range(1, calls):
            assert wakes.heard() == []
            assert shard.run(consume.wake(keys, EPOCH, "").at(NOW)) is (call < calls - 1)
        assert wakes.heard() == [(keys.wake("p"), "")]
    assert waiting(shard) == []


def test_topics_share_the_names_that_a_call_may_draw(shard: Shard, keys: ShardKeys) -> None:
    gone = {f"gone{n}": T + n for n in range(128)}
    waiting_ = {f"waiting/{topic}": gone | {"p": T + 128} for topic in ("mail", "sms")} | {"waiting/none": {}}
    due = {"mail/a": T - 3, "sms/a": T - 2, "none/a": T - 1}
    shard.seed({"meta": meta(), "due": due} | {name: names for name, names in waiting_.items() if names})
    with shard.listener(keys.wake("p")) as wakes:
        assert shard.run(dispatch(keys, ["mail", "sms", "none"])).unheard == ("mail", "sms")
        assert wakes.heard() == []
        assert shard.run(consume.wake(keys, EPOCH, "mail").at(NOW)) is False
        assert wakes.heard() == [(keys.wake("p"), "mail")]


def test_topics_share_the_processes_that_a_call_may_wake(shard: Shard, keys: ShardKeys) -> None:
    """Those for which no process may be woken any more are told, so that the poller calls wake for them."""
    topics = [f"t{n}" for n in range(12)]
    shard.seed(
        {
            "meta": meta(),
            "due": {f"{topic}/a": T - 20 + n for n, topic in enumerate(topics)},
            **{f"waiting/{topic}": {f"of-{topic}": T - 9} for topic in topics[:11]},
        }
    )
    with shard.listener(*(keys.wake(f"of-{topic}") for topic in topics)) as wakes:
        answer = shard.run(dispatch(keys, topics))
        assert wakes.heard() == [(keys.wake(f"of-{topic}"), topic) for topic in topics[:8]]
        assert answer.unheard == ("t8", "t9", "t10"), "nobody waits for the last one"
        for topic in answer.unheard:
            assert not shard.run(consume.wake(keys, EPOCH, topic).at(NOW))
        assert wakes.heard() == [(keys.wake(f"of-{topic}"), topic) for topic in topics[8:11]]


def test_a_process_that_ends_takes_its_name_along(shard: Shard, keys: ShardKeys) -> None:
    shard.seed({"meta": meta(), "waiting/mail": {"p1": T, "p2": T}})
    for _ in range(2):
        shard.run(consume.unregister(keys, "mail", "p1"))
        assert waiting(shard, "mail") == ["p2"]


def test_a_paused_topic_wakes_nobody(shard: Shard, keys: ShardKeys) -> None:
    shard.seed({"meta": meta(), "due": {"mail/a": T}, "waiting/mail": {"p1": T}})
    with shard.listener(keys.wake("p1")) as wakes:
        assert shard.run(dispatch(keys, ["mail"], paused=["mail"])).moved == 1
        assert wakes.heard() == []
    assert shard.state()["ready/mail"] == ["mail/a"]
    assert waiting(shard, "mail") == ["p1"]


def test_a_routed_topic_wakes_nobody(shard: Shard, keys: ShardKeys) -> None:
    shard.seed({"meta": meta(), "due": {"mail/a": T, "b": T}, "waiting/mail": {"p1": T}, "waiting/": {"p1": T}})
    with shard.listener(keys.wake("p1")) as wakes:
        assert shard.run(dispatch(keys, ["mail", ""], routed=["mail"])).moved == 2
        assert wakes.heard() == [(keys.wake("p1"), "")]
    assert waiting(shard, "mail") == ["p1"]


@pytest.mark.parametrize(("max", "woken"), [(1, ["p1"]), (2, []), (0, [])])
def test_a_claim_that_leaves_tasks_behind_wakes_the_next(
    shard: Shard, keys: ShardKeys, max: int, woken: list[str]
) -> None:
    shard.seed({"meta": meta(), "waiting/": {"p1": T - 9, "p2": T - 8}} | ready("a", "b"))
    with shard.listener(keys.wake("p1"), keys.wake("p2")) as wakes:
        shard.run(claim(keys, max=max, waiter=""))
        assert wakes.heard() == [(keys.wake(name), "") for name in woken]


@pytest.mark.parametrize("left", [0, 1])
def test_a_wake_up_is_passed_on_while_there_is_a_task(shard: Shard, keys: ShardKeys, left: int) -> None:
    before = {"meta": meta(), "waiting/": {"p1": T - 9, "p2": T - 8}} | ready(*["a"] * left)
    shard.seed({name: value for name, value in before.items() if value})
    with shard.listener(keys.wake("p1"), keys.wake("p2")) as wakes:
        assert shard.ask(consume.wake(keys, EPOCH, "").at(NOW)) == ["ok", 0]
        assert wakes.heard() == [(keys.wake("p1"), "")] * left
    assert waiting(shard) == ["p1", "p2"][left:]


def test_a_set_of_the_wrong_type_stops_nothing(shard: Shard, keys: ShardKeys) -> None:
    shard.seed({"meta": meta(), "due": {"c": T}} | ready("a", "b"))
    shard.do("SET", keys.waiting(""), "x")
    assert shard.run(dispatch(keys)).moved == 1
    assert shard.run(claim(keys, max=1)).ids == ["a"]
    shard.run(consume.wake(keys, EPOCH, "").at(NOW))
    answer = shard.run(claim(keys))
    assert (answer.left, answer.crowds) == ([0], [0])


@pytest.mark.parametrize("command", ["zadd", "zremrangebyscore", "zcard", "zpopmin", "spublish"])
def test_who_may_not_wait_or_wake_is_served_all_the_same(shard: Shard, keys: ShardKeys, command: str) -> None:
    shard.seed({"meta": meta(), "waiting/": {"p1": T - 9}, "task": {"mail/a": A}, "due": {"mail/a": T}})
    user = f"u{uuid.uuid4().hex}"
    shard.do("ACL", "SETUSER", user, "on", "nopass", "+@all", f"-{command}", "allchannels", "allkeys")
    with shard.as_user(user) as asker:
        assert asker.ask(claim(keys))[0] == "ok"
        assert named(asker.ask(dispatch(keys, ["mail"], routed=["mail"])))["routed"] == ["mail"]
        assert asker.ask(consume.wake(keys, EPOCH, "mail").at(NOW)) == ["ok", 0]
    shard.do("ACL", "DELUSER", user)


@pytest.mark.parametrize("wake_at", ["", T + 5])
def test_who_may_not_note_who_polls(shard: Shard, keys: ShardKeys, wake_at: str | int) -> None:
    shard.seed({"meta": meta(wake_at=wake_at), "task": {"mail/a": A}, "ready/mail": ["mail/a"]})
    user = f"u{uuid.uuid4().hex}"
    shard.do("ACL", "SETUSER", user, "on", "nopass", "+@all", "-hset", "allchannels", "allkeys")
    with shard.as_user(user) as asker:
        assert named(asker.ask(dispatch(keys, ["mail"], routed=["mail"])))["routed"] == ["mail"]
    shard.do("ACL", "DELUSER", user)
