"""What goes back to the front of its key stands there in the order in which it had left."""

from __future__ import annotations

import time
from collections.abc import Iterable

import pytest

from shardq import Consumer, Delivery, Engine, Task
from shardq.core.layout.keys import shard_keys
from shardq.core.layout.lanes import of_key
from tests.keys.account import TOPIC
from tests.support.servers import Servers
from tests.support.states import claim, ready_of
from tests.support.waiting import wait_until


@pytest.fixture
def wide(running: Engine) -> Engine:
    running.limit(TOPIC, per_key=20)
    return running


@pytest.fixture
def taker(wide: Engine) -> Consumer:
    return wide.consumer(TOPIC, lease=60)


def due_backwards(engine: Engine, count: int, *, key: str = "k") -> None:
    """What is pushed later is due earlier: by their ids they stand the other way round."""
    engine.push_many([Task(n, topic=TOPIC, key=key, delay=0.1 * (n + 1)) for n in reversed(range(count))])


def payloads(deliveries: Iterable[Delivery]) -> list[int]:
    return [each.payload for each in deliveries]


def put_on_hold(engine: Engine, count: int, *, key: str = "k") -> None:
    engine.hold(TOPIC, key=key, until=time.time() + 600)
    assert engine.consumer(TOPIC).claim(100, wait=0) == []
    wait_until(lambda: ready_of(engine, TOPIC) == 0, f"{count} are at the front")


def test_what_was_ready_when_a_hold_began(wide: Engine, taker: Consumer) -> None:
    due_backwards(wide, 5)
    wait_until(lambda: ready_of(wide, TOPIC) == 5, "all are ready")
    for _ in range(2):
        put_on_hold(wide, 5)
        wide.hold(TOPIC, key="k", until=None)
        wait_until(lambda: ready_of(wide, TOPIC) == 5, "all are ready again")
    assert payloads(claim(taker, 5)) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("how", ["hold", "unbegun"])
def test_what_handlers_gave_back(wide: Engine, taker: Consumer, how: str) -> None:
    """One after the other, and not in their order; those that are not back yet left earlier than what follows."""
    due_backwards(wide, 5)
    given = sorted(claim(taker, 5), key=lambda each: each.payload)
    for n in (3, 0, 4, 1):
        if how == "hold":
            taker.hold(given[n], 0.3)
        else:
            with pytest.raises(KeyboardInterrupt), taker.settling(given[n]):
                raise KeyboardInterrupt
            taker.hold(claim(taker, 1), 0.3)  # so that none of them goes before all are back
    began = time.monotonic()
    again = claim(taker, 4)
    assert time.monotonic() - began > 0.1
    assert payloads(again) == [0, 1, 3, 4]
    taker.hold([*again, given[2]], 0.1)
    assert payloads(claim(taker, 5)) == [0, 1, 2, 3, 4]


def test_what_leaves_later_stands_behind(wide: Engine, taker: Consumer) -> None:
    """Also where it was due earlier."""
    wide.push("first", topic=TOPIC, key="k", id="z")
    wait_until(lambda: ready_of(wide, TOPIC) == 1, "the first is ready")
    for n in range(3):
        wide.push(n, topic=TOPIC, key="k", id=f"{n}", at=time.time() - 100 + n)
        wait_until(lambda n=n: ready_of(wide, TOPIC) == n + 2, "the next is ready")  # type: ignore[misc]
    put_on_hold(wide, 4)
    wide.hold(TOPIC, key="k", until=None)
    assert payloads(claim(taker, 4)) == ["first", 0, 1, 2]


def test_what_moves_keeps_its_order(wide: Engine, taker: Consumer) -> None:
    keys = [f"k{n}" for n in range(8)]
    for key in keys:
        due_backwards(wide, 3, key=key)
    given = claim(taker, 24)
    taker.hold(sorted(given, key=lambda each: (each.payload + 2) % 3), 600)
    wide.resize(7)
    wait_until(lambda: not wide.topology.priors, "all have moved", timeout=60)
    for key in keys:
        wide.hold(TOPIC, key=key, until=None)
    again = claim(taker, 24)
    for key in keys:
        assert [each.payload for each in again if each.key == key] == [0, 1, 2]
    # what leaves there stands behind them
    for key in keys:
        wide.push(3, topic=TOPIC, key=key)
    again += claim(taker, 8)
    taker.hold(list(reversed(again)), 0.1)
    last = claim(taker, 32)
    for key in keys:
        assert [each.payload for each in last if each.key == key] == [0, 1, 2, 3]


@pytest.mark.parametrize("by", ["cancel", "reschedule", "replace", "purge", "tag"])
def test_what_is_taken_from_the_front(wide: Engine, taker: Consumer, servers: Servers, name: str, by: str) -> None:
    ids = [str(wide.push(n, topic=TOPIC, key="k", id=f"{n}", tags=["t"] if n == 1 else [])) for n in range(3)]
    wait_until(lambda: ready_of(wide, TOPIC) == 3, "all are ready")
    put_on_hold(wide, 3)
    left = [0, 2]
    if by == "cancel":
        assert wide.cancel(ids[1])
    elif by == "reschedule":
        assert wide.reschedule(ids[1], delay=0)
        left.append(1)
    elif by == "replace":
        assert wide.push(3, topic=TOPIC, key="k", id="1", on_conflict="replace").outcome == "replaced"
        left.append(3)
    elif by == "purge":
        assert wide.purge(TOPIC) == 3
        left = []
    else:
        assert wide.cancel_all(tag="t").done == 1
    wide.hold(TOPIC, key="k", until=None)
    given = claim(taker, len(left)) if left else []
    assert payloads(given) == left
    taker.ack(given)
    keys = shard_keys(name, wide.topology.shard_of(of_key(TOPIC, "k")), keyed=True)
    for each in (keys.keys, keys.placed, keys.alarms, keys.rests):
        assert servers.ask(keys.slot, "ZCARD", each) == 0
