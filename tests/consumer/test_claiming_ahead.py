"""``prefetch=True``: the next claim is under way while the program works, and nothing is held for long."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from shardq import Delivery, Engine, Task
from shardq.core.consumer.background import BackgroundTasks
from shardq.core.consumer.prefetch import MOST_HELD, STALE_S, Ahead
from shardq.core.operation import Begun
from tests.consumer.streams import AT_ONCE, TASKS, drained, filled, hold_ahead
from tests.support.engines import SHARDS, Engines
from tests.support.states import counted
from tests.support.waiting import wait_until
from tests.support.workers import Worker


def test_a_stream_is_taken_once_and_ends_empty(running: Engine) -> None:
    ids = filled(running)
    consumer = running.consumer(prefetch=True)
    done = hold_ahead(running, consumer)
    assert counted(running).leased <= 2 * MOST_HELD
    done += drained(consumer, TASKS - len(done))
    assert sorted(done) == sorted(ids)
    assert consumer.claim(AT_ONCE) == []
    stats = counted(running)
    assert (stats.ready, stats.leased, stats.dead) == (0, 0, 0)


def test_nothing_is_claimed_ahead_unasked(running: Engine) -> None:
    filled(running, 200)
    consumer = running.consumer()
    for _ in range(20):
        consumer.ack(consumer.claim(AT_ONCE))
    assert counted(running).leased == 0


@pytest.mark.parametrize("what", ["consumer", "engine"])
def test_closing_gives_it_back_at_once(engines: Engines, running: Engine, url: str, what: str) -> None:
    filled(running)
    own = engines.opened(url, name=running.name, shards=SHARDS)
    consumer = own.consumer(prefetch=True, lease=3600)
    done = hold_ahead(running, consumer)
    if what == "consumer":
        consumer.close()
        assert len(consumer.claim(AT_ONCE)) == AT_ONCE, "who asks after that gets what there is, and no more"
        wait_until(lambda: counted(running).leased == AT_ONCE, "the rest is given back")
        own.close()
        return
    own.close()
    wait_until(lambda: counted(running).leased == 0, "it is given back")
    drained(running.consumer(), TASKS - len(done))


def test_what_holds_nothing_is_looked_at_no_more() -> None:
    async def run() -> None:
        looks = list[float]()
        BackgroundTasks().watch(Ahead[Any](3600.0, looks.append))
        await asyncio.sleep(2 * STALE_S)
        assert len(looks) == 1

    asyncio.run(run())


def test_a_program_that_is_interrupted_while_its_claim_ahead_comes(
    url: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it gave goes back at once."""
    finish = Begun.finish

    def interrupted(begun: Begun[Any], deadline: float) -> None:
        finish(begun, deadline)
        raise KeyboardInterrupt

    with Engine(url, name=name, shards=SHARDS) as engine:
        engine.start()
        filled(engine, TASKS)
        consumer = engine.consumer(prefetch=True, lease=3600)
        hold_ahead(engine, consumer)
        with monkeypatch.context() as patch:
            patch.setattr(Begun, "finish", interrupted)
            with pytest.raises(KeyboardInterrupt):
                drained(consumer, 2 * TASKS)
        wait_until(lambda: counted(engine).leased == 0, "no lease is left")


def test_others_get_what_a_program_leaves_lying(running: Engine, other: Engine) -> None:
    """Its leases are long, and its program does not come back for the rest."""
    ids = filled(running)
    consumer = running.consumer(prefetch=True, lease=3600)
    done = hold_ahead(running, consumer)
    wait_until(lambda: counted(running).leased == 0, "it is given back")
    done += drained(other.consumer(), TASKS - len(done) - 100)
    done += drained(consumer, 100)
    assert sorted(done) == sorted(ids)


def test_a_loop_over_a_stream(running: Engine) -> None:
    ids = filled(running, 300)
    consumer = running.consumer(prefetch=True, lease=3600)
    done: list[str] = []
    for delivery in consumer:
        done.append(delivery.id)
        assert delivery.attempt == 1
        if len(done) == 200:
            break
    # the one that was left is a failed attempt, its last
    wait_until(lambda: counted(running).dead == 1, "the loop has been left")
    consumer.close()
    wait_until(lambda: counted(running).leased == 0, "what was ahead is given back")
    done += drained(running.consumer(), 100)
    assert sorted(done) == sorted(ids)


def test_a_limit_is_never_exceeded(running: Engine) -> None:
    """A topic with a limit has nothing claimed ahead: its permits are for those who work."""
    running.limit("mail", concurrency=3)
    filled(running, 60, topic="mail")
    consumer = running.consumer("mail", prefetch=True)
    done = 0
    while done < 60:
        deliveries = consumer.claim(2, wait=1.0)
        assert counted(running).leased == len(deliveries)
        consumer.ack(deliveries)
        done += len(deliveries)


def test_a_pause_leaves_what_is_claimed_and_gives_out_no_more(running: Engine) -> None:
    filled(running)
    consumer = running.consumer(prefetch=True)
    hold_ahead(running, consumer)
    running.pause("")
    left = counted(running)

    def nothing_more() -> bool:
        deliveries = consumer.claim(AT_ONCE)
        consumer.ack(deliveries)
        return not deliveries

    wait_until(nothing_more, "it gets no more")
    wait_until(lambda: counted(running).leased == 0, "and holds nothing")
    assert counted(running).ready >= left.ready


@pytest.mark.slow
@pytest.mark.parametrize("flavour", ["sync", "asyncio"])
def test_a_killed_program_loses_nothing(url: str, name: str, tmp_path: Path, flavour: str) -> None:
    """What it had claimed ahead comes back with its leases, and everything is accounted for."""
    with Engine(url, name=name, shards=SHARDS) as engine:
        engine.start()
        ids = engine.push_many([Task(n) for n in range(TASKS)])
        wait_until(lambda: counted(engine).ready == TASKS, "all are ready")
        notes = tmp_path / "done"
        with Worker("tests.support.streaming", url, name, flavour, notes) as program:
            wait_until(lambda: notes.exists() and notes.stat().st_size > 0, "it works")
            wait_until(lambda: counted(engine).leased > AT_ONCE, "it has claimed ahead")
            program.kill()
        done = notes.read_text().split()
        left = {delivery.id for delivery in _rest(engine)}
        assert set(done) | left == set(ids)
        stats = counted(engine)
        assert (stats.ready, stats.leased, stats.dead, stats.scheduled) == (0, 0, 0, 0)


def _rest(engine: Engine) -> list[Delivery]:
    """Acks all that is left, as it comes back."""
    rest: list[Delivery] = []
    consumer = engine.consumer()

    def empty() -> bool:
        deliveries = consumer.claim(100, wait=0.2)
        consumer.ack(deliveries)
        rest.extend(deliveries)
        stats = counted(engine)
        return stats.ready + stats.leased + stats.scheduled == 0

    wait_until(empty, "everything has come back")
    return rest
