"""The split of a claim over shards and topics: strict order, weighted shares, limits, and turns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardq.core.consumer.claim_planner import FEW, FRESH_S, ClaimPlanner, ReadyCounts, ShardClaim

TOPICS = ("high", "middle", "low")
AskLengths = Mapping[int, Mapping[str, int]]


class Lists:
    """Ready lists that answer shard_claims as the script does."""

    def __init__(self, lengths: AskLengths) -> None:
        self.left = {shard: Counter(lists) for shard, lists in lengths.items()}

    def claim(
        self, planner: ClaimPlanner, max: int, topics: Sequence[str] = TOPICS, caps: Mapping[str, int] | None = None
    ) -> tuple[list[ShardClaim], Counter[str]]:
        shard_claims = planner.split(max, sorted(self.left), topics, caps or {}, 0.0)
        given: Counter[str] = Counter()
        for ask in shard_claims:
            wakeups, left = ask.max, self.left[ask.shard]
            for topic, share in ask.shares.items():
                notes = min(wakeups, share, left[topic])
                wakeups -= notes
                left[topic] -= notes
                given[topic] += notes
            planner.ready_counts.learn(ask.shard, {topic: left[topic] for topic in topics}, 0.0)
        return shard_claims, given


def full(shards: int, count: int = 10**9, topics: Sequence[str] = TOPICS) -> Lists:
    return Lists({shard: dict.fromkeys(topics, count) for shard in range(shards)})


def knowing(lengths: AskLengths, weights: Mapping[str, int] | None = None) -> ClaimPlanner:
    planner = ClaimPlanner(TOPICS, weights, ReadyCounts())
    for shard, lists in lengths.items():
        planner.ready_counts.learn(shard, lists, 0.0)
    return planner


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
    truth: AskLengths, believed: AskLengths, caps: Mapping[str, int], weights: Mapping[str, int] | None, max: int
) -> None:
    planner = knowing(believed, weights)
    shard_claims, given = Lists(truth).claim(planner, max, caps=caps)
    assert len({ask.shard for ask in shard_claims}) == len(shard_claims)
    assert sum(ask.max for ask in shard_claims) <= max
    assert given.total() <= max
    for topic, cap in caps.items():
        assert sum(ask.shares[topic] for ask in shard_claims) <= cap
        assert given[topic] <= cap


@given(lengths=LENGTHS, max=st.integers(1, 60))
def test_strict_order_over_all_shards(lengths: AskLengths, max: int) -> None:
    _, given = Lists(lengths).claim(knowing(lengths), max)
    expected, wakeups = Counter[str](), max
    for topic in TOPICS:
        expected[topic] = min(wakeups, sum(lists[topic] for lists in lengths.values()))
        wakeups -= expected[topic]
    assert +given == +expected


@given(lengths=LENGTHS, weights=WEIGHTS, max=st.integers(1, 60))
def test_what_is_known_is_all_fetched_in_the_end(
    lengths: AskLengths, weights: Mapping[str, int] | None, max: int
) -> None:
    lists, planner = Lists(lengths), knowing(lengths, weights)
    there = sum(sum(each.values()) for each in lengths.values())
    got, claims = 0, 0
    while got < there:
        got += lists.claim(planner, max)[1].total()
        claims += 1
        assert claims <= 3 * (there // max + 1) + len(lengths)
    assert planner.left(list(lengths)) == []


def test_who_knows_nothing_asks_everywhere_for_its_part() -> None:
    shard_claims = ClaimPlanner(TOPICS, None, ReadyCounts()).split(10, range(4), TOPICS, {}, 0.0)
    assert sorted(ask.max for ask in shard_claims) == [2, 2, 3, 3]
    assert all(ask.shares == dict.fromkeys(TOPICS, ask.max) for ask in shard_claims)


def test_a_shard_with_only_low_tasks_is_not_asked_for_them_while_another_has_high_ones() -> None:
    planner = knowing({0: {"high": 5, "low": 0}, 1: {"high": 0, "low": 50}})
    shares = {ask.shard: ask.shares for ask in planner.split(5, range(2), ("high", "low"), {}, 1.0)}
    assert shares == {0: {"high": 5, "low": 0}, 1: {"high": 0, "low": 0}}
    totals = {ask.shard: ask.max for ask in planner.split(8, range(2), ("high", "low"), {}, 1.0)}
    assert totals == {0: 5, 1: 3}


def test_filled_from_the_highest_it_looks_at_one_other_now_and_then() -> None:
    planner = knowing({0: {"high": 50}, 1: {"high": 0}, 2: {"high": 0}})
    assert [ask.shard for ask in planner.split(5, range(3), ("high",), {}, FRESH_S / 2)] == [0]
    now, others = FRESH_S, list[int]()
    for _ in range(4):
        now += FRESH_S
        shard_claims = {ask.shard: ask.max for ask in planner.split(5, range(3), ("high",), {}, now)}
        assert shard_claims.pop(0) == 5
        ((other, most),) = shard_claims.items()
        assert most == 0
        planner.ready_counts.learn(other, {"high": 0}, now)
        others.append(other)
    assert others in ([1, 2, 1, 2], [2, 1, 2, 1])


def test_where_all_have_enough_it_looks_nowhere() -> None:
    planner = knowing({shard: {"high": 50} for shard in range(3)})
    assert [len(planner.split(5, range(3), ("high",), {}, now * FRESH_S * 9)) for now in range(6)] == [1] * 6


@pytest.mark.parametrize(("permits", "shards"), [(5, 1), (4, 1)])
def test_a_limited_topic_that_fills_the_claim_is_asked_for_where_it_is(permits: int, shards: int) -> None:
    planner = knowing({0: {"high": 50}, 1: {"high": 50}, 2: {"high": 50}})
    shard_claims = planner.split(5, range(3), ("high",), {"high": permits}, 0.0)
    assert len(shard_claims) == shards
    assert sum(ask.shares["high"] for ask in shard_claims) == permits


def test_a_limit_that_bounds_the_claim_spares_the_shards_that_have_nothing() -> None:
    """All but one, the one not asked for longest: each has its turn."""
    asked: list[int] = []
    planner, now = knowing({shard: {"high": 50 if shard == 3 else 0} for shard in range(8)}), 1.0
    for _ in range(7):
        shards = {ask.shard: ask.shares["high"] for ask in planner.split(40, range(8), ("high",), {"high": 4}, now)}
        assert shards.pop(3) == 4
        asked += shards
        now += FRESH_S * 2
    assert sorted(asked) == [0, 1, 2, 4, 5, 6, 7]


def test_a_limited_topic_of_which_more_is_permitted_than_known_is_looked_for_everywhere() -> None:
    planner = knowing({0: {"high": 2}, 1: {"high": 0}, 2: {"high": 0}})
    assert {ask.shard for ask in planner.split(5, range(3), ("high",), {"high": 2}, 0.0)} == {0, 1, 2}


def test_consumers_of_one_engine_know_what_one_of_them_heard() -> None:
    ready_counts = ReadyCounts()
    one, other, low = (ClaimPlanner(topics, None, ready_counts) for topics in (TOPICS, TOPICS, ("low",)))
    one.ready_counts.learn(2, {"high": 5, "middle": 0, "low": 1}, 1.0)
    assert other.left(range(4)) == [(2, "high"), (2, "low")]
    assert low.left(range(4)) == [(2, "low")]
    # in a large fleet not every claim brings a look: one who is about to learn is enough
    shards = [[ask.shard for ask in planner.split(5, range(3), TOPICS, {}, 2.0)] for planner in (one, other, one)]
    assert shards == [[2, 0], [2, 1], [2]]


def test_in_a_backlog_a_few_shards_have_enough() -> None:
    shard_claims = ClaimPlanner(TOPICS, None, ReadyCounts()).split(10, range(16), ("",), {}, 0.0, few=True)
    assert len(shard_claims) == FEW
    assert sum(ask.max for ask in shard_claims) == 10
    # with priorities every shard may have a higher one
    assert len(ClaimPlanner(TOPICS, None, ReadyCounts()).split(10, range(16), TOPICS, {}, 0.0, few=True)) == 16


def test_a_claim_of_lower_ones_always_looks_for_higher_ones() -> None:
    planner = knowing({0: {"high": 0, "low": 50}, 1: {"high": 0, "low": 0}})
    shard_claims = {ask.shard: ask.max for ask in planner.split(5, range(2), ("high", "low"), {}, 0.0)}
    assert shard_claims == {0: 5, 1: 0}


def test_nothing_to_ask() -> None:
    assert ClaimPlanner(TOPICS, None, ReadyCounts()).split(5, range(4), (), {}, 0.0) == []
    assert ClaimPlanner(TOPICS, None, ReadyCounts()).split(5, (), TOPICS, {}, 0.0) == []


@pytest.mark.parametrize("max", [1, 3, 16, 50])
def test_every_shard_has_its_turn(max: int) -> None:
    lists, planner = full(7, topics=("",)), ClaimPlanner(TOPICS, None, ReadyCounts())
    firsts = [lists.claim(planner, max, ("",))[0][0].shard for _ in range(70)]
    assert Counter(firsts) == dict.fromkeys(range(7), 10)
    notes = [10**9 - left[""] for left in lists.left.values()]
    assert max * 70 * 0.9 <= sum(notes) <= max * 70
    assert min(notes) >= 0.8 * sum(notes) / 7


@pytest.mark.parametrize("max", [1, 2, 7, 100])
@pytest.mark.parametrize(
    "weights", [{"high": 5, "low": 1}, {"a": 1, "b": 1, "c": 1}, {"a": 100, "b": 10, "c": 1}, {"a": 3, "b": 1000}]
)
def test_weighted_shares(weights: Mapping[str, int], max: int) -> None:
    topics = tuple(weights)
    lists, planner = full(5, topics=topics), ClaimPlanner(TOPICS, weights, ReadyCounts())
    given: Counter[str] = Counter()
    rounds = 10_000 if max < 7 else 2_000  # enough for the share of the lightest
    for _ in range(rounds):
        given += lists.claim(planner, max, topics)[1]
    for topic, weight in weights.items():
        share = given.total() * weight / sum(weights.values())
        assert given[topic] == pytest.approx(share, rel=0.1)
    assert given.total() == pytest.approx(rounds * max, rel=0.001)


def test_what_a_topic_can_not_use_the_others_get() -> None:
    lists = Lists({0: {"high": 2, "low": 10**6}, 1: {"high": 0, "low": 10**6}})
    planner = knowing(lists.left, {"high": 5, "low": 1})
    assert lists.claim(planner, 30, ("high", "low"))[1] == {"high": 2, "low": 28}
    # an empty topic saves nothing up for later
    for _ in range(100):
        lists.claim(planner, 30, ("high", "low"))
    lists.left[1]["high"] = 10**6
    lists.claim(planner, 30, ("high", "low"))
    given = lists.claim(planner, 30, ("high", "low"))[1]
    assert given["high"] == pytest.approx(25, abs=1)


def test_a_capped_topic_leaves_room_for_the_next() -> None:
    lengths = {0: {"high": 50, "low": 50}, 1: {"high": 50, "low": 50}}
    _, given = Lists(lengths).claim(knowing(lengths), 20, ("high", "low"), caps={"high": 3})
    assert given == {"high": 3, "low": 17}
    _, given = Lists(lengths).claim(knowing(lengths), 20, ("high", "low"), caps={"high": 3, "low": 0})
    assert +given == {"high": 3}
