"""Instants that scripts write: a begun ms counts as the one before, and lengths of time go by the steady clock."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from shardq.core.calls import by_id, consume, dispatch, listing, observe, transfer
from shardq.core.calls import control as calls
from shardq.core.calls.consume import SettleAck, SettleBury, SettleRetry
from shardq.core.calls.request import Call
from shardq.core.layout.keys import ControlKeys, ShardKeys
from shardq.core.layout.topology import Limit
from tests.lua.shard import EPOCH, NOW, Shard, State, T, meta, record

A = record("a")
LEASE, WINDOW, MARGIN = 30_000, 60_000, consume.MARGIN_MS

TASKS: State = {"task": dict.fromkeys(("leased", "ready"), A), "leased": {"leased": T + 5}, "ready/": ["ready"]}
HELD: State = TASKS | {"lease": {"leased": "0:0::tok"}}

Made = Callable[[ShardKeys, str], Call[Any]]

LENGTHS: dict[str, tuple[Made, str, str, int]] = {
    # the call, and by what key and member which length of time shows
    "claim": (
        lambda keys, now: consume.claim(keys, EPOCH, {"": 1}, max=1, lease_ms=LEASE, token="new").at(now),
        "leased",
        "ready",
        LEASE,
    ),
    "claim, of who waits": (
        lambda keys, now: consume.claim(keys, EPOCH, {"mail": 1}, max=1, lease_ms=LEASE, token="new", waiter="p").at(
            now
        ),
        "waiting/mail",
        "p",
        0,
    ),
    "extend": (
        lambda keys, now: consume.extend(keys, EPOCH, [SettleAck("leased", "tok")], lease_ms=LEASE).at(now),
        "leased",
        "leased",
        LEASE,
    ),
    "push_unique": (
        lambda keys, now: by_id.push_unique(keys, EPOCH, ["n", 0, A, "keep", WINDOW]).at(now),
        "seen",
        "n",
        WINDOW,
    ),
    "adopt": (
        lambda keys, now: transfer.adopt(keys, EPOCH, ["n", 0, A, "due", "", ""], once=f"7-{WINDOW}").at(now),
        "seen",
        "n\n7",
        WINDOW,
    ),
    "push_unique, for resends": (
        lambda keys, now: by_id.push_unique(keys, EPOCH, ["n", 0, A, "keep", f"{WINDOW}-{LEASE}"]).at(now),
        "seen",
        "n\n",
        LEASE,
    ),
}

CLOCKS: dict[str, tuple[dict[str, int], int]] = {
    # the fields, and how far the steady clock is before the server's
    "never noted": ({}, 0),
    "in step": ({"clock": T - 500}, 0),
    "ahead": ({"clock": T - 500, "ahead": 700}, 700),
    "ahead by 1 ms": ({"clock": T - 500, "ahead": 1}, 1),
    "the server's went back": ({"clock": T + 900, "ahead": 0}, 900),
    "and once more": ({"clock": T + 900, "ahead": 700}, 900),
}


@pytest.mark.parametrize(("fields", "ahead"), CLOCKS.values(), ids=CLOCKS)
@pytest.mark.parametrize(("call", "key", "member", "length"), LENGTHS.values(), ids=LENGTHS)
def test_lengths_of_time_go_by_the_steady_clock(
    shard: Shard, keys: ShardKeys, call: Made, key: str, member: str, length: int, fields: dict[str, int], ahead: int
) -> None:
    shard.seed({"meta": {"epoch": f"{EPOCH}"} | {name: f"{value}" for name, value in fields.items()}} | HELD)
    shard.ask(call(keys, f"{T * 1000 + 999}"))
    assert shard.state()[key][member] == T + ahead + length


@pytest.mark.parametrize(("fields", "ahead"), CLOCKS.values(), ids=CLOCKS)
def test_so_do_permits(centre: Shard, control: ControlKeys, fields: dict[str, int], ahead: int) -> None:
    bucket = {"limits/rate/mail": {name: f"{value}" for name, value in fields.items()}} if fields else {}
    centre.seed({"topology": {"epoch": f"{EPOCH}"}} | bucket)
    now = f"{T * 1000 + 999}"

    def permit(most: int, waiter: str = "") -> Call[Any]:
        limit = Limit(None, most)
        return consume.permit(control, EPOCH, "mail", limit, 1, lease_ms=LEASE, token="a", waiter=waiter).at(now)

    centre.ask(permit(1))
    assert centre.state()["limits/permits/mail"] == {"a#1": T + ahead + LEASE + MARGIN}
    centre.ask(permit(1, "p"))
    assert centre.state()["limits/waiting/mail"] == {"p": T + ahead}
    centre.seed({"limits/permits/mail": {"b": T}} | bucket)
    centre.ask(consume.renew(control, 0, "mail", 1, ["b"], lease_ms=LEASE).at(now))
    assert centre.state()["limits/permits/mail"] == {"b": T + ahead + LEASE + MARGIN}


def test_a_begun_ms_counts_as_the_one_before(shard: Shard, keys: ShardKeys) -> None:
    now = f"{T * 1000 + 999}"
    due = {"task": {"a": A, "b": A, "c": A}, "due": {"a": T, "b": T + 1}, "dead": {"c": T - 50}}
    shard.seed({"meta": meta()} | due)
    assert shard.run(dispatch.dispatch(keys, EPOCH, [""], limit=9, max_attempts=3).at(now)).moved == 1
    assert shard.state()["ready/"] == ["a"]
    # and dead since
    shard.seed({"meta": meta()} | HELD)
    shard.ask(consume.settle(keys, EPOCH, [], [SettleBury("leased", "tok", "x")]).at(now))
    assert shard.state()["dead"] == {"leased": T}
    # but a delay is never too short
    shard.seed({"meta": meta()} | HELD)
    shard.ask(consume.settle(keys, EPOCH, [], [SettleRetry("leased", "tok", 50, "x", 9)]).at(now))
    assert shard.state()["due"] == {"leased": T + 51}
    shard.seed({"meta": meta()} | due)
    assert shard.run(listing.trim(keys, EPOCH, age_ms=51, keep=9).at(now)).removed == 0
    assert shard.run(listing.trim(keys, EPOCH, age_ms=50, keep=9).at(now)).removed == 1
    shard.seed({"meta": meta()} | TASKS | {"ready/": ["gone"]})
    assert shard.run(observe.restore(keys, EPOCH, "ready").at(now))
    assert shard.state()["due"] == {"ready": T}


def test_a_begun_ms_of_processes(centre: Shard, control: ControlKeys) -> None:
    now = f"{T * 1000 + 999}"
    centre.run(calls.report(control, 0, "w", alive_ms=50).at(now))
    centre.run(calls.heartbeat(control, "d", alive_ms=50, others_ms=50, epoch=0).at(now))
    state = centre.state()
    assert (state["workers"], state["members"]) == ({"w": T + 50}, {"d": T + 50})


# ---- what only reads, and what finds nothing to do

IDLE: State = TASKS | {"meta": meta(wake_at=T + 5), "dead": {"leased": T}, "topics": {"": "1"}}

NOTHING: dict[str, Callable[[ShardKeys], Call[Any]]] = {
    "get": lambda keys: by_id.get_many(keys, EPOCH, ["leased", "gone"]).at(NOW),
    "peek, again": lambda keys: observe.peek(keys, EPOCH, [""]).at(NOW),
    "page": lambda keys: listing.page(keys, EPOCH, "leased", listing.Span(), count=10).at(NOW),
    "page_ready": lambda keys: listing.page_ready(keys, EPOCH, "", None, count=10).at(NOW),
    "page_lane": lambda keys: listing.page_lane(keys, EPOCH, "mail/k/", count=10).at(NOW),
    "forecast": lambda keys: listing.forecast(keys, EPOCH, step_ms=60_000, steps=60).at(NOW),
    "claim, of an empty list": lambda keys: consume.claim(keys, EPOCH, {"mail": 1}, max=1, lease_ms=9, token="t").at(
        NOW
    ),
    "claim, a look": lambda keys: consume.claim(keys, EPOCH, {"": 1}, max=0, lease_ms=9, token="t").at(NOW),
    "dispatch, again": lambda keys: dispatch.dispatch(keys, EPOCH, [""], limit=9, max_attempts=3).at(NOW),
    "forward, of an empty list": lambda keys: dispatch.forward(
        keys, EPOCH, "mail", to=keys.ready("theirs"), side="right", limit=9
    ).at(NOW),
    "settle, of who holds nothing": lambda keys: consume.settle(keys, EPOCH, [SettleAck("ready", "tok")]).at(NOW),
    "extend, of who holds nothing": lambda keys: consume.extend(
        keys, EPOCH, [SettleAck("ready", "tok")], lease_ms=9
    ).at(NOW),
    "cancel, of what runs": lambda keys: by_id.cancel(keys, EPOCH, "leased").at(NOW),
    "requeue, of what is ready": lambda keys: by_id.requeue(keys, EPOCH, "ready", 0).at(NOW),
    "push_unique, of what is there": lambda keys: by_id.push_unique(keys, EPOCH, ["ready", 0, A, "keep", 50]).at(NOW),
    "trim, of what may stay": lambda keys: listing.trim(keys, EPOCH, age_ms=50, keep=9).at(NOW),
    "check": lambda keys: observe.check(keys, EPOCH, ["ready", "leased", "gone"]).at(NOW),
    "restore, of what is not lost": lambda keys: observe.restore(keys, EPOCH, "ready").at(NOW),
}


@pytest.mark.parametrize("call", NOTHING.values(), ids=NOTHING)
def test_who_changes_nothing_writes_nothing(
    shard: Shard, keys: ShardKeys, call: Callable[[ShardKeys], Call[Any]]
) -> None:
    """A write costs the replicas, and the disk: what is called all the time makes none while nothing happens."""
    shard.seed(IDLE)
    shard.ask(call(keys))
    before = shard.state(), _writes(shard)
    shard.ask(call(keys))
    assert (shard.state(), _writes(shard)) == before


def _writes(shard: Shard) -> str:
    (told,) = (line for line in shard.do("INFO", "persistence").splitlines() if "rdb_changes_since_last_save" in line)
    return str(told)
