"""A whole resize: every task arrives in its shard unchanged, and the earlier number is forgotten."""

from __future__ import annotations

import threading
import time

import pytest

from cluster.server import Server
from shardq import Engine, Task
from shardq.core.layout.keys import shard_keys
from shardq.core.layout.topology import Topology
from shardq.errors import InvalidOption, InvalidShardCount
from tests.resharding.conftest import SHARDS
from tests.resharding.migration import moving_ids
from tests.support.servers import Servers, keys_of
from tests.support.states import FAR_S, claim, put, state_of
from tests.support.waiting import wait_until

Stored = dict[str, dict[str, object]]


def stored(servers: Servers, name: str, shards: int) -> Stored:
    """Of each id: its record, lease entry, due time, death and reason, and the shard."""
    tasks: Stored = {}
    for keys in keys_of(name, shards):
        for key, command in (
            (keys.task, "HGETALL"),
            (keys.lease, "HGETALL"),
            (keys.why, "HGETALL"),
            (keys.due, "ZRANGE"),
            (keys.dead, "ZRANGE"),
            (keys.seen, "ZRANGE"),
        ):
            words = (0, -1, "WITHSCORES") if command == "ZRANGE" else ()
            answer = servers.ask(keys.slot, command, key, *words)
            for id, value in answer.items() if isinstance(answer, dict) else answer:
                task = tasks.setdefault(id.decode(), {})
                assert key.rpartition(":")[2] not in task, f"{id} is in two shards"
                task[key.rpartition(":")[2]] = value
                assert task.setdefault("shard", keys.shard) == keys.shard, f"{id} is in two shards"
    return tasks


def without_shard(tasks: Stored) -> Stored:
    return {id: {name: value for name, value in task.items() if name != "shard"} for id, task in tasks.items()}


@pytest.mark.parametrize(
    ("url", "shards"), [("single", 16), ("single", 3), ("cluster", 5), ("cluster", 1)], indirect=["url"]
)
def test_everything_moves_as_it_was(engine: Engine, servers: Servers, name: str, shards: int) -> None:
    engine.start()
    for n in range(30):
        put(engine, "dead", id=f"dead{n}", headers={"n": str(n)})
    failed = engine.push_many([Task("x", id=f"failed{n}", max_attempts=5) for n in range(30)])
    consumer = engine.consumer()
    consumer.retry(claim(consumer, len(failed)), delay=FAR_S, reason="not now")
    engine.push_many([Task({"n": n}, delay=FAR_S, headers={"n": "é"}, topic="mail") for n in range(1500)])
    engine.push_many([Task(n, delay=FAR_S + n, id=f"own{n}", dedup=7200) for n in range(1500)])
    before = stored(servers, name, SHARDS)
    assert len(before) == 3060
    growth = engine.resize(shards)
    assert growth.wait(30), growth
    after = stored(servers, name, 16)
    assert without_shard(after) == without_shard(before)
    assert {id: task["shard"] for id, task in after.items()} == {id: engine.topology.shard_of(id) for id in after}
    old = Topology(epoch=1, shards=SHARDS)
    misplaced = sum(old.shard_of(id) != engine.topology.shard_of(id) for id in after)
    progress = growth.progress()
    assert (progress.done, progress.fraction, progress.shards) == (True, 1.0, shards)
    if shards > SHARDS:
        # of shards that fell away nothing is asked any more
        assert progress.moved == misplaced
    for keys in keys_of(name, 16):
        # marks are removed last, after the earlier number is forgotten
        wait_until(lambda keys=keys: not servers.ask(keys.slot, "EXISTS", keys.moved, keys.staged), "all has arrived")  # type: ignore[misc]
        if keys.shard >= shards:
            assert servers.ask(keys.slot, "EXISTS", keys.task, keys.due, keys.seen, keys.dead, keys.lease) == 0
    stats = engine.stats()
    assert (stats.scheduled, stats.dead) == (3030, 30)


@pytest.mark.slow
def test_what_is_ready_drains_where_it_is(engine: Engine) -> None:
    engine.start()
    ids = [*map(str, engine.push_many([Task(n) for n in range(200)]))]
    wait_until(lambda: engine.stats().ready == len(ids), "all are ready")
    growth = engine.resize(8)
    assert list(engine.topology.priors) == [SHARDS]
    assert not growth.wait(1.2)
    progress = growth.progress()
    assert (progress.in_force, progress.done, progress.of) == (True, False, 8)
    assert progress.swept < 8
    assert 0 <= progress.fraction < 1
    consumer = engine.consumer()
    deliveries = claim(consumer, len(ids))
    assert not growth.wait(1.2), "it is forgotten with tasks leased"
    consumer.ack(deliveries)
    assert growth.wait(30)
    assert sorted(delivery.id for delivery in deliveries) == sorted(ids)
    assert not engine.topology.priors


def test_again_and_back_before_the_first_is_over(engine: Engine) -> None:
    engine.start()
    late = engine.push_many([Task(n, delay=FAR_S, id=f"late{n}") for n in range(300)])
    ready = engine.push_many([Task(n, id=f"now{n}") for n in range(50)])
    wait_until(lambda: engine.stats().ready == len(ready), "all are ready")
    for shards, priors in ((8, [4]), (16, [4, 8]), (6, [4, 8, 16])):
        growth = engine.resize(shards)
        assert list(engine.topology.priors) == priors
        assert {state_of(engine, id) for id in late[::20]} == {"scheduled"}
        assert {state_of(engine, id) for id in ready[::10]} == {"ready"}
        assert engine.push(0, id="late7").outcome == "kept"
    consumer = engine.consumer()
    consumer.ack(claim(consumer, len(ready)))
    assert growth.wait(30), growth
    assert not engine.topology.priors
    assert [id for id in late if not engine.cancel(id)] == []
    stats = engine.stats()
    assert (stats.scheduled, stats.ready, stats.leased, stats.dead, len(stats.shards)) == (0, 0, 0, 0, 6)


def test_the_same_number_again_is_no_change(engine: Engine) -> None:
    epoch = engine.topology.epoch
    assert engine.resize(SHARDS).done()
    assert engine.resize(SHARDS).wait(0)
    assert engine.topology.epoch == epoch


def test_numbers_that_are_not_possible(engine: Engine, servers: Servers, name: str) -> None:
    before = servers.held(name)
    for shards in (0, 1025, -1):
        for dry_run in (False, True):
            with pytest.raises(InvalidShardCount):
                engine.resize(shards, dry_run=dry_run)
    with pytest.raises(InvalidShardCount, match=r"needs the number of shards.*resize\(dry_run=True\) returns"):
        engine.resize()
    with pytest.raises(InvalidOption, match="leave it out with dry_run=True"):
        engine.resize(8, rate=5, dry_run=True)
    for rate in (0, -1.0, float("nan")):
        with pytest.raises(InvalidOption, match="rate"):
            engine.resize(8, rate=rate)
    assert servers.held(name) == before


@pytest.mark.slow
def test_a_rate(engine: Engine) -> None:
    engine.start()
    moving = moving_ids(SHARDS, 8, 300)
    engine.push_many([Task(0, id=id, delay=FAR_S) for id in moving])
    began = time.monotonic()
    growth = engine.resize(8, rate=30)
    assert time.monotonic() - began < 5.0, "it does not wait for the moving, which takes ten seconds"
    assert engine.topology.move_rate == 30
    wait_until(lambda: growth.progress().moved >= 60, "two seconds' worth is moved", timeout=10)
    moved = growth.progress().moved
    # never faster, whoever stands still; and a little at a time
    assert moved <= 30 * (time.monotonic() - began) + 10
    engine.resize(8, rate=1000)
    assert growth.wait(30)
    assert engine.topology.move_rate is None


@pytest.mark.slow
def test_the_last_rate_counts(engine: Engine) -> None:
    """Also that of a change which is already in force; and without one it goes as fast as it can."""
    engine.start()
    engine.push_many([Task(0, id=id, delay=FAR_S) for id in moving_ids(SHARDS, 8, 200)])
    growth = engine.resize(8, rate=1)
    wait_until(lambda: growth.progress().moved > 0, "it moves")
    engine.resize(8, rate=2)
    assert (engine.topology.move_rate, engine.topology.priors) == (2, (SHARDS,))
    assert growth.progress().moved < 20
    engine.resize(8)
    assert growth.wait(30)
    assert growth.progress().moved == 200
    epoch = engine.topology.epoch
    engine.resize(8, rate=5)
    assert (engine.topology.move_rate, engine.topology.epoch) == (None, epoch), "there is nothing to move"


def test_what_came_out_of_retired_shards_counts(engine: Engine) -> None:
    engine.start()
    engine.push_many([Task(0, id=id, delay=FAR_S) for id in moving_ids(SHARDS, 2, 100)])
    growth = engine.resize(2)
    assert growth.wait(30)
    assert growth.progress().moved == 100


def test_a_dry_run_counts_the_bytes_of_what_moves(engine: Engine) -> None:
    engine.push_many([Task("x" * 1000, delay=FAR_S) for _ in range(400)])
    bytes = engine.resize(8, dry_run=True).bytes
    assert bytes is not None
    assert 400 * 1000 / 2 < bytes * 1.2 < 400 * 1000
    engine.push_many([Task("x" * 1000) for _ in range(400)])
    engine.start()
    wait_until(lambda: engine.stats().ready == 400, "half of all is ready")
    engine.stop()
    would = engine.resize(8, dry_run=True)
    assert would.tasks == pytest.approx(200, rel=0.2)
    assert would.bytes == pytest.approx(bytes, rel=0.2)


@pytest.mark.slow
def test_a_slow_change_does_not_hold_up_the_end(engine: Engine) -> None:
    engine.start()
    engine.push_many([Task(0, id=id, delay=FAR_S) for id in moving_ids(SHARDS, 8, 400)])
    growth = engine.resize(8, rate=1)
    took = []
    for _ in range(3):
        moved = growth.progress().moved
        wait_until(lambda moved=moved: growth.progress().moved > moved, "it moves")  # type: ignore[misc]
        began = time.monotonic()
        engine.stop()
        took.append(time.monotonic() - began)
        # whoever was left in a pause does nothing after it; to the end of its shard it would have some hundred seconds
        wait_until(lambda: not movers(), "nobody moves any more")
        engine.start()
    # the pause that has just begun is twice as long, every time
    assert min(took) < 0.5, took


def movers() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "shardq-migrator"]


def test_new_shards_are_served_from_their_first_task(engine: Engine, url: str, name: str) -> None:
    """By dispatchers and by consumers that were there before, also by one that waits."""
    engine.start()
    new = Topology(epoch=1, shards=16)
    ids = {shard: next(f"n{n}" for n in range(9999) if new.shard_of(f"n{n}") == shard) for shard in range(4, 16)}
    consumer = engine.consumer()
    waited: list[tuple[str, float]] = []

    def wait() -> None:
        while len(waited) < len(ids):
            waited.extend((delivery.id, time.monotonic()) for delivery in consumer.claim(1, wait=5))

    waiting = threading.Thread(target=wait)
    waiting.start()
    engine.resize(16)
    with Engine(url, name=name) as producer:
        pushed = {}
        for id in ids.values():
            pushed[str(producer.push(0, id=id, delay=0.05))] = time.monotonic()
            time.sleep(0.02)  # one by one, so that none is found on the way of another
    waiting.join(20)
    assert {id for id, _ in waited} == pushed.keys()
    took = sorted(at - pushed[id] for id, at in waited)
    # who is not rung looks ten seconds later; who began with the next heartbeat would be late with most of them
    assert took[-1] < 8
    assert took[len(took) // 2] < 0.5


def test_one_poller_for_each_shard(engine: Engine, url: str, name: str) -> None:
    with Engine(url, name=name) as second:
        engine.start()
        second.start()
        for shards in (9, 3):
            growth = engine.resize(shards)
            assert growth.wait(30)

            def served(shards: int = shards) -> bool:
                owned = [
                    {shard.shard for shard in each.stats().shards if shard.poller == "running"}
                    for each in (engine, second)
                ]
                return sum(map(len, owned)) == shards and set.union(*owned) == set(range(shards))

            wait_until(served, f"each of {shards} shards has one poller")


def test_marks_that_can_not_be_removed_at_the_end_of_a_change_are_removed_later(own_server: Server, name: str) -> None:
    """Without that they stay in memory until the next change."""
    marks = shard_keys(name, 0).staged
    with Engine(own_server.url, name=name, shards=1) as engine:
        engine.start()
        own_server.ask("HSET", marks, "a|someone:1", "")
        own_server.ask("ACL", "SETUSER", "default", "-unlink")
        engine.resize(2).wait(timeout=20)
        assert own_server.ask("HLEN", marks) == 1
        own_server.ask("ACL", "SETUSER", "default", "+unlink")
        wait_until(lambda: own_server.ask("HLEN", marks) == 0, "the marks are removed", timeout=20)
