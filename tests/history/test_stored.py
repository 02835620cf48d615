"""The stored form of the history, and what becomes of counters from one row to the next. No server."""

from __future__ import annotations

import msgspec
import pytest

from shardq.core.fleet.lateness import Lateness
from shardq.core.fleet.member import Member
from shardq.features.history import (
    HOURS,
    LENGTH,
    MINUTES,
    STATE_BYTES,
    Counted,
    Row,
    State,
    hour_at,
    merged,
    minute_at,
    noted,
    rows_of,
)

MINUTE = 28_000_000
SINCE_S = MINUTE * 60.0


def worker(name: str, handled: int, failed: int = 0, *, since: float = 1.0) -> Member:
    return Member(kind="worker", name=name, since=since, handled=handled, failed=failed)


def dispatcher(name: str, *counts: int, since: float = 1.0) -> Member:
    return Member(kind="dispatcher", name=name, since=since, dispatch_lateness={"": Lateness(counts)})


def test_the_key_is_bounded_and_no_two_rows_share_a_place() -> None:
    assert LENGTH <= 200_000
    places = [minute_at(MINUTE + n) for n in range(MINUTES)] + [hour_at(MINUTE // 60 + n) for n in range(HOURS)]
    assert len(set(places)) == MINUTES + HOURS
    assert min(places) == STATE_BYTES
    assert max(places) + len(Row(1).packed()) == LENGTH


def test_a_row_is_read_as_it_was_written() -> None:
    row = Row(MINUTE, 1, 16, 2, 10_000_000_000, 3, 4, 5, 6, 7, 812)
    never = bytes(len(row.packed()))
    assert rows_of(row.packed() + never) == {MINUTE: row}


def test_numbers_beyond_a_field_are_its_highest() -> None:
    row = Row(MINUTE, 100_000, 16, 0, 0, 0, 1 << 70, 0, 1 << 40, 0, 1 << 40)
    assert rows_of(row.packed())[MINUTE][1:] == (0xFFFF, 16, 0, 0, 0, (1 << 64) - 1, 0, (1 << 32) - 1, 0, (1 << 31) - 1)


def test_without_a_state_all_counts_begin() -> None:
    """An engine that is older than its history has counters of its whole life, which are of no one minute."""
    state, row = noted(None, MINUTE, {0: Counted(5, 1, 1_000, 3)}, [worker("w", 70)])
    assert row.minutes == 0
    after, row = noted(state, MINUTE + 1, {0: Counted(4, 2, 1_010, 4)}, [worker("w", 75, 2)])
    assert row == Row(MINUTE + 1, 1, 1, 0, 4, 2, 10, 5, 2, 1, -1)
    assert after.minute == MINUTE + 1


def test_a_resize_a_restart_and_a_failover() -> None:
    """New shards and processes count from zero, those that ended no more, and counters that fell count nothing."""
    before, _ = noted(None, MINUTE, {n: Counted(0, 0, 100, 10) for n in range(3)}, [worker("old", 50), worker("w", 9)])
    counts = {0: Counted(0, 0, 105, 10), 1: Counted(0, 0, 40, 2), 3: Counted(0, 0, 7, 1)}
    new = [worker("w", 10), worker("new", 4, since=SINCE_S + 61), worker("unknown", 1_000, since=1.0)]
    _, row = noted(before, MINUTE + 1, counts, new)
    assert (row.dispatched, row.died) == (5 + 7, 1)
    assert row.handled == 1 + 4


def test_a_shard_that_could_not_be_read_is_made_up_for() -> None:
    before, _ = noted(None, MINUTE, {0: Counted(0, 0, 100, 0), 1: Counted(0, 0, 100, 0)}, [])
    unseen, row = noted(before, MINUTE + 1, {0: Counted(1, 1, 110, 0), 1: None}, [])
    assert (row.dispatched, row.unseen, row.shards, row.scheduled) == (10, 1, 2, 1)
    _, row = noted(unseen, MINUTE + 2, {0: Counted(1, 1, 111, 0), 1: Counted(0, 0, 130, 0)}, [])
    assert (row.dispatched, row.unseen) == (31, 0)


def test_the_lateness_of_one_minute() -> None:
    before, _ = noted(None, MINUTE, {}, [dispatcher("a", 1000, 0, 0)])
    state, row = noted(before, MINUTE + 1, {}, [dispatcher("a", 1000, 0, 9), dispatcher("b", 5, since=SINCE_S + 61)])
    assert row.late_p99_ms == 2
    _, row = noted(state, MINUTE + 2, {}, [dispatcher("a", 1000, 0, 9), dispatcher("b", 5, since=SINCE_S + 61)])
    assert row.late_p99_ms == -1


def test_minutes_without_a_writer_are_in_the_next_row() -> None:
    before, _ = noted(None, MINUTE, {0: Counted(0, 0, 0, 0)}, [])
    _, row = noted(before, MINUTE + 5, {0: Counted(0, 0, 50, 0)}, [])
    assert (row.minutes, row.dispatched) == (5, 50)


def test_two_rows_as_one() -> None:
    row = merged(Row(7, 1, 16, 2, 10, 1, 100, 50, 5, 1, 900), Row(8, 2, 32, 0, 20, 2, 200, 60, 6, 2, -1))
    assert row == Row(7, 3, 32, 2, 20, 2, 300, 110, 11, 3, 900)


@pytest.mark.parametrize("stored", [b"", b"\0" * 100, b"\xff" * 100, b"\0\0\0\1" + b"\0" * 200])
def test_a_state_that_can_not_be_read_is_none(stored: bytes) -> None:
    assert State.of(stored) is None


def test_a_state_of_many_processes_fits() -> None:
    """Those that are left out count again when they are in it; a thousand shards always fit."""
    state = State(
        minute=MINUTE,
        shards=dict.fromkeys(range(1024), (10000000000, 1000000)),
        workers={f"a-host-with-a-rather-long-name-{n:08x}": (1_000_000, 1_000) for n in range(3000)},
        dispatchers={f"a-host-{n:08x}": [0, *range(120)] for n in range(300)},
    )
    packed = state.packed()
    assert len(packed) <= STATE_BYTES
    kept = State.of(packed + bytes(STATE_BYTES - len(packed)))
    assert kept is not None
    assert kept.shards == state.shards
    assert kept.workers
    assert kept.workers.items() <= state.workers.items()
    small = msgspec.structs.replace(state, workers={"w": (1, 2)}, dispatchers={"d": [0, 3, 4]})
    assert State.of(small.packed()) == small
