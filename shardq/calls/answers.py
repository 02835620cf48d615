"""The status in front of the answers of all shard scripts, and the sizes of the pages that they read."""

from __future__ import annotations

from typing import Any

from shardq.errors import ServerFault, ShardqError


class Stale(ShardqError):
    """The shard has seen a newer topology than the caller's. Internal: refresh, route again, repeat."""

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        super().__init__(f"the topology has changed: the shard is at epoch {epoch}")


class Missing(ShardqError):
    """The shard has no meta. Internal: refresh, open the shard if it is still one, repeat."""

    def __init__(self) -> None:
        super().__init__("the shard was never opened, or its server lost it")


class Moving(ShardqError):
    """The task is moving to another shard. Internal: put it there, then ask there."""

    def __init__(self) -> None:
        super().__init__("the task is on its way to another shard")


def body(answer: list[Any]) -> list[Any]:
    """Returns what follows ``ok``. Raises Stale or Missing for the guard's other statuses."""
    status = answer[0]
    if status == b"ok":
        return answer[1:]
    if status == b"stale":
        raise Stale(int(answer[1]))
    if status == b"missing":
        raise Missing()
    raise ServerFault(f"a script answered {status!r}, which this version of shardq does not know")


PAGE_BYTES = 1 << 20
"""The bytes of records that a script reads at a time, which may have 1 MiB each."""

FIRST_PAGE = 64
"""The first page of records, whose sizes nobody knows yet."""


def next_page(size: int, read: int, *, most: int) -> int:
    """The size of the next page of records, after one of this size had so many bytes."""
    return max(1, min(most, size * 4, size * PAGE_BYTES // max(1, read)))


def nothing(answer: list[Any]) -> None:
    """Reads the answer of scripts that say ``ok`` alone."""
    body(answer)
