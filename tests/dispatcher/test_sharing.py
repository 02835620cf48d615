"""Which shards a member serves, where some say that they can't reach theirs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping

import pytest

from shardq.core.dispatcher.sharing import MOST_DEPUTIES, Share, share, shares

SHARDS = 24
MEMBERS = ["a", "b", "c", "d", "e"]
OWNER = {shard: name for name, owned in shares(MEMBERS, SHARDS).items() for shard in owned}


def all_shares(unreached: Mapping[str, Collection[int]]) -> dict[str, Share]:
    return {name: share(name, MEMBERS, unreached, SHARDS) for name in MEMBERS}


def pollers(shard: int, unreached: Mapping[str, Collection[int]]) -> set[str]:
    return {name for name, each in all_shares(unreached).items() if shard in each.polled}


def serves(shard: int, unreached: Mapping[str, Collection[int]]) -> set[str]:
    """The members that say they serve it."""
    return {name for name, each in all_shares(unreached).items() if shard in each.polled - each.left}


@pytest.mark.parametrize("unreached", [{}, {"gone": [0, 1]}, {"a": []}], ids=["nobody", "one that left", "none"])
def test_each_shard_has_its_owner_alone(unreached: Mapping[str, Collection[int]]) -> None:
    for shard, owner in OWNER.items():
        assert pollers(shard, unreached) == serves(shard, unreached) == {owner}


def test_what_another_owns_is_no_concern_of_who_can_not_reach_it() -> None:
    unreached = {name: [shard for shard, owner in OWNER.items() if owner != name] for name in MEMBERS}
    assert all(pollers(shard, unreached) == {owner} for shard, owner in OWNER.items())


@pytest.mark.parametrize("shard", range(SHARDS))
def test_deputies_serve_what_their_owner_can_not_reach(shard: int) -> None:
    owner = OWNER[shard]
    unreached: dict[str, list[int]] = {owner: [shard]}
    for deputies in range(1, MOST_DEPUTIES + 1):
        trying, serving = pollers(shard, unreached), serves(shard, unreached)
        assert trying == {*unreached, *serving}
        assert len(serving) == 1
        assert len(trying) == deputies + 1
        unreached[serving.pop()] = [shard]
    # nobody seems to reach it: who tried goes on, and says that it serves it, as nobody does better
    assert pollers(shard, unreached) == serves(shard, unreached) == set(unreached)
    # the owner is back
    del unreached[owner]
    assert pollers(shard, unreached) == serves(shard, unreached) == {owner}


@pytest.mark.parametrize("whole", ["b", "d"])
def test_where_all_but_one_are_cut_off_from_a_node_that_one_serves_its_shards(whole: str) -> None:
    node = range(0, SHARDS, 2)
    unreached = {name: [shard for shard in node if OWNER[shard] == name] for name in MEMBERS if name != whole}
    assert all(unreached.values())
    for shard in node:
        assert serves(shard, unreached) == {whole}
        assert pollers(shard, unreached) == {whole, OWNER[shard]}


def test_two_that_are_cut_off_from_each_others_shards() -> None:
    members = ["a", "b"]
    owned = shares(members, SHARDS)
    for name, other in (members, reversed(members)):
        assert share(name, members, owned, SHARDS) == Share(frozenset(range(SHARDS)), frozenset(owned[name]))
        assert share(other, members, {name: owned[name]}, SHARDS) == Share(frozenset(range(SHARDS)), frozenset())


def test_a_deputy_that_failed_tries_on_beside_the_next_one() -> None:
    """Otherwise it would forget that it can't reach the shard, and be its deputy again."""
    owner = OWNER[0]
    (first,) = serves(0, {owner: [0]})
    (second,) = serves(0, {owner: [0], first: [0]})
    assert pollers(0, {owner: [0], first: [0]}) == {owner, first, second}
    assert share(first, MEMBERS, {owner: [0], first: [0]}, SHARDS).left == {0}


def test_the_shards_of_one_member_go_to_many() -> None:
    """One that reaches nothing leaves no other with all of its work."""
    unreached = {"a": [shard for shard, owner in OWNER.items() if owner == "a"]}
    deputies = Counter(name for shard in unreached["a"] for name in serves(shard, unreached))
    assert len(deputies) >= 2
    assert "a" not in deputies


def test_a_member_that_is_alone() -> None:
    assert share("a", ["a"], {"a": [3]}, SHARDS) == Share(frozenset(range(SHARDS)), frozenset())


def test_a_process_that_is_no_member() -> None:
    assert share("z", MEMBERS, {}, SHARDS) == Share(frozenset(), frozenset())
    assert share("z", [], {}, SHARDS) == Share(frozenset(), frozenset())
