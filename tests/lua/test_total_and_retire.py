"""total and retire: the sums of a shard's topics, and topics that nobody uses."""

from __future__ import annotations

from typing import Any

import pytest

from shardq.core.calls import by_id, observe, resharding
from shardq.core.calls.observe import Total
from shardq.core.calls.request import Call
from shardq.core.layout.keys import ShardKeys
from tests.lua.shard import EPOCH, NOW, Shard, State, T, meta, raw, record

A = record("a")
DAY_MS = 86_400_000


def total(shard: Shard, keys: ShardKeys, *, count: int = 1000) -> list[Total]:
    pages = [shard.run(observe.total(keys, EPOCH, 0, count=count).at(NOW))]
    while pages[-1].cursor:
        pages.append(shard.run(observe.total(keys, EPOCH, pages[-1].cursor, count=count).at(NOW)))
    return pages


def test_total_of_nothing(shard: Shard, keys: ShardKeys) -> None:
    shard.seed({"meta": meta()})
    assert shard.run(observe.total(keys, EPOCH, 0, count=5).at(NOW)) == Total(*[0] * 8)


def test_total(shard: Shard, keys: ShardKeys) -> None:
    state: State = {
        "meta": meta(dispatched=40, died=6) | {"died/mail": "3", "died/gone": "100"},
        "task": dict.fromkeys(("a", "mail/b", "c", "d", "e", "mail/f"), A),
        "due": {"a": T},
        "leased": {"mail/b": T},
        "dead": {"c": T},
        "ready/": ["d", "e"],
        "ready/mail": ["mail/f"],
        "topics": {"": "11", "mail": "7", "other": "not a number"},
    }
    shard.seed(state)
    assert total(shard, keys) == [Total(0, 3, 3, 58, 9, 1, 0, 3)]
    assert shard.state() == state


def test_total_page_by_page(shard: Shard, keys: ShardKeys) -> None:
    """More than one HMGET bears, and more than a small hash has."""
    topics = {f"topic-{n:04}": f"{n}" for n in range(1100)}
    shard.seed({"meta": meta(dispatched=5) | dict.fromkeys((f"died/{topic}" for topic in topics), "2")})
    shard.do("HSET", keys.topics, *(word for pair in topics.items() for word in pair))
    for count in (10_000, 500):
        pages = total(shard, keys, count=count)
        assert sum(page.looked_at for page in pages) == 1100
        assert {page.topics for page in pages} == {1100}
        assert sum(page.dispatched for page in pages) == 5 + sum(range(1100))
        assert sum(page.died for page in pages) == 2200
    assert len(pages) in (2, 3)


def test_total_where_more_is_placed_than_stored(shard: Shard, keys: ShardKeys) -> None:
    shard.seed({"meta": meta(), "task": {"a": A}, "due": {"a": T, "without a record": T}})
    assert [page.ready for page in total(shard, keys)] == [0]


def retire(keys: ShardKeys, *topics: str, have_none: bool = False) -> Call[set[str]]:
    return observe.retire(keys, EPOCH, topics, idle_ms=DAY_MS, have_none=have_none).at(NOW)


OLD = T - DAY_MS


@pytest.mark.parametrize(
    ("stored", "mark", "after", "is_idle"),
    [
        *(
            ("7", None, f"7:{T}", False),
            ("7", f"7:{OLD}", f"7:{OLD}", True),
            ("7", f"7:{OLD + 1}", f"7:{OLD + 1}", False),
        ),
        *(
            ("7", f"6:{OLD}", f"7:{T}", False),
            ("6", f"7:{OLD}", f"6:{T}", False),
            ("-1", f"-1:{OLD}", f"-1:{OLD}", True),
        ),
        *(("7", f"7:{T}", f"7:{T}", False), ("7", f"7:{T + 1}", f"7:{T}", False), ("7", "what", f"7:{T}", False)),
        *(("x", f"0:{OLD}", f"0:{OLD}", True), (None, f"7:{OLD}", None, False), (None, None, None, False)),
    ],
)
def test_a_look(
    shard: Shard, keys: ShardKeys, stored: str | None, mark: str | None, after: str | None, is_idle: bool
) -> None:
    topics = {"topics": {"mail": stored, "other": "1"}} if stored else {"topics": {"other": "1"}}
    shard.seed({"meta": meta() | ({"idle/mail": mark} if mark else {})} | topics)
    assert shard.run(retire(keys, "mail")) == ({"mail"} if is_idle else set())
    assert shard.state() == {"meta": meta() | ({"idle/mail": after} if after else {})} | topics


IDLE = meta() | {
    "idle/mail": f"7:{OLD}",
    "died/mail": "3",
    "ghosts/mail": "1",
    "began/mail": f"7:{OLD}",
    "died/": "4",
    "idle/": f"9:{T}",
}


@pytest.mark.parametrize(
    ("before", "sums"),
    [
        ({}, ("7", "3")),
        ({"dispatched": "40", "died": "6"}, ("47", "9")),
        ({"dispatched": "x", "died": "y"}, ("7", "3")),
    ],
)
def test_what_is_retired_goes_with_its_counters_in_one_sum(
    shard: Shard, keys: ShardKeys, before: dict[str, str], sums: tuple[str, str]
) -> None:
    shard.seed({"meta": IDLE | before, "topics": {"mail": "7", "": "9"}, "looks": {"mail": "7:1", "": "9:1"}})
    was = total(shard, keys)[0]
    call = retire(keys, "", "mail", have_none=True)
    assert shard.ask(call) == ["ok", "mail"]
    left = meta(dispatched=sums[0], died=sums[1]) | {"died/": "4", "idle/": f"9:{T}"}
    assert shard.state() == {"meta": left, "topics": {"": "9"}, "looks": {"": "9:1"}}
    now = total(shard, keys)[0]
    assert (now.dispatched, now.died) == (was.dispatched, was.died)
    # twice is harmless
    assert shard.ask(call) == ["ok"]
    assert shard.state()["meta"] == left


@pytest.mark.parametrize("have_none", [False, True])
def test_what_is_ready_is_used(shard: Shard, keys: ShardKeys, have_none: bool) -> None:
    """An entry of a task that is gone, too: nobody would find its list."""
    shard.seed({"meta": IDLE, "topics": {"mail": "7"}, "ready/mail": ["mail/gone"]})
    assert shard.run(retire(keys, "mail", have_none=have_none)) == set()
    state = shard.state()
    assert (state["topics"], state["ready/mail"]) == ({"mail": "7"}, ["mail/gone"])
    assert "idle/mail" not in state["meta"]


@pytest.mark.parametrize("have_none", [False, True])
@pytest.mark.parametrize("is_there", [False, True])
def test_who_waits_for_a_topic_is_woken_and_who_is_gone_is_dropped(
    shard: Shard, keys: ShardKeys, have_none: bool, is_there: bool
) -> None:
    """Its process leaves its name again, and another day goes by."""
    shard.seed({"meta": IDLE, "topics": {"mail": "7"}, "waiting/mail": {"p1": T - 5}})
    channel = keys.wake("p1")
    with shard.listener(channel if is_there else keys.wake("another")) as ear:
        assert shard.run(retire(keys, "mail", have_none=have_none)) == set()
        assert ear.heard() == ([(channel, "mail")] if is_there else [])
    assert shard.state() == {"meta": IDLE | {"idle/mail": f"7:{T}"}, "topics": {"mail": "7"}}


PARCEL = resharding.MovingTask("mail/a", f"7|1|due|{T}|0|0|".encode() + raw(A))


@pytest.mark.parametrize("comes_late", [False, True])
@pytest.mark.parametrize("how", ["push", "push_unique", "a push whose answer was lost", "put"])
def test_a_task_that_comes_keeps_its_topic(shard: Shard, keys: ShardKeys, how: str, comes_late: bool) -> None:
    """Between the look that found nothing and the end of the topic; behind that it lists the topic anew."""
    push = by_id.push(keys, EPOCH, ["mail/a", 5, A]).at(NOW)
    calls: dict[str, Call[Any]] = {
        "push": push,
        "push_unique": by_id.push_unique(keys, EPOCH, ["mail/a", 5, A, "keep", 0]).at(NOW),
        "a push whose answer was lost": by_id.push(keys, EPOCH, ["mail/a", 5, A]).at(NOW).after_loss(),
        "put": resharding.put(keys, EPOCH, [PARCEL]).at(NOW),
    }
    shard.seed({"meta": IDLE, "topics": {"mail": "7"}, "staged": {"mail/a|7": ""}})
    assert shard.run(retire(keys, "mail")) == {"mail"}
    if comes_late:
        assert shard.run(retire(keys, "mail", have_none=True)) == {"mail"}
    shard.run(calls[how])
    if not comes_late:
        assert shard.run(retire(keys, "mail", have_none=True)) == set()
    assert shard.do("HGET", keys.topics, "mail") == ("0" if comes_late else "7")
