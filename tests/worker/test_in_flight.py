"""The worker's table of tasks in flight: every job is settled once, and no wait lasts for ever."""

from __future__ import annotations

import math
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

from shardq import Backoff
from shardq.core.consumer.prefetch import AHEAD_S, STALE_S
from shardq.core.model.task import Delivery
from shardq.delivery.handler import Handler
from shardq.delivery.in_flight import GIVE_WAY_FROM, GIVE_WAY_S, InFlight
from shardq.delivery.job import Job
from tests.support.waiting import wait_until

HANDLER = Handler(
    topic="",
    run=print,
    is_coroutine=lambda _: False,
    has_coroutines=lambda: False,
    name=lambda _: "print",
    max_attempts=1,
    backoff=Backoff(),
)


def jobs(count: int) -> list[Job]:
    return [
        Job(
            Delivery(
                id=f"{n}", topic="", payload=None, attempt=1, headers={}, token="t", shard=0, failures=0, lapses=0
            ),
            HANDLER,
        )
        for n in range(count)
    ]


def filled(count: int, concurrency: int = 4) -> tuple[InFlight, list[Job]]:
    in_flight, made = InFlight(concurrency), jobs(count)
    in_flight.put(made)
    in_flight.offer(made)
    return in_flight, made


def test_a_verdict_once() -> None:
    in_flight, (job,) = filled(1)
    assert in_flight.begin(job)
    timed_out = job.retry("timed out")
    assert in_flight.finish(job, timed_out)
    assert not in_flight.finish(job, job.delivery)
    assert in_flight.settlements() == [(job, timed_out)]
    in_flight.settled([job])
    assert repr(in_flight) == "<InFlight: 0 running, 0 held, 0 to settle>"


def test_a_job_that_began_is_not_given_back() -> None:
    """Whoever gives back has seen it held, and a handler may begin in the next moment."""
    in_flight, (begun, held) = filled(2)
    seen = in_flight.emptied()
    assert in_flight.begin(begun)
    in_flight.give_back(seen)
    assert in_flight.settlements() == [(held, held.back())]
    assert len(in_flight.unfinished()) == 1
    assert in_flight.finish(begun, begun.delivery)
    assert in_flight.settlements() == [(begun, begun.delivery)]


def test_of_many_that_judge_at_once_one_is_heard() -> None:
    in_flight, made = filled(200)
    for job in made:
        assert in_flight.begin(job)
    barrier = threading.Barrier(4)

    def judge_all() -> int:
        barrier.wait()
        return sum(in_flight.finish(job, job.delivery) for job in made)

    with ThreadPoolExecutor(4) as threads:
        heard = [threads.submit(judge_all) for _ in range(4)]
        assert sum(each.result() for each in heard) == 200
    assert len(in_flight.settlements()) == 200
    assert repr(in_flight) == "<InFlight: 0 running, 0 held, 0 to settle>"


def test_what_was_given_back_is_not_begun() -> None:
    in_flight, (job,) = filled(1)
    assert in_flight.finish(job, job.back())
    assert not in_flight.begin(job)
    assert in_flight.settlements() == [(job, job.back())]


def test_a_lost_lease_is_settled_with_nobody() -> None:
    in_flight, (job,) = filled(1)
    in_flight.begin(job)
    assert in_flight.finish(job, None)
    assert not in_flight.finish(job, job.delivery)
    in_flight.end()
    assert in_flight.settlements() == []


def test_threads_begin_what_waits_one_by_one() -> None:
    in_flight, made = filled(3)
    assert [in_flight.next() for _ in range(2)] == made[:2]
    assert set(in_flight.unfinished()) == set(made[:2])
    assert in_flight.emptied() == made[2:]


def test_an_offer_wakes_as_many_threads_as_there_are_jobs() -> None:
    in_flight = InFlight(8)
    with ThreadPoolExecutor(8) as threads:
        taking = [threads.submit(in_flight.next) for _ in range(8)]
        wait_until(lambda: in_flight.offer([]) == 0 and in_flight._resting == 8, "all of them are idle")
        made = jobs(8)
        in_flight.put(made)
        assert in_flight.offer(made) == 0
        # none of them comes back for a second one
        assert {each.result(30) for each in taking} == set(made)


def test_a_thread_that_comes_for_nothing_lets_others_be_woken_later() -> None:
    in_flight = InFlight(2)
    with ThreadPoolExecutor(2) as threads:
        taking = [threads.submit(in_flight.next) for _ in range(2)]
        wait_until(lambda: in_flight._resting == 2, "both of them are idle")
        made = jobs(3)
        in_flight.put(made)
        with in_flight._lock:
            # a thread is woken, and meanwhile another one has begun the job
            in_flight._inbox.append(made[0])
            in_flight._wake()
            in_flight._inbox.clear()
        wait_until(lambda: not in_flight._waking and in_flight._resting == 2, "it is idle again")
        in_flight.offer(made[1:])
        assert {each.result(30) for each in taking} == set(made[1:])


def test_an_offer_says_how_many_find_no_hand() -> None:
    in_flight = InFlight(4)
    made = jobs(3)
    in_flight.put(made)
    assert in_flight.offer(made[:2]) == 2
    assert in_flight.next() is made[0]
    assert in_flight.offer(made[2:]) == 2


def test_what_lies_too_long_is_stale() -> None:
    in_flight, made = filled(3)
    assert in_flight.next() is made[0]
    for job in made[:2]:
        job.claimed_at -= STALE_S * 2
    assert in_flight.stale() == [made[1]], "the first one runs, the last one has just come"
    assert in_flight.next() is made[2]


def test_what_was_given_back_while_it_waited_is_passed_over() -> None:
    in_flight, made = filled(3)
    for job in made[:2]:
        assert in_flight.finish(job, job.back())
    assert in_flight.next() is made[2]


def test_wanting_ends_with_the_fetching() -> None:
    in_flight, _ = filled(4, concurrency=2)
    with ThreadPoolExecutor(1) as threads:
        wanted = threads.submit(in_flight.wanted)
        in_flight.stop_fetching()
        assert wanted.result(30) == 0


def test_a_free_hand_wants_more() -> None:
    in_flight, made = filled(2, concurrency=2)
    for job in made:
        in_flight.begin(job)
    with ThreadPoolExecutor(1) as threads:
        wanted = threads.submit(in_flight.wanted)
        assert not wanted.done()
        in_flight.finish(made[0], made[0].delivery)
        assert wanted.result(30) == 1


def test_a_place_that_is_left_when_all_have_begun_wants_more() -> None:
    """None of them may end for hours."""
    in_flight, made = filled(3, concurrency=4)
    with ThreadPoolExecutor(1) as threads:
        wanted = threads.submit(in_flight.wanted)
        assert not wanted.done()
        for job in made:
            in_flight.begin(job)
        assert wanted.result(30) == 1


@pytest.mark.parametrize(("ahead", "naps"), [(4 * GIVE_WAY_FROM, 1), (GIVE_WAY_FROM, 0)])
def test_the_fetching_thread_comes_while_many_are_left(monkeypatch: pytest.MonkeyPatch, ahead: int, naps: int) -> None:
    """Where few are left, they are done when the claim is."""
    in_flight, made = filled(ahead, concurrency=4)
    in_flight.prefetch._rate, in_flight.prefetch._since = ahead / AHEAD_S, math.inf
    taken: list[float] = []
    with ThreadPoolExecutor(1) as threads:
        wanted = threads.submit(in_flight.wanted)

        def sleep(seconds: float) -> None:
            assert wanted.result(30) > 0
            taken.append(seconds)

        clock = SimpleNamespace(monotonic=time.monotonic, sleep=sleep)
        monkeypatch.setattr("shardq.delivery.in_flight.time", clock)
        wait_until(lambda: in_flight._full, "it waits for room")
        for _ in made:
            job = in_flight.next()
            assert isinstance(job, Job)
            in_flight.finish(job, job.delivery)
        assert wanted.result(30) > 0
    assert taken == [GIVE_WAY_S] * naps


def test_the_end_wakes_everybody() -> None:
    in_flight = InFlight(2)
    with ThreadPoolExecutor(4) as threads:
        taking, settling = threads.submit(in_flight.next), threads.submit(in_flight.settlements)
        watching = threads.submit(in_flight.watched, 60.0)
        wait_until(lambda: taking.running() and settling.running() and watching.running(), "all of them wait")
        in_flight.stop_fetching()
        in_flight.end()
        assert (taking.result(30), settling.result(30), watching.result(30)) == (None, [], None)


def test_quiet_when_the_last_has_its_verdict() -> None:
    in_flight, (job,) = filled(1)
    assert in_flight.wait_quiet(time.monotonic())
    in_flight.begin(job)
    assert not in_flight.wait_quiet(time.monotonic() + 0.01)
    assert in_flight.unfinished() == [job]
    with ThreadPoolExecutor(1) as threads:
        quiet = threads.submit(in_flight.wait_quiet, time.monotonic() + 60)
        in_flight.finish(job, job.delivery)
        assert quiet.result(30)
    assert in_flight.unfinished() == []


def test_the_end_finds_what_nobody_has_begun() -> None:
    in_flight, made = filled(3)
    in_flight.begin(made[0])
    assert set(in_flight.emptied()) == set(made[1:])
