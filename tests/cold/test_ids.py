"""The ids of tasks in the table name their rows."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardq.core.model.checks import check_whole_id
from shardq.core.model.ids import Ids
from shardq.features.cold.ids import LAST_BUCKET, Place, Sequences, bucket_of, place_in, spelled, spelled_all

places = st.builds(Place, st.integers(0, LAST_BUCKET), st.integers(0, (1 << 48) - 1))


@given(places, st.sampled_from(["", "mail"]))
def test_an_id_names_its_place(place: Place, topic: str) -> None:
    id = spelled(topic, place)
    check_whole_id(id)
    assert len(id.rpartition("/")[2]) == 13
    assert place_in(id) == place


@given(st.lists(st.tuples(st.sampled_from(["", "mail"]), st.integers(0, LAST_BUCKET), st.integers(0, (1 << 48) - 1))))
def test_ids_of_many_are_those_of_each(many: list[tuple[str, int, int]]) -> None:
    follow = [(topic, bucket, seq + 1) for topic, bucket, seq in many if seq + 1 < 1 << 48]
    assert spelled_all([*many, *follow]) == [spelled(topic, Place(*place)) for topic, *place in [*many, *follow]]


@given(places, places)
def test_ids_are_in_the_order_of_their_places(one: Place, other: Place) -> None:
    assert (spelled("", one) < spelled("", other)) == (one < other)


@pytest.mark.parametrize("id", ["", "a", ".", "." * 13, "." + "a" * 11 + "é", "." + "a" * 11 + "+"])
def test_other_ids_name_none(id: str) -> None:
    assert place_in(id) is None


def test_ids_of_other_tasks_name_none() -> None:
    assert [place_in(id) for id in Ids().many(3, topic="mail")] == [None] * 3


def test_sequences_rise_and_never_come_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1_700_000_000.0
    monkeypatch.setattr(time, "time", lambda: now)
    source = Sequences()
    with ThreadPoolExecutor(4) as threads:
        taken = [seq for some in threads.map(lambda _: list(source.take(100)), range(100)) for seq in some]
    assert len(set(taken)) == len(taken) == 10_000
    now += 16
    assert source.take(1)[0] > max(taken)


def test_a_number_that_runs_out_begins_in_the_next_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time", lambda: 1_700_000_000.0)
    source = Sequences()
    first = source.take(1 << 27)
    second = source.take(1 << 27)
    assert not set(range(second[0], second[0] + 10)) & {first[0]}
    assert second[0] > first[-1]


def test_a_bucket_is_an_hour() -> None:
    assert bucket_of(3_600_000 - 1) == 0
    assert bucket_of(3_600_000) == 1
