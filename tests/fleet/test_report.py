"""Reports: what is stored of them, within 8 KiB, and when they are sent."""

from __future__ import annotations

import time

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardq.core.fleet import report as module
from shardq.core.fleet.lateness import BINS, MOST_TOPICS, OTHERS, Lateness, TopicLateness
from shardq.core.fleet.report import (
    MOST_BYTES,
    Report,
    Reports,
    RouteStats,
    RunningTask,
    UnknownCall,
    decode,
    dense,
    encode,
    runs,
    shards_of,
    sparse,
)

BASE = Report(host="h", pid=1, version="1", since=1.5, alive_s=3.0)


@given(st.sets(st.integers(0, 1023)))
def test_shards_as_runs(shards: set[int]) -> None:
    assert shards_of(runs(shards)) == tuple(sorted(shards))


@given(st.lists(st.integers(0, 10**9), max_size=BINS), st.integers(0, 9))
def test_a_histogram_comes_back(counts: list[int], early: int) -> None:
    stored = sparse(Lateness(tuple(counts), early))
    back = dense(stored)
    assert Lateness.total([back]).count == sum(counts)
    assert (back.early, back.p50_ms, back.p99_ms, back.max_ms) == (
        early,
        *(getattr(Lateness(tuple(counts)), name) for name in ("p50_ms", "p99_ms", "max_ms")),
    )


def test_what_another_version_has_stored_does_no_harm() -> None:
    assert dense([0, 10**9, 5]).counts == (0,) * BINS
    assert dense([]) == Lateness()
    assert decode(b"\xff") is None
    assert decode(msgspec.msgpack.encode({"host": "h"})) is None
    known = msgspec.to_builtins(BASE) | {"of_a_later_version": 1}
    assert decode(msgspec.msgpack.encode(known)) == BASE


def test_the_largest_report_fits_and_counts_every_task() -> None:
    full = {f"{n:0>64}": [0, *(word for at in range(BINS) for word in (at, 2**31))] for n in range(200)}
    text = encode(
        msgspec.structs.replace(
            BASE,
            host="h" * 500,
            shards=runs(range(0, 1024, 2)),
            topics=tuple(full),
            error="é" * 5000,
            unknown=tuple(UnknownCall(task="é" * 500, topic="t" * 64, count=n, seconds=1e6) for n in range(50)),
            longest=tuple(RunningTask(id="é" * 500, topic="t" * 64, seconds=n) for n in range(50)),
            problems=("é" * 500,) * 50,
            tasks=tuple("é" * 100 + str(n) for n in range(500)),
            dispatch=full,
            pickup=full,
            key_wait=full,
        )
    )
    assert len(text) <= MOST_BYTES
    back = decode(text)
    assert back is not None
    assert back.topics[-1] == OTHERS
    assert [call.count for call in back.unknown] == [49 - n for n in range(len(back.unknown))]
    assert [task.seconds for task in back.longest] == [49 - n for n in range(len(back.longest))]
    assert shards_of(back.shards) == tuple(range(0, 1024, 2))
    for histograms in (back.dispatch, back.pickup, back.key_wait):
        assert Lateness.total(map(dense, histograms.values())).count == 200 * BINS * 2**31


def test_an_error_that_is_no_valid_text_is_sent() -> None:
    back = decode(encode(msgspec.structs.replace(BASE, error="caf\udce9 failed", host="h\ud800")))
    assert back is not None
    assert (back.error, back.host) == ("caf? failed", "h?")


def test_unknown_calls_and_long_tasks_are_bounded_and_cut() -> None:
    back = decode(
        encode(
            msgspec.structs.replace(
                BASE,
                unknown=tuple(UnknownCall(task="x" * 500, topic="mail", count=n, seconds=1) for n in range(20)),
                longest=tuple(RunningTask(id="x" * 500, topic="mail", seconds=n) for n in range(20)),
                problems=("x" * 500,) * 20,
                tasks=("x" * 500, *(f"shop.task{n}" for n in range(20))),
                sinks=tuple(RouteStats(topic=f"t{n}", to="nats://n") for n in range(20)),
            )
        )
    )
    assert back is not None
    assert [(len(call.task), call.count) for call in back.unknown] == [(120, 19 - n) for n in range(8)]
    assert [(len(task.id), task.seconds) for task in back.longest] == [(120, 19 - n) for n in range(4)]
    assert [len(problem) for problem in back.problems] == [120] * 4
    assert back.tasks == (*(f"shop.task{n}" for n in range(20)), OTHERS), "a name that is cut is none"
    assert (len(back.sinks), back.forwards) == (16, 20)


def test_the_topics_with_most_tasks_are_named() -> None:
    counts = {f"t{n}": [0, 5, n + 1] for n in range(MOST_TOPICS + 10)}
    back = decode(encode(msgspec.structs.replace(BASE, dispatch=counts)))
    assert back is not None
    assert set(back.dispatch) == {f"t{n}" for n in range(10, MOST_TOPICS + 10)} | {OTHERS}
    assert back.dispatch[OTHERS] == [0, 5, sum(range(1, 11))]


def test_a_process_remembers_sixty_four_topics_and_the_rest_together() -> None:
    lateness = TopicLateness()
    for n in range(MOST_TOPICS + 5):
        lateness.note([(f"t{n}", 2)], oldest_ms=3, newest_ms=3)
    seen = lateness.snapshot()
    assert len(seen) == MOST_TOPICS + 1
    assert seen["t0"].count == 2
    assert seen[OTHERS].count == 10


class Process:
    """What a process would report."""

    def __init__(self) -> None:
        self.now = time.monotonic()
        self.handled = 0
        self.shards: tuple[int, ...] = ()
        self.reports = Reports(
            lambda alive_s: msgspec.structs.replace(BASE, alive_s=alive_s, handled=self.handled, shards=self.shards)
        )

    def beat(self, *, arrives: bool = True) -> bool:
        """Sends a heartbeat. Returns True if a report goes with it."""
        text = self.reports.next(self.now, 3.0)
        if arrives:
            self.reports.sent(text, self.now)
        return text != b""


@pytest.fixture
def process() -> Process:
    return Process()


def test_a_report_is_sent_once_and_when_it_has_changed(process: Process) -> None:
    assert process.beat()
    assert not process.beat()
    process.now += 1000
    assert not process.beat()
    process.handled = 1
    assert process.beat()
    assert not process.beat()


def test_counters_wait_and_shards_do_not(process: Process) -> None:
    assert process.beat()
    process.handled = 1
    assert not process.beat()
    assert not process.reports.has_news(3.0)
    process.shards = (0, 3)
    assert process.reports.has_news(3.0)
    assert process.beat()
    process.handled = 2
    process.now += module.LEAST_GAP_S
    assert process.beat()


def test_what_did_not_arrive_is_sent_again(process: Process) -> None:
    assert process.beat(arrives=False)
    assert process.beat()
    process.reports.forgotten()
    assert process.reports.has_news(3.0)
    assert process.beat()
