"""page, page_ready, page_lane and forecast: what a shard tells of many tasks, in bounded steps."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shardq.core.calls import listing
from shardq.core.calls.listing import IdPage, LanePage, ReadyPage, SortedState, Span
from shardq.core.layout.keys import ShardKeys
from tests.lua.shard import EPOCH, NOW, Shard, T, meta, record

A = record("a")

IDS = ["B", "a", "b", "mail/a", "z", "zz", "ż", "ﬀ", "𝄞"]
"""In the order of their bytes, which no language has."""


def page(
    shard: Shard, keys: ShardKeys, span: Span | None = None, *, state: SortedState = "scheduled", count: int = 100
) -> IdPage:
    return shard.run(listing.page(keys, EPOCH, state, span or Span(), count=count).at(NOW))


@pytest.mark.parametrize(("state", "key"), [("scheduled", "due"), ("leased", "leased"), ("dead", "dead")])
def test_a_page(shard: Shard, keys: ShardKeys, state: SortedState, key: str) -> None:
    before = {"meta": meta(), key: {"c": T + 2, "a": T + 1, "b": T + 1}}
    shard.seed(before)
    assert page(shard, keys, state=state) == IdPage(
        int(NOW), True, 3, (T + 2, "c"), [(T + 1, "a"), (T + 1, "b"), (T + 2, "c")]
    )
    assert shard.state() == before
    call = listing.page(keys, EPOCH, state, Span(), count=9).at(NOW)
    told = shard.ask(call)
    assert told[1:9:2] == ["now_us", "whole", "looked_at", "last_ms"]
    assert told[2:11:2] == [NOW, 1, 3, f"{T + 2}", "c"]


def test_nothing_is_there(shard: Shard, keys: ShardKeys) -> None:
    assert page(shard, keys) == IdPage(int(NOW), True, 0, (0, ""), [])
    assert page(shard, keys, Span(str(T), "a")) == IdPage(int(NOW), True, 0, (0, ""), [])


@pytest.mark.parametrize("count", [1, 2, len(IDS) - 1, len(IDS), len(IDS) + 1])
def test_pages_of_one_instant_go_by_bytes(shard: Shard, keys: ShardKeys, count: int) -> None:
    shard.seed({"meta": meta(), "due": {"first": T - 1} | dict.fromkeys(reversed(IDS), T) | {"last": T + 1}})
    for newest, order in ((False, [*IDS, "last"]), (True, [*reversed(IDS), "first"])):
        span, found = Span(str(T), newest=newest, end_ms="-inf" if newest else "+inf"), list[str]()
        while True:
            part = page(shard, keys, span, count=count)
            assert len(part.ids) <= count
            found += [id for _, id in part.ids]
            if part.whole:
                break
            span = replace(span, begin_ms=str(part.last[0]), after=part.last[1])
        assert found == order


@pytest.mark.parametrize("gone", IDS)
def test_a_page_goes_on_where_the_last_one_of_it_is_gone(shard: Shard, keys: ShardKeys, gone: str) -> None:
    at = IDS.index(gone)
    shard.seed({"meta": meta(), "due": {id: T for id in IDS if id != gone} | {"other": T + 5}})
    assert [id for _, id in page(shard, keys, Span(str(T), gone)).ids] == [*IDS[at + 1 :], "other"]
    # or is due at another time by now
    shard.do("ZADD", keys.due, T + 9, gone)
    assert [id for _, id in page(shard, keys, Span(str(T), gone)).ids] == [*IDS[at + 1 :], "other", gone]


def test_a_page_from_an_instant_to_another(shard: Shard, keys: ShardKeys) -> None:
    shard.seed({"meta": meta(), "due": {f"i{n}": T + n for n in range(6)}})
    part = page(shard, keys, Span(str(T + 1), end_ms=str(T + 4)))
    assert ([id for _, id in part.ids], part.whole, part.looked_at) == (["i1", "i2", "i3"], True, 3)
    part = page(shard, keys, Span(str(T + 1), end_ms=str(T + 4)), count=3)
    assert part.whole
    part = page(shard, keys, Span(str(T + 1), end_ms=str(T + 5)), count=3)
    assert not part.whole
    part = page(shard, keys, Span("+inf", end_ms=str(T + 3), newest=True))
    assert ([id for _, id in part.ids], part.whole, part.looked_at) == (["i5", "i4"], True, 2)


@pytest.mark.parametrize("others", [0, 4000], ids=["few have an entry", "many"])
def test_a_page_of_what_failed(shard: Shard, keys: ShardKeys, others: int) -> None:
    """In the order of all others; what is leased, ready or dead, or has lapsed only, is left out."""
    failed = {"z": T, "B": T, "a": T + 2, "mail/c": T + 1, "zz": T + 5}
    shard.seed(
        {
            "meta": meta(),
            "due": failed | {"never": T + 1, "lapsed": T + 1, "back": T + 1, "odd": T + 1},
            "leased": {"l": T},
            "dead": {"d": T},
            "lease": dict.fromkeys((*failed, "r", "d"), "1:0::")
            | {"l": "1:0::tok", "lapsed": "0:1::", "back": "0:0:9:", "odd": "what"},
        }
    )
    if others:
        shard.do("HSET", keys.lease, *(word for n in range(others) for word in (f"d{n}", "1:0::")))

    def of(span: Span, count: int = 100, topic: str | None = None) -> IdPage:
        return shard.run(listing.page(keys, EPOCH, "scheduled", span, topic=topic, failed=True, count=count).at(NOW))

    order = [(T, "B"), (T, "z"), (T + 1, "mail/c"), (T + 2, "a"), (T + 5, "zz")]
    assert (of(Span()).ids, of(Span()).whole) == (order, True)
    assert of(Span()).looked_at == (9 if others else 5)
    assert (of(Span(), 2).ids, of(Span(), 2).whole) == (order[:2], False)
    assert of(Span(str(T))).ids == order
    assert of(Span(str(T), "B")).ids == order[1:]
    assert of(Span(str(T), "b")).ids == order[1:]
    assert of(Span(str(T + 1), "mail/c", str(T + 5))).ids == order[3:4]
    assert of(Span(), topic="mail").ids == order[2:3]
    shard.do("HDEL", keys.lease, "r", "d", "l", *(id for id in failed if id != "a"))
    assert of(Span()).ids == [(T + 2, "a")]
    # as many entries as are leased: none is of another task
    shard.do("DEL", keys.lease)
    shard.do("HSET", keys.lease, *(word for n in range(others + 2) for word in (f"l{n}", "1:0::tok")))
    shard.do("ZADD", keys.leased, *(word for n in range(others + 2) for word in (T, f"l{n}")))
    shard.do("ZREM", keys.leased, "l")
    assert (of(Span()).ids, of(Span()).looked_at, of(Span()).whole) == ([], 0, True)


def test_a_page_of_a_topic_looks_at_so_many(shard: Shard, keys: ShardKeys) -> None:
    """Also where none is of the topic, and a topic's name is a part of another's."""
    due = {f"{('mail', 'mail2', 'm')[n % 3]}/{n:03}": T + n for n in range(30)} | {"mail": T + 30}
    shard.seed({"meta": meta(), "due": due})

    def of(topic: str, span: Span, look: int) -> IdPage:
        return shard.run(listing.page(keys, EPOCH, "scheduled", span, topic=topic, count=4, look=look).at(NOW))

    assert of("mail", Span(), 7) == IdPage(
        int(NOW), False, 7, (T + 6, "mail/006"), [(T, "mail/000"), (T + 3, "mail/003"), (T + 6, "mail/006")]
    )
    assert of("mail", Span(), 2) == IdPage(int(NOW), False, 2, (T + 1, "mail2/001"), [(T, "mail/000")])
    assert of("mail", Span(end_ms=str(T + 3)), 7) == IdPage(int(NOW), True, 3, (T + 2, "m/002"), [(T, "mail/000")])
    assert of("none", Span(), 7) == IdPage(int(NOW), False, 7, (T + 6, "mail/006"), [])
    assert [id for _, id in of("", Span(), 100).ids] == ["mail"]
    full = of("mail", Span(), 31)
    assert (len(full.ids), full.looked_at, full.whole) == (4, 10, False)
    assert of("mail", Span(str(T + 27), "mail/027"), 31).whole


def test_a_page_of_a_topic_up_to_an_instant(shard: Shard, keys: ShardKeys) -> None:
    """Whatever the topic is called."""
    for topic in ("mail", "info", "inf"):
        shard.seed({"meta": meta(), "due": {f"{topic}/{n}": T + n for n in range(4)}})
        for span, found in ((Span(end_ms=f"{T + 2}"), [0, 1]), (Span("+inf", end_ms=f"{T + 1}", newest=True), [3, 2])):
            part = shard.run(listing.page(keys, EPOCH, "scheduled", span, topic=topic, count=9).at(NOW))
            assert ([id for _, id in part.ids], part.whole) == ([f"{topic}/{n}" for n in found], True)


def test_a_page_of_no_ids(shard: Shard, keys: ShardKeys) -> None:
    shard.seed({"meta": meta(), "due": {"a": T, "b": T}})
    for count in (0, -1):
        assert page(shard, keys, count=count) == IdPage(int(NOW), False, 0, (0, ""), [])


@pytest.mark.parametrize(
    ("holder", "held"),
    [("shop", ["a", "b"]), ("shop-0123456789ab", ["a"]), ("sho", []), ("shop-eu", ["c"]), ("plain", ["d"])],
)
def test_a_page_of_a_holder(shard: Shard, keys: ShardKeys, holder: str, held: list[str]) -> None:
    lease = {
        "a": "0:0::shop-0123456789ab:1",
        "b": "1:0:3:shop-ffffffffffff:77",
        "c": "0:0::shop-eu-0123456789ab:1",
        "d": "0:0::plain",
        "e": "0:0::~shop-0123456789ab:1",
    }
    shard.seed({"meta": meta(), "leased": dict.fromkeys([*lease, "f"], T + 5), "lease": lease})
    part = shard.run(listing.page(keys, EPOCH, "leased", Span(), holder=holder, count=9).at(NOW))
    assert ([id for _, id in part.ids], part.looked_at) == (held, 6)


@pytest.mark.parametrize("lease", [{}, {"a": "0:0::shop"}, {"a": "0:0::shop", "b": "0:0::shop"}])
def test_a_page_of_few_leases(shard: Shard, keys: ShardKeys, lease: dict[str, str]) -> None:
    leases = {"leased": dict.fromkeys(lease, T), "lease": lease} if lease else {}
    shard.seed({"meta": meta()} | leases)
    part = shard.run(listing.page(keys, EPOCH, "leased", Span(), holder="shop", count=9).at(NOW))
    assert [id for _, id in part.ids] == list(lease)


# ---- ready lists


def ready(shard: Shard, keys: ShardKeys, after: int | None = None, *, count: int = 100) -> ReadyPage:
    return shard.run(listing.page_ready(keys, EPOCH, "mail", after, count=count).at(NOW))


def test_a_ready_list_page_by_page(shard: Shard, keys: ShardKeys) -> None:
    ids = [f"mail/{n}" for n in range(5)]
    before = {"meta": meta(), "task": dict.fromkeys(ids, A), "ready/mail": ids, "topics": {"mail": "15"}}
    shard.seed(before)
    assert ready(shard, keys, count=2) == ReadyPage(False, 2, 12, [(11, "mail/0"), (12, "mail/1")])
    assert ready(shard, keys, 12, count=2) == ReadyPage(False, 2, 14, [(13, "mail/2"), (14, "mail/3")])
    assert ready(shard, keys, 14, count=2) == ReadyPage(True, 1, 15, [(15, "mail/4")])
    assert ready(shard, keys, 15, count=2) == ReadyPage(True, 0, None, [])
    assert shard.state() == before


def test_the_place_of_a_ready_task_stays_while_others_come_and_go(shard: Shard, keys: ShardKeys) -> None:
    ids = [f"mail/{n}" for n in range(6)]
    shard.seed({"meta": meta(), "task": dict.fromkeys(ids, A), "ready/mail": ids[:5], "topics": {"mail": "15"}})
    shard.do("LPOP", f"{keys.prefix}ready/mail", 3)
    shard.do("LPUSH", f"{keys.prefix}ready/mail", "mail/0")  # its lease ran out
    shard.do("RPUSH", f"{keys.prefix}ready/mail", "mail/5")
    shard.do("HINCRBY", keys.topics, "mail", 1)
    assert ready(shard, keys, 14).ids == [(15, "mail/4"), (16, "mail/5")]
    assert ready(shard, keys, 11).ids == [(13, "mail/0"), (14, "mail/3"), (15, "mail/4"), (16, "mail/5")]
    # a shard that was lost, and opened anew, counts anew
    shard.do("HSET", keys.topics, "mail", 3)
    assert len(ready(shard, keys, 14).ids) == 4


def test_only_what_is_ready_is_listed(shard: Shard, keys: ShardKeys) -> None:
    ids = ["mail/due", "mail/leased", "mail/dead", "mail/gone", "mail/twice", "mail/twice"]
    shard.seed(
        {
            "meta": meta(),
            "task": {id: A for id in ids if id != "mail/gone"},
            "due": {"mail/due": T},
            "leased": {"mail/leased": T},
            "dead": {"mail/dead": T},
            "ready/mail": ids,
            "ghost": {"mail/twice": "1", "mail/due": "1"},
            "topics": {"mail": "6"},
        }
    )
    assert [id for _, id in ready(shard, keys).ids] == ["mail/twice"]
    assert ready(shard, keys).looked_at == 6


def test_a_list_of_which_nothing_is_counted(shard: Shard, keys: ShardKeys) -> None:
    """A shard that was lost, and opened anew, has no count of what its ready list still has."""
    shard.seed({"meta": meta(), "task": {"mail/0": A, "mail/1": A}, "ready/mail": ["mail/0", "mail/1"]})
    assert ready(shard, keys) == ReadyPage(True, 2, 0, [(-1, "mail/0"), (0, "mail/1")])
    call = listing.page_ready(keys, EPOCH, "mail", None, count=9).at(NOW)
    assert shard.ask(call) == ["ok", 1, 2, "0", ["-1", "mail/0", "0", "mail/1"], []]


# ---- the forecast


def test_a_forecast(shard: Shard, keys: ShardKeys) -> None:
    begin = T // 60_000 * 60_000
    due = {"long ago": T - 10**9, "just now": T, "soon": T + 1, "first": begin + 59_999, "second": begin + 60_000}
    due |= {"last": begin + 179_999, "later": begin + 180_000}
    before = {"meta": meta(), "due": due}
    shard.seed(before)
    call = listing.forecast(keys, EPOCH, step_ms=60_000, steps=3).at(NOW)
    assert shard.ask(call) == ["ok", NOW, f"{begin}", 2, 1, [2, 1, 1]]
    # by another's beginning, as its clock goes before ours or after
    for other, counts in ((begin - 60_000, [0, 2, 1]), (begin + 60_000, [3, 1, 1])):
        call = listing.forecast(keys, EPOCH, begin_ms=other, step_ms=60_000, steps=3).at(NOW)
        found = shard.run(call)
        assert (found.overdue, found.steps) == (2, counts)
        assert found.overdue + sum(found.steps) + found.later == len(due)
    assert shard.state() == before


def test_a_forecast_of_nothing(shard: Shard, keys: ShardKeys) -> None:
    found = shard.run(listing.forecast(keys, EPOCH, step_ms=60_000, steps=2).at(NOW))
    assert (found.overdue, found.later, found.steps) == (0, 0, [0, 0])
    assert shard.run(listing.forecast(keys, EPOCH, step_ms=60_000, steps=0).at(NOW)).steps == []


def test_the_tasks_of_a_lane(shard: Shard, keys: ShardKeys) -> None:
    waits = [f"w/k/{at:015d}/{id}" for at, id in ((0, "x"), (T - 1, "b"), (T - 1, "r"), (T + 5, "a"))]
    placed = ["w/k/l1", "w/k/l2", "w/k/r", "w/k/r1", "w/k/r2"]
    before = {
        "meta": meta(),
        "keys": dict.fromkeys([f"w/j/{T:015d}/a", *waits, f"w/kk/{T:015d}/a"], 0),
        "due": {"w/k/r": T - 1},
        "placed": dict.fromkeys(["w/j/a", *placed, "w/kk/a"], 0),
        "leased": {"w/k/l1": T + 9, "w/k/l2": T + 1, "w/kk/a": T},
    }
    shard.seed(before)
    told = [("leased", "w/k/l1"), ("leased", "w/k/l2"), ("ready", "w/k/r1"), ("ready", "w/k/r2")]
    told += [("scheduled", each) for each in waits]

    def page(*begin: str, count: int = 100) -> LanePage:
        return shard.run(listing.page_lane(keys, EPOCH, "w/k/", *begin, count=count).at(NOW))  # type: ignore[arg-type]

    assert page() == LanePage(True, told)  # type: ignore[arg-type]
    for count in range(10):
        assert page(count=count) == LanePage(count >= 8, told[:count])  # type: ignore[arg-type]
    for at, (state, word) in enumerate(told, 1):
        assert page(state, word) == LanePage(True, told[at:])  # type: ignore[arg-type]
        assert page(state, word, count=1) == LanePage(at >= 7, told[at : at + 1])  # type: ignore[arg-type]
    assert page("leased", "w/k/l15").tasks == told[1:]
    assert page("ready").tasks == told[2:]
    assert page("ready", "w/k/r15").tasks == told[3:]
    assert page("scheduled").tasks == told[4:]
    assert shard.run(listing.page_lane(keys, EPOCH, "w/none/", count=9).at(NOW)) == LanePage(True, [])
    assert shard.state() == before
