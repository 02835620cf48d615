"""open, declare and peek: the topology, and the counts of a shard."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any

import pytest
import redis

from shardq.core.calls import control as calls
from shardq.core.calls import observe
from shardq.core.calls.control import Declared
from shardq.core.calls.request import Stale
from shardq.core.layout.keys import ControlKeys, ShardKeys
from shardq.core.layout.topology import Stamp, Topology
from tests.lua.shard import EPOCH, NOW, OLDER, Case, Shard, State, T, at, meta, opening, record

A = record("a")

NEW = {"epoch": EPOCH, "topology": "new", "since": "1", "numbers": "1"}

LEFT = {"wake_at": f"{T}", "swept": "1", "died/": "2", "died/mail": "3", "reaped": "5"}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"meta": None}, NEW),
        ({"meta": {"epoch": OLDER, "topology": "old"} | LEFT}, NEW | LEFT),
        ({"meta": {"epoch": EPOCH, "topology": "old"}}, NEW),
    ],
    ids=["new", "older", "same"],
)
def test_open(shard: Shard, keys: ShardKeys, before: State, after: dict[str, str]) -> None:
    shard.seed({name: value for name, value in before.items() if value})
    for was in (before["meta"], after):
        call = opening(keys, EPOCH, "new")
        if not was:
            after = after | {"opened": str(call.words[6])}
        assert shard.ask(call) == ["ok", 0 if was else 1]
        assert shard.state() == {"meta": after}


def test_a_shard_that_lost_everything_is_opened_with_another_word(shard: Shard, keys: ShardKeys) -> None:
    shard.clear()
    words = []
    for _ in range(2):
        for _ in range(2):
            shard.run(opening(keys, EPOCH, "new"))
            words.append(shard.run(calls.read_opened(keys)))
        shard.clear()
    assert words[0] == words[1] != words[2] == words[3]
    assert "" not in words
    assert shard.run(calls.read_opened(keys)) == ""


def test_what_was_opened_by_a_call_whose_answer_was_lost_is_told_all_the_same(shard: Shard, keys: ShardKeys) -> None:
    shard.clear()
    assert shard.run(opening(keys, EPOCH, "new"))
    assert not shard.run(opening(keys, EPOCH, "new"))
    assert shard.run(opening(keys, EPOCH, "new").after_loss())


def test_the_news_of_opened_shards(centre: Shard, control: ControlKeys) -> None:
    with centre.listener(control.news) as news:
        centre.run(calls.tell_opened(control, [2, 15]))
        ((_, message),) = news.heard()
    assert calls.opened_by(message) == [2, 15]
    assert [calls.opened_by(other) for other in ("topology", "members", "", None)] == [[], [], [], []]


def test_open_anew_forgets_what_pollers_and_sweepers_left(shard: Shard, keys: ShardKeys) -> None:
    shard.seed({"meta": {"epoch": OLDER} | LEFT})
    for _ in range(2):
        assert shard.ask(opening(keys, EPOCH, "new", anew=True)) == ["ok", 0]
        assert shard.state() == {"meta": NEW | {"reaped": "5"}}


def test_open_knows_numbers_from_texts(shard: Shard, keys: ShardKeys) -> None:
    shard.seed({"meta": {"epoch": "10:x:e", "topology": "x"}})
    assert shard.ask(opening(keys, Stamp("9:y:e"), "y")) == ["stale", "10:x:e"]
    with pytest.raises(Stale, match="epoch 10"):
        shard.run(opening(keys, Stamp("9:y:e"), "y"))
    assert shard.state() == {"meta": {"epoch": "10:x:e", "topology": "x"}}


def test_declare(centre: Shard, control: ControlKeys) -> None:
    first = {b"epoch": b"1:a:e", b"shards": b"16"}
    second = {b"epoch": b"2:b:e", b"shards": b"32"}
    with centre.listener(control.news) as news:
        assert centre.run(calls.declare(control, 0, first)) == Declared(True, first)
        assert news.heard() == [(control.news, "topology")]
        # whoever was told of another is given the present one
        for _ in range(2):
            assert centre.run(calls.declare(control, 0, second)) == Declared(False, first)
        assert centre.run(calls.declare(control, Stamp("2:b:e"), second)) == Declared(False, first)
        assert news.heard() == []
        assert centre.run(calls.declare(control, Stamp("1:a:e"), second)) == Declared(True, second)
        assert news.heard() == [(control.news, "topology")]
    edits = {":1:a:e": 1, ":2:b:e": 2}
    assert centre.state() == {"topology": {"epoch": "2:b:e", "shards": "32"}, "edits": edits}


def test_declare_leaves_the_fields_of_others(centre: Shard, control: ControlKeys) -> None:
    centre.seed({"topology": {"epoch": "1:a:e", "shards": "16", "theirs": "x"}})
    assert centre.run(calls.declare(control, Stamp("1:a:e"), {b"epoch": b"2:b:e"})).changed
    topology = {"epoch": "2:b:e", "shards": "16", "theirs": "x"}
    assert centre.state() == {"topology": topology, "edits": {":2:b:e": 2}}


def test_read_topology(centre: Shard, control: ControlKeys) -> None:
    assert centre.run(calls.read_topology(control)) == {}
    centre.seed({"topology": {"epoch": "1"}})
    assert centre.run(calls.read_topology(control)) == {b"epoch": b"1"}


FULL: State = {
    "due": {"a": T + 70, "news/b": T + 80},
    "leased": {"c": T + 5},
    "dead": {"d": T - 5, "mail/e": T - 4, "f": T},
    # news/b waits for a retry; a has not failed, c is leased, and d is dead
    "lease": {"news/b": "1:0::", "a": "0:1::", "c": "2:0::tok", "d": "3:0::"},
    "ready/": ["g"],
    "ready/mail": ["mail/h", "mail/i"],
    "topics": {"": "11", "mail": "7"},
    "meta": meta(wake_at=T + 70, late=3, reaped=2, buried=1, forwarded=9)
    | {"dispatched": "40", "died": "6", "died/mail": "12", "trimmed": "8", "trimmed_at": "5"},
}

EMPTY: Mapping[str, Any] = {
    "now_us": NOW,
    "scheduled": 0,
    "held": 0,
    "leased": 0,
    "dead": 0,
    "head": "",
    **dict.fromkeys(("late", "reaped", "buried", "forwarded", "dispatched_retired", "died_retired")),
    **{name: [] for name in ("dispatched", "lengths", "waited")},
    **{f"drawn_{state}": [] for state in ("scheduled", "held", "leased", "dead", "retrying")},
    "entries": 0,
    "died": [],
    "died_lately": 0,
    "trimmed": None,
    "trimmed_ms": None,
}

COUNTED: Mapping[str, Any] = {
    "scheduled": 2,
    "leased": 1,
    "dead": 3,
    "head": f"{T + 70}",
    "late": "3",
    "reaped": "2",
    "buried": "1",
    "forwarded": "9",
    "dispatched_retired": "40",
    "died_retired": "6",
    "dispatched": ["", "11", "mail", "7"],
    "entries": 4,
    "died": ["mail", "12"],
    "died_lately": 3,
    "trimmed": "8",
    "trimmed_ms": "5",
}
"""What a look at ``FULL`` tells, whatever it draws."""


def peeked(**others: Any) -> list[Any]:
    """The answer: that of an empty shard, but for these."""
    return ["ok", *(word for pair in {**EMPTY, **others}.items() for word in pair)]


PEEKS = {
    "an empty shard": Case(lambda keys: observe.peek(keys, EPOCH, [], draw=10).at(NOW), peeked()),
    "a full one": Case(
        lambda keys: observe.peek(keys, EPOCH, ["mail", "", "none"], draw=10).at(NOW),
        peeked(
            **COUNTED,
            lengths=[2, 1, 0],
            waited=[0, 0, -1],
            drawn_scheduled=["", 1, "news", 1],
            drawn_leased=["", 1],
            drawn_dead=["", 2, "mail", 1],
            drawn_retrying=["\n", 3, "news", 1],
        ),
        FULL,
        {"looks": {"": f"11:{T}", "mail": f"7:{T}"}},
    ),
    "one waits for a retry": Case(
        lambda keys: observe.peek(keys, EPOCH, [], draw=10).at(NOW),
        peeked(scheduled=1, head=f"{T}", drawn_scheduled=["", 1], drawn_retrying=["", 1], entries=1),
        {"due": {"a": T}, "lease": {"a": "1:0::"}},
    ),
    "all with an entry are leased": Case(
        lambda keys: observe.peek(keys, EPOCH, [], draw=10).at(NOW),
        peeked(leased=2, drawn_leased=["", 2]),
        {"leased": {"a": T, "b": T}, "lease": {"a": "0:0::tok", "b": "1:0::tok"}},
    ),
    "none drawn": Case(lambda keys: observe.peek(keys, EPOCH, []).at(NOW), peeked(**COUNTED), FULL),
}


@pytest.mark.parametrize("case", PEEKS.values(), ids=PEEKS)
def test_peek(shard: Shard, keys: ShardKeys, case: Case) -> None:
    case.check(shard, keys)


def test_peek_as_a_value(shard: Shard, keys: ShardKeys) -> None:
    shard.seed(FULL)
    counts = shard.run(observe.peek(keys, EPOCH, ["mail", ""], draw=10).at(NOW))
    assert counts == observe.ShardCounts(
        now_us=T * 1000,
        scheduled=2,
        held=0,
        leased=1,
        dead=3,
        head_ms=T + 70,
        late_ms=3,
        reaped=2,
        buried=1,
        forwarded=9,
        dispatched_retired=40,
        died_retired=6,
        dispatched={"": 11, "mail": 7},
        ready={"mail": 2, "": 1},
        waited_ms={"mail": 0, "": 0},
        died={"mail": 12},
        died_lately=3,
        trimmed=8,
        trimmed_ms=5,
        drawn={"scheduled": {"": 1, "news": 1}, "held": {}, "leased": {"": 1}, "dead": {"": 2, "mail": 1}},
        retrying={"\n": 3, "news": 1},
        entries=4,
    )
    shard.seed({"meta": meta()})
    counts = shard.run(observe.peek(keys, EPOCH, []).at(NOW))
    assert (counts.head_ms, counts.late_ms, counts.dispatched, counts.waited_ms) == (None, None, {}, {})


PEEKED = ["due", "leased", "dead", "topics", "task", "lease", "why", "ghost", "seen", "moved", "ready/"]


@pytest.mark.parametrize("name", PEEKED)
def test_peek_meets_a_key_of_another_type(shard: Shard, keys: ShardKeys, name: str) -> None:
    """What needs that key would fail: a look that does not would say that all is well."""
    shard.seed(FULL)
    shard.do("DEL", shard.prefix + name)
    shard.do("SET", shard.prefix + name, "not ours")
    before = shard.state()
    with shard.as_user("default") as asker, pytest.raises(redis.ResponseError, match="WRONGTYPE"):
        asker.ask(observe.peek(keys, EPOCH, [""], draw=10).at(NOW))
    assert shard.state() == before


def test_deaths_of_the_last_ten_minutes(shard: Shard, keys: ShardKeys) -> None:
    shard.seed({"meta": meta(), "dead": {"a": T - 600_001, "b": T - 600_000, "c": T - 1, "d": T}})
    assert shard.run(observe.peek(keys, EPOCH, []).at(NOW)).died_lately == 3


def test_peek_draws_no_more_than_it_is_told(shard: Shard, keys: ShardKeys) -> None:
    shard.seed({"meta": meta(), "due": {f"{'mail/' if n % 2 else ''}{n}": T + n for n in range(500)}})
    for most in (0, 1, 15):
        counts = shard.run(observe.peek(keys, EPOCH, [], draw=most).at(NOW))
        assert sum(counts.drawn["scheduled"].values()) == most
    assert counts.drawn["scheduled"].keys() == {"", "mail"}


@pytest.mark.parametrize(("held", "draw", "told"), [(512, 16, 512), (513, 16, 16), (6400, 200, 6400), (6401, 201, 201)])
def test_peek_tells_all_ids_where_that_is_quick(shard: Shard, keys: ShardKeys, held: int, draw: int, told: int) -> None:
    shard.seed({"meta": meta(), "dead": {f"{'mail/' if n % 2 else ''}{n}": T - n for n in range(held)}})
    counts = shard.run(observe.peek(keys, EPOCH, [], draw=draw).at(NOW))
    assert sum(counts.drawn["dead"].values()) == told


def test_how_long_the_head_of_a_ready_list_has_waited(shard: Shard, keys: ShardKeys) -> None:
    """A minute with a task a second; from the 30th second on one of two is taken, so the head falls behind."""

    def waited(second: int) -> int | None:
        return shard.run(observe.peek(keys, EPOCH, [""]).at(at(second * 1000))).waited_ms.get("")

    ready: list[int] = []
    seen: int | None = 0
    for second in range(60):
        ready.append(second)
        if second < 30 or second % 2:
            ready.pop(0)
        shard.seed({"meta": meta(), "topics": {"": str(second + 1)}, "ready/": [f"i{n}" for n in ready]} | marks(shard))
        seen = waited(second)
        if not ready:
            assert seen is None
            continue
        age = (second - ready[0]) * 1000
        assert seen is not None
        assert age / 2 - 1000 <= seen <= age, f"second {second}: never more than it is, and not far less"
    assert len(marks(shard)["looks"][""].split()) <= 8
    # nothing is taken any more: the same head is older with each look, and nothing is written
    before = marks(shard)
    assert waited(500) == (500 - 59) * 1000 + (seen or 0)
    assert marks(shard) == before
    # the clock went back: nothing is older than it says
    assert waited(-10) == 0
    shard.seed({"meta": meta(), "topics": {"": "60"}} | marks(shard))
    assert waited(501) is None
    assert marks(shard) == {}


@pytest.mark.parametrize(
    ("began", "looks", "waited"),
    [
        (
            f"4:{T - 9000}",
            None,
            9000,
        ),  # four were dispatched into an empty list, two of them were taken, two came later
        (f"2:{T - 9000}", None, 0),  # all of those are gone
        (f"7:{T - 9000}", None, 0),  # of a time before the counts were lost
        (f"4:{T + 9000}", None, 0),  # the clock went back
        (f"4:{T - 9000}", f"4:{T - 5000} 5:{T - 2000}", 9000),
        (None, f"4:{T - 5000}", 5000),
    ],
)
def test_the_first_look_knows_how_long_a_head_has_waited(
    shard: Shard, keys: ShardKeys, began: str | None, looks: str | None, waited: int
) -> None:
    state: State = {"meta": meta(**({"began/mail": began} if began else {})), "topics": {"mail": "6"}}
    state |= {"ready/mail": ["mail/c", "mail/d", "mail/e", "mail/f"]} | ({"looks": {"mail": looks}} if looks else {})
    shard.seed(state)
    for _ in range(2):
        assert shard.run(observe.peek(keys, EPOCH, ["mail"]).at(NOW)).waited_ms == {"mail": waited}
    assert len(shard.state()["looks"]["mail"].split()) <= 3, "no mark is noted twice"


def marks(shard: Shard) -> State:
    return {key: value for key, value in shard.state().items() if key == "looks"}


@pytest.mark.parametrize(
    ("ms", "dispatched", "note"),
    [(999, 7, f"5:{T}"), (1000, 7, f"5:{T} 7:{T + 1000}"), (1000, 5, f"5:{T}"), (90_000, 5, f"5:{T}")],
)
def test_a_look_is_noted_once_a_second_and_not_if_nothing_was_dispatched(
    shard: Shard, keys: ShardKeys, ms: int, dispatched: int, note: str
) -> None:
    ids = [f"i{n}" for n in range(dispatched)]
    shard.seed({"meta": meta(), "topics": {"": f"{dispatched}"}, "looks": {"": f"5:{T}"}, "ready/": ids})
    shard.run(observe.peek(keys, EPOCH, [""], draw=0).at(at(ms)))
    assert shard.state()["looks"] == {"": note}


@pytest.mark.parametrize(
    ("ages", "gone"),
    [
        ((90_000, 89_999, 89_998, 70_000, 50_000, 30_000, 10_000, 5000), 1),
        ((90_000, 80_000, 70_000, 60_000, 59_000, 58_500, 30_000, 5000), 4),
        ((90_000, 86_000, 82_000, 60_000, 40_000, 20_000, 6000, 3000), 1),
        ((90_000, 80_000, 70_000, 60_000, 50_000, 40_000, 5000), None),
    ],
)
def test_of_nine_marks_one_goes(shard: Shard, keys: ShardKeys, ages: tuple[int, ...], gone: int | None) -> None:
    """The one whose neighbours are nearest to each other, for their age."""
    marks = [f"{n}:{T - age}" for n, age in enumerate(ages, 11)]
    ids = [f"i{n}" for n in range(90)]
    shard.seed({"meta": meta(), "topics": {"": "99"}, "looks": {"": " ".join(marks)}, "ready/": ids})
    shard.run(observe.peek(keys, EPOCH, [""], draw=0).at(NOW))
    kept = [mark for n, mark in enumerate(marks) if n != gone]
    assert shard.state()["looks"] == {"": " ".join([*kept, f"99:{T}"])}


def test_who_died_of_more_than_a_thousand_topics(shard: Shard, keys: ShardKeys) -> None:
    died = {f"t{n}": n + 1 for n in range(2100)}
    shard.seed(
        {"meta": meta(**{f"died/{topic}": count for topic, count in died.items()}), "topics": dict.fromkeys(died, "1")}
    )
    assert shard.run(observe.peek(keys, EPOCH, [], draw=0).at(NOW)).died == died


@pytest.mark.parametrize("command", ["hset", "hdel"])
def test_a_look_that_may_not_be_noted(shard: Shard, keys: ShardKeys, command: str) -> None:
    shard.seed({"meta": meta(), "topics": {"": "5", "mail": "5"}, "looks": {"mail": f"5:{T - 9}"}, "ready/": ["a"]})
    user = f"u{uuid.uuid4().hex}"
    shard.do("ACL", "SETUSER", user, "on", "nopass", "+@all", f"-{command}", "allchannels", "allkeys")
    with shard.as_user(user) as asker:
        answer = asker.ask(observe.peek(keys, EPOCH, ["", "mail"], draw=0).at(NOW))
    told = dict(zip(answer[1::2], answer[2::2], strict=True))
    assert (told["lengths"], told["waited"]) == ([1, 0], [0, -1])
    shard.do("ACL", "DELUSER", user)


KNOWN = {"epoch": "2:a:e", "topology": "old", "since": "1", "numbers": "4,16"}
"""A shard of a change from 4 to 16, which was not swept."""


def following(numbers: tuple[int, ...], *, epoch: int = 3, word: str = "b", engine: str = "e") -> Topology:
    *priors, shards = numbers
    return Topology(epoch=epoch, word=word, engine=engine, shards=shards, priors=tuple(priors), since=3)


@pytest.mark.parametrize(
    ("meta", "numbers", "is_owed"),
    [
        (KNOWN, (4, 16), False),
        (KNOWN, (16, 4, 2), False),
        (KNOWN, (16,), True),
        (KNOWN, (4, 32), True),
        (KNOWN | {"numbers": "1"}, (16, 12), True),
        (KNOWN | {"numbers": "6"}, (16, 12), True),
        (KNOWN | {"swept": "1"}, (16,), False),
        (KNOWN | {"swept": "1"}, (4, 32), True),
        (KNOWN | {"swept": "0"}, (16,), True),
    ],
    ids=[
        *(
            "both are looked at",
            "in another order",
            "an earlier number is not",
            "the present one is not",
            "part of one",
        ),
        *("end of one", "swept since", "swept since, and resized", "swept before that"),
    ],
)
def test_open_does_not_look_at_less(
    shard: Shard, keys: ShardKeys, meta: dict[str, str], numbers: tuple[int, ...], is_owed: bool
) -> None:
    shard.seed({"meta": meta})
    call = calls.open_shard(keys, following(numbers), calls.Copy("new", {}), word="w")
    after = {"epoch": "3:b:e", "topology": "new", "since": "3", "numbers": ",".join(map(str, numbers))}
    if not is_owed:
        assert shard.ask(call) == ["ok", 0]
        assert shard.state() == {"meta": meta | after}
        return
    assert shard.ask(call) == ["owed", "old"]
    with pytest.raises(calls.Owed) as caught:
        shard.run(call)
    assert caught.value.copy == b"old"
    assert shard.state() == {"meta": meta}
    assert shard.ask(calls.open_shard(keys, following(numbers), calls.Copy("new", {}), word="w", whatever=True)) == [
        "ok",
        0,
    ]
    assert shard.state() == {"meta": meta | after}


@pytest.mark.parametrize("has", ['{"keyed":true}', '{"keyed": true}'])
def test_open_does_not_forget_that_there_are_keys(shard: Shard, keys: ShardKeys, has: str) -> None:
    meta = KNOWN | {"topology": has}
    shard.seed({"meta": meta})
    assert shard.ask(calls.open_shard(keys, following((4, 16)), calls.Copy("{}", {}), word="w")) == ["owed", has]
    assert shard.state() == {"meta": meta}
    call = calls.open_shard(keys, following((4, 16)), calls.Copy('{"x":1,"keyed":true}', {}), word="w")
    assert shard.ask(call) == ["ok", 0]


@pytest.mark.parametrize(
    ("stored", "stands"),
    [
        ("3:b:e", False),
        ("3:a:e", True),
        ("4:a:e", True),
        ("2:a:x", True),
        ("x", False),
    ],
    ids=["the same", "another change of this epoch", "a newer one", "another engine", "of another program"],
)
def test_open_of_another_change_or_engine(shard: Shard, keys: ShardKeys, stored: str, stands: bool) -> None:
    shard.seed({"meta": KNOWN | {"epoch": stored}})
    call = calls.open_shard(keys, following((4, 16)), calls.Copy("new", {}), word="w")
    assert shard.ask(call) == (["stale", stored] if stands else ["ok", 0])
    assert shard.state()["meta"]["epoch"] == (stored if stands else "3:b:e")
