"""cancel, reschedule, requeue, restore and get, of a task in every state."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

import pytest
import redis

from shardq.core.calls import by_id, observe
from shardq.core.calls.request import Call, Moving
from shardq.core.layout.keys import ShardKeys
from shardq.core.model.task import Outcome
from tests.lua.shard import EPOCH, NOW, Case, Shard, State, T, meta, record

A, B = record("a"), record("b")

# the id asked about is a; b is beside it, to show that it is left alone
STATES: dict[str, State] = {
    "scheduled": {"task": {"a": A, "b": B}, "due": {"a": T + 50, "b": T + 60}, "lease": {"a": "1:0::", "b": "2:0::"}},
    "ready": {"task": {"a": A, "b": B}, "ready/": ["a", "b"], "lease": {"a": "0:1::"}},
    "leased": {"task": {"a": A}, "leased": {"a": T + 9}, "lease": {"a": "1:2:5:tok"}},
    "dead": {
        "task": {"a": A, "b": B},
        "dead": {"a": T - 9, "b": T - 8},
        "why": {"a": "boom", "b": "bang"},
        "lease": {"a": "3:0::"},
    },
    "gone": {"seen": {"a": T + 5}},
    "moving": {"moved": {"a": "n1|2|…"}},
    "an id without a record": {"due": {"a": T + 50}},
    "lost": {"task": {"a": A}, "lease": {"a": "0:1::"}},
    "lost, with a ghost": {"task": {"a": A}, "ready/": ["a", "b"], "ghost": {"a": "1"}},
    "ready behind a ghost": {"task": {"a": A}, "ready/": ["a", "a"], "ghost": {"a": "1"}},
}


def cancel(keys: ShardKeys) -> Call[Outcome]:
    return by_id.cancel(keys, EPOCH, "a").at(NOW)


def reschedule(keys: ShardKeys) -> Call[Outcome]:
    return by_id.reschedule(keys, EPOCH, "a", -40).at(NOW)


def requeue(keys: ShardKeys) -> Call[Outcome]:
    return by_id.requeue(keys, EPOCH, "a", -40).at(NOW)


def restore(keys: ShardKeys) -> Call[bool]:
    return observe.restore(keys, EPOCH, "a").at(NOW)


def get(keys: ShardKeys) -> Call[by_id.Found | None]:
    return by_id.get(keys, EPOCH, "a").at(NOW)


RUNG = meta(wake_at=T + 40)

HAUNTED = {"ghosts/": "1"}

TABLE: list[tuple[Callable[[ShardKeys], Call[Any]], str, list[Any], State]] = [
    (
        cancel,
        "scheduled",
        ["ok", "cancelled"],
        {"task": {"b": B}, "due": {"b": T + 60}, "lease": {"b": "2:0::"}},
    ),
    (
        cancel,
        "ready",
        ["ok", "cancelled"],
        {"task": {"b": B}, "ghost": {"a": "1"}, "lease": None, "meta": meta(**HAUNTED)},
    ),
    (cancel, "leased", ["ok", "running"], {}),
    (
        cancel,
        "dead",
        ["ok", "cancelled"],
        {"task": {"b": B}, "dead": {"b": T - 8}, "why": {"b": "bang"}, "lease": None},
    ),
    (cancel, "gone", ["ok", "gone"], {}),
    (cancel, "moving", ["ok", "moving"], {}),
    (cancel, "an id without a record", ["ok", "cancelled"], {"due": None}),
    (reschedule, "scheduled", ["ok", "moved"], {"due": {"a": T + 40, "b": T + 60}, "meta": RUNG}),
    (reschedule, "ready", ["ok", "moved"], {"due": {"a": T + 40}, "ghost": {"a": "1"}, "meta": RUNG | HAUNTED}),
    (reschedule, "leased", ["ok", "running"], {}),
    (reschedule, "dead", ["ok", "dead"], {}),
    (reschedule, "gone", ["ok", "gone"], {}),
    (reschedule, "moving", ["ok", "moving"], {}),
    (requeue, "moving", ["ok", "moving"], {}),
    (requeue, "scheduled", ["ok", "scheduled"], {}),
    (requeue, "ready", ["ok", "ready"], {}),
    (requeue, "leased", ["ok", "running"], {}),
    (
        requeue,
        "dead",
        ["ok", "requeued"],
        {"due": {"a": T + 40}, "dead": {"b": T - 8}, "why": {"b": "bang"}, "lease": None, "meta": RUNG},
    ),
    (requeue, "gone", ["ok", "gone"], {}),
    *((restore, state, ["ok", 0], {}) for state in ("scheduled", "ready", "leased", "dead", "gone", "moving")),
    (restore, "an id without a record", ["ok", 0], {}),
    (restore, "lost", ["ok", 1], {"due": {"a": T}, "meta": meta(wake_at=T)}),
    (restore, "lost, with a ghost", ["ok", 1], {"due": {"a": T}, "meta": meta(wake_at=T)}),
    (restore, "ready behind a ghost", ["ok", 0], {}),
    (get, "scheduled", ["ok", ["scheduled", f"{T + 50}", "1:0::", "", A]], {}),
    (get, "ready", ["ok", ["ready", "", "0:1::", "", A]], {}),
    (get, "leased", ["ok", ["leased", f"{T + 9}", "1:2:5:tok", "", A]], {}),
    (get, "dead", ["ok", ["dead", f"{T - 9}", "3:0::", "boom", A]], {}),
    (get, "gone", ["ok", ["gone"]], {}),
    (get, "moving", ["ok", ["moving"]], {}),
    (get, "an id without a record", ["ok", ["gone"]], {}),
]


@pytest.mark.parametrize(
    ("call", "state", "answer", "after"), TABLE, ids=[f"{call.__name__} {state}" for call, state, _, _ in TABLE]
)
def test_by_state(
    shard: Shard,
    keys: ShardKeys,
    call: Callable[[ShardKeys], Call[Any]],
    state: str,
    answer: list[Any],
    after: State,
) -> None:
    Case(call, answer, STATES[state], after).check(shard, keys)


@pytest.mark.parametrize(
    ("call", "state", "second"),
    [
        (cancel, "scheduled", Outcome.GONE),
        (cancel, "ready", Outcome.GONE),
        (cancel, "dead", Outcome.GONE),
        (reschedule, "scheduled", Outcome.MOVED),
        (reschedule, "ready", Outcome.MOVED),
        (requeue, "dead", Outcome.SCHEDULED),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_twice_changes_nothing_more(
    shard: Shard, keys: ShardKeys, call: Callable[[ShardKeys], Call[Outcome]], state: str, second: Outcome
) -> None:
    shard.seed({"meta": meta()} | STATES[state])
    assert shard.run(call(keys))
    state_then = shard.state()
    assert shard.run(call(keys)) is second
    assert shard.state() == state_then


@pytest.mark.parametrize(
    ("call", "state", "outcome"),
    [
        (cancel, "gone", Outcome.UNKNOWN),  # by the first sending, or before it
        (cancel, "scheduled", Outcome.CANCELLED),
        (cancel, "leased", Outcome.RUNNING),
        (reschedule, "scheduled", Outcome.MOVED),
        (reschedule, "ready", Outcome.MOVED),
        (reschedule, "leased", Outcome.UNKNOWN),
        (reschedule, "dead", Outcome.UNKNOWN),
        (reschedule, "gone", Outcome.UNKNOWN),
        (requeue, "scheduled", Outcome.UNKNOWN),  # by the first sending, or by somebody's push
        (requeue, "dead", Outcome.REQUEUED),
        (requeue, "ready", Outcome.UNKNOWN),
        (requeue, "leased", Outcome.UNKNOWN),
        (requeue, "gone", Outcome.UNKNOWN),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_after_a_lost_answer(
    shard: Shard, keys: ShardKeys, call: Callable[[ShardKeys], Call[Outcome]], state: str, outcome: Outcome
) -> None:
    shard.seed({"meta": meta()} | STATES[state])
    assert shard.run(call(keys).after_loss()) is outcome


def test_get_as_a_value(shard: Shard, keys: ShardKeys) -> None:
    shard.seed({"meta": meta()} | STATES["dead"])
    found = shard.run(get(keys))
    assert found == by_id.Found("dead", T - 9, failures=3, lapses=0, token="", reason="boom", record=A.encode())
    shard.seed({"meta": meta()} | STATES["gone"])
    assert shard.run(get(keys)) is None


@pytest.mark.parametrize("verb", [by_id.reschedule, by_id.requeue])
@pytest.mark.parametrize(("due", "instant"), [(0, T + 1), (-7, T + 8), (T + 70, T + 70), (5, 5)])
def test_due_words(shard: Shard, keys: ShardKeys, verb: Callable[..., Call[Outcome]], due: int, instant: int) -> None:
    shard.seed({"meta": meta()} | STATES["dead" if verb is by_id.requeue else "scheduled"])
    assert shard.run(verb(keys, EPOCH, "a", due).at(T * 1000 + 1))
    assert shard.state()["due"]["a"] == instant


def test_get_many(shard: Shard, keys: ShardKeys) -> None:
    shard.seed({"meta": meta()} | STATES["dead"] | {"moved": {"c": "n1|2|…"}})
    answers = shard.run(by_id.get_many(keys, EPOCH, ["b", "gone", "c", "a"]).at(NOW))
    assert [answer.reason if isinstance(answer, by_id.Found) else answer for answer in answers[:2]] == ["bang", None]
    assert isinstance(answers[2], Moving)
    assert isinstance(answers[3], by_id.Found)
    assert answers[3].reason == "boom"


def test_get_many_of_a_bounded_number_of_bytes(shard: Shard, keys: ShardKeys) -> None:
    ids = [f"i{n}" for n in range(7)]
    shard.seed({"meta": meta(), "task": dict.fromkeys(ids, record("x" * (400 << 10)))})
    left, pages = ids, list[int]()
    while left:
        pages.append(len(shard.run(by_id.get_many(keys, EPOCH, left).at(NOW))))
        left = left[pages[-1] :]
    assert pages == [3, 3, 1]


# ---- a ghost that can't be counted

COUNTED: dict[str, Callable[[ShardKeys], Call[Any]]] = {
    "reschedule": lambda keys: by_id.reschedule(keys, EPOCH, "a", -50).at(NOW),
    "a replacing push": lambda keys: by_id.push_unique(keys, EPOCH, ["a", -50, B, "replace", 9]).at(NOW),
    "cancel": cancel,
}


@pytest.mark.parametrize("call", COUNTED.values(), ids=COUNTED)
def test_a_ghost_that_can_not_be_counted(shard: Shard, keys: ShardKeys, call: Callable[[ShardKeys], Call[Any]]) -> None:
    """The task stays as it is, and the caller hears why."""
    before = {"meta": meta(wake_at=T + 9)} | STATES["ready"]
    shard.seed(before)
    user = f"u{uuid.uuid4().hex}"
    shard.do("ACL", "SETUSER", user, "on", "nopass", "+@all", "-hset", "allchannels", "allkeys")
    with shard.as_user(user) as asker, pytest.raises(redis.ResponseError, match=r"NOPERM|ACL|permission|can't run"):
        asker.ask(call(keys))
    shard.do("ACL", "DELUSER", user)
    assert shard.state() == before


FAR = 4_000_000_000_000_000
"""What has a key stands so far behind its instant."""


def test_get_of_the_only_one_in_each_state(shard: Shard, keys: ShardKeys) -> None:
    """Most shards have none of some states: one is more than none."""
    stored = record("x")
    shard.seed(
        {
            "meta": meta(),
            "task": dict.fromkeys(("w/k/held", "w/k/now", "w/k/far", "leased", "dead"), stored),
            "due": {"w/k/held": FAR + T - 5, "w/k/now": FAR + T, "w/k/far": FAR + T + 1},
            "leased": {"leased": T + 50},
            "lease": {"leased": "1:0::tok"},
            "dead": {"dead": T - 9},
            "why": {"dead": "boom"},
        }
    )
    ids = ["w/k/held", "w/k/now", "w/k/far", "leased", "dead", "none"]
    assert shard.ask(by_id.get_many(keys, EPOCH, ids).at(NOW)) == [
        "ok",
        ["held", f"{T - 5}", "", "", stored],
        ["held", f"{T}", "", "", stored],
        ["scheduled", f"{T + 1}", "", "", stored],
        ["leased", f"{T + 50}", "1:0::tok", "", stored],
        ["dead", f"{T - 9}", "", "boom", stored],
        ["gone"],
    ]
