"""What a script makes its server do with lanes, on the model: these commands on what is stored of them, in this order,
and no other. What a shard has nothing of is not asked for, nor removed.
"""

from __future__ import annotations

from typing import Any

import pytest

from shardq.core.calls import by_id, consume, dispatch
from shardq.core.calls.consume import SettleAck, SettleGiveBack
from shardq.core.calls.lane_control import FAR_MS
from shardq.core.calls.request import Call
from shardq.core.layout.keys import shard_keys
from tests.lua.inner import Watched, lines, words_of
from tests.lua.shard import EPOCH, NOW, State, T, meta, record

KEYS = shard_keys("x", 1, keyed=True)
FAR = int(FAR_MS)
KEPT = [[key] for key in ("keys", "placed", "alarms", "rests", "holds", "gates")]
A = record("a")


def rules(window: str = "", **fields: object) -> State:
    return {"meta": meta(**({"keys/w": window} if window else {}), **fields)}


def keyed(ids: tuple[str, ...]) -> list[str]:
    return [id for id in ids if id.count("/") == 2]


def waiting(*tasks: tuple[str, int]) -> State:
    return {
        "task": {id: A for id, _ in tasks},
        "due": {id: FAR + at for id, at in tasks},
        "keys": {f"{id.rpartition('/')[0]}/{at:015}/{id.rpartition('/')[2]}": 0 for id, at in tasks},
    }


def leased(*ids: str) -> State:
    return {
        "task": dict.fromkeys(ids, A),
        "leased": dict.fromkeys(ids, T + 9),
        "lease": dict.fromkeys(ids, "0:0::t"),
        "placed": dict.fromkeys(keyed(ids), 0),
    }


def ready(*ids: str, untaken: bool = False) -> State:
    placed = [f"{mark}{id}" for id in keyed(ids) for mark in (("", "!") if untaken else ("",))]
    return {"task": dict.fromkeys(ids, A), "ready/w": list(ids), "placed": dict.fromkeys(placed, 0)}


def both(*states: State) -> State:
    whole: State = {}
    for state in states:
        for name, value in state.items():
            whole[name] = whole[name] | value if name in whole else value
    return whole


def acked(*ids: str, handing: tuple[str, ...] = ()) -> Call[Any]:
    return consume.settle(KEYS, EPOCH, [SettleAck(id, "t") for id in ids], handing=handing).at(NOW)


def claimed(most: int = 9) -> Call[Any]:
    return consume.claim(KEYS, EPOCH, {"w": most}, max=most, lease_ms=30_000, token="t").at(NOW)


IDS = tuple(f"w/{key}/a" for key in "klmnop")
HALF_MS = "1:0.500000:wait"

CASES: dict[str, tuple[State, Call[Any], list[str]]] = {
    "cancel of the only one": (
        both(rules(), waiting(("w/k/a", T))),
        by_id.cancel(KEYS, EPOCH, "w/k/a").at(NOW),
        [
            f"ZREM keys w/k/{T:015}/a",
            "ZMSCORE alarms w/k/a",
            "HMGET meta keys/w lowered/w",
            "ZLEXCOUNT placed [w/k/ (w/k0",
            "ZREM alarms w/k/",
        ],
    ),
    "ack, nothing waits": (
        both(rules(), leased(*IDS[:2])),
        acked(*IDS[:2]),
        [
            "ZREM placed w/k/a w/l/a",
            "HMGET meta keys/w lowered/w",
        ],
    ),
    "ack of one without a key beside one": (
        both(rules(), leased("w/a", "w/k/a")),
        acked("w/a", "w/k/a"),
        [
            "ZREM placed w/k/a",
            "HMGET meta keys/w lowered/w",
        ],
    ),
    "claim of one without a key beside one with a rate": (
        both(rules("1:200:wait"), ready("w/a", "w/k/a", untaken=True)),
        claimed(),
        [
            "HMGET meta keys/w lowered/w",
            "ZREM placed !w/k/a",
            f"ZADD rests {T}.000 w/k/",
            "ZLEXCOUNT placed [!w/k/ (!w/k0",
            "ZLEXCOUNT placed [w/k/ (w/k0",
            "ZREM alarms w/k/",
        ],
    ),
    "forward of one without a key beside two": (
        both(rules(), ready("w/a", *IDS[:2])),
        dispatch.forward(KEYS, EPOCH, "w", to=f"{KEYS.prefix}to", side="right", limit=9).at(NOW),
        [
            "HMGET meta keys/w lowered/w",
            "ZREM placed w/k/a w/l/a",
        ],
    ),
    "forward before one at the front, whose due time it is not given": (
        both(rules(), ready("w/k/a"), {"due": {"w/k/b": FAR + T}, "keys": {f"w/k/-{0:014}/b": 0}}),
        dispatch.forward(KEYS, EPOCH, "w", to=f"{KEYS.prefix}to", side="right", limit=9).at(NOW),
        [
            "HMGET meta keys/w lowered/w",
            "ZREM placed w/k/a",
            "ZRANGEBYLEX keys [w/k/ + LIMIT 0 16",
            "ZADD alarms LT 0 w/k/",
        ],
    ),
    "ack of two that others follow": (
        both(rules(), leased(*IDS[:2]), waiting(("w/k/b", T + 5), ("w/l/b", T + 5))),
        acked(*IDS[:2]),
        [
            "ZREM placed w/k/a w/l/a",
            "HMGET meta keys/w lowered/w",
            "ZRANGEBYLEX keys [w/k/ + LIMIT 0 16",
            f"ZADD alarms LT {T + 5} w/k/ {T + 5} w/l/",
        ],
    ),
    "ack of two beside holds": (
        both(rules(), leased(*IDS[:2]), waiting(("w/k/b", T)), {"holds": {"w/l/": f"{T + 9}:9", "w/z/": "5:5"}}),
        acked(*IDS[:2]),
        [
            "ZREM placed w/k/a w/l/a",
            "HGETALL holds",
            "HMGET meta keys/w lowered/w",
            "ZRANGEBYLEX keys [w/k/ + LIMIT 0 16",
            f"ZADD alarms LT {T} w/k/ {T + 9} w/l/",
        ],
    ),
    "ack of three beside a turn": (
        both(rules("2:200:wait"), leased(*IDS[:3]), {"rests": {"w/z/": T}}),
        acked(*IDS[:3]),
        [
            "ZREM placed w/k/a w/l/a w/m/a",
            "ZREM rests w/k/a w/l/a w/m/a",
            "HMGET meta keys/w lowered/w",
            "ZMSCORE rests w/k/ w/l/ w/m/",
        ],
    ),
    "ack of four beside a turn": (
        both(rules("2:200:wait"), leased(*IDS[:4]), {"rests": {"w/z/": T}}),
        acked(*IDS[:4]),
        [
            "ZREM placed w/k/a w/l/a w/m/a w/n/a",
            "ZCOUNT rests -inf (0",
            "HMGET meta keys/w lowered/w",
            "ZMSCORE rests w/k/ w/l/ w/m/ w/n/",
        ],
    ),
    "ack beside what is ready at a rate": (
        both(rules(**{"keys/v": "1:200:wait"}), leased("w/k/a"), {"placed": {"v/k/a": 0, "!v/k/a": 0}}),
        acked("w/k/a"),
        [
            "HMGET meta keys/w lowered/w",
            "ZREM placed w/k/a",
        ],
    ),
    "a place is handed over": (
        both(rules(), leased("w/k/a"), waiting(("w/k/b", T))),
        acked("w/k/a", handing=("w",)),
        [
            "ZREM placed w/k/a",
            "HMGET meta keys/w lowered/w",
            "ZRANGEBYLEX keys [w/k/ + LIMIT 0 16",
            f"ZREM keys w/k/{T:015}/b",
            "ZADD placed 0 w/k/b",
        ],
    ),
    "given back unbegun": (
        both(rules(), leased("w/k/a"), waiting(("w/k/b", T))),
        consume.settle(KEYS, EPOCH, [], [SettleGiveBack("w/k/a", "t")]).at(NOW),
        [
            "HMGET meta keys/w lowered/w",
            "ZADD keys 0 w/k/-00000000000000/a",
            "ZREM placed w/k/a",
            "ZLEXCOUNT placed [w/k/ (w/k0",
            "ZRANGEBYLEX keys [w/k/ + LIMIT 0 16",
            f"ZADD alarms {T} w/k/",
        ],
    ),
    "given back beside another of its lane": (
        both(rules("2:0:wait"), leased("w/k/a", "w/k/c"), waiting(("w/k/b", T))),
        consume.settle(KEYS, EPOCH, [], [SettleGiveBack("w/k/a", "t")]).at(NOW),
        [
            "HMGET meta keys/w lowered/w",
            "ZADD keys 0 w/k/-00000000000000/a",
            "ZREM placed w/k/a",
            "ZLEXCOUNT placed [w/k/ (w/k0",
            "ZRANGEBYLEX keys [w/k/ (w/k0 LIMIT 0 1",
            "ZMSCORE placed w/k/a",
            f"ZADD alarms {T} w/k/",
        ],
    ),
    "claim of two with a rate": (
        both(rules("1:200:wait"), ready(*IDS[:2], untaken=True), {"rests": {"w/k/": T - 5, "w/l/": T - 5}}),
        claimed(),
        [
            "HMGET meta keys/w lowered/w",
            "ZREM placed !w/k/a !w/l/a",
            "ZMSCORE rests w/k/ w/l/",
            f"ZADD rests {T + 195}.000 w/k/ {T + 195}.000 w/l/",
            "ZMSCORE rests w/k/ w/l/",
            "ZLEXCOUNT placed [!w/k/ (!w/k0",
            "ZLEXCOUNT placed [w/k/ (w/k0",
            "ZLEXCOUNT placed [!w/l/ (!w/l0",
            "ZLEXCOUNT placed [w/l/ (w/l0",
            "ZREM alarms w/k/ w/l/",
        ],
    ),
    "claim at a rate that has not begun": (
        both(rules("1:200:wait"), ready(*IDS[:2], untaken=True), waiting(("w/k/b", T))),
        claimed(),
        [
            "HMGET meta keys/w lowered/w",
            "ZREM placed !w/k/a !w/l/a",
            f"ZADD rests {T}.000 w/k/ {T}.000 w/l/",
            "ZLEXCOUNT placed [!w/k/ (!w/k0",
            "ZLEXCOUNT placed [w/k/ (w/k0",
            "ZLEXCOUNT placed [!w/l/ (!w/l0",
            "ZLEXCOUNT placed [w/l/ (w/l0",
            "ZREM alarms w/k/ w/l/",
        ],
    ),
    "claim at a rate of half a ms": (
        both(rules(HALF_MS), ready("w/k/a", untaken=True)),
        claimed(),
        [
            "HMGET meta keys/w lowered/w",
            "ZREM placed !w/k/a",
            f"ZADD rests {T}.000 w/k/",
            "ZLEXCOUNT placed [!w/k/ (!w/k0",
            "ZLEXCOUNT placed [w/k/ (w/k0",
            "ZREM alarms w/k/",
        ],
    ),
    "push at a rate of half a ms": (
        both(rules(HALF_MS), {"rests": {"w/k/": T + 0.25}}),
        by_id.push(KEYS, EPOCH, ["w/k/a", T, A]).at(NOW),
        [
            f"ZADD keys 0 w/k/{T:015}/a",
            "HMGET meta keys/w lowered/w",
            "ZMSCORE rests w/k/",
            "ZLEXCOUNT placed [w/k/ (w/k0",
            f"ZADD alarms LT {T}.75 w/k/",
        ],
    ),
    "claim of what a lifted rate made ready": (
        both(rules("1:0:wait", **{"lowered/w": ""}), ready("w/k/a", untaken=True)),
        claimed(),
        [
            "HMGET meta keys/w lowered/w",
            "ZRANGEBYLEX placed [w/k/ (w/k0 LIMIT 0 1000",
            "ZMSCORE alarms w/k/a",
            "ZREM placed !w/k/a",
            "ZRANGEBYLEX placed [w/ (w0 LIMIT 0 1",
            "ZLEXCOUNT placed [w/k/ (w/k0",
            "ZRANGEBYLEX placed [w/k0 (w0 LIMIT 0 1",
            "ZLEXCOUNT placed [!w/ (!w0",
            "ZLEXCOUNT placed [w/k/ (w/k0",
            "ZREM alarms w/k/",
        ],
    ),
    "claim of what is on hold": (
        both(
            rules("3:0:wait"),
            ready("w/k/a", "w/k/b"),
            {"rests": {"w/k/b": -7}, "holds": {"w/k/": f"{T + 900}:900"}},
        ),
        claimed(),
        [
            "HMGET meta keys/w lowered/w",
            "HGETALL holds",
            "ZMSCORE rests w/k/a w/k/b",
            "ZADD keys 0 w/k/-00000000000000/a",
            "ZADD keys 0 w/k/-00000000000007/b",
            "ZREM placed w/k/a w/k/b",
            "ZREM rests w/k/a w/k/b",
            f"ZADD alarms {T + 900} w/k/",
        ],
    ),
}


def of_lanes(made: list[list[str]]) -> list[str]:
    """Without the looks of the beginning."""
    some = [words for words in made if words[1:2] in KEPT or words[:2] == ["HMGET", "meta"]]
    first = next(place for place, words in enumerate(some) if words[1] == "gates") + 1
    return lines(some[first:])


@pytest.mark.parametrize(("state", "call", "commands"), CASES.values(), ids=CASES)
def test_commands(state: State, call: Call[Any], commands: list[str]) -> None:
    assert of_lanes(Watched(KEYS, state).made(call)) == commands


def test_alarms_are_written_for_a_thousand_lanes_at_once() -> None:
    """A script can give a command some thousands of words."""
    tasks = [(f"w/{number}/a", T) for number in range(1000)]
    lapsed = [f"w/x{number}/a" for number in range(3)]
    turns = {id[:-1]: T for id, _ in tasks}
    state = both(rules("1:200:wait"), waiting(*tasks), leased(*lapsed), {"rests": turns, "alarms": turns})
    watched = Watched(KEYS, state | {"leased": dict.fromkeys(lapsed, T)})
    made = watched.made(dispatch.dispatch(KEYS, EPOCH, ("w",), limit=1000, max_attempts=9).at(NOW))
    assert [len(words) // 2 for words in words_of(made, "ZADD", "alarms")] == [1000, 3]
    told = watched.server.command(b"ZRANGE", KEYS.alarms.encode(), b"0", b"-1", b"WITHSCORES")
    assert {lane.decode(): float(at) for lane, at in zip(told[::2], told[1::2], strict=True)} == {
        **dict.fromkeys(turns, T + 200),
        **{id[:-1]: T for id in lapsed},
    }
