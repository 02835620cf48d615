"""Moving tasks go to their new shards in parts that one call may carry."""

from __future__ import annotations

from shardq.core.calls.resharding import BATCH, BATCH_BYTES, MovingTask, loads


def moving(number: int, target: int, size: int) -> MovingTask:
    return MovingTask(str(number), f"{number}|{target}|".encode().ljust(size, b"x"))


def test_a_part_holds_no_more_bytes_than_a_call_may_carry() -> None:
    size = BATCH_BYTES * 2 // 5
    parts = loads(moving(number, number % 2, size) for number in range(10))
    assert [(target, [each.id for each in part]) for target, part in parts] == [
        (0, ["0", "2"]), (1, ["1", "3"]), (0, ["4", "6"]), (1, ["5", "7"]), (0, ["8"]), (1, ["9"]),
    ]  # fmt: skip


def test_one_that_is_larger_goes_alone() -> None:
    parts = loads([moving(0, 5, 10), moving(1, 5, BATCH_BYTES + 1), moving(2, 5, 10)])
    assert [[each.id for each in part] for _, part in parts] == [["0"], ["1"], ["2"]]


def test_a_part_holds_no_more_tasks() -> None:
    parts = loads(moving(number, 3, 10) for number in range(2 * BATCH + 1))
    assert [len(part) for _, part in parts] == [BATCH, BATCH, 1]
