"""A lowered ``per_key`` counts for what is ready: what is over it waits at the front of its key again."""

from __future__ import annotations

import time
from collections import Counter

import pytest

from shardq import Consumer, Delivery, Engine, Task
from shardq.core.layout.keys import shard_keys
from shardq.core.layout.lanes import key_of, of_key
from tests.keys.account import TOPIC
from tests.support.servers import Servers
from tests.support.states import claim, ready_of
from tests.support.waiting import wait_until


def ready(engine: Engine, count: int, *, keys: int = 1) -> None:
    """Twenty of each key are ready. What is pushed later is due earlier."""
    engine.limit(TOPIC, per_key=20)
    tasks = [Task(n, topic=TOPIC, key=f"k{n % keys}", delay=0.2 + n / 1000) for n in reversed(range(count))]
    engine.push_many(tasks)
    wait_until(lambda: ready_of(engine, TOPIC) == 20 * keys, "twenty of each key are ready")


def nothing_more(consumer: Consumer) -> bool:
    return consumer.claim(100, wait=0.1) == []


def all_in_order(consumer: Consumer, count: int, most: int) -> list[int]:
    """What comes, of each key no more than so many at once."""
    found: list[int] = []
    while len(found) < count:
        given = consumer.claim(100, wait=10)
        assert 0 < max(Counter(key_of(each.id) for each in given).values()) <= most
        found += [each.payload for each in given]
        consumer.ack(given)
    assert nothing_more(consumer)
    return found


@pytest.mark.parametrize("most", [1, 3])
def test_what_is_ready_goes_back(running: Engine, most: int) -> None:
    ready(running, 30)
    running.limit(TOPIC, per_key=most)
    consumer = running.consumer(TOPIC, lease=60)
    given = claim(consumer, most)
    assert nothing_more(consumer)
    assert [each.payload for each in given] == list(range(most))
    consumer.ack(given)
    assert all_in_order(consumer, 30 - most, most) == list(range(most, 30))


def test_what_is_claimed_one_by_one(running: Engine) -> None:
    ready(running, 25)
    running.limit(TOPIC, None)
    consumer = running.consumer(TOPIC, lease=60)
    for n in range(25):
        (each,) = claim(consumer, 1)
        assert each.payload == n
        assert consumer.claim(1, wait=0) == []
        consumer.ack(each)


def test_what_handlers_have_counts(running: Engine) -> None:
    """They go on; until they are done, nothing is given."""
    ready(running, 30)
    consumer = running.consumer(TOPIC, lease=60)
    leased = claim(consumer, 5)
    running.limit(TOPIC, per_key=3)
    for _ in range(2):
        assert nothing_more(consumer)
        consumer.ack(leased.pop())
    assert nothing_more(consumer)
    for _ in range(3):
        consumer.ack(leased.pop())
        leased[:0] = claim(consumer, 1)
        assert nothing_more(consumer)
    consumer.ack(leased)
    assert all_in_order(consumer, 22, 3) == list(range(8, 30))


def test_a_lease_that_lapses_counts(running: Engine) -> None:
    ready(running, 20)
    lapsing = claim(running.consumer(TOPIC, lease=0.3), 20)
    running.limit(TOPIC, per_key=1)
    consumer = running.consumer(TOPIC, lease=60)
    time.sleep(0.4)
    found: list[Delivery] = []
    for _ in range(20):
        found += claim(consumer, 1)
        assert consumer.claim(100, wait=0.02) == []
        consumer.ack(found[-1])
    assert Counter(each.payload for each in found) == Counter(each.payload for each in lapsing)


def test_one_key_does_not_hold_up_another(running: Engine) -> None:
    ready(running, 100, keys=5)
    running.limit(TOPIC, per_key=2)
    consumer = running.consumer(TOPIC, lease=60)
    found = all_in_order(consumer, 100, 2)
    for n in range(5):
        assert [each for each in found if each % 5 == n] == list(range(n, 100, 5))


def test_it_is_looked_for_only_for_a_while(running: Engine, servers: Servers, name: str) -> None:
    """Until no key has more out than is allowed."""
    ready(running, 60, keys=3)
    shards = [shard_keys(name, shard, keyed=True) for shard in range(running.topology.shards)]

    def lowered() -> int:
        return sum(int(servers.ask(keys.slot, "HEXISTS", keys.meta, f"lowered/{TOPIC}")) for keys in shards)

    assert lowered() == 0
    running.limit(TOPIC, per_key=2)
    wait_until(lambda: lowered() == len(shards), "each shard knows")
    consumer = running.consumer(TOPIC, lease=60)
    consumer.ack(leased := claim(consumer, 6))
    assert len(leased) == 6
    all_in_order(consumer, 54, 2)
    homes = {running.topology.shard_of(of_key(TOPIC, f"k{n}")) for n in range(3)}
    assert lowered() == len(shards) - len(homes)
    running.limit(TOPIC, per_key=4)
    running.limit(TOPIC, per_key=20)
    assert lowered() == len(shards) - len(homes)
