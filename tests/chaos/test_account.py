"""What is told of the bulk of the tasks is right: most are counted, and all others judged one by one."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.chaos.account import Accounted, accounted
from tests.chaos.flow import Claimed, Claims, FlowBook, Pushed, Pushes, Record, Settled, Settles
from tests.judge.verdict import Facts, Verdict, verdict_on

S = 1e6

IDS = "x0 x1 x2"


def claimed(call: int, at_s: float, ids: str, numbers: Sequence[int], odd: list[tuple[int, int, int]]) -> list[Record]:
    data = array("q", numbers).tobytes()
    return [Claims(call, at_s * S, 0.0), Claimed(call, (at_s + 0.1) * S, ids, data, [f"t{call}"], odd)]


def settled(call: int, at_s: float, claim: int, kind: str = "ack", places: Sequence[int] = ()) -> list[Record]:
    return [Settles(call, at_s * S, claim, kind, list(places), 0.0), Settled(call, (at_s + 0.1) * S, [])]


PUSHED: list[Record] = [Pushes(1, 1 * S, 10, 3, 0.5 * S), Pushed(1, 1.1 * S, IDS, [])]
ALL = claimed(2, 2, IDS, (10, 11, 12), [])
ACKED = settled(3, 2.5, 2)


def told(folder: Path, records: Sequence[Record], left: Sequence[int] = ()) -> tuple[Accounted, Verdict]:
    book = FlowBook(folder / "flow")
    for record in records:
        book.write(record)
    bulk = accounted({"p": folder / "flow"}, left, 8.0, 0.5)
    final = {f"x{number - 10}": ("scheduled", number) for number in left}
    return bulk, verdict_on(bulk.calls, Facts(), final, 90 * S)


def test_what_is_simple_is_counted(tmp_path: Path) -> None:
    bulk, verdict = told(tmp_path, [*PUSHED, *ALL, *ACKED])
    assert (bulk.pushed, bulk.plain, verdict.ids) == (3, 3, 0)
    assert list(bulk.late_s) == pytest.approx([0.6] * 3)


def test_what_was_retried_is_judged(tmp_path: Path) -> None:
    again = claimed(5, 4, "x1", (11,), [(0, 1, 0)])
    records = [
        *PUSHED, *ALL, *settled(3, 2.5, 2, "retry", [1]), *settled(4, 2.7, 2, "ack", [0, 2]), *again, *settled(6, 5, 5),
    ]  # fmt: skip
    bulk, verdict = told(tmp_path, records)
    assert (bulk.plain, verdict.ids) == (0, 3)
    assert not verdict.violations
    assert verdict.doubled == {"it was retried": 1}


@pytest.mark.parametrize(
    ("records", "left"),
    [
        ([*PUSHED, *claimed(2, 1.2, IDS, (10, 11, 12), []), *settled(3, 2, 2)], ()),
        ([*PUSHED, *claimed(2, 2, "x0 x1", (10, 11), []), *settled(3, 2.5, 2)], ()),
        ([*PUSHED, *ALL, *ACKED, *claimed(4, 3, "x1", (11,), []), *settled(5, 3.5, 4)], ()),
        ([*PUSHED, *claimed(2, 2, "x0 x2 x1", (10, 11, 12), []), *settled(3, 2.5, 2)], ()),
        ([*PUSHED, *ALL, *ACKED], (11,)),
        ([*PUSHED, *claimed(2, 2, "x0 x1 x2 y", (10, 11, 12, 99), []), *settled(3, 2.5, 2)], ()),
    ],
    ids=["early", "lost", "claimed twice", "under another id", "still there", "pushed by nobody"],
)
def test_what_must_not_be_is_found(tmp_path: Path, records: list[Record], left: Sequence[int]) -> None:
    _, verdict = told(tmp_path, records, left)
    assert verdict.violations


def test_a_book_that_was_cut_off_is_read_to_its_end(tmp_path: Path) -> None:
    book = FlowBook(tmp_path / "flow")
    for record in [*PUSHED, *ALL, *ACKED]:
        book.write(record)
    whole = (tmp_path / "flow").read_bytes()
    (tmp_path / "flow").write_bytes(whole[:-2])
    bulk = accounted({"p": tmp_path / "flow"}, (), 8.0, 0.5)
    assert (bulk.pushed, bulk.plain) == (3, 0)
    assert not verdict_on(bulk.calls, Facts(), {}, 90 * S).violations
