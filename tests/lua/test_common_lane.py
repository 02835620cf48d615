"""The functions of ``common/lane.lua`` one by one, on the model: they answer what plain Python answers, and read no
more than they must. A lane that is counted wrong gives one task too many, or none.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pytest

from shardq.core.calls.lane_control import id_of_entry
from shardq.core.layout.lanes import lane_of
from tests.lua.parts import FAR, asked, bytewise, entry, of_each_word, truth, waiting
from tests.lua.shard import State, T, meta
from tests.support.rows import each_row

# ---- what a script asks of lanes before all else

SIZES = {"keys": 2, "placed": 4, "alarms": 0, "rests": 5, "holds": 6, "gates": 7}


@pytest.mark.parametrize("lacking", ["", "rests", "holds", "gates"])
def test_what_is_asked_first(lacking: str) -> None:
    """Of a kind of which the shard has nothing, that is all: it has none of any lane."""
    sizes = {name: 0 if name == lacking else size for name, size in SIZES.items()}
    state: State = {name: {f"{n}": "0" for n in range(size)} for name, size in sizes.items()}
    state["placed"] |= {"!a": 0, "!z": 0, '"': 0}
    body = f"""
    local told = {{{truth("lanes_from(3, 2)")}, entered, untaken}}
    for _, known in ipairs({{rests, holds, gates}}) do
      told[#told + 1] = known.count
      told[#told + 1] = {truth("known.all")}
    end
    return told
    """
    counts = [word for name in ("rests", "holds", "gates") for word in (sizes[name], int(name == lacking))]
    asks = ["ZCARD keys", "ZCARD alarms", 'ZLEXCOUNT placed - ("', "ZCARD rests", "HLEN holds", "HLEN gates"]
    assert asked(state, body) == ([1, 2, 2, *counts], asks)


# ---- names

IDS = [
    *("", "a", "w/a", "/a", "w/k/a", "/k/a", "w/k/", "/k/", "w//a", "//a", "w//", "//", "w//a/b", "//a/b"),
    *("w/k/a/b", "w.x/k-1/a%b", "%w/(k/a", "w/ключ/задача"),
]


def test_lanes_of_ids() -> None:
    assert asked({}, of_each_word("lane_of(word) or 'none'"), *IDS) == ([lane_of(id) or "none" for id in IDS], [])


NAMES: list[tuple[str, int, int | None]] = [
    ("w/k/a", T, None),
    ("w/k/b", T, None),
    ("w/k/b", 0, None),
    ("w/k/b", 999_999_999_999_999, None),
    ("/k/b", T, None),
    ("w/k/a", T, 1),
    ("w/k/a", T, 0),
    ("/k/a", T, 99_999_999_999_999),
    ("/k/a", T, None),
]


def test_names_of_those_that_wait() -> None:
    body = """
    local told = {}
    for i = 3, #ARGV, 4 do
      local id, lane, number = ARGV[i], ARGV[i + 1], tonumber(ARGV[i + 3])
      local entry = entry_of(id, lane, tonumber(ARGV[i + 2]), number)
      told[#told + 1] = entry
      told[#told + 1] = id_of(entry, lane)
      told[#told + 1] = string.format('%.0f', number_of(entry, lane) or -1)
      told[#told + 1] = number and '' or score_of(entry, lane)
    end
    return told
    """
    words = [word for id, at, number in NAMES for word in (id, str(lane_of(id)), at, "" if number is None else number)]
    told, made = asked({}, body, *words)
    expected = [
        [entry(*name), name[0], f"{-1 if name[2] is None else name[2]}", f"{FAR + name[1]}" if name[2] is None else ""]
        for name in NAMES
    ]
    assert (list(zip(*[iter(told)] * 4, strict=True)), made) == ([tuple(each) for each in expected], [])
    assert all(id_of_entry(entry(id, at, number), str(lane_of(id))) == id for id, at, number in NAMES)


def test_what_another_program_has_put_at_the_front_is_the_first_there() -> None:
    assert asked({}, "return {number_of('w/k/-of its own---/a', 'w/k/')}")[0] == [0]


@pytest.mark.parametrize("due", [", 2", ""])
def test_when_those_that_wait_are_due(due: str) -> None:
    """What is at the front is due as `due` says, where the script has that. What another program has written is due."""
    last = 999_999_999_999_999
    state: State = {"due": {"w/k/a": FAR + T + 5, "w/k/b": FAR + T + 7}}
    names: list[tuple[str, int, int | None]] = [("w/k/a", T + 1, 3), ("w/k/c", T, 4)]
    names += [(id, at, None) for id in ("w/k/a", "w/k/b") for at in (T, T + 8, last)]
    body = """
    local told = {}
    for i = 3, #ARGV do
      local at, number = due_of(ARGV[i], 'w/k/')
      told[#told + 1] = string.format('%.0f', at) .. ' ' .. (number or '')
    end
    return told
    """
    told, made = asked(state, body, *(entry(*name) for name in names), "w/k/", "w/k/nan", due=due)
    fronts = [f"{T + 5} 3", "0 4"] if due else ["0 3", "0 4"]
    assert told == [*fronts, *[f"{T} ", f"{T + 8} ", f"{last} "] * 2, "0 ", "0 "]
    assert made == (["ZSCORE due w/k/a", "ZSCORE due w/k/c"] if due else [])


def test_the_front_of_a_lane_is_read_once() -> None:
    there = [entry("w/k/a", T, 7), entry("w/k/b", T, 9), entry("w/k/c", T), entry("w/k0/a", T, 5), entry("w/l/d", T, 1)]
    ids = ["w/k/b", "w/k/a", "w/l/d", "w/k/d", "w/k/b", "w/l/a"]
    body = of_each_word("front_of(word, lane_of(word)) or 'none'")
    told, made = asked({"keys": dict.fromkeys(there, 0)}, body, *ids)
    assert told == [there[1], there[0], there[4], "none", there[1], "none"]
    assert made == [f"ZRANGEBYLEX keys [w/{lane}/- (w/{lane}/0 LIMIT 0 5000" for lane in ("k", "l")]


# ---- rules

WINDOWS: dict[str, tuple[dict[str, str], list[Any]]] = {
    "none": ({}, [1, "0", "front", "none"]),
    "one at a time": ({"keys/w": "1:0.000000:wait"}, [1, "0", "front", "none"]),
    "one at a time, that skips": ({"keys/w": "1:0.000000:skip"}, [1, "0", "", "none"]),
    "three": ({"keys/w": "3:0.000000:wait"}, [3, "0", "", "none"]),
    "a rate": ({"keys/w": "1:0.250000:wait"}, [1, "0.25", "front", "none"]),
    "none may be out": ({"keys/w": "0:0.000000:wait"}, [1, "0", "front", "none"]),
    "what is no window": ({"keys/w": "many"}, [1, "0", "front", "none"]),
    "lowered, for all lanes": ({"lowered/w": ""}, [1, "0", "front", ""]),
    "lowered, from a lane on": ({"keys/w": "2:0.000000:wait", "lowered/w": "w/k"}, [2, "0", "", "w/k"]),
    "of another topic": (
        {"keys/": "5:0.000000:skip", "keys/w.x": "5:1.000000:skip", "lowered/x": ""},
        [1, "0", "front", "none"],
    ),
}


@each_row(("fields", "window"), WINDOWS)
def test_windows(fields: dict[str, str], window: list[Any]) -> None:
    body = """
    local most, interval, front, lowered = window_of('w/k/')
    return {most, tostring(interval), front and 'front' or '', lowered or 'none', rules_of('w/l/').topic}
    """
    assert asked({"meta": meta(**fields)}, body) == ([*window, "w"], ["HMGET meta keys/w lowered/w"])


def test_the_window_of_a_topic_is_read_once() -> None:
    """Also where lanes of several topics take turns; no topic is taken for one that it begins with."""
    lanes = ["w/k/", "w.x/k/", "/k/", "w/l/", "w.x/l/", "w/k/", "/l/"]
    most = {"w": 2, "w.x": 3, "": 4}
    fields = {f"keys/{topic}": f"{count}:0:wait" for topic, count in most.items()}
    told, made = asked({"meta": meta(**fields)}, of_each_word("rules_of(word).most"), *lanes)
    assert told == [most[lane.split("/")[0]] for lane in lanes]
    assert made == [f"HMGET meta keys/{topic} lowered/{topic}" for topic in most]


@pytest.mark.parametrize("interval", ["0.000000", "0.500000", "1.000000"])
@each_row(("marks", "lowered"), {f"{m} {lowered}": (m, lowered) for m in range(3) for lowered in (None, "", "w/k")})
def test_tasks_may_have_marks(interval: str, marks: int, lowered: str | None) -> None:
    """A rate that was lifted is known by `lowered`, as long as anything has a mark."""
    fields = {"keys/w": f"1:{interval}:wait"} | ({} if lowered is None else {"lowered/w": lowered})
    state = {"meta": meta(**fields), "placed": {f"!v/k/{n}": 0 for n in range(marks)}}
    told, _ = asked(state, of_each_word(truth("is_rated(word)")), "w/k/")
    assert told == [int(float(interval) > 0 or (marks > 0 and lowered is not None))]


READY = {0.5: 100, 1: 50, 10: 5, 24: 2, 25: 2, 25.5: 1, 26: 1, 49: 1, 50: 1, 51: 1, 100: 1, 60_000: 1}


def test_how_many_may_be_ready_at_a_rate() -> None:
    """What 50 ms give, and one at least."""
    assert asked({}, of_each_word("most_ready(tonumber(word))"), *READY) == ([*READY.values()], [])


# ---- how many are out

LANES = [f"w/{n}/" for n in range(6)]


def out(counts: Mapping[str, int], marks: int = 0) -> State:
    """Places of lanes. So many of the first one have marks."""
    ids = [f"{lane}{n}" for lane, count in counts.items() for n in range(count)]
    return {"placed": dict.fromkeys([*ids, *(f"!{id}" for id in ids[:marks])], 0)}


def of_each(lanes: Iterable[str]) -> list[str]:
    return [f"ZLEXCOUNT placed [{lane} ({lane[:-1]}0" for lane in lanes]


ALL = ["ZCARD placed", 'ZRANGEBYLEX placed [" + LIMIT 0 8']
SPAN = ["ZLEXCOUNT placed [w/0/ (w/30", "ZRANGEBYLEX placed [w/0/ (w/30 LIMIT 0 8"]
COUNTS: dict[str, tuple[State, list[str], bool, list[str]]] = {
    "three lanes": (out({}), LANES[:3], False, of_each(LANES[:3])),
    "nothing is out": (out({}), LANES[:4], False, ALL[:1]),
    "nothing but marks": ({"placed": {"!a/k/0": 0, "!w/1/0": 0}}, LANES[:4], False, ALL[:1]),
    "one is out": (out({LANES[1]: 1}), LANES[:4], False, ALL),
    "twice as many as lanes": (out({LANES[1]: 2, LANES[2]: 3, "z/k/": 3}), LANES[:4], False, ALL),
    "one more": (out({LANES[1]: 3, LANES[2]: 3, "z/k/": 3}), LANES[:4], False, [*ALL[:1], *of_each(LANES[:4])]),
    "twice as many, and marks": (out({LANES[1]: 3, "z/k/": 5}, marks=3), LANES[:4], False, ALL),
    "of five": (out({LANES[1]: 3, "z/k/": 7}), LANES[:5], False, [ALL[0], 'ZRANGEBYLEX placed [" + LIMIT 0 10']),
    "in order, and there are many others": (
        out({LANES[0]: 2, LANES[3]: 1, "a/k/": 9, LANES[4]: 9}),
        LANES[:4],
        True,
        SPAN,
    ),
    "in order, and many between": (
        out({LANES[0]: 2, LANES[3]: 1, "w/11/": 6}),
        LANES[:4],
        True,
        [*SPAN[:1], *of_each(LANES[:4])],
    ),
    "in order, and none of them": (out({"a/k/": 1, LANES[4]: 1}), LANES[:4], True, SPAN[:1]),
    "in order, three": (out({LANES[0]: 2}), LANES[:3], True, of_each(LANES[:3])),
}
"""Places, lanes, if these stand in the order of their names, and what is read to count them."""

COUNTING = """
local lanes, told = {}, {}
for i = 4, #ARGV do lanes[i - 3] = ARGV[i] end
count_out(lanes, ARGV[3] == '1')
for i, lane in ipairs(lanes) do told[i] = out_of(lane_of(lane)) end
return told
"""


def counted(state: State, lanes: Sequence[str], *, in_order: bool) -> list[str]:
    """What is read to count them; that it counts right is looked at here."""
    told, made = asked(state, COUNTING, int(in_order), *lanes)
    assert told == [sum(id.startswith(str(lane_of(lane))) for id in state["placed"]) for lane in lanes]
    return made


@each_row(("state", "lanes", "in_order", "made"), COUNTS)
def test_how_many_are_out(state: State, lanes: list[str], in_order: bool, made: list[str]) -> None:
    assert counted(state, lanes, in_order=in_order) == made


def test_places_of_no_lane_are_not_counted() -> None:
    state: State = {"placed": dict.fromkeys(["a", "w/a", "w/1/a", "w//a", "zz"], 0)}
    assert counted(state, LANES[:4], in_order=False) == ALL


def test_the_end_of_a_revoked_lease_rings_last() -> None:
    """Its alarm is that of an id, which stands behind its lane, and before the rest of what is out of that."""
    made = counted(out({LANES[0]: 1, LANES[3]: 3}), [*LANES[1:4], f"{LANES[3]}0"], in_order=True)
    assert made[0] == "ZLEXCOUNT placed [w/1/ (w/30"


@pytest.mark.parametrize("seed", range(4))
def test_counts_of_any_lanes(seed: int) -> None:
    source = random.Random(seed)
    for _ in range(12):
        counts = {
            f"{source.choice(['a', 'w', 'w.x'])}/{n}/": source.choice([0, 0, 1, 2, 5])
            for n in range(source.choice([1, 9, 40]))
        }
        lanes = source.sample(sorted(counts), source.randint(1, len(counts)))
        in_order = source.random() < 0.5
        if in_order:
            lanes.sort(key=str.encode)
        counted(out(counts, marks=source.choice([0, 2])), lanes, in_order=in_order)


def test_how_many_are_ready() -> None:
    state = out({"w/k/": 3, "w/l/": 1}, marks=2)
    state["placed"] |= dict.fromkeys(["!w/k0/a", "!w/j/a", "!v/k/a"], 0)
    lanes, body = ["w/k/", "w/l/", "w/j/"], of_each_word("ready_of(word)")
    reads = [f"ZLEXCOUNT placed [!{lane} (!{lane[:-1]}0" for lane in lanes]
    assert asked(state, body, *lanes) == ([2, 0, 1], reads)
    assert asked(out({"w/k/": 3}), body, *lanes) == ([0, 0, 0], []), "nothing of the shard has a mark"


# ---- what goes next

NEXT = """
local told = {}
for i = 3, #ARGV, 3 do told[#told + 1] = next_of(ARGV[i], tonumber(ARGV[i + 1]), tonumber(ARGV[i + 2])) end
return told
"""


@pytest.mark.parametrize("seed", range(6))
def test_what_goes_next(seed: int) -> None:
    """In order; others pass what has a place already, as its lease was revoked."""
    source = random.Random(seed)
    for _ in range(8):
        ids = [
            f"{lane}{n}" for lane in ("v/z/", "w/k/", "w/k0/", "w/l/") for n in range(source.choice([0, 1, 2, 7, 12]))
        ]
        entries = {entry(id, T + source.randrange(5), source.choice([None, None, 3])): id for id in ids}
        placed = {id for id in ids if source.random() < source.choice([0.1, 0.5])}
        placed |= {f"{lane}leased" for lane in ("w/k/", "w/l/") if source.random() < 0.5}
        asks = [
            (lane, sum(id.startswith(lane) for id in placed), source.choice([1, 1, 2, 3, 8]))
            for lane in ("w/k/", "w/l/", "w/m/")
        ]
        state = {"keys": dict.fromkeys(entries, 0), "placed": dict.fromkeys(placed, 0)}
        waits = [each for each in bytewise(entries) if entries[each] not in placed]
        expected = [[each for each in waits if each.startswith(lane)][:most] for lane, _, most in asks]
        assert asked(state, NEXT, *(word for ask in asks for word in ask))[0] == expected


WAITING = [("w/k/a", T), ("w/k/b", T), ("w/k/c", T), ("w/k/d", T), ("w/l/a", T)]
STANDS = [entry(*task) for task in WAITING]
READS: dict[str, tuple[list[str], int, list[str], list[str]]] = {
    # what has a place, how many are asked for; what goes next, and what is read for that
    "the first, and none is out": ([], 1, STANDS[:1], ["keys [w/k/ + LIMIT 0 16"]),
    "two, and none is out": ([], 2, STANDS[:2], ["keys [w/k/ (w/k0 LIMIT 0 2"]),
    "more than there are, and none is out": ([], 9, STANDS[:4], ["keys [w/k/ (w/k0 LIMIT 0 9"]),
    "the first, and another is out": (["w/k/x"], 1, STANDS[:1], ["keys [w/k/ (w/k0 LIMIT 0 1", "ZMSCORE placed w/k/a"]),
    "two, of which one is passed": (
        ["w/k/a"],
        2,
        STANDS[1:3],
        [
            "keys [w/k/ (w/k0 LIMIT 0 2",
            "ZMSCORE placed w/k/a w/k/b",
            "keys [w/k/ (w/k0 LIMIT 2 1",
            "ZMSCORE placed w/k/c",
        ],
    ),
    "the first, and all are passed": (
        ["w/k/a", "w/k/b", "w/k/c", "w/k/d"],
        3,
        [],
        [
            *("keys [w/k/ (w/k0 LIMIT 0 3", "ZMSCORE placed w/k/a w/k/b w/k/c"),
            *("keys [w/k/ (w/k0 LIMIT 3 3", "ZMSCORE placed w/k/d", "keys [w/k/ (w/k0 LIMIT 4 3"),
        ],
    ),
}


@each_row(("placed", "most", "given", "reads"), READS)
def test_what_is_read_of_one_lane(placed: list[str], most: int, given: list[str], reads: list[str]) -> None:
    state = waiting(WAITING) | {"placed": dict.fromkeys(placed, 0)}
    told, made = asked(state, NEXT, "w/k/", len(placed), most)
    assert (told, [line.removeprefix("ZRANGEBYLEX ") for line in made]) == ([given], reads)


# ---- another program's entries


def test_who_waits_is_asked_for_each_where_keys_and_due_differ() -> None:
    state, ids = waiting([("w/k/a", T), ("w/k/b", T)]), ["w/k/a", "w/k/b"]
    body, count = of_each_word(truth("is_waiting(word)")), f"ZCOUNT due {FAR} +inf"
    assert asked(state, body, *ids) == ([1, 1], [count])
    state["due"]["a"] = T
    assert asked(state, body, *ids) == ([1, 1], [count]), "what has no key is not counted"
    del state["due"]["w/k/b"]
    assert asked(state, body, *ids) == ([1, 0], [count, *(f"ZSCORE due {id}" for id in ids)])
