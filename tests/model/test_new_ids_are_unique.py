"""New ids have the right form, ascend, and are never the same twice."""

from __future__ import annotations

import itertools
import os
import threading
import time
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardq.core.model.checks import check_id
from shardq.core.model.ids import ALPHABET, UNIQUE_LENGTH, Ids, full_id, topic_of, topics_of

words = st.from_regex(r"[A-Za-z0-9_.-]{1,64}", fullmatch=True)


def number_of(letters: str) -> int:
    number = 0
    for letter in letters:
        number = number << 6 | ALPHABET.index(letter)
    return number


def second_of(id: str) -> int:
    return number_of(id) >> 46


def test_the_alphabet_is_that_of_base64url_in_ascii_order() -> None:
    assert len(ALPHABET) == 64
    assert "".join(sorted(ALPHABET)) == ALPHABET
    assert all(letter.isalnum() or letter in "-_" for letter in ALPHABET)


def test_an_id_says_when_it_was_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time", lambda: 1_700_000_000.9)
    ids = Ids()
    for id in (ids.one(), *ids.many(3)):
        assert len(id) == UNIQUE_LENGTH
        assert second_of(id) == 1_700_000_000
        check_id(id)


@given(st.lists(st.one_of(st.none(), st.integers(0, 10_000)), max_size=8))
def test_ids_ascend_and_do_not_repeat(batches: list[int | None]) -> None:
    ids = Ids()
    made: list[str] = []
    for n in batches:
        batch = [ids.one()] if n is None else ids.many(n)
        assert len(batch) == (1 if n is None else n)
        made += batch
    assert made == sorted(set(made))
    assert {len(id) for id in made} <= {UNIQUE_LENGTH}


@given(st.lists(st.tuples(st.integers(0, 2**32 - 1), st.integers(1, 5000)), min_size=1, max_size=8))
def test_ids_ascend_whatever_the_clock_does(moments: list[tuple[int, int]]) -> None:
    ids = Ids()
    made: list[str] = []
    for now, n in moments:
        with mock.patch.object(time, "time", lambda now=now: now):
            made += ids.many(n)
    assert made == sorted(set(made))
    assert second_of(made[-1]) == max(moment for moment, _ in moments)


def test_within_a_second_numbers_count_up_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time", lambda: 5)
    ids = Ids()
    numbers = [number_of(id) for id in (*ids.many(5000), ids.one(), *ids.many(2))]
    assert {after - before for before, after in itertools.pairwise(numbers)} == {1}


def test_each_second_starts_at_random_with_room_to_count(monkeypatch: pytest.MonkeyPatch) -> None:
    now = itertools.count(1)
    monkeypatch.setattr(time, "time", lambda: next(now))
    ids = Ids()
    starts = [number_of(ids.one()) & (2**46 - 1) for _ in range(200)]
    assert len(set(starts)) == 200
    assert all(start < 2**45 for start in starts)
    assert max(starts) > 2**44 > min(starts)


def test_threads_share_a_source() -> None:
    ids = Ids()
    made: list[list[str]] = [[] for _ in range(4)]

    def make(mine: list[str]) -> None:
        for n in range(300):
            mine += [*ids.many(n % 7), ids.one()]

    threads = [threading.Thread(target=make, args=(mine,)) for mine in made]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    together = list(itertools.chain(*made))
    assert len(together) == len(set(together))
    assert all(mine == sorted(mine) for mine in made)


def test_a_child_of_a_fork_makes_other_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time", lambda: 5)
    ids = Ids()
    before = ids.one()
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(writer, "\n".join(ids.many(100)).encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        theirs = pipe.read().split("\n")
    assert os.waitpid(child, 0)[1] == 0
    ours = ids.many(100)
    assert len({before, *theirs, *ours}) == 201
    assert {second_of(id) for id in (*theirs, *ours)} == {5}


def test_the_topic_goes_before_a_slash() -> None:
    ids = Ids()
    assert topic_of(ids.one(topic="email")) == "email"
    assert {topic_of(id) for id in ids.many(5000, topic="email")} == {"email"}
    assert topic_of(ids.one()) == ""
    assert full_id("email", "x") == "email/x"
    assert full_id("", "x") == "x"


@given(st.one_of(st.just(""), words), words)
def test_the_topic_of_a_full_id(topic: str, unique: str) -> None:
    assert topic_of(full_id(topic, unique)) == topic


@given(
    st.lists(st.builds(full_id, st.sampled_from(["", "a", "aa", "mail"]), st.sampled_from(["a", "aa", "mail", "x"])))
)
def test_the_topics_of_many_ids_are_those_of_each(ids: list[str]) -> None:
    told = topics_of(ids)
    assert len(told) == len(set(told))
    assert set(told) == {topic_of(id) for id in ids}
