"""The table of jobs in flight, with lots: whatever comes together, each delivery gets one settlement."""

from __future__ import annotations

import random
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from shardq import Backoff
from shardq.core.model.task import Delivery
from shardq.delivery.batch import Batch
from shardq.delivery.calling import LotCalls
from shardq.delivery.handler import Batching, Handler
from shardq.delivery.hooks import Hooks
from shardq.delivery.in_flight import InFlight
from shardq.delivery.job import Lot, retries
from shardq.delivery.prefetch import BatchRoom
from tests.support.waiting import wait_until


def handler(size: int = 8) -> Handler:
    return Handler(
        topic="events",
        run=print,
        is_coroutine=lambda _: False,
        has_coroutines=lambda: False,
        name=lambda _: "store",
        max_attempts=5,
        backoff=Backoff(),
        batching=Batching(size=size),
    )


def delivery(number: int, failures: int = 0) -> Delivery[Any]:
    return Delivery(f"events/{number}", "events", number, failures + 1, {}, "t", 0, failures, 0)


def lot_of(in_flight: InFlight, count: int, first: int = 0, room: BatchRoom | None = None) -> Lot:
    lot = Lot.of(handler(), [delivery(first + n) for n in range(count)], room or BatchRoom(2))
    assert in_flight.put_lot(lot)
    in_flight.offer([lot])
    return lot


def settled(in_flight: InFlight) -> Counter[str]:
    in_flight.end()
    return Counter(job.delivery.id for job, _ in in_flight.settlements())


ACTS = ("ack", "retry", "lose", "time out", "stop", "hold", "stale", "end", "begin", "give back")


@given(st.lists(st.tuples(st.sampled_from(ACTS), st.integers(0, 5)), max_size=40), st.booleans())
def test_any_order_gives_each_one_end(acts: list[tuple[str, int]], begun: bool) -> None:
    in_flight, room = InFlight(4), BatchRoom(2)
    lot = lot_of(in_flight, 6, room=room)
    jobs, lost = list(lot.jobs), set[str]()
    if begun:
        assert in_flight.next() is lot
    for act, number in acts:
        job = jobs[number]
        match act:
            case "ack":
                in_flight.finish_all([(job, job.delivery)])
            case "retry":
                in_flight.finish(job, job.retry("again"))
            case "lose":
                if in_flight.finish(job, None):
                    lost.add(job.delivery.id)
            case "time out":
                in_flight.end_lot(lot, retries(lot.open(), "timed out"))
            case "stop":
                in_flight.give_back(in_flight.emptied())
            case "hold":
                in_flight.hold(job.delivery)
            case "stale":
                in_flight.give_back(in_flight.stale())
            case "begin":
                in_flight.begin_call(lot, jobs[number:])
            case "give back":
                in_flight.give_back([lot])
            case "end":
                in_flight.end_lot(lot)
    in_flight.end_lot(lot)
    assert not in_flight.end_lot(lot), "it ends once"
    assert (room.held, room.running, room.tasks) == (0, 0, 0)
    assert in_flight.unfinished() == in_flight.lots() == []
    assert settled(in_flight) + Counter(lost) == dict.fromkeys((job.delivery.id for job in jobs), 1)
    assert repr(in_flight) == "<InFlight: 0 running, 0 held, 0 to settle>"


def test_of_many_threads_that_decide_at_once_one_is_heard() -> None:
    in_flight = InFlight(4)
    lot = lot_of(in_flight, 200)
    assert in_flight.next() is lot
    jobs = list(lot.jobs)
    in_flight.begin_call(lot, jobs)
    barrier = threading.Barrier(4)

    def decide(kind: int) -> int:
        order = random.Random(kind).sample(jobs, len(jobs))
        barrier.wait()
        if kind == 0:
            return sum(in_flight.finish(job, None) for job in order)
        if kind == 1:
            return len(in_flight.finish_all([(job, job.delivery) for job in order]))
        if kind == 2:
            return sum(in_flight.finish(job, job.retry("no")) for job in order)
        in_flight.end_lot(lot)
        return 0

    with ThreadPoolExecutor(4) as threads:
        lost, *heard = [each.result() for each in [threads.submit(decide, kind) for kind in range(4)]]
    counts = settled(in_flight)
    assert set(counts.values()) <= {1}
    assert counts.total() + lost == 200
    assert sum(heard) <= counts.total(), "the rest was given back with the end"


def test_a_lot_has_one_place() -> None:
    in_flight, room = InFlight(4), BatchRoom(1)
    lot = lot_of(in_flight, 50, room=room)
    assert not room.has_room(free=4), "its only place is taken"
    assert in_flight.next() is lot
    assert (room.held, room.running, in_flight._running) == (0, 1, 1)
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(in_flight.wanted_lot, room)
        wait_until(lambda: in_flight._lots_full == 1, "it waits for the place")
        in_flight.end_lot(lot)
        assert waiting.result(30)


def test_one_is_claimed_ahead_while_calls_are_quick() -> None:
    room = BatchRoom(1)
    room.running = 1
    assert not room.has_room(free=3), "nothing is known yet"
    for _ in range(8):
        room.ended(0.001)
    assert room.has_room(free=3)
    room.held = 1
    assert not room.has_room(free=3)
    room.held, room.mean_s = 0, 0.2
    assert not room.has_room(free=3)


def test_busy_neighbours_leave_it_one_that_waits_in_line() -> None:
    room = BatchRoom(4)
    assert room.has_room(free=0)
    room.held = 1
    assert not room.has_room(free=1)
    room.held, room.waits_for_place = 0, True
    assert not room.has_room(free=0), "its last one went stale in line"
    assert room.has_room(free=1)


def calls_of(in_flight: InFlight, lot: Lot) -> LotCalls:
    return LotCalls(in_flight, Hooks(), lot, lambda lot, size, seconds: None)


def test_a_call_that_was_overruled_is_the_last() -> None:
    in_flight = InFlight(4)
    lot = lot_of(in_flight, 4)
    assert in_flight.next() is lot
    calls = calls_of(in_flight, lot)
    batch = calls.next()
    assert batch is not None
    in_flight.end_lot(lot, retries(lot.open(), "timed out"))
    assert not batch.ack(batch[0])
    calls.ended(ValueError("too late"))
    assert calls.next() is None
    assert settled(in_flight) == {f"events/{n}": 1 for n in range(4)}


def test_what_has_failed_before_waits_for_a_call_of_its_own() -> None:
    in_flight = InFlight(4)
    lot = Lot.of(
        handler(size=512), [delivery(0), delivery(1, failures=3), delivery(2), delivery(3, failures=3)], BatchRoom(1)
    )
    in_flight.put_lot(lot)
    in_flight.offer([lot])
    assert in_flight.next() is lot
    calls, seen = calls_of(in_flight, lot), list[list[int]]()
    while (batch := calls.next()) is not None:
        assert isinstance(batch, Batch)
        seen.append(batch.payloads)
        calls.ended(None)
    assert seen == [[0, 2], [1], [3]]
    assert settled(in_flight) == {f"events/{n}": 1 for n in range(4)}
