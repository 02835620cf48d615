"""heartbeat, report and fleet: which processes live, and what they say of themselves."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

import pytest

from shardq.core.calls import control as calls
from shardq.core.calls.control import HeartbeatAnswer, Processes
from shardq.core.calls.request import Call, Epoch
from shardq.core.layout.keys import ControlKeys
from shardq.core.layout.topology import Stamp
from tests.lua.samples import WHOLE, on_the_whole
from tests.lua.shard import EPOCH, NEWER, NOW, Shard, State, T

TOPOLOGY = {"topology": {"epoch": NEWER, "shards": "16"}}
STORED = {b"epoch": NEWER.encode(), b"shards": b"16"}

ALIVE_MS = 8000
OTHERS_MS = 3000


def heartbeat(
    control: ControlKeys,
    *,
    epoch: Epoch = 1,
    report: bytes = b"",
    unreached: Collection[int] = (),
    word: str = "",
    leave: bool = False,
    now_us: str = NOW,
) -> Call[HeartbeatAnswer]:
    return calls.heartbeat(
        control,
        "me",
        alive_ms=ALIVE_MS,
        others_ms=OTHERS_MS,
        epoch=epoch,
        report=report,
        unreached=unreached,
        word=word,
        leave=leave,
    ).at(now_us)


WORD = f"me@{NOW}"


def answer(
    joined: bool = False, unreached: Mapping[str, Collection[int]] | None = None, **members: int
) -> HeartbeatAnswer:
    others_ms = min((until for name, until in members.items() if name != "me"), default=None)
    names = sorted(members, key=lambda name: (members[name], name))
    return HeartbeatAnswer(T * 1000, names, Stamp("0"), {}, joined, unreached or {}, "", others_ms)


ME = T + ALIVE_MS


@dataclass(frozen=True)
class Beat:
    before: State
    says: HeartbeatAnswer
    after: State
    rung: bool = False
    leave: bool = False
    report: bytes = b""
    unreached: Collection[int] = ()


BEATS = {
    "the first of all": Beat({}, answer(joined=True, me=ME), {"members": {"me": ME}}, rung=True),
    "with a report": Beat(
        {}, answer(joined=True, me=ME), {"members": {"me": ME}, "reports": {"me": "new"}}, rung=True, report=b"new"
    ),
    "one more": Beat(
        {"members": {"other": T + 400}, "reports": {"other": "its"}},
        answer(joined=True, other=T + 400, me=ME),
        {"members": {"other": T + 400, "me": ME}, "reports": {"other": "its"}},
        rung=True,
    ),
    "one of four": Beat(
        {"members": {"a": T + 300, "b": T + 400, "c": T + 500, "me": T + 350}},
        answer(a=T + 300, b=T + 400, c=T + 500, me=ME),
        {"members": {"a": T + 300, "b": T + 400, "c": T + 500, "me": ME}},
    ),
    "again, with the report of before": Beat(
        {"members": {"me": T + 500}, "reports": {"me": "old"}},
        answer(me=ME),
        {"members": {"me": ME}, "reports": {"me": "old"}},
    ),
    "again, with another report": Beat(
        {"members": {"me": T + 500}, "reports": {"me": "old"}},
        answer(me=ME),
        {"members": {"me": ME}, "reports": {"me": "new"}},
        report=b"new",
    ),
    "the time of another ends now": Beat(
        {"members": {"me": T + 500, "other": T}}, answer(other=T, me=ME), {"members": {"other": T, "me": ME}}
    ),
    "the time of another is over": Beat(
        {"members": {"me": T + 500, "other": T - 1}, "reports": {"other": "its", "me": "mine"}},
        answer(me=ME),
        {"members": {"me": ME}, "reports": {"me": "mine"}},
        rung=True,
    ),
    "another was alone, or is ahead of the clock": Beat(
        {"members": {"me": T + 500, "other": T + 9000}},
        answer(other=T + OTHERS_MS, me=ME),
        {"members": {"other": T + OTHERS_MS, "me": ME}},
    ),
    "I leave": Beat(
        {"members": {"me": T + 500, "other": T + 300}, "reports": {"me": "mine", "other": "its"}},
        answer(other=T + 300),
        {"members": {"other": T + 300}, "reports": {"other": "its"}},
        rung=True,
        leave=True,
    ),
    "it can't reach two shards": Beat(
        {"members": {"me": T + 500, "other": T + 300}},
        answer(other=T + 300, me=ME, unreached={"me": {4, 7}}),
        {"members": {"me": ME, "other": T + 300}, "unreached": {"me": "4,7"}},
        rung=True,
        unreached={7, 4},
    ),
    "it still can't": Beat(
        {"members": {"me": T + 500, "other": T + 300}, "unreached": {"other": "1", "me": "4,7"}},
        answer(other=T + 300, me=ME, unreached={"other": {1}, "me": {4, 7}}),
        {"members": {"me": ME, "other": T + 300}, "unreached": {"other": "1", "me": "4,7"}},
        unreached=[4, 7],
    ),
    "it can reach them again": Beat(
        {"members": {"me": T + 500, "other": T + 300}, "unreached": {"me": "4,7", "other": "1"}},
        answer(other=T + 300, me=ME, unreached={"other": {1}}),
        {"members": {"me": ME, "other": T + 300}, "unreached": {"other": "1"}},
        rung=True,
    ),
    "one that could not reach a shard is dead": Beat(
        {"members": {"me": T + 500, "other": T - 1}, "unreached": {"other": "1"}},
        answer(me=ME),
        {"members": {"me": ME}},
        rung=True,
    ),
    "I leave, and could not reach a shard": Beat(
        {"members": {"me": T + 500}, "unreached": {"me": "1"}},
        answer(),
        {},
        rung=True,
        leave=True,
    ),
    "what no build of ours wrote": Beat(
        {"members": {"me": T + 500}, "unreached": {"x": "", "y": "-1,two,3,99999999999999999999"}},
        answer(me=ME, unreached={"x": set(), "y": {3}}),
        {"members": {"me": ME}, "unreached": {"x": "", "y": "-1,two,3,99999999999999999999"}},
    ),
    "I left already": Beat(
        {"members": {"other": T + 300}}, answer(other=T + 300), {"members": {"other": T + 300}}, leave=True
    ),
}


@pytest.mark.parametrize("beat", BEATS.values(), ids=list(BEATS))
def test_heartbeat(centre: Shard, control: ControlKeys, beat: Beat) -> None:
    centre.seed(beat.before)
    call = heartbeat(control, report=beat.report, unreached=beat.unreached, leave=beat.leave)
    says, after = beat.says, dict(beat.after)
    if beat.rung and "members" in after:
        says, after["unreached"] = replace(says, word=WORD), {**after.get("unreached", {}), "": WORD}
    with centre.listener(control.news) as news:
        assert centre.run(call) == says
        assert centre.state() == after
        assert news.heard() == ([(control.news, "members")] if beat.rung else [])
        # twice is harmless
        assert centre.run(call).members == says.members
        assert centre.state() == after
        assert news.heard() == []


def test_who_knows_the_word_of_the_members_is_answered_none_of_them(centre: Shard, control: ControlKeys) -> None:
    """So a heartbeat of a hundred members costs no more than one of two; where the word is another, all are told."""
    others = {f"a-host-of-some-length-{n:03}": T + 300 + n for n in range(100)}
    centre.seed({"members": others, "unreached": {"a-host-of-some-length-000": "1,2,3", "": "a word"}})
    assert centre.run(heartbeat(control, word="a word")).members == [*others, "me"]
    known = centre.run(heartbeat(control, word=WORD))
    assert (known.members, known.unreached, known.word, known.others_ms) == (None, {}, WORD, T + 300)
    assert len(str(centre.ask(heartbeat(control, word=WORD)))) < 180
    came_back = centre.run(heartbeat(control, word="one that the server lost"))
    assert came_back.members == [*others, "me"]
    assert came_back.unreached == {"a-host-of-some-length-000": {1, 2, 3}}


@pytest.mark.parametrize(("mine_ms", "others_ms"), [(50, T + 300), (900, T + 300)])
def test_when_the_first_of_the_others_may_end(
    centre: Shard, control: ControlKeys, mine_ms: int, others_ms: int
) -> None:
    centre.seed({"members": {"a": T + 300, "b": T + 400}})
    beat = calls.heartbeat(control, "me", alive_ms=mine_ms, others_ms=OTHERS_MS, epoch=0).at(NOW)
    assert centre.run(beat).others_ms == others_ms


def test_a_heartbeat_brings_the_topology_only_when_it_is_another(centre: Shard, control: ControlKeys) -> None:
    centre.seed(TOPOLOGY)
    for known, topology in ((NEWER, {}), (EPOCH, STORED), (Stamp("5:x:e"), STORED)):
        said = centre.run(heartbeat(control, epoch=known))
        assert (said.stamp, said.topology) == (NEWER, topology)


@pytest.mark.parametrize(
    ("known", "stored", "counts"),
    [
        *(("3:v:mine", "4:w:mine", True), ("3:v:mine", "4:w:other", False), ("3:v:mine", "1:w:other", False)),
        *(("3:v:mine", "garbage", True), ("3:v:mine", "0:w:other", True), ("0", "4:w:other", True)),
    ],
)
def test_a_heartbeat_counts_where_no_other_engine_is_stored(
    centre: Shard, control: ControlKeys, known: str, stored: str, counts: bool
) -> None:
    """What another program has written is nobody's engine: dispatchers that know theirs go on serving it."""
    centre.seed({"topology": {"epoch": stored, "shards": "16"}, "members": {"other": T + 400}})
    said = centre.run(heartbeat(control, epoch=Stamp(known)))
    assert said.members == (["other", "me"] if counts else [])
    assert ("me" in centre.state()["members"]) == counts


def test_a_heartbeat_by_the_clock_of_the_server(centre: Shard, control: ControlKeys) -> None:
    before = int(centre.do("TIME")[0])
    said = centre.run(heartbeat(control, epoch=0, now_us=""))
    assert before <= said.now_us // 1_000_000 <= int(centre.do("TIME")[0])
    assert centre.state()["members"] == {"me": said.now_us // 1000 + ALIVE_MS}


REPORTS: dict[str, tuple[State, bool, bytes, bool, State]] = {
    # before, leaving, report, not known before, afterwards
    "the first of all": ({}, False, b"r", True, {"workers": {"w": ME}, "reports": {"w": "r"}}),
    "again, with the report of before": (
        {"workers": {"w": T + 1}, "reports": {"w": "old"}},
        False,
        b"",
        False,
        {"workers": {"w": ME}, "reports": {"w": "old"}},
    ),
    "it was forgotten": ({"workers": {"x": T}}, False, b"", True, {"workers": {"x": T, "w": ME}}),
    "the time of another is over": (
        {"workers": {"w": T + 1, "x": T - 1}, "reports": {"w": "r", "x": "its"}},
        False,
        b"",
        False,
        {"workers": {"w": ME}, "reports": {"w": "r"}},
    ),
    "another is ahead of the clock": (
        {"workers": {"w": T + 1, "x": T + 3_600_000}},
        False,
        b"",
        False,
        {"workers": {"w": ME, "x": ME}},
    ),
    "I leave": (
        {"workers": {"w": T + 1, "x": T + 1}, "reports": {"w": "r", "x": "its"}},
        True,
        b"",
        False,
        {"workers": {"x": T + 1}, "reports": {"x": "its"}},
    ),
    "I left already": ({"workers": {"x": T + 1}}, True, b"", False, {"workers": {"x": T + 1}}),
}


@pytest.mark.parametrize(("before", "leave", "report", "joined", "after"), REPORTS.values(), ids=list(REPORTS))
def test_report(
    centre: Shard, control: ControlKeys, before: State, leave: bool, report: bytes, joined: bool, after: State
) -> None:
    centre.seed(before)
    call = calls.report(control, 0, "w", alive_ms=ALIVE_MS, report=report, leave=leave).at(NOW)
    assert centre.run(call) == joined
    assert centre.state() == after
    # twice is harmless
    assert not centre.run(call)
    assert centre.state() == after


def test_a_hundred_dead_workers_in_one_call_and_one_more(centre: Shard, control: ControlKeys) -> None:
    dead = [f"w{n:03}" for n in range(101)]
    centre.seed({"workers": {name: T - 200 + n for n, name in enumerate(dead)}, "reports": dict.fromkeys(dead, "r")})
    call = calls.report(control, 0, "w", alive_ms=ALIVE_MS).at(NOW)
    centre.run(call)
    assert centre.state() == {"workers": {"w100": T - 100, "w": ME}, "reports": {"w100": "r"}}
    centre.run(call)
    assert centre.state() == {"workers": {"w": ME}}


def test_a_hundred_workers_ahead_of_the_clock_in_one_call_and_one_more(centre: Shard, control: ControlKeys) -> None:
    ahead = [f"w{n:03}" for n in range(101)]
    centre.seed({"workers": dict.fromkeys(ahead, T + 90_000)})
    call = calls.report(control, 0, "w", alive_ms=ALIVE_MS).at(NOW)
    centre.run(call)
    assert centre.state()["workers"] == dict.fromkeys(["w", *ahead[:100]], ME) | {"w100": T + 90_000}
    centre.run(call)
    assert centre.state()["workers"] == dict.fromkeys(["w", *ahead], ME)


def test_fleet(centre: Shard, control: ControlKeys) -> None:
    assert centre.run(calls.fleet(control).at(NOW)) == Processes(T * 1000, {}, {}, {})
    members, workers = {"d": T + 5, "late": T - 5, "e": T + 6}, {"w": T + 9, "x": T - 9, "v": T}
    stored: State = {"members": members, "workers": workers, "reports": {"d": "1", "w": "2"}}
    centre.seed(stored)
    seen = centre.run(calls.fleet(control).at(NOW))
    assert seen == Processes(T * 1000, members, workers, {"d": b"1", "w": b"2"})
    assert centre.state() == stored


def test_nothing_is_written_in_another_engine(centre: Shard, control: ControlKeys) -> None:
    """Of all scripts on the control keys; declare compares the whole epoch anyhow."""
    stored = "4:w:other"
    before = WHOLE | {"topology": {"epoch": stored}}
    centre.seed(before)
    with centre.listener(control.news) as news:
        for call in on_the_whole(control, Stamp("3:v:mine")):
            answer = centre.ask(call)
            name = call.script.name
            if name in ("report", "release", "renew", "schedules", "permit"):
                assert answer == ["stale", stored], name
            if name in ("history", "set_schedule"):
                assert answer == ["ok", 0], name
        assert centre.state() == before
        assert news.heard() == []
