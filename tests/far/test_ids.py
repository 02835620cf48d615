"""The ids of tasks in the table: who meets one knows that its task may be there."""

from __future__ import annotations

import pytest

from shardq.core.model.checks import check_whole_id
from shardq.core.model.ids import Ids
from shardq.features.far.rows import far_id, is_made


@pytest.mark.parametrize("topic", ["", "mail", "mail/customer-7", "/customer-7"])
def test_an_id_of_a_row(topic: str) -> None:
    ids = Ids().many(3000, topic=topic)
    made = list(map(far_id, ids))
    for id in made[::500]:
        check_whole_id(id)
    assert all(map(is_made, made))
    assert not any(map(is_made, ids))
    assert {len(id.rpartition("/")[2]) for id in made} == {13}
    assert len(set(made)) == len(ids)
    assert sorted(made) == made, "they lie beside each other in the index"


def test_an_id_that_is_made_again_is_one() -> None:
    assert is_made(far_id(far_id("mail/" + Ids().one())))


@pytest.mark.parametrize(
    "id", ["", "a", ".", "." * 13, "." + "a" * 11 + "\u00e9", "." + "a" * 11 + "+", "mail/." + "a" * 13]
)
def test_other_ids_are_not(id: str) -> None:
    assert not is_made(id)
