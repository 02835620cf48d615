"""Which occurrences are pushed, and when: the clock is an argument."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardq.core.model.record import JSON, decode_record, encode_record, with_expiry
from shardq.features.schedules.entry import Declaration, Entry, State, declared, decode_entry, encode
from shardq.features.schedules.every import CatchUp
from shardq.features.schedules.occurrences import (
    DAY_MS,
    GRACE_MS,
    HORIZON_MS,
    HOUR_MS,
    LEAD_MS,
    MOST,
    Plan,
    dedup_ms,
    next_occurrence,
    plan,
)
from tests.support.heads import encode_head

T = 1_700_000_000_000 // HOUR_MS * HOUR_MS


def entry(*, interval_ms: int = 60_000, since_ms: int = T, name: str = "tick", **options: Any) -> Entry:
    declaration = Declaration(
        cron=None,
        interval_ms=interval_ms,
        tz="UTC",
        topic=options.pop("topic", ""),
        jitter_ms=options.pop("jitter_ms", 0),
        catch_up=options.pop("catch_up", "one"),
        record=encode_record(JSON, {"n": 1}),
    )
    by_it: dict[str, Any] = {"times": declaration.times, "topic": declaration.topic, "jitter_ms": declaration.jitter_ms}
    by_it |= {"tasks": declaration.tasks, "pushed": len(options.get("batch", ()))}
    state = State(**{"generation": 1, "since_ms": since_ms, "changed_ms": since_ms} | by_it | options)
    return Entry(name, declaration, state, encode(state))


def planned(of: Entry, now_ms: int) -> Plan:
    return plan(of, of.declaration.timetable(), now_ms)


def test_the_next_occurrence_is_pushed_ahead_of_its_time() -> None:
    assert planned(entry(), T) == Plan([], T + 60_000 - LEAD_MS)
    assert planned(entry(), T + 60_000 - LEAD_MS - 1) == Plan([], T + 60_000 - LEAD_MS)
    assert planned(entry(), T + 60_000 - LEAD_MS) == Plan([T + 60_000], None)


def test_short_intervals_are_pushed_together() -> None:
    tick = entry(interval_ms=1000)
    assert planned(tick, T).push == [T + 1000 * n for n in range(1, HORIZON_MS // 1000 + 1)]


MISSED = T + 10 * 60_000 + 30_000
"""Ten occurrences of a minute were missed by then, and the next is in half a minute."""


@pytest.mark.parametrize(
    ("catch_up", "push"),
    [("one", [T + 600_000]), ("all", [T + 60_000 * n for n in range(1, 11)]), ("none", [])],
)
def test_what_was_missed(catch_up: CatchUp, push: list[int]) -> None:
    assert planned(entry(catch_up=catch_up), MISSED).push == push


def test_one_of_the_missed_and_those_to_come() -> None:
    tick = entry(interval_ms=5000)
    assert planned(tick, T + 3_600_000 + 1).push == [T + 3_600_000 + 5000 * n for n in range(5)]


def test_none_of_the_missed_and_those_to_come() -> None:
    tick = entry(interval_ms=5000, catch_up="none")
    assert planned(tick, T + 3_600_000 + GRACE_MS).push == [T + 3_600_000 + 5000 * n for n in range(1, 5)]
    assert planned(tick, T + 3_600_000 + GRACE_MS - 1).push[0] == T + 3_600_000
    assert planned(entry(catch_up="none"), MISSED) == Plan([], T + 11 * 60_000 - LEAD_MS)


def test_millions_that_were_missed_are_no_work() -> None:
    late = T + 365 * DAY_MS
    assert planned(entry(interval_ms=100), late + 50).push[0] == late
    assert planned(entry(interval_ms=100, catch_up="none"), late).push[0] >= late - GRACE_MS
    every = planned(entry(interval_ms=100, catch_up="all"), late).push
    assert (len(every), every[0]) == (MOST, T + 100)


def test_a_jitter_is_the_same_for_everybody_and_never_early() -> None:
    jittery = entry(jitter_ms=60_000)
    dues = [jittery.due(T + 60_000 * n) - (T + 60_000 * n) for n in range(200)]
    assert dues == [entry(jitter_ms=60_000).due(T + 60_000 * n) - (T + 60_000 * n) for n in range(200)]
    assert min(dues) >= 0
    assert max(dues) < 60_000
    assert len(set(dues)) > 150
    other = entry(jitter_ms=60_000, name="other")
    assert [other.due(T + 60_000 * n) - (T + 60_000 * n) for n in range(200)] != dues


def test_ids_say_the_occurrence() -> None:
    assert entry().id_of(T) == "every-tick@2023-11-14T22:00:00Z"
    assert entry(topic="mail").id_of(T + 500) == "mail/every-tick@2023-11-14T22:00:00.500Z"
    assert entry(generation=3).id_of(T) == "every-tick@2023-11-14T22:00:00Z~3"


def test_ids_are_remembered_for_longer_where_they_come_seldom() -> None:
    assert dedup_ms(entry(interval_ms=1000), [T, T + 1000]) == HOUR_MS
    assert dedup_ms(entry(last_ms=T - DAY_MS), [T]) == 30 * DAY_MS


def test_the_last_and_the_next_one() -> None:
    tick = entry(batch=(T, T + 60_000), since_ms=T + 60_000)
    timetable = tick.declaration.timetable()
    assert (tick.last(T - 1), tick.last(T), tick.last(T + 60_000)) == (None, T, T + 60_000)
    assert next_occurrence(tick, timetable, T - 1) == T
    assert next_occurrence(tick, timetable, T) == T + 60_000
    assert next_occurrence(tick, timetable, T + 60_000) == T + 120_000
    assert next_occurrence(entry(paused=True), timetable, T) is None


# ---- changes


def test_declaring_the_same_changes_nothing() -> None:
    tick = entry()
    assert declared(tick, tick.declaration, T + 5) is None
    state, declaration = declared(None, tick.declaration, T + 5) or (None, None)
    assert state == State(generation=1, since_ms=T + 5, changed_ms=T + 5, times=tick.declaration.times)
    assert declaration == msgspec.structs.replace(tick.declaration, declared_ms=T + 5)


def redeclared(tick: Entry, now_ms: int, **changes: Any) -> Entry:
    state, declaration = declared(tick, msgspec.structs.replace(tick.declaration, **changes), now_ms) or (None, None)
    assert state is tick.state, "how far it is stays as it was"
    assert declaration is not None
    return Entry(tick.name, declaration, tick.state, tick.stored)


def test_another_payload_goes_on_where_the_first_was() -> None:
    tick = entry(since_ms=T + 60_000, batch=(T + 60_000,))
    other = redeclared(tick, T + 55_000, record=b"\x11{}")
    assert not other.is_renewed
    state = other.renewed(T + 55_000)
    assert (state.generation, state.since_ms, state.batch) == (2, T + 60_000, ())
    assert state.retract == ((tick.id_of(T + 60_000), T + 60_000, True),)
    held = other.following(state).retracted({tick.id_of(T + 60_000)})
    assert (held.batch, held.pushed, held.retract) == ((T + 60_000,), 0, ()), "it is pushed again, however late"
    ran = other.following(state).retracted(set())
    assert (ran.batch, ran.last_ms) == ((), T + 60_000)
    soon = other.renewed(T + 59_500)
    assert (soon.retract, [at for _, at, _ in soon.stay]) == ((), [T + 60_000]), "it stays, and can be paused still"
    paused = other.following(soon).changed(T + 59_600, paused=True)
    assert paused.retract == ((tick.id_of(T + 60_000), T + 60_000, False),)
    late = other.renewed(T + 60_000)
    assert (late.since_ms, late.retract, late.stay, late.last_ms) == (T + 60_000, (), (), T + 60_000), "it has run"


def test_another_timetable_begins_when_it_is_declared() -> None:
    tick = entry(interval_ms=10_000, since_ms=T + 20_000, batch=(T + 10_000, T + 20_000))
    other = redeclared(tick, T + 5, interval_ms=7000)
    state = other.renewed(T + 50)
    assert (state.since_ms, [again for *_, again in state.retract]) == (T + 5, [False, False])
    assert planned(other.following(state), T + 50).push[0] == T + 7000 - T % 7000
    assert other.renewed(T + 9500).since_ms == T + 10_000, "what runs in a moment is not doubled"


def test_what_may_not_overlap_is_planned_anew() -> None:
    tick = entry(since_ms=T + 60_000, batch=(T, T + 60_000), last_id="x")
    state = redeclared(tick, T + 5, overlap="skip").renewed(T + 5)
    assert (state.since_ms, state.last_id) == (T + 60_000 - 1, "x")
    assert state.retract == ((tick.id_of(T + 60_000), T + 60_000, False),)


def test_what_is_not_surely_pushed_is_retracted() -> None:
    tick = entry(batch=(T, T + 60_000), since_ms=T + 60_000, pushed=0)
    state = tick.changed(T + 5, paused=True)
    assert [at for _, at, _ in state.retract] == [T, T + 60_000]
    assert (state.paused, state.batch, state.generation) == (True, (), 2)


def test_a_removed_one_comes_back_with_other_ids() -> None:
    removed = entry(removed=True, generation=4, since_ms=T + 5)
    state, _ = declared(removed, removed.declaration, T + 9) or (None, None)
    assert state is not None
    assert (state.removed, state.generation, state.since_ms) == (False, 5, T + 9)


def test_what_is_stored_comes_back() -> None:
    tick = entry(retract=(("a/b", T, True),), held=("c",), last_ms=5, stay=(("d", T, T + 5),))
    assert decode_entry("tick", tick.stored, encode(tick.declaration)) == tick


def test_a_record_gets_an_expiry() -> None:
    record = with_expiry(encode_record(JSON, {"n": 1}), T)
    assert decode_record(record).payload == {"n": 1}
    assert record[0] & 0b1000
    headed = with_expiry(encode_record(JSON, {"n": 1}, encode_head(max_attempts=3)), T)
    assert (decode_record(headed).payload, decode_record(headed).content.max_attempts) == ({"n": 1}, 3)
    assert len(headed) > len(record)


# ---- a life against the plainest way to say it


@settings(max_examples=60)
@given(
    st.sampled_from([700, 1000, 4000, 60_000, 3_600_000]),
    st.lists(st.integers(1, 400_000), min_size=1, max_size=30),
    st.sampled_from(["one", "all", "none"]),
    st.integers(0, 700),
)
def test_each_occurrence_once_whenever_somebody_looks(
    interval_ms: int, sleeps: list[int], catch_up: CatchUp, jitter_ms: int
) -> None:
    now, pushed = T, list[tuple[int, int]]()
    tick = entry(interval_ms=interval_ms, catch_up=catch_up, jitter_ms=jitter_ms)
    for sleep in sleeps:
        now += sleep
        while push := planned(tick, now).push:
            pushed += ((at, now) for at in push)
            state = tick.intending(push, now)
            state = msgspec.structs.replace(state, pushed=len(state.batch))
            tick = Entry(tick.name, tick.declaration, state, encode(state))
    every = range(T // interval_ms * interval_ms + interval_ms, now + HORIZON_MS + 1, interval_ms)
    times = [at for at, _ in pushed]
    assert times == sorted(set(times)), "each once, in order"
    assert set(times) <= set(every)
    if catch_up == "all":
        assert times == [at for at in every if at <= tick.state.since_ms]
        assert all(at in times for at in every if at <= now + LEAD_MS)
    late = [(at, when) for at, when in pushed if tick.due(at) <= when]
    if catch_up == "one":
        assert len({when for _, when in late}) == len(late), "one for all that were missed"
        assert all(at in times for at in every if now < at <= now + LEAD_MS)
    if catch_up == "none":
        assert all(when - tick.due(at) < GRACE_MS for at, when in late)
