"""Likewise of scripts that run less often: the commands that each makes its server do, on the model."""

from __future__ import annotations

from typing import Any

import pytest

from shardq.core.calls import by_id, consume, control, listing, observe, resharding
from shardq.core.calls.listing import Span
from shardq.core.calls.request import Call
from shardq.core.layout.keys import control_keys, shard_keys
from shardq.core.layout.topology import Limit
from shardq.features.schedules import requests
from shardq.features.schedules.requests import Change
from tests.lua.inner import GUARD, Watched, lines, words_of
from tests.lua.shard import EPOCH, NOW, State, T, meta, record

KEYS = shard_keys("x", 1)
CONTROL = control_keys("x")
A = record("a")
TAGGED = record("a", tags=("tag",))
RUNG = meta(wake_at=T)
"""The meta of a shard whose poller comes now: nobody rings."""


def push_unique(id: str, mode: str, window: int | str = 0) -> Call[Any]:
    return by_id.push_unique(KEYS, EPOCH, [id, T, A, mode, window]).at(NOW)


def take(*ids: str) -> Call[Any]:
    return resharding.take(KEYS, EPOCH, "n1", 2, ids).at(NOW)


def peek(*topics: str) -> Call[Any]:
    return observe.peek(KEYS, EPOCH, topics).at(NOW)


def tasks(*ids: str) -> dict[str, str]:
    return dict.fromkeys(ids, A)


KINDS = ["ZCARD due", "ZCARD leased", "HLEN lease", "ZCARD dead", "HLEN why", "HLEN ghost", "ZCARD seen", "HLEN moved"]
"""What push_unique asks before all else: a key of another type must stop it before anything is written."""

PUSHES: dict[str, tuple[State, Call[Any], list[str]]] = {
    "push: new": (
        {},
        by_id.push(KEYS, EPOCH, ["a", 0, A]).at(NOW),
        [
            "HMGET task a",
            f"ZADD due {T} a",
            f"HSET task a {A}",
            "HSETNX topics '' 0",
            "HDEL meta idle/",
            f"HSET meta wake_at {T}",
            "SPUBLISH bell ''",
        ],
    ),
    "push: new, for later than the poller comes": (
        {"meta": RUNG},
        by_id.push(KEYS, EPOCH, ["a", T + 1, A]).at(NOW),
        ["HMGET task a", f"ZADD due {T + 1} a", f"HSET task a {A}", "HSETNX topics '' 0", "HDEL meta idle/"],
    ),
    "push_unique: new": (
        {"meta": RUNG},
        push_unique("a", "keep"),
        [
            *KINDS,
            "HGET task a",
            "ZSCORE seen a",
            "HEXISTS moved a",
            f"ZADD due {T} a",
            f"HSET task a {A}",
            "HSETNX topics '' 0",
            "HDEL meta idle/",
        ],
    ),
    "push_unique: replaces a ready one": (
        {"meta": RUNG, "task": tasks("a"), "ready/": ["a"]},
        push_unique("a", "replace"),
        [
            *KINDS,
            "HGET task a",
            *("ZSCORE due a", "ZSCORE leased a", "ZSCORE dead a", "HEXISTS task a"),
            f"ZADD due {T} a",
            "HGET ghost a",
            "HSET ghost a 1",
            *("HGET meta ghosts/", "HSET meta ghosts/ 1"),
            f"HSET task a {A}",
            "HSETNX topics '' 0",
            "HDEL meta idle/",
            "HGET lease a",
            "HDEL lease a",
        ],
    ),
    "cancel: a ready one": (
        {"task": tasks("a"), "ready/": ["a"]},
        by_id.cancel(KEYS, EPOCH, "a").at(NOW),
        [
            *("ZSCORE due a", "ZSCORE leased a", "ZSCORE dead a", "HEXISTS task a"),
            "HLEN lease",
            "HLEN why",
            "HDEL meta ''",
            "HGET ghost a",
            "HSET ghost a 1",
            *("HGET meta ghosts/", "HSET meta ghosts/ 1"),
            "HDEL task a",
            "HDEL lease a",
        ],
    ),
    "restore": (
        {"meta": RUNG, "task": tasks("a")},
        observe.restore(KEYS, EPOCH, "a").at(NOW),
        [
            *("ZSCORE due a", "ZSCORE leased a", "ZSCORE dead a", "HEXISTS task a"),
            *("LLEN ready/", "HGET ghost a", "LPOS ready/ a COUNT 1"),
            "HDEL meta ''",
            f"ZADD due {T} a",
            "HSETNX topics '' 0",
        ],
    ),
}

MOVES: dict[str, tuple[State, Call[Any], list[str]]] = {
    "take: two that are scheduled": (
        {"task": tasks("a", "b"), "due": {"a": T, "b": T}},
        take("a", "b"),
        [
            "ZCARD dead",
            "HLEN lease",
            "HMGET task a b",
            "ZMSCORE due a b",
            "HDEL meta ''",
            f"HSET moved a n1|2|due|{T}|0|0|{A} b n1|2|due|{T}|0|0|{A}",
            "HDEL task a b",
            "ZREM due a b",
            "HINCRBY meta moved 2",
        ],
    ),
    "take: one that is dead, and has no reason": (
        {"task": tasks("a"), "dead": {"a": T}},
        take("a"),
        [
            "ZCARD dead",
            "HLEN lease",
            "HMGET task a",
            "ZMSCORE due a",
            "ZMSCORE dead a",
            "HGET why a",
            "HDEL meta ''",
            f"HSET moved a n1|2|dead|{T}|0|0|{A}",
            "HDEL task a",
            "ZREM dead a",
            "HDEL why a",
            "HINCRBY meta moved 1",
        ],
    ),
    "take: two, of which one has failed before": (
        {"task": tasks("a", "b"), "due": {"a": T, "b": T}, "lease": {"a": "1:0::"}},
        take("a", "b"),
        [
            "ZCARD dead",
            "HLEN lease",
            "HMGET task a b",
            "ZMSCORE due a b",
            "HMGET lease a b",
            "HDEL meta ''",
            f"HSET moved a n1|2|due|{T}|5|0|1:0::{A} b n1|2|due|{T}|0|0|{A}",
            "HDEL task a b",
            "ZREM due a b",
            "HDEL lease a",
            "HINCRBY meta moved 2",
        ],
    ),
    "reserve: a few": (
        {},
        resharding.reserve(KEYS, EPOCH, "n1", ["a", "b"]).at(NOW),
        ["HLEN staged", "HSET staged a|n1 '' b|n1 ''"],
    ),
}

FAR = 4_000_000_000_000_000
"""What has a key stands so far behind its due time."""

TYPES = ["HLEN task", "HLEN lease", "HLEN why", "HLEN ghost", "ZCARD seen", "HLEN moved"]
"""What peek asks only to see that these keys are what they must be."""

REMOVALS: dict[str, tuple[State, Call[Any], list[str]]] = {
    "cancel_tag: two of three": (
        {"task": {"a": TAGGED, "b": A, "c": TAGGED}, "due": {"a": T, "b": T}, "ready/": ["c"]},
        listing.cancel_tag(KEYS, EPOCH, "tag", "0", count=100).at(NOW),
        [
            "INFO server",
            *("HLEN lease", "HLEN why", "HLEN ghost"),
            "HSCAN task 0 COUNT 100",
            *("ZMSCORE due a c", "ZMSCORE leased a c", "ZMSCORE dead a c"),
            "HDEL meta ''",
            "HGET ghost c",
            "HSET ghost c 1",
            *("HGET meta ghosts/", "HSET meta ghosts/ 1"),
            *("HDEL task a c", "ZREM due a c", "ZREM dead a c", "HDEL why a c", "HDEL lease a c"),
        ],
    ),
    "purge: one that is ready, and one that is scheduled": (
        {"task": tasks("mail/a", "mail/b", "c"), "due": {"mail/a": T}, "ready/mail": ["mail/b"]},
        listing.purge(KEYS, EPOCH, "mail", scope="topic", go_on=listing.START).at(NOW),
        [
            "INFO server",
            *("ZCARD due", "ZCARD leased", "HLEN lease", "ZCARD dead", "HLEN why", "HLEN ghost"),
            "HDEL meta ''",
            "LTRIM ready/mail 0 -1",
            "LRANGE ready/mail 0 499",
            "HMGET task mail/b",
            "HEXISTS ghost mail/b",
            "ZSCORE leased mail/b",
            "LTRIM ready/mail 1 -1",
            *("HDEL task mail/b", "HDEL lease mail/b", "HDEL why mail/b", "ZREM due mail/b", "ZREM dead mail/b"),
            "ZSCAN due 0 COUNT 500 MATCH mail/*",
            *("HDEL task mail/a", "HDEL lease mail/a", "HDEL why mail/a", "ZREM due mail/a", "ZREM dead mail/a"),
            "ZSCAN dead 0 COUNT 500 MATCH mail/*",
            "LLEN ready/mail",
        ],
    ),
    "trim: one of two": (
        {"task": tasks("a", "b"), "dead": {"a": T - 1000, "b": T}},
        listing.trim(KEYS, EPOCH, age_ms=500, keep=10).at(NOW),
        [
            "ZCARD dead",
            f"ZCOUNT dead -inf {T - 500}",
            "ZRANGE dead 0 0",
            *("HLEN task", "HLEN lease", "HLEN why"),
            *("HDEL task a", "HDEL lease a", "HDEL why a"),
            "ZREMRANGEBYRANK dead 0 0",
            "HINCRBY meta trimmed 1",
        ],
    ),
    "peek: of no topic, and without a draw": (
        {"due": {"a": T}, "topics": {"": "3"}, "looks": {"": "1:5"}},
        peek(),
        [
            *("ZCARD due", f"ZCOUNT due {FAR} +inf", "ZCARD leased", "ZCARD dead"),
            *TYPES,
            "HGETALL topics",
            "HMGET meta died/",
            "ZRANGE due 0 0 WITHSCORES",
            "HMGET meta late reaped buried forwarded dispatched died trimmed trimmed_at",
            f"ZCOUNT dead {T - 600_000} +inf",
        ],
    ),
    "peek: of a topic of which nothing is ready or noted": (
        {"looks": {"mail": "1:5"}},
        peek(""),
        [
            *("ZCARD due", f"ZCOUNT due {FAR} +inf", "ZCARD leased", "ZCARD dead"),
            *TYPES,
            "HGETALL topics",
            "HGETALL looks",
            "LLEN ready/",
            "HMGET meta ghosts/ began/",
            "ZRANGE due 0 0 WITHSCORES",
            "HMGET meta late reaped buried forwarded dispatched died trimmed trimmed_at",
            f"ZCOUNT dead {T - 600_000} +inf",
        ],
    ),
    "retire: the first look": (
        {"topics": {"": "3"}},
        observe.retire(KEYS, EPOCH, [""], idle_ms=5, have_none=False).at(NOW),
        ["HLEN looks", "LLEN ready/", "HGET topics ''", "HGET meta idle/", f"HSET meta idle/ 3:{T}"],
    ),
    "retire: of a topic with ready tasks": (
        {"topics": {"": "3"}, "ready/": ["a"]},
        observe.retire(KEYS, EPOCH, [""], idle_ms=5, have_none=True).at(NOW),
        ["HLEN looks", "LLEN ready/", "HGET topics ''", "HGET meta idle/"],
    ),
    "page: the first of two": (
        {"due": {"a": T, "b": T}},
        listing.page(KEYS, EPOCH, "scheduled", Span(begin_ms=f"{T}"), count=1).at(NOW),
        [f"ZCOUNT due -inf ({T}", "ZRANGE due 0 1 WITHSCORES"],
    ),
}

EVERY = PUSHES | MOVES | REMOVALS


@pytest.mark.parametrize(("state", "call", "commands"), EVERY.values(), ids=EVERY)
def test_commands_on_a_shard(state: State, call: Call[Any], commands: list[str]) -> None:
    made = Watched(KEYS, {"meta": meta()} | state).made(call)
    assert [line for line in lines(made) if not line.startswith("unpack ")] == [GUARD, *commands]


def permit(limit: Limit) -> Call[Any]:
    return consume.permit(CONTROL, EPOCH, "", limit, 1, lease_ms=100, token="t").at(NOW)


def set_schedule(*, tell: bool) -> Call[Any]:
    return requests.set_schedule(CONTROL, 0, [Change("s", b"old", b"new")], tell=tell)


BUCKET = "HMGET limits/rate/ tokens at_us clock ahead turn_ms"
LAPSED = f"ZREMRANGEBYSCORE limits/permits/ -inf {T}"

OF_THE_WHOLE: dict[str, tuple[State, Call[Any], list[str]]] = {
    "permit: all are taken": (
        {"limits/permits/": {"u#1": T + 500, "u#2": T + 900}, "limits/rate/": {"clock": T}},
        permit(Limit(concurrency=2)),
        [
            "HGET topology epoch",
            BUCKET,
            LAPSED,
            "ZCARD limits/permits/",
            "ZRANGE limits/permits/ 0 0 WITHSCORES",
        ],
    ),
    "permit: the rate is used up": (
        {"limits/rate/": {"tokens": "0", "at_us": NOW}},
        permit(Limit(rate=10.0)),
        ["HGET topology epoch", BUCKET, LAPSED],
    ),
    "permit: one of several": (
        {"limits/rate/": {"clock": T}},
        permit(Limit(concurrency=2)),
        [
            "HGET topology epoch",
            BUCKET,
            LAPSED,
            "ZCARD limits/permits/",
            f"ZADD limits/permits/ {T + 2100} t#1",
            "ZPOPMIN limits/waiting/",
        ],
    ),
    "heartbeat: another lives for as long as any may": (
        {"members": {"p1": T + 100, "p2": T + 3000}, "unreached": {"": "a word"}},
        control.heartbeat(CONTROL, "p1", alive_ms=3000, others_ms=3000, epoch=EPOCH, word="a word").at(NOW),
        [
            "HGET topology epoch",
            "HGET unreached p1",
            f"ZADD members {T + 3000} p1",
            f"ZRANGEBYSCORE members ({T + 3000} +inf",
            f"ZRANGEBYSCORE members -inf ({T}",
            "ZRANGE members 0 1 WITHSCORES",
            "HGET unreached ''",
        ],
    ),
    "set_schedule: told": (
        {"schedules": {"s": "old"}},
        set_schedule(tell=True),
        [
            "HGET topology epoch",
            "HGET schedules s",
            "HDEL schedules ''",
            "HSET schedules s new",
            "SPUBLISH news schedules/s",
        ],
    ),
    "set_schedule: untold": (
        {"schedules": {"s": "old"}},
        set_schedule(tell=False),
        ["HGET topology epoch", "HGET schedules s", "HDEL schedules ''", "HSET schedules s new"],
    ),
}


@pytest.mark.parametrize(("state", "call", "commands"), OF_THE_WHOLE.values(), ids=OF_THE_WHOLE)
def test_commands_on_the_control_slot(state: State, call: Call[Any], commands: list[str]) -> None:
    state = {"topology": {"epoch": f"{EPOCH}"}} | state
    assert lines(Watched(CONTROL, state).made(call)) == commands


@pytest.mark.parametrize(("staged", "is_filled"), [(0, True), (500, True), (513, False)])
def test_many_reservations_make_a_table_of_a_small_key_alone(staged: int, is_filled: bool) -> None:
    """A key of more than 512 fields is a table already."""
    ids = [f"i{n}" for n in range(17)]
    state = {"meta": meta(), "staged": {f"{n}|n0": "" for n in range(staged)}}
    made = lines(Watched(KEYS, state).made(resharding.reserve(KEYS, EPOCH, "n1", ids).at(NOW)))
    marks = "HSET staged " + " ".join(f"{id}|n1 ''" for id in ids)
    around = ["HSET staged '' FILLER", marks, "HDEL staged ''"] if is_filled else [marks]
    assert made == [GUARD, "HLEN staged", *around]


def test_push_unique_stops_where_a_ghost_may_not_be_counted() -> None:
    """It takes back what it has written, and tries nothing else."""
    watched = Watched(KEYS, {"meta": RUNG, "task": tasks("a"), "ready/": ["a"]})
    made = lines(watched.made(push_unique("a", "replace"), denied="HSET"))
    assert made[-3:] == ["HGET ghost a", "HSET ghost a 1", "ZREM due a"]


def test_what_bears_a_tag_is_removed_by_thousands() -> None:
    """Lua's stack bounds the words of a command, and a page may have any number of small records."""
    ids = [f"i{n:04}" for n in range(1001)]
    watched = Watched(KEYS, {"meta": meta(), "task": dict.fromkeys(ids, TAGGED), "due": dict.fromkeys(ids, T)})
    made = watched.made(listing.cancel_tag(KEYS, EPOCH, "tag", "0", count=1000).at(NOW))
    assert words_of(made, "HDEL", "task") == [ids[:1000], ids[1000:]]
