"""Pushes, cancels and reschedules of an outage are acknowledged at once, kept in the file, and replayed."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from cluster.server import Server
from shardq import Engine, Outcome, PushError, ServerFault, ShardqError, Task, Unanswered, Unavailable
from shardq.cli.acl import rules
from shardq.core.layout.keys import shard_keys
from shardq.errors import DurabilityUnavailable, EngineClosed
from shardq.relay.mover import Mover
from tests.spool.conftest import Make, direct, drained, seen
from tests.support.engines import SHARDS, Engines
from tests.support.listed import listed
from tests.support.states import FAR_S, claim, state_of
from tests.support.waiting import wait_until


def outcomes(receipts: list[Any]) -> set[str]:
    return {receipt.outcome for receipt in receipts}


def test_what_is_pushed_in_an_outage_is_there_after_it(make: Make, own_server: Server, path: Path) -> None:
    engine = make().open()
    before = engine.push("before", delay=FAR_S)
    assert before.outcome == "pushed"
    own_server.kill()
    one = engine.push("one", delay=FAR_S)
    many = engine.push_many([Task(n, delay=FAR_S, topic="many") for n in range(50)])
    own = engine.push("own", id="own", delay=FAR_S)
    lazily = [id for ids in engine.push_iter(Task(n, delay=FAR_S) for n in range(50)) for id in ids]
    assert outcomes([one, *many, own, *lazily]) == {"spooled"}
    assert own == "own"
    assert all(id.startswith("many/") for id in many)
    assert seen(path).waiting == 102
    own_server.start()
    drained(path)
    for id in (before, one, *many, own, *lazily):
        assert state_of(engine, id) == "scheduled"
    assert direct(engine, delay=FAR_S)
    stats = engine.stats()
    assert stats.spool is not None
    assert (stats.spool.replayed, stats.spool.failed, stats.spool.waiting, stats.spool.bytes) == (102, 0, 0, 0)
    assert not any("spool" in reason for reason in engine.health().reasons)


def test_after_the_first_failure_nobody_waits(make: Make, own_server: Server) -> None:
    """Each would wait a minute."""
    engine = make(timeout=4.0).open()
    own_server.kill()
    engine.push(0, delay=FAR_S)
    began = time.monotonic()
    receipts = [engine.push(n, delay=FAR_S) for n in range(15)]
    assert engine.cancel(receipts[0]) is Outcome.SPOOLED
    assert time.monotonic() - began < 30
    assert outcomes(receipts) == {"spooled"}


def test_a_block_begins_while_redis_is_away(make: Make, own_server: Server, path: Path) -> None:
    own_server.kill()
    with make(connect_timeout=0.5) as engine:
        with pytest.raises(ServerFault):
            engine.start()
        id = engine.push("first", delay=FAR_S)
        assert id.outcome == "spooled"
        own_server.start()
        drained(path)
        assert state_of(engine, id) == "scheduled"


def test_many_callers_wait_together_for_the_first_connection(make: Make, own_server: Server, path: Path) -> None:
    """One after the other they would wait minutes."""
    own_server.kill()
    engine = make(connect_timeout=2.0)
    began = time.monotonic()
    with ThreadPoolExecutor(32) as threads:
        receipts = list(threads.map(lambda n: engine.push(n, delay=FAR_S), range(32)))
    assert time.monotonic() - began < 32
    assert outcomes(receipts) == {"spooled"}
    assert seen(path).waiting == 32


def test_cancel_and_reschedule_come_after_the_push(make: Make, own_server: Server, path: Path) -> None:
    engine = make().open()
    stored, moved = engine.push("stored", delay=FAR_S), engine.push("moved", delay=FAR_S)
    own_server.kill()
    spooled, again = engine.push("spooled", delay=FAR_S), engine.push("again", id="again", delay=FAR_S)
    for id in (stored, spooled, again):
        outcome = engine.cancel(id)
        assert outcome is Outcome.SPOOLED
        assert not outcome
    assert engine.push("new", id="again", delay=FAR_S, dedup=600) == "again"
    assert engine.reschedule(moved, delay=2 * FAR_S) is Outcome.SPOOLED
    due = time.time() + 2 * FAR_S
    own_server.start()
    drained(path)
    assert state_of(engine, stored) == state_of(engine, spooled) == "gone"
    found = engine.get("again")
    assert found is not None
    assert found.payload == "new"
    late = engine.get(moved)
    assert late is not None
    assert late.due is not None
    assert abs(late.due.timestamp() - due) < 60


def test_a_delay_counts_from_the_push(make: Make, own_server: Server, path: Path) -> None:
    engine = make().open()
    own_server.kill()
    began = time.time()
    id = engine.push("soon", delay=3000, expires=5000)
    later = engine.push_many([Task("later", delay=3000)])[0]
    ended = time.time()
    engine.push("expired", id="expired", expires=0.05)
    wait_until(lambda: time.time() > ended + 1.0, "the outage lasts")
    own_server.start()
    drained(path)
    for pushed in (id, later):
        found = engine.get(pushed)
        assert found is not None
        assert found.due is not None
        assert began + 3000 <= found.due.timestamp() < ended + 3000.9
    engine.start()
    consumer = engine.consumer()

    def reasons() -> list[str]:
        assert consumer.claim(1) == []
        return [str(task.reason) for task in listed(engine, state="dead")]

    assert wait_until(reasons, "it is found expired") == ["expired"]


def test_a_lost_answer_stores_the_task_once(make: Make, own_server: Server, path: Path) -> None:
    """The frozen server executes what it was sent, when it goes on."""
    engine = make().open()
    own_server.pause()
    ids = [engine.push("one", delay=FAR_S), *engine.push_many([Task(n, delay=FAR_S) for n in range(20)])]
    assert outcomes(ids) == {"spooled"}
    own_server.resume()
    drained(path)
    wait_until(lambda: engine.stats().scheduled == 21, "each is there once")
    assert all(state_of(engine, id) == "scheduled" for id in ids)


def test_what_is_running_is_not_stored_again(make: Make, own_server: Server, path: Path) -> None:
    engine = make().open()
    engine.start()
    own_server.pause()
    assert engine.push("one", id="one", dedup=600).outcome == "spooled"
    own_server.resume()
    consumer = engine.consumer()
    (delivery,) = claim(consumer, 1)
    consumer.ack(delivery)
    drained(path)
    assert state_of(engine, "one") == "gone"
    wait_until(lambda: engine.stats().scheduled + engine.stats().ready == 0, "nothing is left")


def test_a_durable_push_is_never_spooled(make: Make, own_server: Server, path: Path) -> None:
    engine = make().open()
    engine.push("here", delay=FAR_S)
    own_server.kill()
    with pytest.raises((Unavailable, Unanswered)):
        engine.push("one", durability="fsynced")
    assert engine.push("two", delay=FAR_S).outcome == "spooled"
    with pytest.raises((Unavailable, Unanswered)):
        engine.push_many([Task(1)], durability="fsynced")
    assert seen(path).waiting == 1
    own_server.start()
    drained(path)
    with pytest.raises(DurabilityUnavailable):
        engine.push("three", durability="replicated")


def test_a_full_server_is_not_away(make: Make, own_server: Server, path: Path) -> None:
    engine = make().open()
    engine.push("here", delay=FAR_S)
    own_server.ask("CONFIG", "SET", "maxmemory", "1")
    with pytest.raises(ShardqError, match="OOM"):
        engine.push("x", delay=FAR_S)
    assert seen(path).waiting == 0


def test_commands_wait_while_the_server_is_full(make: Make, own_server: Server, path: Path) -> None:
    engine = make().open()
    own_server.kill()
    id = engine.push("x", delay=FAR_S)
    own_server.options["maxmemory"] = "1"
    own_server.start()
    wait_until(lambda: "OOM" in str(engine.health().reasons), "the replay has met the full server")
    own_server.ask("CONFIG", "SET", "maxmemory", "0")
    drained(path)
    assert state_of(engine, id) == "scheduled"
    assert seen(path).failed == 0


def test_a_conflict_is_put_aside_and_blocks_nobody(
    make: Make, own_server: Server, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    engine = make().open()
    engine.push("taken", id="taken", delay=FAR_S)
    own_server.kill()
    refused = engine.push("again", id="taken", on_conflict="reject", delay=FAR_S)
    after = engine.push("after", delay=FAR_S)
    assert outcomes([refused, after]) == {"spooled"}
    own_server.start()
    drained(path)
    assert state_of(engine, after) == "scheduled"
    found = engine.get("taken")
    assert found is not None
    assert found.payload == "taken"
    assert seen(path).failed == 1
    assert "already scheduled" in caplog.text
    assert any("shardq spool failed" in reason for reason in engine.health().reasons)


def test_a_shard_that_refuses_everything_blocks_no_other(make: Make, own_server: Server, path: Path, name: str) -> None:
    """A key of the wrong type, as somebody's mistake leaves it."""
    engine = make().open()
    topology = engine.topology
    due = shard_keys(name, 1).due
    own_server.ask("SET", due, "no sorted set")
    own_server.kill()
    ids = engine.push_many([Task(n, id=f"{n}", delay=FAR_S) for n in range(40)])
    broken = [id for id in ids if topology.shard_of(id) == 1]
    assert 0 < len(broken) < 40
    own_server.start()
    drained(path)
    own_server.ask("DEL", due)
    assert seen(path).failed == len(broken)
    for id in ids:
        assert state_of(engine, id) == ("gone" if id in broken else "scheduled")


def test_push_many_raises_what_cant_be_spooled(make: Make, own_server: Server, path: Path) -> None:
    """A conflict that a server told is still told; what no server took is spooled."""
    engine = make(timeout=2.0).open()
    engine.push("taken", id="taken", delay=FAR_S)
    with pytest.raises(PushError) as caught:
        engine.push_many([Task(1, id="taken", on_conflict="reject"), Task(2, delay=FAR_S)])
    assert list(caught.value.failed) == ["taken"]
    assert seen(path).waiting == 0


def test_named_tasks_are_spooled(engines: Engines, make: Make, own_server: Server, path: Path) -> None:
    engine = make()
    named = engine.task(topic="mail")(send)
    own_server.kill()
    receipt = engines.done(named.push("ann", "hello"))
    assert receipt.outcome == "spooled"
    own_server.start()
    drained(path)
    assert wait_until(lambda: state_of(engine, receipt), "it can be asked for") in ("scheduled", "ready")


def send(to: str, text: str) -> None: ...


def test_a_closed_engine_takes_nothing(make: Make, own_server: Server, path: Path) -> None:
    engine = make().open()
    own_server.kill()
    engine.push("one", delay=FAR_S)
    engine.close()
    for command in commands(engine):
        with pytest.raises(EngineClosed):
            command()
    assert seen(path).waiting == 1
    own_server.start()
    engine.open()
    drained(path)
    assert direct(engine, delay=FAR_S)


def commands(engine: Engine) -> list[Callable[[], object]]:
    return [lambda: engine.push("x"), lambda: engine.push_many([Task("x")]), lambda: engine.cancel("x")]


def test_new_commands_wait_behind_the_spooled_ones(make: Make, own_server: Server, path: Path) -> None:
    """The last of each id wins, whatever happened around it."""
    engine = make().open()
    for round in range(3):
        own_server.kill()
        for n in range(30):
            engine.push(f"{round} old", id=f"{n}", on_conflict="replace", delay=FAR_S)
        own_server.launch()
        last: dict[str, str] = {}
        count = 0
        while last.get("outcome") != "pushed" and last.get("outcome") != "replaced":
            for n in range(30):
                last["outcome"] = engine.push(f"{round} {count}", id=f"{n}", on_conflict="replace", delay=FAR_S).outcome
            count += 1
        own_server.wait_answering()
        drained(path)
        payloads = set()
        for n in range(30):
            found = engine.get(f"{n}")
            assert found is not None
            payloads.add(found.payload)
        assert payloads == {f"{round} {count - 1}"}


def test_a_replay_that_meets_an_outage_holds_nobody_for_long(
    make: Make, own_server: Server, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While tasks move each id is asked for alone; each of these questions took a second, and commands waited."""
    monkeypatch.setattr("shardq.relay.file.PAGE_ROWS", 12)
    monkeypatch.setattr("shardq.features.spool.spool.PAGE_ROWS", 12)
    started, frozen = threading.Event(), threading.Event()
    real = Mover.run

    def run(self: Mover, stopping: Callable[[], bool], **options: Any) -> bool:
        if options.get("within_s"):
            started.wait(60)
            own_server.pause()
            frozen.set()
        return real(self, stopping, **options)

    engine = make(timeout=2.0).open()
    engine.resize(SHARDS + 1)  # without a dispatcher nothing is moved
    own_server.kill()
    for number in range(30):
        engine.cancel(f"c{number}")
    monkeypatch.setattr(Mover, "run", run)
    own_server.start()
    started.set()
    try:
        assert frozen.wait(20)
        began = time.monotonic()
        assert engine.cancel("late") is Outcome.SPOOLED
        assert time.monotonic() - began < 6.0
    finally:
        own_server.resume()
        monkeypatch.setattr(Mover, "run", real)
    drained(path)


def test_the_first_keys_of_an_engine_are_pushed_in_an_outage(make: Make, own_server: Server, path: Path) -> None:
    engine = make().open()
    own_server.kill()
    ids = [engine.push(n, topic="webhook", key="customer-7", id=f"order-{n}") for n in range(3)]
    assert ids == [f"webhook/customer-7/order-{n}" for n in range(3)]
    own_server.start()
    drained(path)
    engine.start()
    consumer = engine.consumer("webhook")
    for id in ids:
        [delivery] = claim(consumer, 1)
        assert delivery.id == id
        assert consumer.claim(2) == []
        consumer.ack(delivery)


def test_who_may_not_begin_with_keys_replays_all_others(
    make: Make, engines: Engines, own_server: Server, path: Path, name: str
) -> None:
    """Tasks with keys wait for whoever may."""
    admin = engines.opened(own_server.url, name=name, shards=1)
    own_server.ask("ACL", "SETUSER", "shop", "nopass", *rules(["producer"], name=name))
    engine = make(url=f"redis://shop:x@{own_server.address}").open()
    own_server.pause()
    keyed = engine.push("keyed", key="k", id="mine", delay=FAR_S)
    plain = engine.push("plain", delay=FAR_S)
    gone = engine.push("gone", key="k", id="gone", delay=FAR_S)
    assert engine.cancel(gone) is Outcome.SPOOLED
    assert outcomes([keyed, plain, gone]) == {"spooled"}
    own_server.resume()
    wait_until(lambda: seen(path).waiting == 3, "all others are replayed", timeout=60)
    assert state_of(admin, plain) == "scheduled"
    wait_until(lambda: any("engine.limit" in each for each in engine.health().reasons), "it says what to do")
    admin.limit("t", per_key=1)
    drained(path)
    assert (state_of(admin, keyed), state_of(admin, gone)) == ("scheduled", "gone")
