"""The scripts that move tasks and dedup windows to another shard, one at a time: reserve, take, put, clear; remember,
forget; stock, seal, swept, unmark.
"""

from __future__ import annotations

import uuid

import pytest

from shardq.core.calls import node_info, resharding
from shardq.core.calls.resharding import MovingTask
from shardq.core.layout.keys import ShardKeys
from tests.lua.shard import EPOCH, NOW, Case, Shard, State, T, at, meta, record

A, B, C, D = (record(letter) for letter in "abcd")


def parcel(kind: str, instant: float, stored: str, *, lease: str = "", why: str = "", number: str = "n2") -> str:
    return f"{number}|1|{kind}|{instant}|{len(lease)}|{len(why)}|{lease}{why}{stored}"


def moving(**parcels: str) -> list[MovingTask]:
    return [MovingTask(id.replace("_", "/"), text.encode()) for id, text in parcels.items()]


# Two of each, so that what holds for the first alone shows; and one of each kind that stays.
STOCKED: State = {
    "task": {"due1": A, "dead1": B, "ready": C, "due2": D, "leased": A, "dead2": C, "mail/due3": B},
    "due": {"due1": T + 50, "due2": T - 70.5, "mail/due3": T},
    "dead": {"dead1": T - 8, "dead2": T - 9},
    "why": {"dead1": "boom", "dead2": ""},
    "leased": {"leased": T + 900},
    "lease": {"due1": "1:2:3:", "leased": "0:0::tok", "dead1": "4:5::", "dead2": "6:7:8:"},
    "ready/": ["ready"],
    "seen": {"due1": T + 99},
}
TAKEN = {
    "due1": parcel("due", T + 50, A, lease="1:2:3:"),
    "due2": parcel("due", T - 70.5, D),
    "dead1": parcel("dead", T - 8, B, lease="4:5::", why="boom"),
    "dead2": parcel("dead", T - 9, C, lease="6:7:8:"),
}

TAKE = {
    "what is scheduled or dead, and nothing else": Case(
        lambda keys: resharding.take(
            keys, EPOCH, "n2", 1, ["due1", "ready", "dead1", "gone", "leased", "due2", "dead2"]
        ).at(NOW),
        ["ok", *(word for id in ("due1", "dead1", "due2", "dead2") for word in (id, TAKEN[id]))],
        STOCKED,
        {
            "meta": meta(moved=4),
            "task": {"ready": C, "leased": A, "mail/due3": B},
            "due": {"mail/due3": T},
            "dead": None,
            "why": None,
            "lease": {"leased": "0:0::tok"},
            "moved": TAKEN,
        },
    ),
    "one of several": Case(
        lambda keys: resharding.take(keys, EPOCH, "n2", 1, ["dead2"]).at(NOW),
        ["ok", "dead2", TAKEN["dead2"]],
        STOCKED | {"meta": meta(moved=2), "moved": {"other": "n1|2|…"}},
        {
            "meta": meta(moved=3),
            "task": {id: stored for id, stored in STOCKED["task"].items() if id != "dead2"},
            "dead": {"dead1": T - 8},
            "why": {"dead1": "boom"},
            "lease": {"due1": "1:2:3:", "leased": "0:0::tok", "dead1": "4:5::"},
            "moved": {"other": "n1|2|…", "dead2": TAKEN["dead2"]},
        },
    ),
    "nothing is here": Case(
        lambda keys: resharding.take(keys, EPOCH, "n2", 1, ["gone", "ready"]).at(NOW), ["ok"], STOCKED
    ),
    "nothing is asked for": Case(lambda keys: resharding.take(keys, EPOCH, "n2", 1, []).at(NOW), ["ok"], STOCKED),
    "without a lease, and dead without a reason": Case(
        lambda keys: resharding.take(keys, EPOCH, "n2", 1, ["a", "b"]).at(NOW),
        ["ok", "a", parcel("due", T, A), "b", parcel("dead", T, B)],
        {"task": {"a": A, "b": B}, "due": {"a": T}, "dead": {"b": T}},
        {
            "meta": meta(moved=2),
            "task": None,
            "due": None,
            "dead": None,
            "moved": {"a": parcel("due", T, A), "b": parcel("dead", T, B)},
        },
    ),
    "the only one with a lease, and the only dead one": Case(
        lambda keys: resharding.take(keys, EPOCH, "n2", 1, ["a", "b"]).at(NOW),
        ["ok", "a", parcel("due", T, A, lease="1:2:3:"), "b", parcel("dead", T, B, why="boom")],
        {"task": {"a": A, "b": B}, "due": {"a": T}, "lease": {"a": "1:2:3:"}, "dead": {"b": T}, "why": {"b": "boom"}},
        {
            "meta": meta(moved=2),
            **dict.fromkeys(("task", "due", "lease", "dead", "why")),
            "moved": {"a": parcel("due", T, A, lease="1:2:3:"), "b": parcel("dead", T, B, why="boom")},
        },
    ),
    "scheduled counts before dead, and it is in neither afterwards": Case(
        lambda keys: resharding.take(keys, EPOCH, "n2", 1, ["a"]).at(NOW),
        ["ok", "a", parcel("due", T + 5, A)],
        {"task": {"a": A}, "due": {"a": T + 5}, "dead": {"a": T - 5}, "why": {"a": "boom"}},
        {"meta": meta(moved=1), "task": None, "due": None, "dead": None, "why": None}
        | {"moved": {"a": parcel("due", T + 5, A)}},
    ),
    "an id without a record stays where it is": Case(
        lambda keys: resharding.take(keys, EPOCH, "n2", 1, ["a", "b"]).at(NOW),
        ["ok", "b", parcel("due", T, B)],
        {"task": {"b": B}, "due": {"a": T, "b": T}},
        {"meta": meta(moved=1), "task": None, "due": {"a": T}, "moved": {"b": parcel("due", T, B)}},
    ),
}

PUT = {
    "scheduled and dead, with leases and without": Case(
        lambda keys: resharding.put(
            keys,
            EPOCH,
            moving(
                a=parcel("due", T + 70, A, lease="1:2:3:"),
                b=parcel("dead", T - 5, B, lease="4:5::", why="boom"),
                mail_c=parcel("due", T + 60, C),
                d=parcel("dead", T - 6.5, D),
                mail_e=parcel("due", T + 65, A, lease="0:1::"),
            ),
        ).at(NOW),
        ["ok"],
        {"staged": dict.fromkeys(("a|n2", "b|n2", "mail/c|n2", "d|n2", "mail/e|n2", "a|n1"), "")},
        {
            "meta": meta(wake_at=T + 60),
            "task": {"a": A, "b": B, "mail/c": C, "d": D, "mail/e": A},
            "due": {"a": T + 70, "mail/c": T + 60, "mail/e": T + 65},
            "dead": {"b": T - 5, "d": T - 6.5},
            "why": {"b": "boom", "d": ""},
            "lease": {"a": "1:2:3:", "b": "4:5::", "mail/e": "0:1::"},
            "staged": {"a|n1": ""},
        },
    ),
    "only those with a mark of this number": Case(
        lambda keys: resharding.put(
            keys,
            EPOCH,
            moving(a=parcel("due", T + 1, A), b=parcel("due", T + 2, B), c=parcel("dead", T + 2, C)),
        ).at(NOW),
        ["ok"],
        {"staged": {"a|n1": "", "b|n2": "", "b|n1": ""}},
        {"meta": meta(wake_at=T + 2), "task": {"b": B}, "due": {"b": T + 2}, "staged": {"a|n1": "", "b|n1": ""}},
    ),
    "only dead ones ring nobody": Case(
        lambda keys: resharding.put(keys, EPOCH, moving(a=parcel("dead", T - 1, A, why="w"))).at(NOW),
        ["ok"],
        {"staged": {"a|n2": ""}},
        {"task": {"a": A}, "dead": {"a": T - 1}, "why": {"a": "w"}, "staged": None},
    ),
    "nor do they where nobody polls": Case(
        lambda keys: resharding.put(keys, EPOCH, moving(a=parcel("dead", T - 1, A, why="w"))).at(NOW),
        ["ok"],
        {"meta": meta(wake_at=T - 9000), "staged": {"a|n2": ""}},
        {"task": {"a": A}, "dead": {"a": T - 1}, "why": {"a": "w"}, "staged": None},
    ),
    "without marks nothing is written": Case(
        lambda keys: resharding.put(keys, EPOCH, moving(a=parcel("due", T, A))).at(NOW), ["ok"]
    ),
    "nothing": Case(lambda keys: resharding.put(keys, EPOCH, []).at(NOW), ["ok"], {"staged": {"a|n1": ""}}),
}

CLEAR = {
    "those of this number": Case(
        lambda keys: resharding.clear(
            keys,
            EPOCH,
            [MovingTask("a", b"n1|"), MovingTask("gone", b"n1|"), MovingTask("b", b"n2|"), MovingTask("c", b"n1|")],
        ).at(NOW),
        ["ok"],
        {"moved": {"a": "n1|1|", "b": "n2|1|", "c": "n1|1|", "d": "n1|1|"}},
        {"moved": {"d": "n1|1|"}},
    ),
    "another number, and one that begins alike": Case(
        lambda keys: resharding.clear(
            keys, EPOCH, [MovingTask("a", b"n1|"), MovingTask("b", b"n12|"), MovingTask("c", b"n1|")]
        ).at(NOW),
        ["ok"],
        {"moved": {"a": "n12|1|", "b": "n1|1|", "c": "xn1|1|"}},
    ),
    "nothing": Case(lambda keys: resharding.clear(keys, EPOCH, []).at(NOW), ["ok"], {"moved": {"a": "n1|1|"}}),
}

WINDOWS = {
    "remembered: the later end counts": Case(
        lambda keys: resharding.remember(
            keys, EPOCH, {"new": f"{T + 7}.5", "later": f"{T + 9}", "longer": f"{T + 8}"}, ahead_ms=0
        ).at(NOW),
        ["ok"],
        {"seen": {"later": T + 8, "longer": T + 9, "other": T}},
        {"seen": {"new": T + 7.5, "later": T + 9, "longer": T + 9, "other": T}},
    ),
    "remembered: by the steady clock of either side": Case(
        lambda keys: resharding.remember(keys, EPOCH, {"a": f"{T + 7000}", "b": f"{T + 8000}"}, ahead_ms=300).at(NOW),
        ["ok"],
        {"meta": meta(ahead=1000, clock=T + 500, wake_at=T + 77)},
        {"seen": {"a": T + 7700, "b": T + 8700}},
    ),
    "remembered: the clock of this server went back": Case(
        lambda keys: resharding.remember(keys, EPOCH, {"a": f"{T + 7000}"}, ahead_ms=300).at(NOW),
        ["ok"],
        {"meta": meta(ahead=1000, clock=T + 5000)},
        {"seen": {"a": T + 11_700}},
    ),
    "remembered: nothing": Case(
        lambda keys: resharding.remember(keys, EPOCH, {}, ahead_ms=0).at(NOW), ["ok"], {"seen": {"a": T}}
    ),
    "forgotten, unless it became longer": Case(
        lambda keys: resharding.forget(
            keys,
            EPOCH,
            {"a": f"{T + 1}", "gone": f"{T}", "longer": f"{T + 2}", "shorter": f"{T + 3}", "b": f"{T + 4.5}"},
        ).at(NOW),
        ["ok"],
        {"seen": {"a": T + 1, "longer": T + 2.5, "shorter": T + 2, "b": T + 4.5, "other": T}},
        {"seen": {"longer": T + 2.5, "other": T}},
    ),
    "forgotten: one alone": Case(
        lambda keys: resharding.forget(keys, EPOCH, {"a": f"{T + 1}"}).at(NOW),
        ["ok"],
        {"seen": {"a": T + 1, "b": T + 1}},
        {"seen": {"b": T + 1}},
    ),
    "forgotten: none that is here": Case(
        lambda keys: resharding.forget(keys, EPOCH, {"gone": f"{T}", "longer": f"{T}"}).at(NOW),
        ["ok"],
        {"seen": {"longer": T + 1}},
    ),
    "forgotten: nothing": Case(lambda keys: resharding.forget(keys, EPOCH, {}).at(NOW), ["ok"], {"seen": {"a": T}}),
}

NOTES = {
    "reserved": Case(
        lambda keys: resharding.reserve(keys, EPOCH, "n3", ["a", "mail/b", "c"]).at(NOW),
        ["ok"],
        {"staged": {"a|n2": ""}},
        {"staged": {"a|n2": "", "a|n3": "", "mail/b|n3": "", "c|n3": ""}},
    ),
    "reserved: nothing": Case(lambda keys: resharding.reserve(keys, EPOCH, "n3", []).at(NOW), ["ok"]),
    "swept": Case(
        lambda keys: resharding.swept(keys, EPOCH, 2).at(NOW),
        ["ok"],
        {"meta": meta(swept=1)},
        {"meta": meta(swept=2)},
    ),
    "sealed": Case(
        lambda keys: node_info.seal(keys.meta, keys.slot, EPOCH).at(at(7)), ["ok"], {}, {"meta": meta(sealed=T + 7)}
    ),
    "sealed: the first beat of an outbox": Case(
        lambda keys: node_info.beat(keys, EPOCH, "outbox", 7).at(at(7)),
        ["ok", 0, T + 7],
        {},
        {"meta": meta(sealed=T + 7, **{"beat/outbox": 7})},
    ),
    "sealed: a lower beat, or a question": Case(
        lambda keys: node_info.beat(keys, EPOCH, "outbox", 6).at(at(7)),
        ["ok", 8, T + 7],
        {"meta": meta(**{"beat/outbox": 8})},
        {"meta": meta(sealed=T + 7, **{"beat/outbox": 8})},
    ),
    "sealed: a beat of a server that went back": Case(
        lambda keys: node_info.beat(keys, EPOCH, "outbox", 9, least=8).at(at(7)),
        ["ok", 6, T + 7],
        {"meta": meta(**{"beat/outbox": 6})},
        {"meta": meta(sealed=T + 7, **{"beat/outbox": 6})},
    ),
    "unmarked": Case(
        lambda keys: resharding.unmark(keys, EPOCH).at(NOW),
        ["ok"],
        {"staged": {"a|n2": "", "b|n2": ""}, "moved": {"a": "n1|2|…"}},
        {"staged": None},
    ),
}

CASES = {
    f"{script}: {name}": case
    for script, cases in (
        *(("take", TAKE), ("put", PUT), ("clear", CLEAR)),
        *(("window", WINDOWS), ("note", NOTES)),
    )
    for name, case in cases.items()
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_one_call(shard: Shard, keys: ShardKeys, case: Case) -> None:
    case.check(shard, keys)


def test_what_is_put_in_this_order_wakes_at_the_first(shard: Shard, keys: ShardKeys) -> None:
    """The poller is rung for what is due before it wakes, and for that only."""
    for waking, due, rung in ((T + 100, (T + 50, T + 70), True), (T + 10, (T + 70, T + 50), False)):
        shard.seed({"meta": meta(wake_at=waking), "staged": {"a|n2": "", "b|n2": ""}})
        with shard.listener(keys.bell) as ear:
            tasks = moving(a=parcel("due", due[0], A), b=parcel("due", due[1], B))
            assert shard.ask(resharding.put(keys, EPOCH, tasks).at(NOW)) == ["ok"]
            assert bool(ear.heard()) == rung
        assert shard.state()["meta"]["wake_at"] == f"{min(waking, *due)}"


@pytest.mark.parametrize(("present", "more", "becomes"), [(0, 16, False), (0, 17, True), (10, 7, True), (600, 1, True)])
def test_many_marks_make_a_table(shard: Shard, keys: ShardKeys, present: int, more: int, becomes: bool) -> None:
    """Nothing but the marks is left, and a key that is a table already needs no more."""
    shard.seed({"meta": meta(), "staged": {f"{n}|n1": "" for n in range(present)}})
    ids = [f"i{n}" for n in range(more)]
    assert shard.ask(resharding.reserve(keys, EPOCH, "n2", ids).at(NOW)) == ["ok"]
    marks = {f"{n}|n1" for n in range(present)} | {f"{id}|n2" for id in ids}
    assert shard.state()["staged"].keys() == marks
    assert (shard.do("OBJECT", "ENCODING", keys.staged) == "hashtable") == becomes


def test_a_user_who_may_not_remove_reserves_many(shard: Shard, keys: ShardKeys) -> None:
    """What made a table of the key stays: it is no mark."""
    shard.seed({"meta": meta()})
    ids, user = [f"i{n}" for n in range(17)], f"u{uuid.uuid4().hex}"
    shard.do("ACL", "SETUSER", user, "on", "nopass", "+@all", "-hdel", "allchannels", "allkeys")
    with shard.as_user(user) as asker:
        assert asker.ask(resharding.reserve(keys, EPOCH, "n2", ids).at(NOW)) == ["ok"]
    shard.do("ACL", "DELUSER", user)
    assert shard.state()["staged"].keys() == {f"{id}|n2" for id in ids} | {""}


@pytest.mark.parametrize(
    ("size", "taken"), [(400_000, 4), (262_144, 4), (262_143, 5), (200_000, 6), (3000, 350), (10, 900)]
)
def test_a_take_is_bounded_by_bytes(shard: Shard, keys: ShardKeys, size: int, taken: int) -> None:
    """It ends with the record that passes 1 MiB, or with the fourth; what is not taken is there for the next one."""
    ids = [f"i{n:03}" for n in range(900 if size < 100_000 else 12)]
    shard.seed({"meta": meta(), "task": dict.fromkeys(ids, "\x10" + "x" * (size - 1)), "due": dict.fromkeys(ids, T)})
    tasks = shard.run(resharding.take(keys, EPOCH, "n2", 1, ids).at(NOW))
    assert [task.id for task in tasks] == ids[:taken]
    state = shard.state()
    assert set(state.get("task", {})) == set(state.get("due", {})) == set(ids[taken:])
    assert state["meta"]["moved"] == f"{taken}"


@pytest.mark.parametrize(("more", "taken"), [(0, 4), (-1, 5)])
def test_a_take_of_1_mib_but_for_a_byte_goes_on(shard: Shard, keys: ShardKeys, more: int, taken: int) -> None:
    sizes = [262_144 + more, *[262_144] * 3, 9]
    stored = {f"i{n}": "\x10" + "x" * (size - 1) for n, size in enumerate(sizes)}
    shard.seed({"meta": meta(), "task": stored, "due": dict.fromkeys(stored, T)})
    assert len(shard.run(resharding.take(keys, EPOCH, "n2", 1, list(stored)).at(NOW))) == taken


@pytest.mark.parametrize("count", [3, 700])
def test_stock_tells_all_ids_page_by_page(shard: Shard, keys: ShardKeys, count: int) -> None:
    ids = {f"i{n}" for n in range(count)}
    # more than fits into a packed hash: it is gone through in pages
    shard.seed({"meta": meta(), "task": dict.fromkeys(ids, A)})
    place, met, pages, bytes = "0", set(), 0, 0
    while place != "0" or not pages:
        page = shard.run(resharding.stock(keys, EPOCH, place, count=100).at(NOW))
        met |= set(page.ids)
        place, pages, bytes = page.cursor, pages + 1, bytes + page.bytes
    assert met == ids
    # Redis 7.0 has no way to read the names of fields alone
    assert bytes == (count * len(A) if "redis_version:7.0" in shard.do("INFO", "server") else 0)
    assert (pages > 3) == (count > 512)
    # the place of another process of the server is none: it begins anew
    other = shard.run(resharding.stock(keys, EPOCH, "7@0123", count=1000).at(NOW))
    assert set(other.ids) == ids
