"""window=: the due times of many tasks are spread over it, evenly, and the same id is always at the same place."""

from __future__ import annotations

import datetime as dt
import time
from collections import Counter
from typing import Any

import pytest

from shardq import Engine, Task
from shardq.core.model.checks import MAX_AT_MS
from shardq.core.model.record import JSON
from shardq.core.producer.packing import FRESH, UNIQUE, Packer, place_ms, spread
from shardq.errors import InvalidOption
from shardq.outbox.rows import RowPacker
from tests.support.states import FAR_S

MILLION = 1_000_000
MINUTE = 60_000


def packer() -> Packer:
    return Packer(JSON, max_payload=1000)


def peak(ids: list[str], window_s: int) -> float:
    """The tasks of the second that has most, in means of a second."""
    seconds = Counter(place_ms(id, window_s * 1000) // 1000 for id in ids)
    assert seconds.keys() <= set(range(window_s))
    return max(seconds.values()) * window_s / len(ids)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_million_tasks_of_one_instant() -> None:
    """Their ids follow each other, as those of a bulk push do."""
    entries = packer().many(Task(0, window=60) for _ in range(MILLION))
    assert len(set(entries.ids)) == MILLION
    seconds = Counter(-due // 1000 for due in entries.fresh[1::FRESH])  # type: ignore[operator]  # due words
    assert sorted(seconds) == list(range(60))
    assert max(seconds.values()) <= 1.1 * MILLION / 60
    assert min(seconds.values()) >= 0.9 * MILLION / 60


@pytest.mark.parametrize("form", ["user-{}", "mail/{}", "{:032x}", "2026-11-22T{:09}"])
def test_ids_of_the_callers_own(form: str) -> None:
    assert peak([form.format(n) for n in range(200_000)], 60) <= 1.1


def test_the_tasks_of_one_shard_are_spread_over_the_whole_window(engine: Engine) -> None:
    ids = [id for n in range(200_000) if engine.topology.shard_of(id := f"user-{n}") == 1]
    assert len(ids) > 20_000
    assert peak(ids, 10) <= 1.1


@pytest.mark.parametrize(
    ("options", "due"),
    [
        ({}, 0),
        ({"delay": 5}, -5000),
        ({"at": 4_000_000_000}, 4_000_000_000_000),
        ({"at": 1.0}, 1000),
        ({"delay": 5, "id": "mine", "topic": "mail"}, -5000),
        ({"delay": 5, "id": "mine", "headers": {"a": "b"}, "tags": ["t"]}, -5000),
    ],
)
@pytest.mark.parametrize(("window", "length"), [(60, MINUTE), (0.001, 1), (dt.timedelta(days=300), 300 * 86_400_000)])
def test_a_place_is_a_function_of_the_id(options: dict[str, Any], due: int, window: Any, length: int) -> None:
    entries = packer().one(Task("x", window=window, **options))
    again = packer().many([Task("y", window=window, **options)] * 3)
    for each in (entries, again):
        width = UNIQUE if each.unique else FRESH
        words = each.unique or each.fresh
        for at in range(0, len(words), width):
            id, placed = str(words[at]), int(words[at + 1])
            assert placed == (due + place_ms(id, length) if due > 0 else due - place_ms(id, length))
            assert 0 <= place_ms(id, length) < length


def test_many_at_once_are_placed_as_one_by_one() -> None:
    """Those that are packed column by column, those that differ, and those in whose run another has another window."""
    some = [Task(n, delay=n % 7, window=window) for window in (60, None, 3600) for n in range(700)]
    some += [Task(n, window=60 + n % 2, headers={"a": "b"}) for n in range(50)]
    entries = packer().many(some)
    for task, id, due in zip(some, entries.ids, entries.fresh[1::FRESH], strict=True):
        window_ms = int(task.window or 0) * 1000  # type: ignore[arg-type]  # an int here
        assert due == -int(task.delay or 0) * 1000 - (place_ms(id, window_ms) if window_ms else 0)  # type: ignore[arg-type]  # likewise


def test_the_end_of_time() -> None:
    assert spread([MAX_AT_MS], ["x"], MINUTE) == [MAX_AT_MS]


def test_a_wrong_window_among_many() -> None:
    with pytest.raises(InvalidOption, match=r"^task 1500 of this call: window can't be 0"):
        packer().many([*(Task(n) for n in range(1500)), Task(1, window=0), *(Task(n) for n in range(700))])


def test_in_the_outbox_a_window_begins_at_the_push(monkeypatch: pytest.MonkeyPatch) -> None:
    """A row is pushed later: its due time is an instant, wherever it is in the window."""
    monkeypatch.setattr("shardq.core.model.checks.clocks", [lambda: 4_000_000_000_000])
    rows = RowPacker()
    row = rows.pack(Task("x", window=60, id="mine"))
    assert row["due"] == 4_000_000_000_000 + place_ms("mine", MINUTE)
    assert rows.pack(Task("x", window=60, delay=5, id="mine"))["due"] == row["due"] + 5000
    assert rows.pack(Task("x", id="mine"))["due"] == 0
    with pytest.raises(InvalidOption, match="the end of the task's window"):
        rows.pack(Task("x", window=60, expires=30))


def test_a_pushed_task(engine: Engine) -> None:
    before = time.time()
    for options in ({"delay": FAR_S}, {"at": before + FAR_S}):
        task = engine.get(engine.push("x", id="mine", window=600, on_conflict="replace", **options))  # type: ignore[arg-type]
        assert task is not None
        assert task.due is not None
        place_s = place_ms("mine", 600_000) / 1000
        assert 0 < place_s < 600
        assert task.due.timestamp() >= before + FAR_S + place_s - 60  # the clocks of two machines may differ a little
        assert task.due.timestamp() <= time.time() + FAR_S + place_s + 60
