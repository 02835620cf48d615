"""A server without memory, on the model: each of these does the one thing for which its script removes something first.

Calls that do several things are in ``test_commands_refused_halfway``: the first of them makes room for the others.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from shardq.core.calls import by_id, consume, dispatch, listing, observe
from shardq.core.calls.consume import SettleAck, SettleBury, SettleGiveBack, SettleRetry
from shardq.core.calls.request import Call
from shardq.core.layout.keys import ShardKeys
from tests.lua.shard import EPOCH, NOW, State, T, raw, record
from tests.lua.test_claim import expiring
from tests.lua.test_what_is_read import KEYS, asked, server

A = record("a", tags=("tag",))

HELD: State = {"task": {"a": A}, "leased": {"a": T - 1}, "lease": {"a": "0:0::tok"}}
READY: State = {"task": {"a": A}, "ready/": ["a"]}
STALE: State = READY | {"due": {"a": T + 50}, "ghost": {"a": "1"}}
LATE: State = {"task": {"a": expiring(T)}, "ready/": ["a"]}


def _dispatch(keys: ShardKeys) -> Call[Any]:
    return dispatch.dispatch(keys, EPOCH, [""], limit=9, max_attempts=1).at(NOW)


def _claim(keys: ShardKeys) -> Call[Any]:
    return consume.claim(keys, EPOCH, {"": 9}, max=9, lease_ms=50, token="new").at(NOW)


def _forward(keys: ShardKeys) -> Call[Any]:
    return dispatch.forward(keys, EPOCH, "", to=keys.ready("theirs"), side="right", limit=9).at(NOW)


def _settle(*others: SettleRetry | SettleBury | SettleGiveBack) -> Callable[[ShardKeys], Call[Any]]:
    return lambda keys: consume.settle(keys, EPOCH, [], others).at(NOW)


CALLS: dict[str, tuple[State, Callable[[ShardKeys], Call[Any]]]] = {
    "dispatch: what is due": ({"task": {"a": A}, "due": {"a": T}}, _dispatch),
    "dispatch: what is of no topic": ({"task": {"no topic/a": A}, "due": {"no topic/a": T}}, _dispatch),
    "dispatch: a lease that ran out for the last time": (HELD, _dispatch),
    "dispatch: one of no topic": (
        {"task": {"no topic/a": A}, "leased": {"no topic/a": T}, "lease": {"no topic/a": "0:0:9:tok"}},
        _dispatch,
    ),
    "dispatch: the clock of the server went back": ({"meta": {"clock": f"{T + 5000}"}}, _dispatch),
    "claim: what is ready": (READY, _claim),
    "claim: a ghost": (STALE, _claim),
    "claim: a ghost, and there are more": (STALE | {"ghost": {"a": "2"}}, _claim),
    "claim: what has expired": (LATE, _claim),
    "forward: a ghost": (STALE, _forward),
    "forward: a ghost, and there are more": (STALE | {"ghost": {"a": "2"}}, _forward),
    "forward: what has expired": (LATE, _forward),
    "forward: what is ready": (READY, _forward),
    "settle: a retry": (HELD, _settle(SettleRetry("a", "tok", 50, "boom", 9))),
    "settle: the last retry": (HELD, _settle(SettleRetry("a", "tok", 50, "boom", 1))),
    "settle: given back": (HELD, _settle(SettleGiveBack("a", "tok"))),
    "settle: buried": (HELD, _settle(SettleBury("a", "tok", "boom"))),
    "settle: an ack": (HELD, lambda keys: consume.settle(keys, EPOCH, [SettleAck("a", "tok")]).at(NOW)),
    "extend": (HELD, lambda keys: consume.extend(keys, EPOCH, [SettleAck("a", "tok")], lease_ms=90).at(NOW)),
    "cancel": (READY, lambda keys: by_id.cancel(keys, EPOCH, "a").at(NOW)),
    "cancel_tag": (READY, lambda keys: listing.cancel_tag(keys, EPOCH, "tag", "0", count=9).at(NOW)),
    "requeue": (
        {"task": {"a": A}, "dead": {"a": T}, "why": {"a": "boom"}},
        lambda keys: by_id.requeue(keys, EPOCH, "a", 0).at(NOW),
    ),
    "restore": ({"task": {"a": A}}, lambda keys: observe.restore(keys, EPOCH, "a").at(NOW)),
    "purge: a ghost, and there are more": (
        STALE | {"ghost": {"a": "2"}},
        lambda keys: listing.purge(keys, EPOCH, "", scope="topic", go_on=listing.START).at(NOW),
    ),
}


@pytest.mark.parametrize(("before", "call"), CALLS.values(), ids=CALLS)
def test_it_does_the_same(before: State, call: Callable[[ShardKeys], Call[Any]]) -> None:
    outcomes = []
    for full in (False, True):
        its = server()
        for name, value in before.items():
            key = KEYS.prefix + name
            if isinstance(value, list):
                its.command("RPUSH", key, *map(raw, value))
            else:
                for member, each in value.items():
                    words = (each, member) if isinstance(each, int) else (member, each)
                    its.command("ZADD" if isinstance(each, int) else "HSET", key, *(raw(f"{word}") for word in words))
        its.denials.full = full
        answer = asked(its, call(KEYS))
        assert answer[0] == b"ok"
        outcomes.append((answer, its.space.dump()))
    assert outcomes[0] == outcomes[1]
