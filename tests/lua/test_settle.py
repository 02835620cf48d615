"""settle and extend end or extend leases, and only by the token under which they were taken."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from shardq.core.calls import consume
from shardq.core.calls.consume import (
    OtherSettlement,
    SettleAck,
    SettleBury,
    SettleGiveBack,
    SettleRetry,
    SettleSnooze,
    SettleStatus,
)
from shardq.core.calls.request import Call
from shardq.core.layout.keys import ShardKeys
from tests.lua.shard import EPOCH, NOW, Case, Shard, State, T, at, meta, record, text
from tests.lua.test_claim import LEASE, claim
from tests.lua.test_dispatch import ATTEMPTS, dispatch

A, B = record("a"), record("b")
BOOMED = text(b"\x18\0\x0a\x81\xa1e\xda\0\4booma")
"""A with the reason of ``retry``."""


def settle(keys: ShardKeys, *items: SettleAck | OtherSettlement, now_us: str = NOW) -> Call[Any]:
    acks = [item for item in items if isinstance(item, SettleAck)]
    others = [item for item in items if not isinstance(item, SettleAck)]
    return consume.settle(keys, EPOCH, acks, others).at(now_us)


def retry(id: str, token: str = "tok", *, delay_ms: int = 500) -> SettleRetry:
    return SettleRetry(id, token, delay_ms, "boom", ATTEMPTS)


def held(entry: str = "0:0::tok", deadline: int = T + 9) -> State:
    """a and b, both leased; a's entry is given."""
    return {
        "task": {"a": A, "b": B},
        "leased": {"a": deadline, "b": deadline},
        "lease": {"a": entry, "b": "0:0::other"},
    }


REST: State = {"task": {"b": B}, "leased": {"b": T + 9}, "lease": {"b": "0:0::other"}}

DIED: State = {"dead": {"a": T}, "why": {"a": "boom"}, "meta": meta() | {"died/": "1"}}

SETTLES: dict[str, tuple[State, Sequence[SettleAck | OtherSettlement], list[Any], State]] = {
    "nothing": (held(), [], ["ok"], {}),
    "an ack": (held(), [SettleAck("a", "tok")], ["ok"], REST),
    "an ack after the deadline, but before it was taken back": (
        held(deadline=T - 9),
        [SettleAck("a", "tok")],
        ["ok"],
        REST | {"leased": {"b": T - 9}},
    ),
    "the last one": (
        {"task": {"a": A}, "leased": {"a": T}, "lease": {"a": "1:2:9:tok"}},
        [SettleAck("a", "tok")],
        ["ok"],
        {"task": None, "leased": None, "lease": None},
    ),
    "an ack under another token": (held(), [SettleAck("a", "tox")], ["ok", 1, "lost"], {}),
    "an ack under no token": (held("1:0::"), [SettleAck("a", "")], ["ok", 1, "lost"], {}),
    "an ack of what is gone": ({}, [SettleAck("a", "tok")], ["ok", 1, "lost"], {}),
    "an ack of what was taken back": (
        {"task": {"a": A}, "ready/": ["a"], "lease": {"a": "0:1::"}},
        [SettleAck("a", "tok")],
        ["ok", 1, "lost"],
        {},
    ),
    "an ack of what a push replaced": (
        {"task": {"a": A}, "due": {"a": T + 5}, "lease": {"a": "0:0::~tok"}},
        [SettleAck("a", "tok")],
        ["ok", 1, "replaced"],
        {},
    ),
    "a token that begins with a tilde is no way around": (
        {"task": {"a": A}, "due": {"a": T + 5}, "lease": {"a": "0:0::~tok"}},
        [SettleAck("a", "")],
        ["ok", 1, "lost"],
        {},
    ),
    "an ack of what was replaced, for another holder": (
        {"task": {"a": A}, "due": {"a": T + 5}, "lease": {"a": "0:0::~tok"}},
        [SettleAck("a", "tox")],
        ["ok", 1, "lost"],
        {},
    ),
    "a token with colons": (
        {"task": {"a": A}, "leased": {"a": T}, "lease": {"a": "0:0::me:1:2"}},
        [SettleAck("a", "me:1:2")],
        ["ok"],
        {"task": None, "leased": None, "lease": None},
    ),
    "one id twice": (held(), [SettleAck("a", "tok"), SettleAck("a", "tok")], ["ok"], REST),
    "a retry": (
        held(),
        [retry("a")],
        ["ok"],
        {
            "task": {"a": BOOMED, "b": B},
            "leased": {"b": T + 9},
            "lease": {"a": "1:0::", "b": "0:0::other"},
            "due": {"a": T + 500},
            "meta": meta(wake_at=T + 500),
        },
    ),
    "a retry without an attempt left": (
        held("1:1::tok"),
        [retry("a")],
        ["ok", 1, "dead"],
        DIED | {"leased": {"b": T + 9}, "lease": {"a": "2:1::", "b": "0:0::other"}},
    ),
    "a retry by its own limit": (
        held("4:4:10:tok"),
        [retry("a")],
        ["ok"],
        {
            "task": {"a": BOOMED, "b": B},
            "leased": {"b": T + 9},
            "lease": {"a": "5:4:10:", "b": "0:0::other"},
            "due": {"a": T + 500},
            "meta": meta(wake_at=T + 500),
        },
    ),
    "a retry past its own limit": (
        held("0:0:1:tok"),
        [retry("a")],
        ["ok", 1, "dead"],
        DIED | {"leased": {"b": T + 9}, "lease": {"a": "1:0:1:", "b": "0:0::other"}},
    ),
    "a burial": (
        held(),
        [SettleBury("a", "tok", "why not")],
        ["ok"],
        DIED | {"leased": {"b": T + 9}, "lease": {"a": "1:0::", "b": "0:0::other"}, "why": {"a": "why not"}},
    ),
    "given back unbegun: no attempt is counted, not even the last, and no dispatch": (
        {**held("1:1:2:tok"), "topics": {"": "3"}},
        [SettleGiveBack("a", "tok")],
        ["ok"],
        {
            "topics": {"": "2"},
            "leased": {"b": T + 9},
            "lease": {"a": "1:1:2:", "b": "0:0::other"},
            "due": {"a": T},
            "meta": meta(wake_at=T),
        },
    ),
    "a snooze: no attempt is counted, not even the last": (
        held("1:1:2:tok"),
        [SettleSnooze("a", "tok", 60_000)],
        ["ok"],
        {
            "leased": {"b": T + 9},
            "lease": {"a": "1:1:2:", "b": "0:0::other"},
            "due": {"a": T + 60_000},
            "meta": meta(wake_at=T + 60_000),
        },
    ),
    "others that are lost or replaced change nothing": (
        {
            "task": dict.fromkeys("abc", A),
            "due": {"c": T},
            "leased": {"a": T, "b": T},
            "lease": {"a": "0:0::x", "b": "0:0::y", "c": "0:0::~z"},
        },
        [
            retry("a", "y"),
            SettleBury("b", "x", "boom"),
            SettleGiveBack("b", ""),
            retry("c", "z"),
            retry("d"),
            SettleSnooze("c", "z", 5),
            SettleSnooze("a", "y", 5),
        ],
        ["ok", 1, "lost", 2, "lost", 3, "lost", 4, "replaced", 5, "lost", 6, "replaced", 7, "lost"],
        {},
    ),
    "positions count acks first": (
        {
            "task": dict.fromkeys("abcd", A),
            "leased": dict.fromkeys("abcd", T),
            "lease": dict.fromkeys("abcd", "0:2::tok"),
        },
        [SettleBury("d", "tok", "x"), SettleAck("a", "tok"), retry("c"), SettleAck("b", "tox")],
        ["ok", 2, "lost", 4, "dead"],
        {
            "task": dict.fromkeys("bcd", A),
            "leased": {"b": T},
            "lease": {"b": "0:2::tok", "c": "1:2::", "d": "1:2::"},
            "dead": {"c": T, "d": T},
            "why": {"c": "boom", "d": "x"},
            "meta": meta() | {"died/": "2"},
        },
    ),
}


@pytest.mark.parametrize("line", SETTLES.values(), ids=SETTLES)
def test_settle(
    shard: Shard,
    keys: ShardKeys,
    line: tuple[State, Sequence[SettleAck | OtherSettlement], list[Any], State],
) -> None:
    before, items, answer, after = line
    Case(lambda keys: settle(keys, *items), answer, before, after).check(shard, keys)


def test_verdicts_by_id(shard: Shard, keys: ShardKeys) -> None:
    shard.seed({"meta": meta()} | held("0:2::tok"))
    assert shard.run(settle(keys, SettleAck("b", "x"), SettleAck("c", "x"), retry("a"))) == {
        "b": "lost",
        "c": "lost",
        "a": "dead",
    }


def test_acks_of_several_claims_in_any_order(shard: Shard, keys: ShardKeys) -> None:
    leases = {"a": "0:0::x", "b": "0:0::y", "c": "1:0::x", "d": "0:0::~y", "e": "0:0::x", "f": "0:0::z"}
    shard.seed(
        {"meta": meta(), "task": dict.fromkeys(leases, A), "lease": leases, "leased": dict.fromkeys(leases, T + 9)}
    )
    acks = [("a", "x"), ("b", "y"), ("c", "x"), ("d", "y"), ("e", "z"), ("f", "z")]
    assert shard.run(settle(keys, *(SettleAck(*ack) for ack in acks))) == {"d": "replaced", "e": "lost"}
    state = shard.state()
    assert state["task"].keys() == state["lease"].keys() == state["leased"].keys() == {"d", "e"}


@pytest.mark.parametrize(
    "item",
    [
        SettleAck("a", "tok"),
        retry("a"),
        SettleBury("a", "tok", "x"),
        SettleGiveBack("a", "tok"),
        SettleSnooze("a", "tok", 9),
    ],
)
def test_twice_is_lost_and_changes_nothing_more(
    shard: Shard, keys: ShardKeys, item: SettleAck | OtherSettlement
) -> None:
    shard.seed({"meta": meta()} | held())
    call = settle(keys, item)
    assert shard.run(call) == {}
    state = shard.state()
    assert shard.run(call) == {"a": "lost"}
    assert shard.state() == state
    # and after a lost answer that means: done
    assert shard.run(call.after_loss()) == {}


def test_a_thousand_acks(shard: Shard, keys: ShardKeys) -> None:
    ids = [f"i{n}" for n in range(1000)]
    shard.seed(
        {
            "meta": meta(),
            "task": dict.fromkeys(ids, A),
            "leased": dict.fromkeys(ids, T),
            "lease": dict.fromkeys(ids, "0:0::tok"),
        }
    )
    assert shard.run(settle(keys, *(SettleAck(id, "tok") for id in ids))) == {}
    assert shard.state() == {"meta": meta()}


def extend(keys: ShardKeys, *items: SettleAck, lease_ms: int = 900) -> Call[Any]:
    return consume.extend(keys, EPOCH, items, lease_ms=lease_ms).at(NOW)


EXTENDS: dict[str, tuple[State, Sequence[SettleAck], list[Any], State]] = {
    "nothing": (held(), [], ["ok"], {}),
    "one": (
        held(),
        [SettleAck("a", "tok")],
        ["ok"],
        {"leased": {"a": T + 900, "b": T + 9}, "meta": meta(wake_at=T + 900)},
    ),
    "after the deadline, but before it was taken back": (
        held(deadline=T - 5),
        [SettleAck("a", "tok")],
        ["ok"],
        {"leased": {"a": T + 900, "b": T - 5}, "meta": meta(wake_at=T + 900)},
    ),
    "others lost, gone, replaced, and without a token": (
        held() | {"lease": {"a": "0:0::tok", "b": "0:0::other", "c": "0:0::~tok", "d": "1:0::"}},
        [
            SettleAck("b", "tok"),
            SettleAck("x", "tok"),
            SettleAck("a", "tok"),
            SettleAck("c", "tok"),
            SettleAck("d", ""),
        ],
        ["ok", 1, "lost", 2, "lost", 4, "replaced", 5, "lost"],
        {"leased": {"a": T + 900, "b": T + 9}, "meta": meta(wake_at=T + 900)},
    ),
    "to before the poller wakes": (
        held(deadline=T + 5000) | {"meta": meta(wake_at=T + 5000)},
        [SettleAck("a", "tok")],
        ["ok"],
        {"leased": {"a": T + 900, "b": T + 5000}, "meta": meta(wake_at=T + 900)},
    ),
    "to after it": (
        held() | {"meta": meta(wake_at=T + 9)},
        [SettleAck("a", "tok")],
        ["ok"],
        {"leased": {"a": T + 900, "b": T + 9}},
    ),
}


@pytest.mark.parametrize("line", EXTENDS.values(), ids=EXTENDS)
def test_extend(shard: Shard, keys: ShardKeys, line: tuple[State, Sequence[SettleAck], list[Any], State]) -> None:
    before, items, answer, after = line
    case = Case(lambda keys: extend(keys, *items), answer, before, after)
    case.check(shard, keys)
    # twice is harmless
    state = shard.state()
    assert shard.ask(extend(keys, *items)) == answer
    assert shard.state() == state


def test_extending_a_thousand(shard: Shard, keys: ShardKeys) -> None:
    ids = [f"i{n}" for n in range(1000)]
    shard.seed({"meta": meta(), "leased": dict.fromkeys(ids, T), "lease": dict.fromkeys(ids, "0:0::tok")})
    assert shard.run(extend(keys, *(SettleAck(id, "tok") for id in ids))) == {}
    assert shard.state()["leased"] == dict.fromkeys(ids, T + 900)


def given(shard: Shard, keys: ShardKeys) -> None:
    """a, under the lease tok until T + LEASE."""
    shard.seed({"meta": meta(), "ready/": ["a"], "task": {"a": A}})
    assert shard.run(claim(keys)).ids == ["a"]


def verdict(shard: Shard, keys: ShardKeys, token: str, ms: int) -> SettleStatus | None:
    verdict: SettleStatus | None = shard.run(settle(keys, SettleAck("a", token), now_us=at(ms))).get("a")
    return verdict


def test_an_ack_on_its_way_is_good_when_the_lease_was_extended(shard: Shard, keys: ShardKeys) -> None:
    given(shard, keys)
    assert shard.run(consume.extend(keys, EPOCH, [SettleAck("a", "tok")], lease_ms=LEASE).at(at(LEASE - 1))) == {}
    assert shard.run(dispatch(keys, now_us=at(2 * LEASE - 2))).reaped == 0
    assert verdict(shard, keys, "tok", 2 * LEASE) is None
    assert "task" not in shard.state()


def test_a_late_ack_is_good_until_the_task_was_taken_back(shard: Shard, keys: ShardKeys) -> None:
    given(shard, keys)
    assert verdict(shard, keys, "tok", LEASE + 5) is None
    assert shard.run(dispatch(keys, now_us=at(LEASE + 6))).reaped == 0


def test_a_late_ack_is_refused_afterwards(shard: Shard, keys: ShardKeys) -> None:
    given(shard, keys)
    assert shard.run(dispatch(keys, now_us=at(LEASE))).reaped == 1
    assert verdict(shard, keys, "tok", LEASE) == "lost"
    again = shard.run(claim(keys, token="tok2"))
    assert (again.ids, again.pasts) == (["a"], {0: (0, 1)})
    assert verdict(shard, keys, "tok", LEASE) == "lost"
    assert verdict(shard, keys, "tok2", LEASE) is None


def test_attempts_end(shard: Shard, keys: ShardKeys) -> None:
    """A failure and a lapse count alike; the last of ATTEMPTS is the end."""
    given(shard, keys)
    assert shard.run(settle(keys, retry("a", delay_ms=0))) == {}
    assert shard.run(dispatch(keys)).moved == 1
    assert shard.run(claim(keys, token="tok2")).pasts == {0: (1, 0)}
    assert shard.run(dispatch(keys, now_us=at(LEASE))).reaped == 1
    assert shard.run(claim(keys, token="tok3")).pasts == {0: (1, 1)}
    assert shard.run(settle(keys, retry("a", "tok3"))) == {"a": "dead"}
    assert shard.state() == {
        "meta": shard.state()["meta"],
        "task": {"a": BOOMED},
        "topics": {"": "1"},
        "dead": {"a": T},
        "why": {"a": "boom"},
        "lease": {"a": "2:1::"},
    }


def test_who_is_dead_already_is_not_counted_again(shard: Shard, keys: ShardKeys) -> None:
    """A call that was refused halfway may have left a task dead and leased."""
    before: State = {"meta": meta() | {"died/": "1"}, "task": {"a": A}, "dead": {"a": T - 9}, "why": {"a": "old"}}
    shard.seed(before | {"leased": {"a": T + 9}, "lease": {"a": "0:0::tok"}})
    assert shard.ask(consume.settle(keys, EPOCH, [], [SettleBury("a", "tok", "new")]).at(NOW)) == ["ok"]
    state = shard.state()
    assert state["meta"]["died/"] == "1"
    assert (state["dead"], state["why"]) == ({"a": T}, {"a": "new"})
