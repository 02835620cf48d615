"""``each_row`` tries all rows, and names those that fail."""

from __future__ import annotations

import inspect

import pytest

from tests.support.rows import each_row


def test_all_rows_are_tried_and_those_that_fail_are_named() -> None:
    tried: list[tuple[int, str]] = []

    @each_row("number", {"one": 1, "two": 2, "three": 3})
    def holds(number: int, fixture: str) -> None:
        tried.append((number, fixture))
        assert number == 1

    assert list(inspect.signature(holds).parameters) == ["fixture"]
    with pytest.raises(AssertionError) as caught:
        holds(fixture="given")
    assert tried == [(1, "given"), (2, "given"), (3, "given")]
    assert caught.value.__notes__ == ["2 of 3 rows fail: two, three"]


def test_a_row_of_several_values() -> None:
    tried: list[int] = []

    @each_row(("number", "doubled"), {"one": (1, 2), "two": (2, 4)})
    def holds(number: int, doubled: int) -> None:
        assert 2 * number == doubled
        tried.append(number)

    holds()
    assert tried == [1, 2]
