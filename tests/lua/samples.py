"""One call of every script, and a shard with a task in every state, so that each call has something to do."""

from __future__ import annotations

from typing import Any

from shardq.core.calls import (
    by_id,
    consume,
    control,
    dispatch,
    lane_control,
    listing,
    node_info,
    observe,
    resharding,
    transfer,
)
from shardq.core.calls.consume import SettleAck, SettleBury, SettleGiveBack, SettleRetry, SettleSnooze
from shardq.core.calls.listing import Span
from shardq.core.calls.request import Call, Epoch
from shardq.core.layout.keys import ControlKeys, ShardKeys, shard_keys
from shardq.core.layout.topology import Limit, Stamp
from shardq.features.history import requests as history
from shardq.features.schedules import requests as schedules
from shardq.features.schedules.requests import Change
from tests.lua.shard import EPOCH, NOW, State, T, meta, opening, record

A = record("a")
TAGGED = record("a", tags=("tag",))

FULL: State = {
    "meta": meta(wake_at=T + 500, **{"idle/idle": f"2:{T - 5}", "idle/waits": f"4:{T - 5}", "died/idle": 1}),
    "task": dict.fromkeys(("due", "later", "ready", "stale", "leased", "lapsed", "dead", "mail/ready"), TAGGED)
    | {"odd": "\x20"},
    "due": {"due": T - 5, "mail/due": T, "later": T + 1000, "stale": T + 2000},
    "ready/": ["stale", "odd", "ready"],
    "ready/mail": ["mail/ready"],
    "leased": {"leased": T + 900, "lapsed": T - 1},
    "lease": {"leased": "0:0::tok", "lapsed": "0:0::tok", "ready": "1:0::"},
    "dead": {"dead": T - 9},
    "why": {"dead": "boom"},
    "ghost": {"stale": "1"},
    "seen": {"old": T - 5, "new": T + 5000},
    "topics": {"": "3", "idle": "2", "new": "1", "waits": "4"},
    "waiting/": {"p1": T - 9},
    "waiting/mail": {"p1": T - 9},
    "waiting/waits": {"p1": T - 9},
    "moved": {"away": "n1|2|…"},
    "staged": {"x|n2": "", "y|n2": "", "z|n2": ""},
}

PARCELS = [
    resharding.MovingTask("x", f"n2|1|due|{T + 50}|5|0|1:0::{A}".encode()),
    resharding.MovingTask("y", f"n2|1|dead|{T - 50}|0|4|boom{A}".encode()),
]

TOPICS = ("", "mail")


def on_a_shard(keys: ShardKeys, epoch: Epoch) -> list[Call[Any]]:
    """Calls of every script behind the guard, one for each way in which it writes."""
    return [
        by_id.push(keys, epoch, ["n", 0, A]).at(NOW),
        by_id.push_unique(keys, epoch, ["n", 0, A, "keep", 50]).at(NOW),
        *(
            by_id.push_unique(keys, epoch, [id, -5, A, "replace", 50]).at(NOW)
            for id in ("later", "ready", "leased", "dead")
        ),
        by_id.push_unique(keys, epoch, ["n", 0, A, "keep", 50, "ready", -5, A, "replace", 50]).at(NOW),
        by_id.push(keys, epoch, ["n", 0, A]).at(NOW).after_loss(),
        transfer.adopt(
            keys,
            epoch,
            ["n", -5, A, "due", "1:0::", "", "ready", 0, A, "first", "", "", "mail/o", T, A, "dead", "", "boom"],
            once="7-50",
        ).at(NOW),
        *(
            dispatch.dispatch(keys, epoch, TOPICS, limit=1000, max_attempts=attempts, paused=paused).at(NOW)
            for attempts, paused in ((1, ()), (9, ("mail",)))
        ),
        dispatch.dispatch(keys, epoch, TOPICS, limit=1000, max_attempts=9, routed=("mail",), caller="me").at(NOW),
        dispatch.forward(keys, epoch, "", to=keys.ready("theirs"), side="right", limit=1000).at(NOW),
        dispatch.forward(keys, epoch, "", to=keys.ready("theirs"), side="left", limit=1000).at(NOW),
        *(
            consume.claim(
                keys,
                epoch,
                dict.fromkeys(TOPICS, 5),
                max=10,
                lease_ms=100,
                token="new",
                permits=permits,
                waiter=waiter,
            ).at(NOW)
            for waiter, permits in (("", {}), ("p2", {"mail": 3}))
        ),
        consume.wake(keys, epoch, "").at(NOW),
        consume.settle(keys, epoch, [SettleAck("leased", "tok")]).at(NOW),
        consume.settle(keys, epoch, [SettleAck("leased", "tok")], ends_rule="700000:9", ends={"leased": "5::"}).at(NOW),
        *(
            consume.settle(keys, epoch, [], [other]).at(NOW)
            for other in (
                SettleRetry("leased", "tok", 50, "boom", 9),
                SettleRetry("leased", "tok", 50, "boom", 1),
                SettleBury("leased", "tok", "boom"),
                SettleGiveBack("leased", "tok"),
                SettleSnooze("leased", "tok", 50),
            )
        ),
        consume.extend(keys, epoch, [SettleAck("leased", "tok")], lease_ms=100).at(NOW),
        *(by_id.cancel(keys, epoch, id).at(NOW) for id in ("later", "ready", "dead")),
        by_id.cancel(keys, epoch, "dead", ends_rule="700000:9").at(NOW),
        *(by_id.reschedule(keys, epoch, id, -50).at(NOW) for id in ("later", "ready")),
        *(by_id.cancel(keys, epoch, id, once="7-50").at(NOW) for id in ("ready", "gone")),
        by_id.reschedule(keys, epoch, "ready", -50, once="7-50").at(NOW),
        by_id.requeue(keys, epoch, "dead", -50).at(NOW),
        observe.check(keys, epoch, ["later", "ready", "gone"]).at(NOW),
        observe.restore(keys, epoch, "ready").at(NOW),
        by_id.get_many(keys, epoch, ["leased", "gone", "away"]).at(NOW),
        observe.peek(keys, epoch, TOPICS, draw=10).at(NOW),
        observe.total(keys, epoch, 0, count=10).at(NOW),
        *(
            observe.retire(keys, epoch, ("", "mail", "idle", "new", "waits"), idle_ms=5, have_none=have_none).at(NOW)
            for have_none in (False, True)
        ),
        lane_control.tally(keys, epoch, "mail", count=10).at(NOW),
        listing.page(keys, epoch, "scheduled", Span(), topic="mail", count=10).at(NOW),
        listing.page(keys, epoch, "scheduled", Span(), failed=True, count=10).at(NOW),
        listing.page(keys, epoch, "leased", Span(), holder="tok", count=10).at(NOW),
        listing.page(keys, epoch, "dead", Span("-inf", end_ms=f"{T}"), count=10).at(NOW),
        listing.page_ready(keys, epoch, "", None, count=10).at(NOW),
        listing.page_lane(keys, epoch, "mail/k/", count=10).at(NOW),
        listing.forecast(keys, epoch, step_ms=60_000, steps=60).at(NOW),
        listing.trim(keys, epoch, age_ms=1, keep=1000).at(NOW),
        listing.purge(keys, epoch, "", scope="topic", go_on=listing.START).at(NOW),
        listing.purge(keys, epoch, "mail", scope="all", go_on=listing.START).at(NOW),
        *(listing.cancel_tag(keys, epoch, tag, "0", count=100).at(NOW) for tag in ("tag", "none")),
        resharding.reserve(keys, epoch, "n3", ["a", "b"]).at(NOW),
        resharding.take(keys, epoch, "n3", 7, ["later", "dead", "ready", "gone"]).at(NOW),
        resharding.put(keys, epoch, PARCELS).at(NOW),
        resharding.clear(keys, epoch, [resharding.MovingTask("away", b"n1|2|")]).at(NOW),
        resharding.stock(keys, epoch, "0", count=100).at(NOW),
        resharding.remember(keys, epoch, {"new": f"{T + 9000}", "newer": f"{T + 9000}"}, ahead_ms=0).at(NOW),
        resharding.forget(keys, epoch, {"new": f"{T + 5000}", "none": f"{T + 5000}"}).at(NOW),
        resharding.unmark(keys, epoch).at(NOW),
        resharding.swept(keys, epoch, 2).at(NOW),
        node_info.seal(keys.meta, keys.slot, epoch).at(NOW),
        node_info.beat(keys, epoch, "outbox", 7).at(NOW),
        lane_control.close(keys, epoch, ["mail/k/"]).at(NOW),
        lane_control.open_lanes(keys, epoch, [lane_control.Closed("mail/k/", 0, False, "", "")]).at(NOW),
        lane_control.lanes(keys, epoch, "", count=10).at(NOW),
        lane_control.hold(keys, epoch, "mail/k/", -50).at(NOW),
    ]


def on_the_whole(control_keys: ControlKeys, epoch: Epoch = EPOCH) -> list[Call[Any]]:
    """Calls of every script on the control keys."""
    return [
        *(
            control.declare(control_keys, 0, {b"epoch": b"1", b"shards": b"16"}, settings, whole=whole)
            for settings, whole in (({"mail": b"{}", "sms": b""}, False), ({"mail": b"{}"}, True))
        ),
        *(control.learn(control_keys, known) for known in (0, epoch)),
        *(
            control.heartbeat(
                control_keys,
                "me",
                alive_ms=3000,
                others_ms=3000,
                epoch=epoch,
                report=b"r",
                unreached=unreached,
                leave=leave,
            ).at(NOW)
            for leave, unreached in ((False, [3, 4]), (True, []))
        ),
        *(
            control.report(control_keys, epoch, "worker", alive_ms=3000, report=b"r", leave=leave).at(NOW)
            for leave in (False, True)
        ),
        control.fleet(control_keys).at(NOW),
        *(
            consume.permit(control_keys, epoch, "mail", limit, 5, lease_ms=100, token="me:1").at(NOW)
            for limit in (Limit(rate=100), Limit(concurrency=3), Limit(rate=100, concurrency=3))
        ),
        *(
            consume.permit(
                *(control_keys, epoch, "mail", Limit(concurrency=most), 1),
                lease_ms=100,
                token="me:1",
                waiter="p2",
                others_wait=others,
            ).at(NOW)
            for most, others in ((1, False), (2, True), (5, True))
        ),
        consume.release(control_keys, epoch, "mail", ["p1"], unused=0),
        consume.release(control_keys, epoch, "mail", [], unused=2, wakes=1),
        *(
            consume.renew(control_keys, epoch, "mail", most, ["p1", "p0"], lease_ms=100).at(NOW)
            for most in (None, 1, 2)
        ),
        *(schedules.schedules(control_keys, epoch, names).at(NOW) for names in (("weekly",), ("weekly", "nightly"))),
        *(
            schedules.set_schedule(control_keys, epoch, [Change("nightly", b"{}", state, declared)], tell=True)
            for state, declared in ((b'{"generation":2}', b""), (b"{}", b'{"cron":"@"}'), (b"", b""))
        ),
        history.write(control_keys, epoch, b"", [(0, b"head"), (8, b"row")], length=20),
    ]


def on_a_meta(keys: ShardKeys, epoch: Stamp) -> list[Call[Any]]:
    """A call of the one script that creates a meta, and so comes before the guard."""
    return [opening(keys, epoch, anew=anew) for anew in (False, True)]


WHOLE: State = {
    "topology": {"epoch": "0"},
    "members": {"me": T - 5, "late": T - 9000, "ahead": T + 9000},
    "workers": {"worker": T + 5, "late": T - 9000, "ahead": T + 9000},
    "reports": {"me": "r", "worker": "r", "late": "r"},
    "unreached": {"me": "3", "late": "0,1"},
    "limits/rate/mail": {"tokens": "3.000000", "at_us": NOW},
    "limits/permits/mail": {"p1": T + 50, "old": T - 5},
    "limits/waiting/mail": {"p9": T - 9},
    "schedules": {"nightly": "{}", "nightly/declared": "{}"},
}
"""The control keys, likewise."""


def named(calls: list[Call[Any]]) -> list[str]:
    """Returns script and number of each call, for the ids of tests."""
    return [f"{call.script.name} {number}" for number, call in enumerate(calls)]


NUMBERS = {name: number for number, name in enumerate(named(on_a_shard(shard_keys("x", 0), EPOCH)))}
"""By name, where in ``on_a_shard`` a call is."""
