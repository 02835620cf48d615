"""claim: ready tasks under a lease, in the order of topics."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import pytest

from shardq.core.calls import consume
from shardq.core.calls.consume import Claim
from shardq.core.calls.request import Call
from shardq.core.layout.keys import ShardKeys
from tests.lua.shard import EPOCH, NOW, Shard, State, T, meta, named, record

A, B, C = record("a"), record("b"), record("c")
LIMITED = record("d", max_attempts=7)
ODD = "\x20newer"
LEASE = 10_000

MIB = 1 << 20

Given = tuple[str, bytes, int, int]
"""Id, record, failures and lapses of a claimed task."""


def claim(
    keys: ShardKeys,
    shares: Mapping[str, int] | None = None,
    *,
    max: int = 10,
    lease_ms: int = LEASE,
    token: str = "tok",
) -> Call[Claim]:
    shares = {"": max} if shares is None else shares
    return consume.claim(keys, EPOCH, shares, max=max, lease_ms=lease_ms, token=token).at(NOW)


def task(id: str, record: str, failures: int = 0, lapses: int = 0) -> Given:
    return id, record.encode("utf-8", "surrogateescape"), failures, lapses


def given(claim: Claim) -> list[Given]:
    """The claimed tasks one by one."""
    tasks = zip(claim.ids, claim.records, strict=True)
    return [(*task, *claim.pasts.get(position, (0, 0))) for position, task in enumerate(tasks)]


def expiring(ms: int) -> str:
    """The record of a task that is worth nothing after an instant."""
    head = msgspec.msgpack.encode({"x": ms})
    return "\x18" + (len(head).to_bytes(2, "big") + head + b"late").decode("utf-8", "surrogateescape")


RUNG = meta(wake_at=T + LEASE)

# before → how it is asked → tasks, what is left → what is different
TABLE: dict[str, tuple[State, Call[Claim] | Mapping[str, int], int, list[Given], list[int], State]] = {
    "nothing is ready": ({}, {"": 10}, 10, [], [0], {}),
    "no list is asked for": ({"ready/": ["a"], "task": {"a": A}}, {}, 10, [], [], {}),
    "only a look": ({"ready/": ["a"], "task": {"a": A}}, {"": 10, "mail": 10}, 0, [], [1, 0], {}),
    "one": (
        {"ready/": ["a"], "task": {"a": A}},
        {"": 10},
        10,
        [task("a", A)],
        [0],
        {"ready/": None, "leased": {"a": T + LEASE}, "lease": {"a": "0:0::tok"}, "meta": RUNG},
    ),
    "oldest first, and no more than asked for": (
        {"ready/": ["b", "a", "c"], "task": {"a": A, "b": B, "c": C}},
        {"": 2},
        10,
        [task("b", B), task("a", A)],
        [1],
        {
            "ready/": ["c"],
            "leased": {"a": T + LEASE, "b": T + LEASE},
            "lease": {"a": "0:0::tok", "b": "0:0::tok"},
            "meta": RUNG,
        },
    ),
    "topics in the order given, each up to its share": (
        {"ready/": ["a", "c"], "ready/mail": ["mail/b", "mail/d"], "task": {"a": A, "mail/b": B, "c": C, "mail/d": A}},
        {"mail": 1, "none": 5, "": 5},
        10,
        [task("mail/b", B), task("a", A), task("c", C)],
        [1, 0, 0],
        {
            "ready/": None,
            "ready/mail": ["mail/d"],
            "leased": dict.fromkeys(["a", "c", "mail/b"], T + LEASE),
            "lease": dict.fromkeys(["a", "c", "mail/b"], "0:0::tok"),
            "meta": RUNG,
        },
    ),
    "no more in all than asked for": (
        {"ready/": ["a"], "ready/mail": ["mail/b"], "task": {"a": A, "mail/b": B}},
        {"mail": 1, "": 1},
        1,
        [task("mail/b", B)],
        [0, 1],
        {"ready/mail": None, "leased": {"mail/b": T + LEASE}, "lease": {"mail/b": "0:0::tok"}, "meta": RUNG},
    ),
    "its past and its own limit stay with it": (
        {"ready/": ["a", "d"], "task": {"a": A, "d": LIMITED}, "lease": {"a": "2:1::", "d": "0:3:7:"}},
        {"": 10},
        10,
        [task("a", A, 2, 1), task("d", LIMITED, 0, 3)],
        [0],
        {
            "ready/": None,
            "leased": {"a": T + LEASE, "d": T + LEASE},
            "lease": {"a": "2:1::tok", "d": "0:3:7:tok"},
            "meta": RUNG,
        },
    ),
    "its past beside the leases of others": (
        {
            "ready/": ["b", "a"],
            "task": {"a": A, "b": B, "c": C},
            "leased": {"c": T + LEASE},
            "lease": {"c": "0:0::x", "a": "1:0::"},
        },
        {"": 10},
        10,
        [task("b", B), task("a", A, 1)],
        [0],
        {
            "ready/": None,
            "leased": dict.fromkeys("abc", T + LEASE),
            "lease": {"c": "0:0::x", "b": "0:0::tok", "a": "1:0::tok"},
            "meta": RUNG,
        },
    ),
    "a new limit counts": (
        {"ready/": ["d"], "task": {"d": LIMITED}, "lease": {"d": "0:0::~old"}},
        {"": 10},
        10,
        [task("d", LIMITED)],
        [0],
        {"ready/": None, "leased": {"d": T + LEASE}, "lease": {"d": "0:0:7:tok"}, "meta": RUNG},
    ),
    "an id without a record is dropped": (
        {"ready/": ["x", "a", "y"], "task": {"a": A}},
        {"": 10},
        10,
        [task("a", A)],
        [0],
        {"ready/": None, "leased": {"a": T + LEASE}, "lease": {"a": "0:0::tok"}, "meta": RUNG},
    ),
    "only ids without a record": ({"ready/": ["x", "y"]}, {"": 10}, 10, [], [0], {"ready/": None}),
    "stale entries are dropped, as many as are counted": (
        {"ready/": ["a", "b", "a", "b"], "task": {"a": A, "b": B}, "ghost": {"a": "1", "b": "3", "c": "1"}},
        {"": 10},
        10,
        [task("a", A)],
        [0],
        {
            "ready/": None,
            "ghost": {"b": "1", "c": "1"},
            "leased": {"a": T + LEASE},
            "lease": {"a": "0:0::tok"},
            "meta": RUNG,
        },
    ),
    "the last stale entry": (
        {"ready/": ["a"], "task": {"a": A}, "due": {"a": T + 5}, "ghost": {"a": "1"}},
        {"": 10},
        10,
        [],
        [0],
        {"ready/": None, "ghost": None},
    ),
    "a record of an unknown version": (
        {"ready/": ["x", "a"], "task": {"x": ODD, "a": A}},
        {"": 10},
        10,
        [task("a", A)],
        [0],
        {
            "ready/": None,
            "dead": {"x": T},
            "why": {"x": "format"},
            "leased": {"a": T + LEASE},
            "lease": {"a": "0:0::tok"},
            "meta": RUNG | {"died/": "1"},
        },
    ),
    "records that are cut off, or have no head where one is said to be": (
        {
            "ready/": ["v", "w", "x", "y"],
            "task": {"v": "", "w": "\x18", "x": "\x18\x00\x09zz", "y": "\x18\x00\x01\x07"},
        },
        {"": 10},
        10,
        [],
        [0],
        {
            "ready/": None,
            "dead": dict.fromkeys("vwxy", T),
            "why": dict.fromkeys("vwxy", "format"),
            "meta": meta() | {"died/": "4"},
        },
    ),
    "what nobody can be given takes nobody's place": (
        {
            "ready/": ["g", "x", "z", "b", "a", "b", "c"],
            "task": {"z": expiring(T), "g": A, "a": A, "b": B, "c": C},
            "ghost": {"g": "1", "b": "1"},
        },
        {"": 2},
        2,
        [task("a", A), task("b", B)],
        [1],
        {
            "ready/": ["c"],
            "ghost": None,
            "dead": {"z": T},
            "why": {"z": "expired"},
            "leased": {"a": T + LEASE, "b": T + LEASE},
            "lease": {"a": "0:0::tok", "b": "0:0::tok"},
            "meta": RUNG | {"died/": "1"},
        },
    ),
    "what nobody can be given in front of another list": (
        {"ready/": ["g", "x"], "ready/mail": ["mail/b", "mail/c"], "ghost": {"g": "1"}, "task": {"mail/b": B}},
        {"": 1, "mail": 1},
        1,
        [task("mail/b", B)],
        [0, 1],
        {
            "ready/": None,
            "ready/mail": ["mail/c"],
            "ghost": None,
            "leased": {"mail/b": T + LEASE},
            "lease": {"mail/b": "0:0::tok"},
            "meta": RUNG,
        },
    ),
    "one that has expired": (
        {"ready/": ["x", "y"], "task": {"x": expiring(T), "y": expiring(T + 1)}},
        {"": 10},
        10,
        [task("y", expiring(T + 1))],
        [0],
        {
            "ready/": None,
            "dead": {"x": T},
            "why": {"x": "expired"},
            "leased": {"y": T + LEASE},
            "lease": {"y": "0:0::tok"},
            "meta": RUNG | {"died/": "1"},
        },
    ),
    "a lease that ends before the poller wakes": (
        {"ready/": ["a"], "task": {"a": A}, "meta": meta(wake_at=T + LEASE + 1)},
        {"": 10},
        10,
        [task("a", A)],
        [0],
        {"ready/": None, "leased": {"a": T + LEASE}, "lease": {"a": "0:0::tok"}, "meta": RUNG},
    ),
    "a lease that ends after it": (
        {"ready/": ["a"], "task": {"a": A}, "meta": meta(wake_at=T + LEASE)},
        {"": 10},
        10,
        [task("a", A)],
        [0],
        {"ready/": None, "leased": {"a": T + LEASE}, "lease": {"a": "0:0::tok"}},
    ),
}


@pytest.mark.parametrize("line", TABLE.values(), ids=TABLE)
def test_claim(
    shard: Shard, keys: ShardKeys, line: tuple[State, Mapping[str, int], int, list[Given], list[int], State]
) -> None:
    before, shares, max, tasks, left, after = line
    before = {"meta": meta()} | before
    shard.seed(before)
    answer = shard.run(claim(keys, shares, max=max))
    assert (given(answer), answer.left) == (tasks, left)
    assert shard.state() == {name: value for name, value in (before | after).items() if value is not None}


def test_the_bare_answer(shard: Shard, keys: ShardKeys) -> None:
    shard.seed({"meta": meta(), "ready/": ["a", "b"], "task": {"a": A, "b": B}, "lease": {"a": "1:2::"}})
    none = {"left": [0], "crowds": [0], "dropped": 0, "ids": "", "records": [], "pasts": []}
    first = named(shard.ask(claim(keys, {"": 1})))
    assert first == none | {"left": [1], "ids": "a", "records": [A], "pasts": [1, 1, 2]}
    assert named(shard.ask(claim(keys, {"": 1}, token="new"))) == none | {"ids": "b", "records": [B]}
    assert named(shard.ask(claim(keys, {"": 1}, token="newer"))) == none


def test_twice_gives_what_is_next_and_then_nothing(shard: Shard, keys: ShardKeys) -> None:
    # a claim is never sent again under its token: what an unheard one gave comes back at its deadline
    shard.seed({"meta": meta(), "ready/": ["a", "b"], "task": {"a": A, "b": B}})
    assert [shard.run(claim(keys, max=1, token=token)).ids for token in ("x", "y", "z")] == [["a"], ["b"], []]
    assert shard.state()["lease"] == {"a": "0:0::x", "b": "0:0::y"}


def test_a_thousand_and_one_more(shard: Shard, keys: ShardKeys) -> None:
    ids = [f"i{n}" for n in range(1001)]
    shard.seed({"meta": meta(), "ready/": ids, "task": dict.fromkeys(ids, A)})
    answer = shard.run(claim(keys, max=1000))
    assert (answer.ids, answer.left) == (ids[:1000], [1])
    state = shard.state()
    assert state["ready/"] == ids[1000:]
    assert state["leased"] == dict.fromkeys(ids[:1000], T + LEASE)
    assert shard.run(claim(keys, max=1000)).ids == ids[1000:]


def test_sixty_four_topics(shard: Shard, keys: ShardKeys) -> None:
    ids = {f"t{n:02}": f"t{n:02}/a" for n in range(64)}
    shard.seed(
        {"meta": meta(), "task": dict.fromkeys(ids.values(), A)} | {f"ready/{topic}": [id] for topic, id in ids.items()}
    )
    answer = shard.run(claim(keys, dict.fromkeys(ids, 5), max=40))
    assert answer.ids == list(ids.values())[:40]
    assert answer.left == [0] * 40 + [1] * 24


@pytest.mark.parametrize("small_ones", [0, 1, 30])
def test_a_bounded_number_of_bytes(shard: Shard, keys: ShardKeys, small_ones: int) -> None:
    """A mebibyte, and what it takes to get there: one more record."""
    small = {f"s{n}": A for n in range(small_ones)}
    large = {f"l{n}": record("x" * (600 << 10)) for n in range(8)}
    records = small | large
    shard.seed({"meta": meta(), "ready/": [*records], "ready/mail": ["mail/z"], "task": records | {"mail/z": A}})
    answer = shard.run(claim(keys, {"": 1000, "mail": 1000}, max=1000))
    assert answer.ids == [*small, "l0", "l1"]
    assert answer.left == [6, 1]
    assert len(shard.state()["leased"]) == len(answer.ids)
    rest: list[str] = []
    while claimed := shard.run(claim(keys, {"": 1000, "mail": 1000}, max=1000)).ids:
        rest += claimed
    assert rest == [*list(large)[2:], "mail/z"]


def test_records_of_a_mebibyte_one_by_one(shard: Shard, keys: ShardKeys) -> None:
    large = record("x" * MIB)
    shard.seed({"meta": meta(), "ready/": ["a", "b"], "task": {"a": large, "b": large}})
    assert given(shard.run(claim(keys))) == [task("a", large)]
    assert shard.run(claim(keys)).ids == ["b"]


@pytest.mark.parametrize("kind", ["stale", "expired", "removed"])
@pytest.mark.parametrize("number", [999, 1000, 3000])
def test_a_bounded_number_of_entries_that_nobody_can_be_given(
    shard: Shard, keys: ShardKeys, kind: str, number: int
) -> None:
    ids = [f"i{n}" for n in range(number)]
    before: State = {"meta": meta(), "ready/": [*ids, "a", "b"], "task": {"a": A, "b": B}}
    if kind == "expired":
        before["task"] |= dict.fromkeys(ids, expiring(T))
    if kind == "stale":
        before["task"] |= dict.fromkeys(ids, A)
        before["ghost"] = dict.fromkeys(ids, "1")
    shard.seed(before)
    left = []
    while not (answer := shard.run(claim(keys, {"": 1}, max=1))).ids:
        # it says that it has to be called again, and has done a thousand
        assert answer.dropped == 1000
        left += answer.left
    assert left == [number + 2 - done for done in range(1000, number + 1, 1000)]
    assert (answer.ids, answer.left, answer.dropped) == (["a"], [1], number % 1000)
    state = shard.state()
    assert state["ready/"] == ["b"]
    assert "ghost" not in state
    assert state.get("dead", {}) == (dict.fromkeys(ids, T) if kind == "expired" else {})


def test_a_bounded_number_of_bytes_that_nobody_can_be_given(shard: Shard, keys: ShardKeys) -> None:
    large = expiring(T) + "x" * (600 << 10)
    ids = [f"l{n}" for n in range(5)]
    shard.seed({"meta": meta(), "ready/": [*ids, "a"], "task": dict.fromkeys(ids, large) | {"a": A}})
    answers = [shard.run(claim(keys, {"": 1}, max=1)) for _ in range(3)]
    told = [(answer.ids, answer.left, answer.dropped) for answer in answers]
    assert told == [([], [4], 2), ([], [2], 2), (["a"], [0], 1)]
