"""Which shards nobody serves, by what the dispatchers say of themselves."""

from __future__ import annotations

from shardq.fleet import Member
from shardq.fleet.serving import servers, unserved

ONE = Member(kind="dispatcher", name="one", host="a", shards=(0, 1))
TWO = Member(kind="dispatcher", name="two", host="b", shards=(3,))
WORKER = Member(kind="worker", name="w", host="a")
UNREADABLE = Member(kind="dispatcher", name="next version")


def test_each_shard_has_the_dispatcher_that_says_so() -> None:
    assert servers([ONE, TWO, WORKER]) == {0: ONE, 1: ONE, 3: TWO}


def test_shards_that_nobody_serves() -> None:
    assert unserved([ONE, TWO, WORKER], range(5)) == [2, 4]
    assert unserved([WORKER], range(2)) == unserved([], range(2)) == [0, 1]


def test_a_dispatcher_that_can_not_be_read_may_serve_the_others() -> None:
    assert unserved([ONE, UNREADABLE], range(5)) == []
