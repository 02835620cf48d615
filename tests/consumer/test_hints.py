"""How a claim is split over shards and topics: strict order, weighted shares, caps, and turns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardq.consumer.hints import FEW, FRESH_S, Ask, Hints, Stocks

TOPICS = ("high", "middle", "low")
Lengths = Mapping[int, Mapping[str, int]]


class Lists:
    """Ready lists that answer asks as the script does."""

    def __init__(self, lengths: Lengths) -> None:
        self.left = {shard: Counter(lists) for shard, lists in lengths.items()}

    def claim(
        self, hints: Hints, max: int, topics: Sequence[str] = TOPICS, caps: Mapping[str, int] | None = None
    ) -> tuple[list[Ask], Counter[str]]:
        asks = hints.split(max, sorted(self.left), topics, caps or {}, 0.0)
        given: Counter[str] = Counter()
        for ask in asks:
            room, left = ask.max, self.left[ask.shard]
            for topic, share in ask.shares.items():
                taken = min(room, share, left[topic])
                room -= taken
                left[topic] -= taken
                given[topic] += taken
            hints.stocks.learn(ask.shard, {topic: left[topic] for topic in topics}, 0.0)
        return asks, given


def full(shards: int, count: int = 10**9, topics: Sequence[str] = TOPICS) -> Lists:
    return Lists({shard: dict.fromkeys(topics, count) for shard in range(shards)})


def knowing(lengths: Lengths, weights: Mapping[str, int] | None = None) -> Hints:
    hints = Hints(TOPICS, weights, Stocks())
    for shard, lists in lengths.items():
        hints.stocks.learn(shard, lists, 0.0)
    return hints


LENGTHS = st.dictionaries(
    st.integers(0, 15),
    st.fixed_dictionaries(dict.fromkeys(TOPICS, st.integers(0, 30))),
    min_size=1,
    max_size=8,
)
CAPS = st.dictionaries(st.sampled_from(TOPICS), st.integers(0, 20))
WEIGHTS = st.none() | st.fixed_dictionaries(dict.fromkeys(TOPICS, st.integers(1, 9)))


@given(truth=LENGTHS, believed=LENGTHS, caps=CAPS, weights=WEIGHTS, max=st.integers(1, 60))
def test_never_more_than_asked_for_whatever_is_believed(
    truth: Lengths, believed: Lengths, caps: Mapping[str, int], weights: Mapping[str, int] | None, max: int
) -> None:
    hints = knowing(believed, weights)
    asks, given = Lists(truth).claim(hints, max, caps=caps)
    assert len({ask.shard for ask in asks}) == len(asks)
    assert sum(ask.max for ask in asks) <= max
    assert given.total() <= max
    for topic, cap in caps.items():
        assert sum(ask.shares[topic] for ask in asks) <= cap
        assert given[topic] <= cap


@given(lengths=LENGTHS, max=st.integers(1, 60))
def test_strict_order_over_all_shards(lengths: Lengths, max: int) -> None:
    _, given = Lists(lengths).claim(knowing(lengths), max)
    expected, room = Counter[str](), max
    for topic in TOPICS:
        expected[topic] = min(room, sum(lists[topic] for lists in lengths.values()))
        room -= expected[topic]
    assert +given == +expected


@given(lengths=LENGTHS, weights=WEIGHTS, max=st.integers(1, 60))
def test_what_is_known_is_all_fetched_in_the_end(lengths: Lengths, weights: Mapping[str, int] | None, max: int) -> None:
    lists, hints = Lists(lengths), knowing(lengths, weights)
    there = sum(sum(each.values()) for each in lengths.values())
    got, claims = 0, 0
    while got < there:
        got += lists.claim(hints, max)[1].total()
        claims += 1
        assert claims <= 3 * (there // max + 1) + len(lengths)
    assert hints.left(list(lengths)) == []


def test_who_knows_nothing_asks_everywhere_for_its_part() -> None:
    asks = Hints(TOPICS, None, Stocks()).split(10, range(4), TOPICS, {}, 0.0)
    assert sorted(ask.max for ask in asks) == [2, 2, 3, 3]
    assert all(ask.shares == dict.fromkeys(TOPICS, ask.max) for ask in asks)


def test_a_shard_with_only_low_tasks_is_not_asked_for_them_while_another_has_high_ones() -> None:
    hints = knowing({0: {"high": 5, "low": 0}, 1: {"high": 0, "low": 50}})
    shares = {ask.shard: ask.shares for ask in hints.split(5, range(2), ("high", "low"), {}, 1.0)}
    assert shares == {0: {"high": 5, "low": 0}, 1: {"high": 0, "low": 0}}
    totals = {ask.shard: ask.max for ask in hints.split(8, range(2), ("high", "low"), {}, 1.0)}
    assert totals == {0: 5, 1: 3}


def test_filled_from_the_highest_it_looks_at_one_other_now_and_then() -> None:
    hints = knowing({0: {"high": 50}, 1: {"high": 0}, 2: {"high": 0}})
    assert [ask.shard for ask in hints.split(5, range(3), ("high",), {}, FRESH_S / 2)] == [0]
    now, others = FRESH_S, list[int]()
    for _ in range(4):
        now += FRESH_S
        asks = {ask.shard: ask.max for ask in hints.split(5, range(3), ("high",), {}, now)}
        assert asks.pop(0) == 5
        ((other, most),) = asks.items()
        assert most == 0
        hints.stocks.learn(other, {"high": 0}, now)
        others.append(other)
    assert others in ([1, 2, 1, 2], [2, 1, 2, 1])


def test_where_all_have_enough_it_looks_nowhere() -> None:
    hints = knowing({shard: {"high": 50} for shard in range(3)})
    assert [len(hints.split(5, range(3), ("high",), {}, now * FRESH_S * 9)) for now in range(6)] == [1] * 6


@pytest.mark.parametrize(("permits", "shards"), [(5, 1), (4, 3)])
def test_a_limited_topic_that_fills_the_claim_is_asked_for_where_it_is(permits: int, shards: int) -> None:
    hints = knowing({0: {"high": 50}, 1: {"high": 50}, 2: {"high": 50}})
    asks = hints.split(5, range(3), ("high",), {"high": permits}, 0.0)
    assert len(asks) == shards
    assert sum(ask.shares["high"] for ask in asks) == permits


def test_consumers_of_one_engine_know_what_one_of_them_heard() -> None:
    stocks = Stocks()
    one, other, low = (Hints(topics, None, stocks) for topics in (TOPICS, TOPICS, ("low",)))
    one.stocks.learn(2, {"high": 5, "middle": 0, "low": 1}, 1.0)
    assert other.left(range(4)) == [(2, "high"), (2, "low")]
    assert low.left(range(4)) == [(2, "low")]
    # in a large fleet not every claim brings a look: one who is about to learn is enough
    shards = [[ask.shard for ask in hints.split(5, range(3), TOPICS, {}, 2.0)] for hints in (one, other, one)]
    assert shards == [[2, 0], [2, 1], [2]]


def test_in_a_backlog_a_few_shards_have_enough() -> None:
    asks = Hints(TOPICS, None, Stocks()).split(10, range(16), ("",), {}, 0.0, few=True)
    assert len(asks) == FEW
    assert sum(ask.max for ask in asks) == 10
    # with priorities every shard may have a higher one
    assert len(Hints(TOPICS, None, Stocks()).split(10, range(16), TOPICS, {}, 0.0, few=True)) == 16


def test_a_claim_of_lower_ones_always_looks_for_higher_ones() -> None:
    hints = knowing({0: {"high": 0, "low": 50}, 1: {"high": 0, "low": 0}})
    asks = {ask.shard: ask.max for ask in hints.split(5, range(2), ("high", "low"), {}, 0.0)}
    assert asks == {0: 5, 1: 0}


def test_nothing_to_ask() -> None:
    assert Hints(TOPICS, None, Stocks()).split(5, range(4), (), {}, 0.0) == []
    assert Hints(TOPICS, None, Stocks()).split(5, (), TOPICS, {}, 0.0) == []


@pytest.mark.parametrize("max", [1, 3, 16, 50])
def test_every_shard_has_its_turn(max: int) -> None:
    lists, hints = full(7, topics=("",)), Hints(TOPICS, None, Stocks())
    firsts = [lists.claim(hints, max, ("",))[0][0].shard for _ in range(70)]
    assert Counter(firsts) == dict.fromkeys(range(7), 10)
    taken = [10**9 - left[""] for left in lists.left.values()]
    assert max * 70 * 0.9 <= sum(taken) <= max * 70
    assert min(taken) >= 0.8 * sum(taken) / 7


@pytest.mark.parametrize("max", [1, 2, 7, 100])
@pytest.mark.parametrize(
    "weights", [{"high": 5, "low": 1}, {"a": 1, "b": 1, "c": 1}, {"a": 100, "b": 10, "c": 1}, {"a": 3, "b": 1000}]
)
def test_weighted_shares(weights: Mapping[str, int], max: int) -> None:
    topics = tuple(weights)
    lists, hints = full(5, topics=topics), Hints(TOPICS, weights, Stocks())
    given: Counter[str] = Counter()
    for _ in range(10_000):
        given += lists.claim(hints, max, topics)[1]
    for topic, weight in weights.items():
        share = given.total() * weight / sum(weights.values())
        assert given[topic] == pytest.approx(share, rel=0.1)
    assert given.total() == pytest.approx(10_000 * max, rel=0.001)


def test_what_a_topic_can_not_use_the_others_get() -> None:
    lists = Lists({0: {"high": 2, "low": 10**6}, 1: {"high": 0, "low": 10**6}})
    hints = knowing(lists.left, {"high": 5, "low": 1})
    assert lists.claim(hints, 30, ("high", "low"))[1] == {"high": 2, "low": 28}
    # an empty topic saves nothing up for later
    for _ in range(100):
        lists.claim(hints, 30, ("high", "low"))
    lists.left[1]["high"] = 10**6
    lists.claim(hints, 30, ("high", "low"))
    given = lists.claim(hints, 30, ("high", "low"))[1]
    assert given["high"] == pytest.approx(25, abs=1)


def test_a_capped_topic_leaves_room_for_the_next() -> None:
    lengths = {0: {"high": 50, "low": 50}, 1: {"high": 50, "low": 50}}
    _, given = Lists(lengths).claim(knowing(lengths), 20, ("high", "low"), caps={"high": 3})
    assert given == {"high": 3, "low": 17}
    _, given = Lists(lengths).claim(knowing(lengths), 20, ("high", "low"), caps={"high": 3, "low": 0})
    assert +given == {"high": 3}
