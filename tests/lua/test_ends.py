"""settle and cancel keep the ends of tasks in a ring, bounded in number and age; and nothing where none are kept."""

from __future__ import annotations

from typing import Any

import pytest

from shardq.core.calls import by_id, consume
from shardq.core.calls.consume import SettleAck
from shardq.core.calls.request import Call
from shardq.core.layout.keys import ShardKeys
from shardq.core.model.ends import End, Ring
from shardq.core.model.record import JSON, RAW, encode_head, encode_record, with_push
from tests.lua.modelled import ModelledShard
from tests.lua.shard import EPOCH, NOW, ON_BOTH, Shard, State, T, at, meta, record, text

A = record("a")
AGE_MS = 7_000_000
TURN_MS = AGE_MS // 7


def leased(*ids: str, entry: str = "0:0::me-1:7") -> State:
    return {
        "meta": meta(),
        "task": dict.fromkeys(ids, A),
        "leased": dict.fromkeys(ids, T + 9),
        "lease": dict.fromkeys(ids, entry),
    }


def acks(
    keys: ShardKeys, *ids: str, most: int = 9, now_us: str = NOW, said: str = "5::", token: str = "me-1:7"
) -> Call[Any]:
    rule = f"{AGE_MS}:{most}"
    ends = {id: said for id in ids if not id.startswith("none/")}
    return consume.settle(keys, EPOCH, [SettleAck(id, token) for id in ids], ends_rule=rule, ends=ends).at(now_us)


def slots(state: State) -> dict[str, set[str]]:
    return {name: set(value) for name, value in state.items() if name.startswith("ends/")}


@ON_BOTH
def test_an_ack_leaves_an_end(shard: Shard, keys: ShardKeys) -> None:
    shard.seed(leased("a", "b"))
    assert shard.run(acks(keys, "a", said="12:1700:KeyError")) == {}
    assert shard.state() == leased("b") | {
        "meta": meta(ends=f"0:{T}"),
        "ends/0": {"a": f"{T}:d:0:0:me-1:12:1700:KeyError"},
    }
    assert 0 < shard.do("PTTL", keys.ends[0]) <= AGE_MS * 8 // 7 + 1
    # the second one goes to the slot that is filled
    assert shard.run(acks(keys, "b", now_us=at(1))) == {}
    assert slots(shard.state()) == {"ends/0": {"a", "b"}}


@pytest.mark.parametrize("url", ["single"], indirect=True)
def test_who_keeps_none_gives_no_key_and_no_word(shard: Shard, keys: ShardKeys) -> None:
    plain = consume.settle(keys, EPOCH, [SettleAck("a", "me-1:7")])
    none = consume.settle(keys, EPOCH, [SettleAck("a", "me-1:7")], ends_rule="7:9", ends={})
    assert (plain.keys, plain.words) == (none.keys, none.words)
    assert not set(keys.ends) & set(plain.keys)
    shard.seed(leased("a"))
    assert shard.run(plain) == {}
    assert shard.state() == {"meta": meta()}


def test_only_what_was_done_has_one(modelled: ModelledShard, keys: ShardKeys) -> None:
    """Not what was lost or replaced, is asked for twice, or is of a topic that keeps none."""
    modelled.seed(leased("a", "none/b", "c", "d"))
    modelled.do("HSET", keys.lease, "c", "0:0::~me-1:7", "d", "2:1::me-1:7")
    call = acks(keys, "x", "a", "none/b", "c", "d")
    assert modelled.run(call) == {"x": "lost", "c": "replaced"}
    assert modelled.state()["ends/0"] == {"a": f"{T}:d:0:0:me-1:5::", "d": f"{T}:d:2:1:me-1:5::"}
    # its answer was lost
    assert modelled.run(call.after_loss()) == {"c": "replaced"}
    assert modelled.state()["ends/0"].keys() == {"a", "d"}


def test_acks_of_several_tokens_and_other_settlements_in_one_call(modelled: ModelledShard, keys: ShardKeys) -> None:
    modelled.seed(leased("a", "b", "c"))
    modelled.do("HSET", keys.lease, "b", "0:0::you-2:1#4", "c", "0:0::me-1:7")
    call = consume.settle(
        keys,
        EPOCH,
        [SettleAck("a", "me-1:7"), SettleAck("b", "you-2:1#4")],
        [consume.SettleBury("c", "me-1:7", "no")],
        ends_rule=f"{AGE_MS}:9",
        ends={"a": "1::", "b": "2::"},
    )
    assert modelled.run(call.at(NOW)) == {}
    state = modelled.state()
    assert state["ends/0"] == {"a": f"{T}:d:0:0:me-1:1::", "b": f"{T}:d:0:0:you-2:2::"}
    assert state["dead"] == {"c": T}


def test_the_ring_turns_by_number(modelled: ModelledShard, keys: ShardKeys) -> None:
    ids = [f"i{n:02}" for n in range(25)]
    modelled.seed(leased(*ids))
    for id in ids:
        assert modelled.run(acks(keys, id, most=3)) == {}
    state = modelled.state()
    # the ninth slot is the first one again
    assert slots(state) == {f"ends/{n}": set(ids[3 * n : 3 * n + 3]) for n in range(1, 8)} | {"ends/0": {"i24"}}
    assert state["meta"]["ends"] == "0" + f":{T}" * 8


@pytest.mark.parametrize(("most", "kept"), [(1, 8), (3, 24), (100, 40)])
def test_one_call_brings_no_more_than_the_ring_has_room_for(
    modelled: ModelledShard, keys: ShardKeys, most: int, kept: int
) -> None:
    ids = [f"i{n:02}" for n in range(40)]
    modelled.seed(leased(*ids))
    assert modelled.run(acks(keys, *ids, most=most)) == {}
    state = modelled.state()
    assert set().union(*slots(state).values()) == set(ids[-kept:])
    assert state.keys() == {"meta", *slots(state)}


def test_the_ring_turns_by_age(modelled: ModelledShard, keys: ShardKeys) -> None:
    ids = [f"i{n}" for n in range(10)]
    modelled.seed(leased(*ids))
    for n, id in enumerate(ids):
        assert modelled.run(acks(keys, id, now_us=at(n * TURN_MS))) == {}
    state = modelled.state()
    assert set().union(*slots(state).values()) == set(ids[2:])
    ring = Ring.read(state["meta"]["ends"].encode())
    assert ring.slots == tuple((n % 8, T + n * TURN_MS) for n in range(9, 1, -1))


def test_a_clock_that_goes_back_loses_none(modelled: ModelledShard, keys: ShardKeys) -> None:
    modelled.seed(leased("a", "b"))
    assert modelled.run(acks(keys, "a")) == {}
    assert modelled.run(acks(keys, "b", now_us=at(-AGE_MS))) == {}
    assert slots(modelled.state()) == {"ends/0": {"a", "b"}}


@pytest.mark.parametrize("words", ["", "9:5", "3", "3:", "x"])
def test_what_another_program_has_written_as_its_state_is_begun_anew(
    modelled: ModelledShard, keys: ShardKeys, words: str
) -> None:
    modelled.seed(leased("a") | {"meta": meta(ends=words)})
    assert modelled.run(acks(keys, "a")) == {}
    assert modelled.state() == {"meta": meta(ends=f"0:{T}"), "ends/0": {"a": f"{T}:d:0:0:me-1:5::"}}


FAILED = "Traceback …\nmail.errors.Refused: order-42 of ann@example.org"

CANCELLED: dict[str, tuple[State, str]] = {
    "scheduled": ({"task": {"a": A}, "due": {"a": T + 9}}, "0:0:::"),
    "ready": ({"task": {"a": A}, "ready/": ["a"], "topics": {"": "1"}}, "0:0:::"),
    "waiting for a retry": (
        {
            "task": {"a": text(encode_record(RAW, b"a", b"\x81\xa1e\xda\0\x0cKeyError: 42"))},
            "due": {"a": T + 9},
            "lease": {"a": "2:1::"},
        },
        "2:1:::",
    ),
    "dead": (
        {"task": {"a": A}, "dead": {"a": T - 9}, "why": {"a": FAILED}, "lease": {"a": "3:0::"}},
        "3:0:::",
    ),
    "dead, of a reason in words": (
        {"task": {"a": A}, "dead": {"a": T - 9}, "why": {"a": "lost with its worker"}, "lease": {"a": "0:3::"}},
        "0:3:::",
    ),
}
CLASSES = {"waiting for a retry": "KeyError", "dead": "mail.errors.Refused"}


@pytest.mark.parametrize("name", CANCELLED)
def test_a_cancel_leaves_an_end(modelled: ModelledShard, keys: ShardKeys, name: str) -> None:
    before, told = CANCELLED[name]
    modelled.seed({"meta": meta()} | before)
    assert modelled.run(by_id.cancel(keys, EPOCH, "a", ends_rule=f"{AGE_MS}:9").at(NOW)) == "cancelled"
    state = modelled.state()
    assert state["ends/0"] == {"a": f"{T}:c:{told}:{CLASSES.get(name, '')}"}
    end = End.read("a", state["ends/0"]["a"].encode())
    assert end is not None
    assert (end.state, end.holder, end.took_ms) == ("cancelled", None, None)


@pytest.mark.parametrize(
    ("head", "pushed"),
    [
        (None, ""),
        (encode_head(expires=5), ""),
        (encode_head(nonce=1 << 30), "-"),
        (encode_head(nonce=5, expires=5), "-"),
        (encode_head(nonce=1 << 30, pushed=1_700_000_000), "1700000000"),
        (encode_head(nonce=5, expires=5, pushed=1_700_000_000), "1700000000"),
    ],
)
def test_the_end_says_when_it_was_pushed(
    modelled: ModelledShard, keys: ShardKeys, head: bytes | None, pushed: str
) -> None:
    stored = encode_record(JSON, 1, head)
    modelled.seed({"meta": meta(), "task": {"a": text(stored)}, "due": {"a": T + 9}})
    assert modelled.run(by_id.cancel(keys, EPOCH, "a", ends_rule=f"{AGE_MS}:9").at(NOW)) == "cancelled"
    assert modelled.state()["ends/0"] == {"a": f"{T}:c:0:0:::{pushed}:"}
    if pushed == "-" or head is None:
        late = with_push(stored, 1_700_000_000)
        modelled.seed({"meta": meta(), "task": {"a": text(late)}, "due": {"a": T + 9}})
        assert modelled.run(by_id.cancel(keys, EPOCH, "a", ends_rule=f"{AGE_MS}:9").at(NOW)) == "cancelled"
        assert modelled.state()["ends/0"] == {"a": f"{T}:c:0:0:::1700000000:"}


@pytest.mark.parametrize("state", [{}, leased("a")], ids=["gone", "running"])
def test_a_cancel_of_nothing_leaves_none(modelled: ModelledShard, keys: ShardKeys, state: State) -> None:
    modelled.seed({"meta": meta()} | state)
    assert not modelled.run(by_id.cancel(keys, EPOCH, "a", ends_rule=f"{AGE_MS}:9").at(NOW))
    assert slots(modelled.state()) == {}
    assert not modelled.run(by_id.cancel(keys, EPOCH, "a", once="7-50", earlier="1", ends_rule="5:9").at(NOW))


def test_a_cancel_that_is_sent_again_leaves_one(modelled: ModelledShard, keys: ShardKeys) -> None:
    modelled.seed({"meta": meta(), "task": {"a": A}, "due": {"a": T + 9}})
    call = by_id.cancel(keys, EPOCH, "a", once="7-50", ends_rule=f"{AGE_MS}:9").at(NOW)
    assert modelled.run(call)
    assert modelled.run(call.after_loss())
    assert slots(modelled.state()) == {"ends/0": {"a"}}
