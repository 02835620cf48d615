"""What can't be used is told: by a reason, a problem, a finding or an error that names it. And it is left as it was,
but for tasks, which are dead.
"""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from cluster.server import Server
from shardq.core.model.record import JSON, UNREADABLE, encode_record
from tests.fuzz.planting import DECLARED, following, states
from tests.fuzz.world import World
from tests.support.waiting import wait_until

GOOD = encode_record(JSON, "good")


def headed(head: bytes | dict[str, object], payload: bytes = b'"good"') -> bytes:
    """A record with this head."""
    text = head if isinstance(head, bytes) else msgspec.msgpack.encode(head)
    return b"\x19" + len(text).to_bytes(2, "big") + text + payload


OTHER: dict[str, list[object]] = {
    "m": ["x", [], -1, 1.5, 1e300],
    "x": ["x", "7", {}, True],
    "n": ["x", {}, 1.5],
    "h": ["x", 7, {"a": 1}, ["a"]],
    "t": ["x", 7, [1], {"a": "b"}],
}
"""Values of other types than those of a head."""

BAD = [
    *(headed({name: value}) for name, values in OTHER.items() for value in values),
    *(headed(b"\xc1"), headed(b"\x81\xa1h"), headed(b"\x07")),  # no MessagePack, truncated, no map
    headed(b"\x81\xa1h\x81\xa1\xff\xa1a"),  # no UTF-8
    headed(b"\x81\xa1q" + b"\x91" * 9000 + b"\xc0"),  # deep
    b"\x19\xff\xff",  # shorter than its head
    b"\x29" + GOOD[1:],  # of another version
]

IDS = (b"\xff\xfe", b"mail/\xff", b"mail/a\nb", b"no topic/x", b"x" * 65 + b"/y", b"a\xff/c")


def test_tasks_that_can_not_be_read_are_dead(single: Server) -> None:
    """In a ready list, scheduled, and with a lease that has lapsed; beside good ones."""
    with World(single) as world:
        keys, now = world.place.keys, world.place.now_ms
        for number, record in enumerate(BAD):
            for topic in ("mail/", "work/"):
                world.do("HSET", keys.task, f"{topic}bad-{number}", record)
                places: list[tuple[Any, ...]] = [
                    ("RPUSH", keys.ready(topic[:-1]), f"{topic}bad-{number}"),
                    ("ZADD", keys.due, now - 1000, f"{topic}bad-{number}"),
                    ("ZADD", keys.leased, now - 1000, f"{topic}bad-{number}"),
                ]
                world.do(*places[number % 3])
        for id in IDS:
            world.do("HSET", keys.task, id, GOOD)
            world.do("ZADD", keys.due, now - 1000, id)
        world.start()
        world.handles(world.push_good())
        count = 2 * len(BAD) + len(IDS)
        consumer = world.engine.consumer(["", "mail"])

        def are_dead() -> bool:
            assert not consumer.claim(100, wait=0.05)
            return bool(world.do("ZCARD", keys.dead) == count)

        wait_until(are_dead, "all that is bad is dead")
        consumer.close()
        assert set(world.do("HVALS", keys.why)) == {UNREADABLE.encode()}
        listed = list(world.engine.dead())
        assert len(listed) == count
        assert {task.reason for task in listed} == {UNREADABLE}
        world.lives()


def test_a_lease_entry_that_can_not_be_read_costs_no_task(single: Server) -> None:
    with World(single) as world:
        keys, now = world.place.keys, world.place.now_ms
        for number, entry in enumerate([b"", b"x", b"1:2", b"\xff", b"-1:0:3:t", b"0:1e5:3:t"]):
            world.do("HSET", keys.task, f"mail/good-{number}", GOOD)
            world.do("HSET", keys.lease, f"mail/good-{number}", entry)
            world.do("ZADD", keys.leased, now - 1000, f"mail/good-{number}")
        world.start()
        world.handles([*world.push_good(), *(f"mail/good-{number}" for number in range(6))])
        world.lives()


def test_a_schedule_that_can_not_be_read_is_a_problem(single: Server) -> None:
    good, state = msgspec.json.encode(DECLARED), msgspec.json.encode(states(0)[0])
    with World(single) as world:
        stored = {
            "truncated": (state, good[:-9]),
            "without a state": (None, good),
            "without a declaration": (state, None),
            "of other types": (state, msgspec.json.encode(DECLARED | {"topic": 7})),
            "of no topic that can be": (state, msgspec.json.encode(DECLARED | {"topic": "a b"})),
            "of no instant that can be": (msgspec.json.encode(states(0)[0] | {"since_ms": 10**18}), good),
            "with a record of another version": (state, msgspec.json.encode(DECLARED | {"record": "AAAA"})),
            "deep": (state, b"[" * 5000),
        }
        for name, words in stored.items():
            for field, word in zip((name, f"{name}/declared"), words, strict=True):
                if word is not None:
                    world.do("HSET", world.place.control.schedules, field, word)
        world.start()
        world.handles(world.push_good())
        problems = {each.name: each.problem for each in world.engine.schedules()}
        assert problems.pop("tick") is None
        assert {name for name, problem in problems.items() if problem} == set(stored)
        reasons = world.engine.health().reasons
        assert any("'deep'" in reason and "and 3 more: " in reason for reason in reasons), reasons
        world.lives()


@pytest.mark.slow
def test_a_topology_that_can_not_be_read_is_a_problem(single: Server) -> None:
    """Each of a table, one after the other, in a process that goes on by the one before; then it is mended."""
    with World(single) as world:
        world.start()
        key = world.place.control.topology
        good = world.do("HGETALL", key)
        epoch = good[b"epoch"]
        for field, word in (
            *(("epoch", ""), ("epoch", "x"), ("shards", "x"), ("shards", "0"), ("shards", "5000")),
            *(("shards", "9" * 5000), ("pending", "[1]"), ("priors", "7"), ("priors", "[0]"), ("priors", "[" * 5000)),
            *(("settings/a", '{"limit": {"concurrency": 0}}'), ("settings/a", '{"limit": {"rate": 0}}')),
            *(("settings/a", "["), ("settings/a", "[" * 5000), ("settings/a", '{"route": {"to": 7}}')),
            *(("settings/a", '{"paused": "a"}'), ("settings/a", "7")),
            *(("max_attempts", "0"), ("dead_age", "-1"), ("dead_count", "1e999"), ("move_rate", '"fast"')),
        ):  # fmt: skip
            epoch = following(epoch)
            if field == "settings/a":
                world.do("HSET", world.place.control.settings, "a", word)
                world.do("ZADD", world.place.control.edits, 1 << 50, "a")
                world.do("HSET", key, "epoch", epoch)
            else:
                world.do("HSET", key, "epoch", epoch, field, word)
            world.do("SPUBLISH", world.place.control.news, "topology")
            wait_until(
                lambda: any("can't be read" in reason for reason in world.health()), f"{field} {word:.9} is told"
            )
            world.do("HDEL", world.place.control.settings, "a")
            world.do("HSET", key, *(word for pair in good.items() for word in pair), "epoch", epoch)
            world.do("SPUBLISH", world.place.control.news, "topology")
            wait_until(lambda: not world.health(), "it is mended")
        world.handles(world.push_good())
        world.lives()


def test_a_parcel_that_can_not_be_read_is_a_finding(single: Server) -> None:
    """It holds up no change of the number of shards."""
    with World(single) as world:
        for number, text in enumerate([b"", b"x", b"n1|5000|due|7|0|0|", b"n1|1|due|7|0|99|x", b"n1|1|gone|7|0|0|x"]):
            world.do("HSET", world.place.keys.moved, f"bad-{number}", text)
        world.start()
        wait_until(lambda: "bad-0" in world.command("doctor"), "the doctor finds it")
        world.engine.resize(3)
        world.handles(world.push_good())
        assert world.do("HLEN", world.place.keys.moved) == 5
        world.lives()


@pytest.mark.parametrize("when", ["before", "while"])
def test_keys_of_another_type_are_named(single: Server, when: str) -> None:
    """Those of the whole engine, in which no task is: no dispatching needs them."""
    with World(single) as world:
        if when == "while":
            world.start()
            world.handles([])  # the schedule goes on until then
        control = world.place.control
        keys = [control.workers, control.reports, control.changes, control.history, control.schedules]
        for key in keys:
            world.do("DEL", key)
            world.do("SADD", key, "of another program")
        if when == "before":
            world.start()
        good = [id for id in world.push_good() if not id.startswith("tick/")]
        world.handles(good, is_ticking=False)
        for key in keys:
            world.do("DEL", *keys)
            world.do("SADD", key, "of another program")
            lines = ("stats", "stats --history hour", "fleet", "every", "health")
            told = [world.page("/changes").text, *(world.command(line) for line in lines)]
            assert any(key in text for text in told), (key, told)
