"""adopt stores tasks as they were elsewhere, each once: in every state, with keys and without, and sent again."""

from __future__ import annotations

from typing import Any

import pytest

from shardq.core.calls import by_id, consume, transfer
from shardq.core.calls.consume import SettleAck
from shardq.core.calls.request import Call, Word
from shardq.core.layout.keys import ShardKeys, shard_keys
from tests.lua.modelled import ModelledShard
from tests.lua.shard import EPOCH, NOW, Case, Shard, State, T, at, meta, record
from tests.support.heads import encode_head

A, B, C = (record(letter) for letter in "abc")

ONCE = "7-500"


def task(id: str, due: Word, stored: str = A, kind: str = "due", lease: str = "", why: str = "") -> list[Word]:
    return [id, due, stored, kind, lease, why]


def adopt(keys: ShardKeys, *tasks: list[Word], once: str = ONCE, earlier: Any = "0", now: str = NOW) -> Call[Any]:
    return transfer.adopt(keys, EPOCH, [word for each in tasks for word in each], once=once, earlier=earlier).at(now)


def marks(*ids: str, nonce: int = 7, until: int = T + 500) -> dict[str, int]:
    return {f"{id}\n{nonce}": until for id in ids}


CASES = {
    "scheduled, ready and dead": Case(
        lambda keys: adopt(
            keys,
            task("a", T + 70, A, "due", "2:1::"),
            task("mail/b", 0, B, "first"),
            task("c", T - 50, C, "dead", "1:0::", "boom"),
        ),
        ["ok", "adopted", "adopted", "adopted"],
        {},
        {
            "meta": meta(wake_at=T),
            "task": {"a": A, "mail/b": B, "c": C},
            "due": {"a": T + 70, "mail/b": T},
            "dead": {"c": T - 50},
            "why": {"c": "boom"},
            "lease": {"a": "2:1::", "c": "1:0::"},
            "seen": marks("a", "mail/b", "c"),
        },
    ),
    "none": Case(lambda keys: adopt(keys), ["ok"]),
    "what is there stays as it is": Case(
        lambda keys: adopt(keys, *(task(id, T + 9, B) for id in ("due", "ready", "leased", "dead"))),
        ["ok", "kept:scheduled", "kept:ready", "kept:leased", "kept:dead"],
        {
            "task": dict.fromkeys(("due", "ready", "leased", "dead"), A),
            "due": {"due": T + 5},
            "ready/": ["ready"],
            "leased": {"leased": T + 5},
            "dead": {"dead": T},
        },
        {"seen": marks("due", "ready", "leased", "dead")},
    ),
    "one id twice": Case(
        lambda keys: adopt(keys, task("a", T + 9, A), task("a", T + 5, B), task("c", T, C, "dead"), task("c", T, B)),
        ["ok", "adopted", "kept:scheduled", "adopted", "kept:dead"],
        {},
        {
            "meta": meta(wake_at=T + 9),
            "task": {"a": A, "c": C},
            "due": {"a": T + 9},
            "dead": {"c": T},
            "why": {"c": ""},
            "seen": marks("a", "c"),
        },
    ),
    "an open window, one that has ended, and a mark that has": Case(
        lambda keys: adopt(keys, task("a", T + 9), task("b", T + 9), task("c", T + 9)),
        ["ok", "seen", "adopted", "adopted"],
        {"seen": {"a": T + 1, "b": T, "c\n7": T}},
        {
            "meta": meta(wake_at=T + 9),
            "task": {"b": A, "c": A},
            "due": {"b": T + 9, "c": T + 9},
            "seen": {"a": T + 1, "b": T} | marks("a", "b", "c"),
        },
    ),
    "known is nothing any more, and noted for longer": Case(
        lambda keys: adopt(keys, task("a", T + 9), task("b", T + 9)),
        ["ok", "known", "adopted"],
        {"seen": {"a\n7": T + 1, "b\n8": T + 100}},
        {
            "meta": meta(wake_at=T + 9),
            "task": {"b": A},
            "due": {"b": T + 9},
            "seen": {"b\n8": T + 100} | marks("a", "b"),
        },
    ),
    "a shard that may have them from earlier": Case(
        lambda keys: adopt(keys, task("a", T + 9), task("b", T + 9), task("c", T + 9), earlier="1"),
        ["ok", "elsewhere", "kept:scheduled", "moving"],
        {"task": {"b": A}, "due": {"b": T + 5}, "moved": {"c": "n1|2|…"}},
        {"seen": marks("b")},
    ),
    "nothing new rings nobody": Case(
        lambda keys: adopt(keys, task("a", T + 9)),
        ["ok", "kept:scheduled"],
        {"meta": meta(wake_at=T - 900), "task": {"a": A}, "due": {"a": T + 5}},
        {"seen": marks("a")},
    ),
    "what was moving is there": Case(
        lambda keys: adopt(keys, task("c", T + 9), earlier="2"), ["ok", "elsewhere"], {"moved": {"c": "n1|2|…"}}
    ),
    "moving at its home": Case(
        lambda keys: adopt(keys, task("c", T + 9), task("d", T + 9)),
        ["ok", "moving", "adopted"],
        {"moved": {"c": "n1|2|…"}},
        {"meta": meta(wake_at=T + 9), "task": {"d": A}, "due": {"d": T + 9}, "seen": marks("d")},
    ),
    "a delay": Case(
        lambda keys: adopt(keys, task("a", -30)),
        ["ok", "adopted"],
        {"meta": meta(wake_at=T + 10)},
        {"task": {"a": A}, "due": {"a": T + 30}, "seen": marks("a")},
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_it_adopts(shard: Shard, keys: ShardKeys, case: Case) -> None:
    case.check(shard, keys)


def test_an_expiry_from_now_on_becomes_an_instant(shard: Shard, keys: ShardKeys) -> None:
    def stored(expires: int) -> str:
        head = encode_head(expires=expires)
        assert head is not None
        return f"\x18\0{chr(len(head))}{head.decode('utf-8', 'surrogateescape')}x"

    shard.seed({"meta": meta()})
    shard.run(adopt(keys, task("a", 0, stored(-500))))
    assert shard.state()["task"] == {"a": stored(T + 500)}


def test_a_task_that_is_done_is_not_made_again(shard: Shard, keys: ShardKeys) -> None:
    shard.seed({"meta": meta()})
    assert shard.run(adopt(keys, task("a", T + 9))) == ["adopted"]
    assert shard.run(by_id.cancel(keys, EPOCH, "a").at(NOW))
    assert shard.run(adopt(keys, task("a", T + 9))) == ["known"]
    assert shard.run(adopt(keys, task("a", T + 9), now=at(499))) == ["known"], "each send notes it anew"
    assert shard.run(adopt(keys, task("a", T + 9), now=at(999))) == ["adopted"]
    shard.run(by_id.cancel(keys, EPOCH, "a").at(NOW))
    assert shard.run(adopt(keys, task("a", T + 9), once="8-500")) == ["adopted"], "of another import"


@pytest.mark.parametrize("command", ["HDEL", "HSETNX", "SPUBLISH"])
def test_what_is_beside_it_is_no_reason_to_fail(modelled: ModelledShard, keys: ShardKeys, command: str) -> None:
    modelled.seed({"meta": meta()})
    assert modelled.refusal(adopt(keys, task("a", 0)), without=command) == ""
    assert modelled.state()["task"] == {"a": A}


# ---- with keys

LANE: State = {"meta": meta(**{"keys/w": "1:0:wait", "keys/v": "2:0:skip"})}


@pytest.fixture
def lanes(name: str) -> ShardKeys:
    return shard_keys(name, 1, keyed=True)


def entered(modelled: ModelledShard, keys: ShardKeys, *tasks: list[Word], before: State = LANE) -> State:
    modelled.seed(before)
    assert modelled.run(adopt(keys, *tasks)) == ["adopted"] * len(tasks)
    return modelled.state()


def test_what_waits_stands_in_its_lane_by_its_due_time(modelled: ModelledShard, lanes: ShardKeys) -> None:
    state = entered(modelled, lanes, task("w/k/late", T + 900), task("w/k/soon", T + 5), task("w/k/held", T - 5))
    assert [*state["keys"]] == [
        f"w/k/{0:02}{T - 5}/held",
        f"w/k/{0:02}{T + 5}/soon",
        f"w/k/{0:02}{T + 900}/late",
    ]
    assert state["due"]["w/k/held"] == 4_000_000_000_000_000 + T - 5
    assert state["alarms"] == {"w/k/": T - 5}


def test_what_was_out_and_what_waits_for_its_retry_go_to_the_front(modelled: ModelledShard, lanes: ShardKeys) -> None:
    state = entered(
        modelled,
        lanes,
        task("w/k/held", T - 5),
        task("w/k/was", 0, A, "first"),
        task("w/l/held", T - 5),
        task("w/l/failed", T + 90, A, "retry", "1:0::"),
        task("v/m/failed", T + 90, A, "retry", "1:0::"),
    )
    assert [*state["keys"]] == [
        f"v/m/{0:02}{T + 90}/failed",
        f"w/k/-{0:014}/was",
        f"w/k/{0:02}{T - 5}/held",
        f"w/l/-{0:014}/failed",
        f"w/l/{0:02}{T - 5}/held",
    ]
    # the lane of one that waits for its retry waits for it
    assert state["alarms"] == {"w/k/": T, "w/l/": T + 90, "v/m/": T + 90}


def test_a_lane_that_comes_in_a_change_of_shards_is_shut(modelled: ModelledShard, lanes: ShardKeys) -> None:
    before: State = {"meta": LANE["meta"] | {"since": "3", "numbers": "1,2"}}
    state = entered(modelled, lanes, task("w/k/a", f"{T} "), task("w/l/b", f"{T} ", A, "dead"), before=before)
    assert state["gates"] == {"w/k/": "shut:3", "w/l/": "shut:3"}
    assert "alarms" not in state


def test_a_lane_that_does_not_move_is_not_shut(modelled: ModelledShard, lanes: ShardKeys) -> None:
    before: State = {"meta": LANE["meta"] | {"since": "3", "numbers": "1,2"}}
    state = entered(modelled, lanes, task("w/k/a", T), before=before)
    assert (state.get("gates"), state["alarms"]) == (None, {"w/k/": T})


def test_what_goes_to_the_front_puts_the_alarm_of_its_lane_off(modelled: ModelledShard, lanes: ShardKeys) -> None:
    modelled.seed(LANE)
    modelled.run(adopt(lanes, task("w/k/held", T - 5)))
    modelled.run(adopt(lanes, task("w/k/failed", T + 90, A, "retry", "1:0::")))
    assert modelled.state()["alarms"] == {"w/k/": T + 90}


@pytest.mark.parametrize(("plain", "keyed"), [(50, 900), (900, 50)])
def test_the_earliest_rings(modelled: ModelledShard, lanes: ShardKeys, plain: int, keyed: int) -> None:
    state = entered(modelled, lanes, task("a", T + plain), task("w/k/b", T + keyed))
    assert state["meta"]["wake_at"] == f"{T + 50}"


def test_a_lane_that_is_full_gives_nothing(modelled: ModelledShard, lanes: ShardKeys) -> None:
    before: State = {
        "meta": LANE["meta"],
        "task": {"w/k/out": A},
        "leased": {"w/k/out": T + 5000},
        "lease": {"w/k/out": "0:0::tok"},
        "placed": {"w/k/out": 0},
    }
    state = entered(modelled, lanes, task("w/k/a", 0, A, "first"), before=before)
    assert "alarms" not in state
    modelled.run(consume.settle(lanes, EPOCH, [SettleAck("w/k/out", "tok")]).at(NOW))
    assert modelled.state()["alarms"] == {"w/k/": T}
