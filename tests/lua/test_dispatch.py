"""dispatch moves due tasks to their lists, takes back leases that ran out, and trims dedup windows."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import pytest

from shardq.core.calls import dispatch as calls
from shardq.core.calls.dispatch import Dispatched
from shardq.core.calls.request import Call
from shardq.core.layout.keys import ShardKeys
from shardq.errors import ServerFault
from tests.lua.shard import EPOCH, NOW, Shard, State, T, at, meta, named

LIMIT = 1000
ATTEMPTS = 3


def dispatch(
    keys: ShardKeys,
    topics: Sequence[str] = ("",),
    *,
    limit: int = LIMIT,
    paused: Collection[str] = (),
    routed: Collection[str] = (),
    caller: str = "me",
    now_us: str = NOW,
) -> Call[Dispatched]:
    return calls.dispatch(
        keys,
        EPOCH,
        topics,
        limit=limit,
        max_attempts=ATTEMPTS,
        paused=paused,
        routed=routed,
        caller=caller,
    ).at(now_us)


def done(
    moved: int = 0,
    *,
    reaped: int = 0,
    buried: int = 0,
    oldest: int = -1,
    newest: int = -1,
    next: int | None = None,
    lacking: tuple[str, ...] = (),
    unheard: tuple[str, ...] = (),
    routed: tuple[str, ...] = (),
    by_topic: dict[str, int] | None = None,
) -> Dispatched:
    """An answer at T; ``next`` is counted from there. ``by_topic``: without it, all are of the default topic."""
    next_us = None if next is None else (T + next) * 1000
    counts = by_topic or ({"": moved} if moved else {})
    lateness, topics = (oldest, newest), (lacking, unheard, routed)
    return Dispatched(moved, reaped, buried, *lateness, next_us, T * 1000, tuple(counts.items()), *topics)


def moved_by(**counts: int) -> dict[str, str]:
    """The notes of lists that were empty. ``default``: that of the default topic."""
    return {f"began/{'' if topic == 'default' else topic}": f"{count}:{T}" for topic, count in counts.items()}


@dataclass(frozen=True)
class Step:
    """One line of the table."""

    before: State
    says: Dispatched
    after: State = field(default_factory=dict)
    topics: Sequence[str] = ("",)
    limit: int = LIMIT


STEPS = {
    "an empty shard": Step({}, done(), {"meta": meta(wake_at="")}),
    "an empty shard again": Step({"meta": meta(wake_at="")}, done()),
    "nothing due yet": Step({"due": {"a": T + 70}}, done(next=70), {"meta": meta(wake_at=T + 70)}),
    "one due now": Step(
        {"due": {"a": T}},
        done(1, oldest=0, newest=0),
        {"due": None, "ready/": ["a"], "topics": {"": "1"}, "meta": meta(wake_at="", late=0, **moved_by(default=1))},
    ),
    "some late, one not yet due": Step(
        {"due": {"a": T - 90, "b": T - 20, "c": T + 1}, "ready/": ["z"], "topics": {"": "7"}},
        done(2, oldest=90, newest=20, next=1),
        {
            "due": {"c": T + 1},
            "ready/": ["z", "a", "b"],
            "topics": {"": "9"},
            "meta": meta(wake_at=T + 1, late=20),
        },
    ),
    "several topics": Step(
        {"due": {"a": T - 3, "mail/b": T - 2, "c": T - 1, "x/d": T}},
        done(4, oldest=3, newest=0, by_topic={"": 2, "mail": 1, "x": 1}),
        {
            "due": None,
            "ready/": ["a", "c"],
            "ready/mail": ["mail/b"],
            "ready/x": ["x/d"],
            "topics": {"": "2", "mail": "1", "x": "1"},
            "meta": meta(wake_at="", late=0, **moved_by(default=2, mail=1, x=1)),
        },
        topics=("x", "mail", ""),
    ),
    "a list is not given: the others move, and it is called again at once": Step(
        {"due": {"a": T - 3, "mail/b": T - 2, "x/c": T - 1, "mail/d": T}},
        done(1, oldest=3, newest=0, next=0, lacking=("mail", "x")),
        {
            "due": {"mail/b": T - 2, "x/c": T - 1, "mail/d": T},
            "ready/": ["a"],
            "topics": {"": "1"},
            "meta": meta(wake_at=T, late=0, **moved_by(default=1)),
        },
    ),
    "no list is given": Step(
        {"due": {"a": T - 3, "mail/b": T - 2}},
        done(next=0, lacking=("", "mail")),
        {"meta": meta(wake_at=T)},
        topics=(),
    ),
    "as many as allowed: called again at once": Step(
        {"due": {"a": T - 3, "b": T - 2, "c": T - 1}},
        done(2, oldest=3, newest=2, next=0),
        {
            "due": {"c": T - 1},
            "ready/": ["a", "b"],
            "topics": {"": "2"},
            "meta": meta(wake_at=T, late=2, **moved_by(default=2)),
        },
        limit=2,
    ),
    "exactly as many as allowed": Step(
        {"due": {"a": T - 3, "b": T - 2}},
        done(2, oldest=3, newest=2, next=0),
        {
            "due": None,
            "ready/": ["a", "b"],
            "topics": {"": "2"},
            "meta": meta(wake_at=T, late=2, **moved_by(default=2)),
        },
        limit=2,
    ),
    "a lease runs out": Step(
        {"leased": {"a": T, "b": T + 5}, "lease": {"a": "0:0::tok", "b": "0:0::tok"}, "ready/": ["z"]},
        done(reaped=1, next=5),
        {
            "leased": {"b": T + 5},
            "lease": {"a": "0:1::", "b": "0:0::tok"},
            "ready/": ["a", "z"],
            "meta": meta(wake_at=T + 5, late=-1, reaped=1),
        },
    ),
    "a lease without an entry runs out": Step(
        {"leased": {"a": T - 5}},
        done(reaped=1),
        {
            "leased": None,
            "lease": {"a": "0:1::"},
            "ready/": ["a"],
            "meta": meta(wake_at="", late=-1, reaped=1, **moved_by(default=0)),
        },
    ),
    "two leases run out: the first of them comes into an empty list": Step(
        {"leased": {"a": T, "b": T}, "topics": {"": "9"}},
        done(reaped=2),
        {
            "leased": None,
            "lease": {"a": "0:1::", "b": "0:1::"},
            "ready/": ["b", "a"],
            "meta": meta(wake_at="", late=-1, reaped=2, **moved_by(default=9)),
        },
    ),
    "the lists of lapsed ones are not given: each is asked for once": Step(
        {"leased": {"mail/a": T - 5, "x/b": T - 4, "mail/c": T - 3}, "lease": {"mail/a": "0:0::tok"}},
        done(next=0, lacking=("mail", "x")),
        {"meta": meta(wake_at=T)},
    ),
    "a lease runs out for the last time": Step(
        {
            "leased": {"a": T, "b": T},
            "lease": {"a": "1:1::tok", "b": "1:0::tok"},
            "meta": meta(buried=4, reaped=6),
        },
        done(reaped=1, buried=1),
        {
            "leased": None,
            "lease": {"a": "1:2::", "b": "1:1::"},
            "dead": {"a": T},
            "why": {"a": "lost with its worker"},
            "ready/": ["b"],
            "meta": meta(wake_at="", late=-1, reaped=7, buried=5) | {"died/": "1"} | moved_by(default=0),
        },
    ),
    "a limit of its own counts instead": Step(
        {"leased": {"a": T, "b": T}, "lease": {"a": "0:0:1:tok", "b": "0:7:9:tok"}},
        done(reaped=1, buried=1),
        {
            "leased": None,
            "lease": {"a": "0:1:1:", "b": "0:8:9:"},
            "dead": {"a": T},
            "why": {"a": "lost with its worker"},
            "ready/": ["b"],
            "meta": meta(wake_at="", late=-1, reaped=1, buried=1) | {"died/": "1"} | moved_by(default=0),
        },
    ),
    "tasks and leases at once": Step(
        {"due": {"a": T - 4}, "leased": {"b": T}, "lease": {"b": "0:0::tok"}},
        done(1, reaped=1, oldest=4, newest=4),
        {
            "due": None,
            "leased": None,
            "lease": {"b": "0:1::"},
            "ready/": ["b", "a"],
            "topics": {"": "1"},
            "meta": meta(wake_at="", late=4, reaped=1, **moved_by(default=1)),
        },
    ),
    "windows end": Step(
        {"seen": {"a": T - 5, "b": T, "c": T + 5000}},
        done(next=5000),
        {"seen": {"c": T + 5000}, "meta": meta(wake_at=T + 5000)},
    ),
    "a window ends soon: that can wait for a second": Step(
        {"seen": {"a": T + 1}}, done(next=1000), {"meta": meta(wake_at=T + 1000)}
    ),
    "the nearest instant of all counts": Step(
        {"due": {"a": T + 4000}, "leased": {"b": T + 3000}, "seen": {"c": T + 2000}},
        done(next=2000),
        {"meta": meta(wake_at=T + 2000)},
    ),
}


@pytest.mark.parametrize("step", STEPS.values(), ids=STEPS)
def test_dispatch(shard: Shard, keys: ShardKeys, step: Step) -> None:
    before = {"meta": meta()} | step.before
    shard.seed(before)
    assert shard.run(dispatch(keys, step.topics, limit=step.limit)) == step.says
    expected = {name: value for name, value in (before | step.after).items() if value is not None}
    assert shard.state() == expected


def test_the_bare_answer(shard: Shard, keys: ShardKeys) -> None:
    shard.seed({"meta": meta(), "due": {"a": T - 2, "mail/b": T - 1}})
    none = {"moved": 0, "reaped": 0, "buried": 0, "oldest": -1, "newest": -1, "next_ms": "", "now_us": NOW}
    none |= {"by_topic": [], "lacking": [], "unheard": [], "routed": []}
    moved = {"moved": 1, "oldest": 2, "newest": 1, "next_ms": f"{T}", "by_topic": ["", 1], "lacking": ["mail"]}
    assert named(shard.ask(dispatch(keys))) == none | moved
    assert named(shard.ask(dispatch(keys, ["mail"])))["next_ms"] == ""
    assert named(shard.ask(dispatch(keys, ["mail"]))) == none


@pytest.mark.parametrize("microseconds", [0, 999])
def test_never_early_by_a_microsecond(shard: Shard, keys: ShardKeys, microseconds: int) -> None:
    shard.seed({"meta": meta(), "due": {"a": T + 1}})
    assert shard.run(dispatch(keys, now_us=f"{T * 1000 + microseconds}")).moved == 0
    assert shard.run(dispatch(keys, now_us=at(1))).moved == 1


def test_by_the_clock_of_the_server(shard: Shard, keys: ShardKeys) -> None:
    seconds, microseconds = map(int, shard.do("TIME"))
    before = seconds * 1_000_000 + microseconds
    shard.seed({"meta": meta(), "due": {"past": before // 1000, "future": before // 1000 + 3_600_000}})
    answer = shard.run(dispatch(keys, now_us=""))
    assert answer.moved == 1
    assert answer.oldest_ms == answer.newest_ms == answer.now_us // 1000 - before // 1000
    seconds, microseconds = map(int, shard.do("TIME"))
    assert before <= answer.now_us <= seconds * 1_000_000 + microseconds
    assert answer.next_us == (before // 1000 + 3_600_000) * 1000


@pytest.mark.parametrize("topics", [("",), ("", "mail")])
def test_the_most_in_one_call(shard: Shard, keys: ShardKeys, topics: Sequence[str]) -> None:
    due = {f"{'mail/' if len(topics) > 1 and n % 2 else ''}i{n:04}": T - 2000 + n for n in range(LIMIT + 1)}
    shard.seed({"meta": meta(), "due": due})
    halves = {topic: LIMIT // len(topics) for topic in topics}
    assert shard.run(dispatch(keys, topics)) == done(LIMIT, oldest=2000, newest=1001, next=0, by_topic=halves)
    assert shard.state()["due"] == dict([list(due.items())[-1]])
    assert shard.run(dispatch(keys, topics)) == done(1, oldest=1000, newest=1000)
    ready = [id for topic in topics for id in shard.state()[f"ready/{topic}"]]
    assert sorted(ready) == sorted(due)


def test_sixty_four_topics_and_one_more(shard: Shard, keys: ShardKeys) -> None:
    topics = [f"t{n:02}" for n in range(65)]
    shard.seed({"meta": meta(), "due": {f"{topic}/a": T for topic in topics}})
    answer = done(64, oldest=0, newest=0, next=0, lacking=("t64",), by_topic=dict.fromkeys(topics[:64], 1))
    assert shard.run(dispatch(keys, topics[:64])) == answer
    assert shard.state()["due"] == {"t64/a": T}
    assert shard.run(dispatch(keys, topics[1:])) == done(1, oldest=0, newest=0, by_topic={"t64": 1})
    assert shard.state()["topics"] == dict.fromkeys(topics, "1")


def test_two_hundred_leases_in_one_call_and_one_more(shard: Shard, keys: ShardKeys) -> None:
    ids = [f"i{n:03}" for n in range(201)]
    shard.seed({"meta": meta(), "leased": dict.fromkeys(ids, T), "lease": dict.fromkeys(ids, "0:0::tok")})
    assert shard.run(dispatch(keys)) == done(reaped=200, next=0)
    assert shard.state()["leased"] == {"i200": T}
    assert shard.run(dispatch(keys)) == done(reaped=1)
    assert sorted(shard.state()["ready/"]) == ids


def test_five_hundred_windows_in_one_call_and_one_more(shard: Shard, keys: ShardKeys) -> None:
    shard.seed({"meta": meta(), "seen": {f"i{n:03}": T - 600 + n for n in range(501)}})
    # else more could end than are removed
    assert shard.run(dispatch(keys)) == done(next=0)
    assert shard.state()["seen"] == {"i500": T - 100}
    assert shard.run(dispatch(keys)) == done()
    assert shard.state() == {"meta": meta(wake_at="")}


def test_twice_moves_nothing_more(shard: Shard, keys: ShardKeys) -> None:
    shard.seed({"meta": meta(), "due": {"a": T - 1, "b": T + 9}, "leased": {"c": T}, "lease": {"c": "0:0::x"}})
    shard.run(dispatch(keys))
    state = shard.state()
    assert shard.run(dispatch(keys)) == done(next=9)
    assert shard.state() == state


def test_what_is_ready_on_routed_topics_is_told_whoever_moved_it(shard: Shard, keys: ShardKeys) -> None:
    shard.seed(
        {"meta": meta(), "due": {"a/1": T, "x/1": T}, "ready/b": ["b/1"], "ready/c": ["c/1"], "ready/d": ["d/1"]}
    )
    call = dispatch(keys, ["a", "b", "c", "d", "e"], routed=["a", "b", "c", "e"], paused=["c"])
    first = done(1, oldest=0, newest=0, next=0, lacking=("x",), routed=("a", "b"), by_topic={"a": 1})
    assert shard.run(call) == first
    # also what was moved by a call whose answer was lost
    assert shard.run(call) == done(next=0, lacking=("x",), routed=("a", "b"))
    shard.do("DEL", keys.ready("a"), keys.ready("b"))
    shard.do("SET", keys.ready("e"), "no list: forward says so")
    assert shard.run(call) == done(next=0, lacking=("x",), routed=("e",))


@pytest.mark.parametrize(
    ("callers", "rings"),
    [(["a", "a"], 0), (["b", "a"], 1), (["b", "a", "a"], 1), (["b", "a", "b"], 1), (["b", "b"], 0)],
)
def test_what_is_moved_behind_the_back_of_another_rings(
    shard: Shard, keys: ShardKeys, callers: list[str], rings: int
) -> None:
    """The first call meets nothing; the second moves a task, as does an earlier one that comes late."""
    shard.seed({"meta": meta(), "due": {"mail/a": T + 1}})
    with shard.listener(keys.bell) as bell:
        for late, caller in enumerate(callers):
            shard.run(dispatch(keys, ["mail"], routed=["mail"], caller=caller, now_us=at(late)))
        assert bell.heard() == [(keys.bell, "")] * rings
    assert shard.state()["meta"]["poller"] == callers[-1]


def test_a_resend_asks_under_another_name(shard: Shard, keys: ShardKeys) -> None:
    shard.seed({"meta": meta(), "due": {"mail/a": T + 1}})
    lost = dispatch(keys, ["mail"], routed=["mail"], now_us=at(1))
    with shard.listener(keys.bell) as bell:
        shard.run(dispatch(keys, ["mail"], routed=["mail"]).after_loss())
        shard.run(lost)
        assert bell.heard() == [(keys.bell, "")]


def test_without_routed_topics_nobody_is_noted(shard: Shard, keys: ShardKeys) -> None:
    shard.seed({"meta": meta(), "due": {"mail/a": T}})
    call = dispatch(keys, ["mail"], paused=["mail"])
    assert list(call.words[5:7]) == ["", ""]
    shard.run(call)
    assert "poller" not in shard.state()["meta"]


@pytest.mark.parametrize("beside", [{}, {"mail/b": T - 1}])
def test_a_list_of_the_wrong_type_keeps_its_ids_due(shard: Shard, keys: ShardKeys, beside: dict[str, int]) -> None:
    shard.seed({"meta": meta(), "due": {"a": T - 5} | beside})
    shard.do("SET", keys.ready(""), "x")
    for _ in range(2):
        with pytest.raises(ServerFault, match="WRONGTYPE"):
            shard.run(dispatch(keys, ["", "mail"]))
    state = shard.state()
    # due as of now: what is due behind it gets its turn
    assert state["due"] == {"a": T}
    assert state.get("ready/mail", []) == list(beside)
    shard.do("DEL", keys.ready(""))
    shard.run(dispatch(keys, ["", "mail"]))
    assert shard.state()["ready/"] == ["a"]


def test_a_lapsed_lease_whose_list_has_the_wrong_type_stays_leased(shard: Shard, keys: ShardKeys) -> None:
    shard.seed({"meta": meta(), "leased": {"a": T - 5}, "lease": {"a": "0:0::tok"}})
    shard.do("SET", keys.ready(""), "x")
    with pytest.raises(ServerFault, match="WRONGTYPE"):
        shard.run(dispatch(keys))
    assert shard.state() == {
        "meta": meta(),
        "leased": {"a": T},
        "lease": {"a": "0:0::tok"},
        "ready/": "a string",
    }
