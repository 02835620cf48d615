"""The worker's table: every job has one verdict, whoever gives it, and nobody waits for nothing."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

from shardq import Backoff
from shardq.model.task import Delivery
from shardq.worker.handlers import Handler
from shardq.worker.job import Job
from shardq.worker.prefetch import STALE_S
from shardq.worker.table import MOST_AT_ONCE, Table
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


def filled(count: int, concurrency: int = 4) -> tuple[Table, list[Job]]:
    table, made = Table(concurrency), jobs(count)
    table.put(made)
    table.offer(made)
    return table, made


def test_a_verdict_once() -> None:
    table, (job,) = filled(1)
    assert table.begin(job)
    timed_out = job.retry(None, "timed out")
    assert table.judge(job, timed_out)
    assert not table.judge(job, job.ack)
    assert table.verdicts() == [(job, timed_out)]
    table.settled([job])
    assert repr(table) == "<Table: 0 running, 0 held, 0 to settle>"


def test_of_many_that_judge_at_once_one_is_heard() -> None:
    table, made = filled(200)
    for job in made:
        assert table.begin(job)
    barrier = threading.Barrier(4)

    def judge_all() -> int:
        barrier.wait()
        return sum(table.judge(job, job.ack) for job in made)

    with ThreadPoolExecutor(4) as threads:
        heard = [threads.submit(judge_all) for _ in range(4)]
        assert sum(each.result() for each in heard) == 200
    assert len(table.verdicts()) == 200
    assert repr(table) == "<Table: 0 running, 0 held, 0 to settle>"


def test_what_was_given_back_is_not_begun() -> None:
    table, (job,) = filled(1)
    assert table.judge(job, job.back())
    assert not table.begin(job)
    assert table.verdicts() == [(job, job.back())]


def test_a_lost_lease_is_settled_with_nobody() -> None:
    table, (job,) = filled(1)
    table.begin(job)
    assert table.judge(job, None)
    assert not table.judge(job, job.ack)
    table.end()
    assert table.verdicts() == []


def test_hands_share_a_backlog_of_quick_jobs() -> None:
    table, _ = filled(100, concurrency=4)
    assert len(table.take()) == 25
    assert len(table.take()) == 18
    table, _ = filled(1000, concurrency=4)
    assert len(table.take()) == MOST_AT_ONCE
    table, _ = filled(3, concurrency=4)
    assert len(table.take()) == 1


def test_slow_jobs_are_taken_one_by_one() -> None:
    table, made = filled(100, concurrency=4)
    table.prefetch.finished(1, 1.0, time.monotonic())
    assert table.take() == made[:1]


def test_an_offer_says_how_many_find_no_hand() -> None:
    table = Table(4)
    made = jobs(3)
    table.put(made)
    assert table.offer(made[:2]) == 2
    assert len(table.take()) == 1
    assert table.offer(made[2:]) == 2


def test_what_lies_too_long_is_stale_also_behind_another() -> None:
    table, made = filled(3)
    (first,) = table.take()
    table.begin(first)
    (behind,) = table.take()
    for job in made:
        job.claimed_at -= STALE_S * 2
    assert set(table.stale()) == {behind, made[2]}
    fresh = jobs(1)
    table.put(fresh)
    table.offer(fresh)
    assert table.take() == fresh


def test_wanting_ends_with_the_fetching() -> None:
    table, _ = filled(4, concurrency=2)
    with ThreadPoolExecutor(1) as threads:
        wanted = threads.submit(table.wanted)
        table.stop_fetching()
        assert wanted.result(30) == 0


def test_a_free_hand_wants_more() -> None:
    table, made = filled(2, concurrency=2)
    for job in made:
        table.begin(job)
    with ThreadPoolExecutor(1) as threads:
        wanted = threads.submit(table.wanted)
        assert not wanted.done()
        table.judge(made[0], made[0].ack)
        assert wanted.result(30) == 1


def test_a_place_that_is_left_when_all_have_begun_wants_more() -> None:
    """None of them may end for hours."""
    table, made = filled(3, concurrency=4)
    with ThreadPoolExecutor(1) as threads:
        wanted = threads.submit(table.wanted)
        assert not wanted.done()
        for job in made:
            table.begin(job)
        assert wanted.result(30) == 1


def test_the_end_wakes_everybody() -> None:
    table = Table(2)
    with ThreadPoolExecutor(4) as threads:
        taking, settling = threads.submit(table.take), threads.submit(table.verdicts)
        watching = threads.submit(table.watched, 60.0)
        wait_until(lambda: taking.running() and settling.running() and watching.running(), "all of them wait")
        table.stop_fetching()
        table.end()
        assert (taking.result(30), settling.result(30), watching.result(30)) == ([], [], None)


def test_quiet_when_the_last_has_its_verdict() -> None:
    table, (job,) = filled(1)
    assert table.wait_quiet(time.monotonic())
    table.begin(job)
    assert not table.wait_quiet(time.monotonic() + 0.01)
    assert table.unfinished() == [job]
    with ThreadPoolExecutor(1) as threads:
        quiet = threads.submit(table.wait_quiet, time.monotonic() + 60)
        table.judge(job, job.ack)
        assert quiet.result(30)
    assert table.unfinished() == []


def test_the_end_finds_what_nobody_has_begun() -> None:
    table, made = filled(3)
    table.begin(made[0])
    assert set(table.emptied()) == set(made[1:])
