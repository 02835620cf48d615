"""The commands that a script makes its server do, on the model: these, in this order, and no other.

A script that asks for what it knows, or removes what is not there, gives the same answer, and holds its server longer.
"""

from __future__ import annotations

from typing import Any, Literal

import pytest

from shardq.core.calls import consume, dispatch
from shardq.core.calls.consume import SettleAck, SettleRetry
from shardq.core.calls.request import Call
from shardq.core.layout.keys import shard_keys
from tests.lua.inner import GUARD, Watched, lines, words_of
from tests.lua.shard import EPOCH, NOW, State, T, meta, record, text
from tests.lua.test_claim import expiring

KEYS = shard_keys("x", 1)
A = record("a")
LEASE_MS = 30_000
"""So long that the poller steps before it ends: it rings nobody."""


def claim(shares: dict[str, int], *, lease_ms: int = LEASE_MS, waiter: str = "") -> Call[Any]:
    return consume.claim(KEYS, EPOCH, shares, max=1000, lease_ms=lease_ms, token="t", waiter=waiter).at(NOW)


def forward(side: Literal["left", "right", "stream"] = "right", limit: int = 1000) -> Call[Any]:
    return dispatch.forward(KEYS, EPOCH, "", to=KEYS.ready("theirs"), side=side, limit=limit).at(NOW)


def dispatched(*topics: str, paused: tuple[str, ...] = ()) -> Call[Any]:
    return dispatch.dispatch(KEYS, EPOCH, topics, limit=1000, max_attempts=9, paused=paused).at(NOW)


def settle(*acks: str, retries: tuple[str, ...] = ()) -> Call[Any]:
    others = [SettleRetry(id, "t", 50, "boom", None) for id in retries]
    return consume.settle(KEYS, EPOCH, [SettleAck(id, "t") for id in acks], others).at(NOW)


def tasks(*ids: str) -> dict[str, str]:
    return dict.fromkeys(ids, A)


def held(*ids: str) -> State:
    return {"task": tasks(*ids), "leased": dict.fromkeys(ids, T), "lease": dict.fromkeys(ids, "0:0::t")}


CLAIMS: dict[str, tuple[State, Call[Any], list[str]]] = {
    "nothing is there": ({}, claim({"": 5}), ["LRANGE ready/ 0 4"]),
    "nothing is there, and it waits": (
        {},
        claim({"": 5}, waiter="p1"),
        [
            "LRANGE ready/ 0 4",
            f"ZADD waiting/ NX {T} p1",
            f"ZREMRANGEBYSCORE waiting/ -inf {T - 3_600_000}",
            "ZCARD waiting/",
        ],
    ),
    "fewer are there than it takes": (
        {"task": tasks("a", "b"), "ready/": ["a", "b"]},
        claim({"": 5}),
        [
            "LRANGE ready/ 0 4",
            "HLEN ghost",
            "ZCARD leased",
            "HLEN lease",
            "HMGET task a b",
            "LTRIM ready/ 2 -1",
            f"ZADD leased {T + LEASE_MS} a {T + LEASE_MS} b",
            "HSET lease a 0:0::t b 0:0::t",
        ],
    ),
    "the second of two lists has more, and somebody waits for it": (
        {"task": tasks("a", "mail/b"), "ready/": ["a"], "ready/mail": ["mail/b", "mail/c"], "waiting/mail": {"p2": T}},
        claim({"": 5, "mail": 1}, lease_ms=100),
        [
            "LRANGE ready/ 0 4",
            "HLEN ghost",
            "ZCARD leased",
            "HLEN lease",
            "HMGET task a",
            "LRANGE ready/mail 0 0",
            "HMGET task mail/b",
            "LTRIM ready/ 1 -1",
            "LTRIM ready/mail 1 -1",
            f"ZADD leased {T + 100} a {T + 100} mail/b",
            "HSET lease a 0:0::t mail/b 0:0::t",
            "LLEN ready/mail",
            "ZPOPMIN waiting/mail",
            "SPUBLISH wake/p2 mail",
            "ZPOPMIN waiting/mail",  # the one before did not hear it
            f"HSET meta wake_at {T + 100}",
            "SPUBLISH bell ''",
        ],
    ),
    "one failed before": (
        {"task": tasks("a", "b"), "ready/": ["a", "b"], "lease": {"b": "1:0::"}},
        claim({"": 5}),
        [
            "LRANGE ready/ 0 4",
            "HLEN ghost",
            "ZCARD leased",
            "HLEN lease",
            "HMGET task a b",
            "HMGET lease a b",
            "LTRIM ready/ 2 -1",
            f"ZADD leased {T + LEASE_MS} a {T + LEASE_MS} b",
            "HSET lease a 0:0::t b 1:0::t",
        ],
    ),
    "two are dropped": (
        {"task": {"old": expiring(T - 1)}, "ready/": ["stale", "old"], "ghost": {"stale": "1"}},
        claim({"": 5}),
        [
            "LRANGE ready/ 0 4",
            "HLEN ghost",
            "ZCARD leased",
            "HLEN lease",
            "HMGET ghost stale old",
            "HMGET task stale old",
            "ZCARD dead",
            "HLEN why",
            "HDEL meta ''",
            "LTRIM ready/ 0 -1",
            f"ZADD dead {T} old",
            "HSET why old expired",
            "HINCRBY meta died/ 1",
            "HDEL ghost stale",
            "HGET meta ghosts/",
            "LTRIM ready/ 2 -1",
        ],
    ),
}

LOOKS = ["HLEN ghost", "HLEN lease", "ZCARD dead", "HLEN why", "LLEN ready/theirs"]
"""What forward asks before all else: a key of another type must stop it before anything is written."""

FORWARDS: dict[str, tuple[State, Call[Any], list[str]]] = {
    "nothing is there": ({}, forward(), [*LOOKS, "LRANGE ready/ 0 999"]),
    "nothing is there, and ghosts elsewhere": (
        {"ghost": {"mail/stale": "1"}},
        forward(),
        [*LOOKS, "LRANGE ready/ 0 999"],
    ),
    "fewer are there than it takes": (
        {"task": tasks("a", "b"), "ready/": ["a", "b"]},
        forward(),
        [
            *LOOKS,
            "LRANGE ready/ 0 999",
            "HMGET task a b",
            "HDEL meta ''",
            "LTRIM ready/ 0 -1",
            "RPUSH ready/theirs a a",
            "LTRIM ready/ 2 -1",
            "HDEL task a b",
            "HINCRBY meta forwarded 2",
            "LLEN ready/",
        ],
    ),
    "some have leases behind them": (
        {"task": tasks("a", "b"), "ready/": ["a", "b"], "lease": {"b": "1:0::"}},
        forward("left", limit=1),
        [
            *LOOKS,
            "LRANGE ready/ 0 0",
            "HMGET task a",
            "HDEL meta ''",
            "LTRIM ready/ 0 -1",
            "LPUSH ready/theirs a",
            "LTRIM ready/ 1 -1",
            "HDEL task a",
            "HDEL lease a",
            "HINCRBY meta forwarded 1",
            "LLEN ready/",
        ],
    ),
}

SETTLEMENTS: dict[str, tuple[State, Call[Any], list[str]]] = {
    "acks": (
        held("a", "b"),
        settle("a", "b"),
        [
            *("ZCARD leased", "ZCARD due", "ZCARD dead", "HLEN why"),
            "HMGET lease a b",
            "HDEL task a b",
            "HDEL lease a b",
            "ZREM leased a b",
        ],
    ),
    "an ack and a retry": (
        {"meta": meta(wake_at=T)} | held("a", "b"),
        settle("a", retries=("b",)),
        [
            *("ZCARD leased", "ZCARD due", "ZCARD dead", "HLEN why"),
            "HMGET lease a",
            "HDEL task a",
            "HDEL lease a",
            "ZREM leased a",
            "HGET lease b",
            "HDEL meta ''",
            f"ZADD due {T + 50} b",
            "HGET task b",
            "HSET task b " + text(b"\x18\0\x0a\x81\xa1e\xda\0\4booma"),
            "HSET lease b 1:0::",
            "ZREM leased b",
        ],
    ),
    "what nobody holds": (
        {},
        settle("a"),
        ["ZCARD leased", "ZCARD due", "ZCARD dead", "HLEN why", "HMGET lease a"],
    ),
}

DUE = [f"ZRANGEBYSCORE due -inf {T} LIMIT 0 1000", "ZRANGE leased 0 0 WITHSCORES"]
HEADS = [f"ZRANGE {key} 0 0 WITHSCORES" for key in ("seen", "due")]
"""What dispatch reads to know when to come back: one entry of each, as of the leases."""

DISPATCHES: dict[str, tuple[State, Call[Any], list[str]]] = {
    "nothing is due, as it knew": (
        {"meta": meta(wake_at=T + 50), "due": {"a": T + 50}},
        dispatched(""),
        [*DUE, *HEADS],
    ),
    "one topic": (
        {"due": {"a": T - 5, "b": T, "c": T + 9}},
        dispatched(""),
        [
            *DUE,
            "ZSCORE due a",
            "ZSCORE due b",
            "ZREMRANGEBYRANK due 0 1",
            "RPUSH ready/ a b",
            "HINCRBY topics '' 2",
            f"HSET meta began/ 2:{T}",
            *HEADS,
            f"HSET meta wake_at {T + 9} late 0",
            "ZPOPMIN waiting/",
        ],
    ),
    "two topics, of which one is paused": (
        {"due": {"a": T - 5, "mail/b": T}, "waiting/mail": {"p1": T}},
        dispatched("", "mail", paused=("mail",)),
        [
            *DUE,
            "ZSCORE due a",
            "ZSCORE due mail/b",
            "ZREM due a",
            "RPUSH ready/ a",
            "HINCRBY topics '' 1",
            f"HSET meta began/ 1:{T}",
            "ZREM due mail/b",
            "RPUSH ready/mail mail/b",
            "HINCRBY topics mail 1",
            f"HSET meta began/mail 1:{T}",
            *HEADS,
            "HSET meta wake_at '' late 0",
            "ZPOPMIN waiting/",
        ],
    ),
    "a lease and a window ran out": (
        {"leased": {"a": T}, "lease": {"a": "0:0::t"}, "seen": {"a": T - 1, "b": T + 9}},
        dispatched(""),
        [
            *DUE,
            f"ZRANGEBYSCORE leased -inf {T} LIMIT 0 200",
            "HMGET lease a",
            "ZREM leased a",
            "LPUSH ready/ a",
            "HSET lease a 0:1::",
            "HGET topics ''",
            f"HSET meta began/ 0:{T}",
            "ZRANGE leased 0 0 WITHSCORES",
            "ZRANGE seen 0 0 WITHSCORES",
            f"ZRANGEBYSCORE seen -inf {T} LIMIT 0 500",
            "ZREMRANGEBYRANK seen 0 0",
            "ZRANGE seen 0 0 WITHSCORES",
            "ZRANGE due 0 0 WITHSCORES",
            f"HSET meta wake_at {T + 1000} late -1",
            "HINCRBY meta reaped 1",
            "ZPOPMIN waiting/",
        ],
    ),
}

TABLES = {"claim": CLAIMS, "forward": FORWARDS, "settle": SETTLEMENTS, "dispatch": DISPATCHES}
EVERY = {f"{script}: {what}": case for script, cases in TABLES.items() for what, case in cases.items()}


@pytest.mark.parametrize(("state", "call", "commands"), EVERY.values(), ids=EVERY)
def test_commands(state: State, call: Call[Any], commands: list[str]) -> None:
    made = Watched(KEYS, {"meta": meta()} | state).made(call)
    assert [line for line in lines(made) if not line.startswith("unpack ")] == [GUARD, *commands]


FILLED = {
    "leased": [f"ZADD leased {T + LEASE_MS} FILLER", "ZREM leased FILLER"],
    "lease": ["HSET lease '' FILLER", "HDEL lease ''"],
}


@pytest.mark.parametrize(("leased", "filled"), [(0, ("leased", "lease")), (129, ("lease",)), (513, ())])
def test_a_large_claim_makes_tables_of_small_keys_alone(leased: int, filled: tuple[str, ...]) -> None:
    """A key of more than 128 members, or of more than 512 fields, is a table already."""
    ids, others = [f"i{n}" for n in range(17)], [f"held{n}" for n in range(leased)]
    state = held(*others) | {"meta": meta(), "task": tasks(*ids), "ready/": ids}
    made = lines(Watched(KEYS, state).made(claim({"": 17})))
    assert [line for line in made if "FILLER" in line or line == "HDEL lease ''"] == [
        line for key in filled for line in FILLED[key]
    ]


def test_forward_stops_at_the_first_entry_that_a_stream_refuses() -> None:
    watched = Watched(KEYS, {"meta": meta(), "task": tasks("a", "b"), "ready/": ["a", "b"]})
    made = watched.made(forward("stream"), denied="XADD")
    assert words_of(made, "XADD") == [["ready/theirs", "*", "id", "a", "payload", "a"]]
    assert lines(made)[-1].startswith("XADD ")
