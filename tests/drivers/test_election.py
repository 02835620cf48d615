"""Whose word counts under Sentinel."""

from __future__ import annotations

import pytest

from shardq.core.drivers.election import Election, Vote


def election(*said: tuple[str, int], asked: int = 3, seen: int = 0) -> Election:
    votes = [Vote(f"s{number}:1", master, epoch, asked) for number, (master, epoch) in enumerate(said)]
    return Election(votes, asked, seen)


@pytest.mark.parametrize(
    ("said", "master"),
    [
        ([("new", 2), ("new", 2), ("old", 1)], "new"),
        ([("old", 1), ("new", 2), ("new", 2)], "new"),
        # one that watches another service, whatever its epoch
        ([("foreign", 50), ("old", 1), ("old", 1)], "old"),
        # a failover of which the others hear within moments
        ([("new", 2), ("old", 1), ("old", 1)], "old"),
        # the third one does not answer
        ([("new", 2), ("old", 1)], "new"),
        ([("old", 1), ("new", 2)], "new"),
        ([("old", 1), ("old", 1)], "old"),
        # two do not
        ([("old", 1)], "old"),
        # sentinels that were set up anew count from 0
        ([("a", 0), ("a", 0)], "a"),
    ],
)
def test_whose_word_counts(said: list[tuple[str, int]], master: str) -> None:
    assert election(*said).master == master


def test_a_minority_does_not_lead_back() -> None:
    held = election(("old", 1), seen=2)
    assert held.master is None
    assert "only 1 of 3 sentinels answer, and by an older failover" in held.refusal
    assert "s0:1 names old (config-epoch 1)" in held.refusal
    assert election(("new", 2), seen=2).master == "new"
    assert election(("newer", 3), seen=2).master == "newer"
    # sentinels that were set up anew, where most of them say so
    assert election(("old", 0), ("old", 0), seen=2).master == "old"


def test_a_tie_is_refused() -> None:
    tie = election(("a", 1), ("b", 1))
    assert tie.master is None
    assert "the sentinels disagree" in tie.refusal
    assert election(("a", 1), ("b", 1), ("b", 1)).master == "b"
    assert election(("a", 1), ("b", 1), ("c", 1)).master is None


def test_who_need_not_be_asked() -> None:
    assert not election(("a", 1)).is_decided
    assert election(("a", 1), ("a", 1)).is_decided
    assert not election(("a", 1), ("b", 1), asked=5).is_decided
    assert election(("a", 1), asked=1).is_decided
    assert [str(vote) for vote in election(("a", 2), ("a", 2), ("b", 1)).dissent] == ["s2:1 names b (config-epoch 1)"]
