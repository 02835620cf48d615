"""Which shards nobody serves, by what the dispatchers say of themselves."""

from __future__ import annotations

from shardq.core.fleet import Member
from shardq.core.fleet.member import knows, servers, serves, unforwarded, unserved
from shardq.core.fleet.report import RouteStats, UnknownCall
from shardq.core.layout.topology import Route

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


def test_routes_that_nobody_serves() -> None:
    routes = {"mail": Route("nats://n"), "hooks": Route("http://h/"), "letters": Route("a-list")}
    sink = RouteStats(topic="mail", to="nats://n")
    serving = Member(kind="dispatcher", name="three", host="c", sinks=(sink,), forwards=1)
    assert unforwarded([ONE, TWO, WORKER], routes) == ["hooks", "mail"]
    assert unforwarded([ONE, serving], routes) == ["hooks"]
    more = Member(kind="dispatcher", name="three", host="c", sinks=(sink,), forwards=2)
    assert unforwarded([ONE, more], routes) == [], "it forwards one that it does not name"
    assert unforwarded([ONE, UNREADABLE], routes) == []


def test_topics_and_tasks_of_a_worker() -> None:
    some = Member(kind="worker", name="w", host="a", topics=("mail",), tasks=("shop.send",))
    assert (serves(some, "mail"), serves(some, "hooks")) == (True, False)
    assert (knows(some, "mail", "shop.send"), knows(some, "mail", "shop.sent")) == (True, False)
    assert not knows(some, "hooks", "shop.send"), "it does not serve the topic"
    many = Member(kind="worker", name="w", host="a", topics=("mail", "*"), tasks=("shop.send", "*"))
    assert serves(many, "hooks")
    assert knows(many, "mail", "shop.sent")
    call = UnknownCall(task="shop.sent", topic="mail", count=1, seconds=1.0)
    old = Member(kind="worker", name="w", host="a", topics=("mail",), tasks=("*",), unknown=(call,))
    assert not knows(old, "mail", "shop.sent"), "it has given one back"
