"""Ready ids that are cancelled, rescheduled or replaced leave a ghost behind, and are still given out once."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from typing import Any

import pytest

from shardq.core.calls import by_id, listing, observe
from shardq.core.calls.consume import SettleAck
from shardq.core.calls.request import Call
from shardq.core.layout.keys import ShardKeys
from shardq.errors import ServerFault
from tests.lua.shard import EPOCH, Shard, State, T, at, meta, record, text
from tests.lua.test_claim import claim
from tests.lua.test_dispatch import dispatch
from tests.lua.test_forward import THEIRS, forward
from tests.lua.test_settle import settle

OLD, NEW, OTHER = record("old"), record("new"), record("other")

Verb = Callable[[ShardKeys, str], Call[Any]]


def cancel(keys: ShardKeys, now: str) -> Call[Any]:
    return by_id.cancel(keys, EPOCH, "a").at(now)


def reschedule(keys: ShardKeys, now: str) -> Call[Any]:
    return by_id.reschedule(keys, EPOCH, "a", -100).at(now)


def replace(keys: ShardKeys, now: str) -> Call[Any]:
    return by_id.push_unique(keys, EPOCH, ["a", -100, NEW, "replace", 0]).at(now)


def push(keys: ShardKeys, now: str) -> Call[Any]:
    return by_id.push(keys, EPOCH, ["a", -100, NEW]).at(now)


def push_unique(keys: ShardKeys, now: str) -> Call[Any]:
    return by_id.push_unique(keys, EPOCH, ["a", -100, NEW, "reject", 0]).at(now)


WAYS: dict[str, tuple[Verb, ...]] = {
    "cancelled, pushed again": (cancel, push),
    "cancelled, pushed again under its id": (cancel, push_unique),
    "rescheduled": (reschedule,),
    "replaced": (replace,),
    "rescheduled, cancelled, pushed again": (reschedule, cancel, push),
    "rescheduled, replaced": (reschedule, replace),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("rounds", [1, 3])
@pytest.mark.parametrize("drop_first", [True, False], ids=["met before", "met together"])
def test_given_out_once_and_not_early(shard: Shard, keys: ShardKeys, way: str, rounds: int, drop_first: bool) -> None:
    shard.seed({"meta": meta(), "ready/": ["z", "a", "y"], "task": {"a": OLD, "z": OTHER, "y": OTHER}})
    for round in range(rounds):
        now = at(round * 100)
        for verb in WAYS[way]:
            shard.run(verb(keys, now))
        if drop_first:
            # early: only the stale entry is there
            early = shard.run(claim(keys))
            assert early.ids == ([] if round else ["z", "y"])
            shard.run(settle(keys, *(SettleAck(id, "tok") for id in early.ids)))
            assert "ghost" not in shard.state()
        assert shard.run(dispatch(keys, now_us=at(round * 100 + 99))).moved == 0
        assert shard.run(dispatch(keys, now_us=at(round * 100 + 100))).moved == 1
    claimed = shard.run(claim(keys))
    assert claimed.ids.count("a") == 1
    assert text(claimed.records[claimed.ids.index("a")]) == (OLD if way == "rescheduled" else NEW)
    assert shard.run(settle(keys, *(SettleAck(id, "tok") for id in claimed.ids))) == {}
    state = shard.state()
    assert state == {"meta": state["meta"], "topics": {"": f"{rounds}"}}


@pytest.mark.parametrize("way", WAYS)
def test_forwarded_once(shard: Shard, keys: ShardKeys, way: str) -> None:
    shard.seed({"meta": meta(), "ready/": ["a", "z"], "task": {"a": OLD, "z": OTHER}})
    for verb in WAYS[way]:
        shard.run(verb(keys, at(0)))
    shard.run(dispatch(keys, now_us=at(100)))
    assert shard.run(forward(keys)).sent == 2
    state = shard.state()
    assert sorted(state[THEIRS]) == sorted([(OLD if way == "rescheduled" else NEW)[1:], "other"])
    assert state.keys() == {"meta", "topics", THEIRS}


@pytest.mark.parametrize("seed", range(8))
def test_any_order_of_anything(shard: Shard, keys: ShardKeys, seed: int) -> None:
    """Random operations on one id: it is given out exactly when it is ready, and in one state at any time."""
    chance = random.Random(seed)
    tokens = itertools.count()
    present, due = False, 0
    ready = False
    for step in range(60):
        now = T + step * 100
        now_us = f"{now * 1000}"
        match chance.choice(["cancel", "reschedule", "replace", "push", "dispatch", "claim"]):
            case "cancel":
                assert bool(shard.run(cancel(keys, now_us))) is present
                present = ready = False
            case "reschedule":
                assert bool(shard.run(reschedule(keys, now_us))) is present
                due, ready = now + 100, False
            case "replace":
                shard.run(replace(keys, now_us))
                present, due, ready = True, now + 100, False
            case "push":
                assert shard.run(push(keys, now_us)) == (["a"] if present else [])
                if not present:
                    present, due, ready = True, now + 100, False
            case "dispatch":
                moves = present and not ready and due <= now
                assert shard.run(dispatch(keys, now_us=now_us)).moved == moves
                ready = ready or moves
            case "claim":
                token = f"tok{next(tokens)}"
                claimed = shard.run(claim(keys, token=token)).ids
                assert claimed == (["a"] if ready else [])
                if ready:
                    assert shard.run(settle(keys, SettleAck("a", token))) == {}
                    present = ready = False
        found = shard.run(by_id.get(keys, EPOCH, "a").at(now_us))
        assert (found and found.state) == (("ready" if ready else "scheduled") if present else None)


@pytest.mark.parametrize("verb", [cancel, reschedule, replace])
@pytest.mark.parametrize("ghosts", [0, 1, 2])
def test_one_more_than_there_were(shard: Shard, keys: ShardKeys, verb: Verb, ghosts: int) -> None:
    before: State = {"meta": meta(), "ready/": ["a"] * (ghosts + 1), "task": {"a": OLD}}
    shard.seed(before | ({"ghost": {"a": f"{ghosts}"}} if ghosts else {}))
    shard.run(verb(keys, at(0)))
    assert shard.state()["ghost"] == {"a": f"{ghosts + 1}"}
    assert shard.run(claim(keys)).ids == []


# ---- how many there are in a list


def ready(shard: Shard, keys: ShardKeys) -> dict[str, int]:
    """What a look tells of two topics."""
    return dict(shard.run(observe.peek(keys, EPOCH, ["", "mail"]).at(at(0))).ready)


@pytest.mark.parametrize("verb", [cancel, reschedule, replace])
def test_a_look_counts_tasks(shard: Shard, keys: ShardKeys, verb: Verb) -> None:
    shard.seed({"meta": meta(), "ready/": ["a", "z"], "ready/mail": ["mail/b"], "task": {"a": OLD, "z": OTHER}})
    shard.run(verb(keys, at(0)))
    assert ready(shard, keys) == {"": 1, "mail": 1}
    assert shard.state()["meta"]["ghosts/"] == "1"
    # claimed, or removed by a purge: nothing is left of the count
    if verb is cancel:
        shard.run(listing.purge(keys, EPOCH, "", scope="topic", go_on=listing.START).at(at(0)))
    else:
        assert shard.run(claim(keys)).ids == ["z"]
    assert ready(shard, keys) == {"": 0, "mail": 1}
    assert "ghosts/" not in shard.state()["meta"]


@pytest.mark.parametrize(("told", "count"), [("1", 1), ("2", 0), ("9", 0), ("-4", 2), ("many", 2), ("", 2), ("1.5", 2)])
def test_a_look_never_tells_less_than_none(shard: Shard, keys: ShardKeys, told: str, count: int) -> None:
    """A list may be removed as a whole, and other programs write what they like."""
    shard.seed({"meta": meta(**{"ghosts/": told}), "ready/": ["a", "z"], "task": {"a": OLD, "z": OTHER}})
    assert ready(shard, keys)[""] == count
    shard.do("DEL", keys.ready(""))
    assert ready(shard, keys)[""] == 0
    shard.do("RPUSH", keys.ready(""), "a")
    assert ready(shard, keys)[""] == 1


def test_ghosts_that_an_earlier_build_made_are_not_counted(shard: Shard, keys: ShardKeys) -> None:
    shard.seed({"meta": meta(), "ready/": ["old", "a"], "ghost": {"old": "1"}, "task": {"a": OLD}})
    assert ready(shard, keys)[""] == 2
    assert shard.run(claim(keys)).ids == ["a"]
    assert "ghosts/" not in shard.state()["meta"]


def test_ghosts_of_a_page_that_is_forwarded(shard: Shard, keys: ShardKeys) -> None:
    shard.seed({"meta": meta(), "ready/": ["a", "z"], "task": {"a": OLD, "z": OTHER}})
    shard.run(cancel(keys, at(0)))
    shard.do("SET", shard.prefix + THEIRS, "no list")
    assert shard.state()["meta"]["ghosts/"] == "1"
    with pytest.raises(ServerFault):
        shard.run(forward(keys))
    assert shard.state()["meta"]["ghosts/"] == "1"
    shard.do("DEL", shard.prefix + THEIRS)
    assert shard.run(forward(keys)).sent == 1
    assert "ghosts/" not in shard.state()["meta"]


def test_a_page_tells_which_may_stand_in_it_again(shard: Shard, keys: ShardKeys) -> None:
    shard.seed({"meta": meta(), "ready/": ["a", "z", "a"], "task": {"a": OLD, "z": OTHER}, "ghost": {"a": "1"}})
    page = shard.run(listing.page_ready(keys, EPOCH, "", None, count=2).at(at(0)))
    assert ([id for _, id in page.ids], page.haunted) == (["a", "z"], {"a"})
