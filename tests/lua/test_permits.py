"""permit, release and renew: what the whole fleet may take of a limited topic."""

from __future__ import annotations

import pytest

from shardq.core.calls import consume as calls
from shardq.core.calls.consume import Permit
from shardq.core.calls.request import Call, Epoch, Missing, Stale
from shardq.core.layout.keys import ControlKeys
from shardq.core.layout.topology import Limit, Stamp
from tests.lua.shard import EPOCH, NEWER, NOW, OLDER, Shard, State, T, at

OPEN: State = {"topology": {"epoch": f"{EPOCH}"}}

RATE, PERMITS, WAITING = "limits/rate/mail", "limits/permits/mail", "limits/waiting/mail"

LEASE_MS = 100
LAPSE = T + LEASE_MS + calls.MARGIN_MS
"""When a permit of now lapses: behind its lease."""


def permit(
    keys: ControlKeys,
    want: int,
    *,
    rate: float | None = None,
    concurrency: int | None = None,
    now_us: str = NOW,
    token: str = "me:1",
    waiter: str = "",
    others_wait: bool = False,
    epoch: Epoch = EPOCH,
) -> Call[Permit]:
    return calls.permit(
        *(keys, epoch, "mail", Limit(rate, concurrency), want),
        lease_ms=LEASE_MS,
        token=token,
        waiter=waiter,
        others_wait=others_wait,
    ).at(now_us)


def test_without_a_topology_or_with_an_older_one(centre: Shard, control: ControlKeys) -> None:
    with pytest.raises(Missing):
        centre.run(permit(control, 1, concurrency=1))
    centre.seed(OPEN)
    assert centre.ask(permit(control, 1, concurrency=1, epoch=OLDER)) == ["stale", f"{EPOCH}"]
    with pytest.raises(Stale):
        centre.run(permit(control, 1, concurrency=1, epoch=OLDER))
    assert centre.state() == OPEN
    # the topology is not a copy here: a newer caller just goes on
    assert centre.run(permit(control, 1, concurrency=1, epoch=NEWER)) == Permit(1, 0)


def test_concurrency(centre: Shard, control: ControlKeys) -> None:
    centre.seed(OPEN)
    assert centre.ask(permit(control, 2, concurrency=3)) == ["ok", 2, 0]
    assert centre.run(permit(control, 2, concurrency=3, token="me:2")) == Permit(1, 0)
    assert centre.state() == OPEN | {
        RATE: {"clock": f"{T}"},
        PERMITS: {"me:1#1": LAPSE, "me:1#2": LAPSE, "me:2#1": LAPSE},
    }
    # none: when the first lapses; but who hears nothing looks in 50 ms, as one may go back
    assert centre.run(permit(control, 2, concurrency=3, now_us=at(20))) == Permit(0, 50)
    until_ms = LEASE_MS + calls.MARGIN_MS
    assert centre.run(permit(control, 2, concurrency=3, now_us=at(until_ms - 10))) == Permit(0, 10)
    assert centre.run(permit(control, 2, concurrency=3, now_us=at(until_ms), token="me:3")) == Permit(2, 0)
    assert centre.state()[PERMITS] == {"me:3#1": LAPSE + until_ms, "me:3#2": LAPSE + until_ms}


@pytest.mark.parametrize("concurrency", [1, 0])
def test_a_limit_that_was_lowered_grants_none_until_there_is_room(
    centre: Shard, control: ControlKeys, concurrency: int
) -> None:
    centre.seed(OPEN | {PERMITS: {"a": T + 30, "b": T + 40}})
    assert centre.run(permit(control, 5, concurrency=concurrency)) == Permit(0, 30)


def test_given_back(centre: Shard, control: ControlKeys) -> None:
    centre.seed(OPEN)
    centre.run(permit(control, 3, concurrency=3))
    for _ in range(2):
        assert centre.ask(calls.release(control, 0, "mail", ["me:1#1", "me:1#3", "none"], unused=0)) == ["ok"]
        assert centre.state()[PERMITS] == {"me:1#2": LAPSE}


# ---- waiting


def test_a_process_that_is_denied_is_woken_when_a_permit_goes_back(centre: Shard, control: ControlKeys) -> None:
    centre.seed(OPEN)
    centre.run(permit(control, 2, concurrency=2))
    for n, process in enumerate(("p1", "p2", "p1", "p3")):
        # it needs not look soon
        assert centre.run(permit(control, 2, concurrency=2, waiter=process, now_us=at(n))).again_ms > 2000
    assert centre.state()[WAITING] == {"p1": T, "p2": T + 1, "p3": T + 3}
    with centre.listener(*(control.wake(process) for process in ("p1", "p2", "p3"))) as listener:
        # what was not there, or is back already, wakes nobody
        centre.run(calls.release(control, 0, "mail", ["none"], unused=0))
        assert centre.state()[WAITING].keys() == {"p1", "p2", "p3"}
        centre.run(calls.release(control, 0, "mail", ["me:1#1", "none"], unused=0))
        assert listener.heard() == [(control.wake("p1"), "mail")]
        assert centre.state()[WAITING].keys() == {"p2", "p3"}
        # one that was woken in vain passes it on
        centre.run(calls.release(control, 0, "mail", [], unused=0, wakes=1))
        assert listener.heard() == [(control.wake("p2"), "mail")]
        assert centre.state()[WAITING].keys() == {"p3"}


@pytest.mark.parametrize(("most", "permits"), [(1, {"a": T + 90_000}), (1, {"a": T + 5001}), (0, {})])
def test_who_is_denied_looks_again_in_five_seconds_at_most(
    centre: Shard, control: ControlKeys, most: int, permits: dict[str, int]
) -> None:
    centre.seed(OPEN | ({PERMITS: permits} if permits else {}))
    for waiter, again_ms in (("", 50), ("p1", 5000)):
        assert WAITING not in centre.state()
        assert centre.run(permit(control, 1, concurrency=most, waiter=waiter)) == Permit(0, again_ms)
    centre.do("SET", control.waiting("mail"), "not ours")
    assert centre.run(permit(control, 1, concurrency=most, waiter="p1")) == Permit(0, 5000)


def test_a_process_that_does_not_hear_is_passed_over(centre: Shard, control: ControlKeys) -> None:
    centre.seed(OPEN | {WAITING: {"gone": T - 9, "p1": T - 5}, PERMITS: {"a": T + 50}})
    with centre.listener(control.wake("p1")) as listener:
        centre.run(calls.release(control, 0, "mail", ["a"], unused=0))
        assert listener.heard() == [(control.wake("p1"), "mail")]
    assert centre.state() == OPEN


def test_who_takes_less_than_there_is_wakes_the_next(centre: Shard, control: ControlKeys) -> None:
    centre.seed(OPEN | {WAITING: {"p1": T - 9, "p2": T - 5}})
    with centre.listener(control.wake("p1")) as listener:
        centre.run(permit(control, 1, concurrency=2))
        assert listener.heard() == [(control.wake("p1"), "mail")]
        centre.run(permit(control, 1, concurrency=2, token="me:2"))
        assert centre.state()[WAITING] == {"p2": T - 5}


def test_a_process_with_others_that_wait_is_woken_for_the_next(centre: Shard, control: ControlKeys) -> None:
    centre.seed(OPEN)
    centre.run(permit(control, 1, concurrency=1, waiter="p1"))
    assert WAITING not in centre.state(), "nobody of it waits on"
    centre.run(permit(control, 1, concurrency=2, token="me:2", waiter="p1", others_wait=True))
    assert centre.state()[WAITING] == {"p1": T}


@pytest.mark.parametrize("rate", [100, 105])
def test_a_rate_that_is_used_up_wakes_nobody(centre: Shard, control: ControlKeys, rate: float) -> None:
    centre.seed(OPEN | {WAITING: {"p1": T - 9}})
    with centre.listener(control.wake("p1")) as listener:
        assert centre.run(permit(control, 10, rate=rate, concurrency=50)) == Permit(10, 0)
        assert listener.heard() == []


@pytest.mark.parametrize(("rate", "again_ms"), [(3, 334), (7, 143), (4, 250)])
def test_whole_ms_until_there_is_one(centre: Shard, control: ControlKeys, rate: float, again_ms: int) -> None:
    centre.seed(OPEN | {RATE: {"tokens": "0", "at_us": NOW}})
    assert centre.run(permit(control, 1, rate=rate)) == Permit(0, again_ms)


def test_a_rate_registers_nobody(centre: Shard, control: ControlKeys) -> None:
    """It is known when there are more."""
    centre.seed(OPEN)
    centre.run(permit(control, 1, rate=1))
    assert centre.run(permit(control, 1, rate=1, concurrency=5, waiter="p1")) == Permit(0, 1000)
    assert WAITING not in centre.state()


def test_processes_that_did_not_come_back_for_an_hour_are_forgotten(centre: Shard, control: ControlKeys) -> None:
    centre.seed(OPEN | {WAITING: {"old": T - 3_600_000, "young": T - 3_500_000}, PERMITS: {"a": T + 50}})
    centre.run(permit(control, 1, concurrency=1, waiter="p1"))
    assert centre.state()[WAITING].keys() == {"young", "p1"}


# ---- renewed


def test_renewed_they_lapse_later(centre: Shard, control: ControlKeys) -> None:
    centre.seed(OPEN)
    centre.run(permit(control, 2, concurrency=2))
    for _ in range(2):
        renewal = calls.renew(control, 0, "mail", 2, ["me:1#1"], lease_ms=LEASE_MS).at(at(60))
        assert centre.ask(renewal) == ["ok"]
        assert centre.state()[PERMITS] == {"me:1#1": LAPSE + 60, "me:1#2": LAPSE}
    assert centre.run(calls.renew(control, 0, "mail", 2, [], lease_ms=LEASE_MS).at(at(60))) == set()


def test_one_that_lapsed_has_its_place_again_unless_it_is_taken(centre: Shard, control: ControlKeys) -> None:
    centre.seed(OPEN | {PERMITS: {"theirs": T + 50}})
    renewal = calls.renew(control, 0, "mail", 2, ["a", "b"], lease_ms=LEASE_MS).at(NOW)
    assert centre.ask(renewal) == ["ok", 2]
    assert centre.run(renewal) == {"b"}
    assert centre.state()[PERMITS] == {"theirs": T + 50, "a": LAPSE}
    # nobody has removed this one: its place is its own
    for lapsed in (T - 5, T):
        centre.seed(OPEN | {PERMITS: {"theirs": T + 50, "a": lapsed, "gone": T - 5}})
        assert centre.run(calls.renew(control, 0, "mail", 2, ["a", "b"], lease_ms=LEASE_MS).at(NOW)) == {"b"}
        assert centre.state()[PERMITS] == {"theirs": T + 50, "a": LAPSE, "gone": T - 5}
        centre.do("ZADD", control.permits("mail"), lapsed, "a")
        assert centre.run(calls.renew(control, 0, "mail", 3, ["a", "b", "c"], lease_ms=LEASE_MS).at(NOW)) == {"c"}


def test_a_lower_limit_takes_no_place_from_who_runs(centre: Shard, control: ControlKeys) -> None:
    centre.seed(OPEN | {PERMITS: {"a": T + 50, "b": T + 50}})
    assert centre.run(calls.renew(control, 0, "mail", 1, ["a", "b"], lease_ms=LEASE_MS).at(NOW)) == set()
    assert centre.state()[PERMITS] == {"a": LAPSE, "b": LAPSE}


def test_of_a_limit_that_was_lifted_none_is_refused(centre: Shard, control: ControlKeys) -> None:
    """If it is set again, those count that are still there."""
    centre.seed(OPEN | {PERMITS: {"a": T + 50}})
    assert centre.run(calls.renew(control, 0, "mail", None, ["a", "b"], lease_ms=LEASE_MS).at(NOW)) == set()
    assert centre.state()[PERMITS] == {"a": LAPSE}


def test_a_thousand_permits(centre: Shard, control: ControlKeys) -> None:
    centre.seed(OPEN)
    assert centre.run(permit(control, 5000, concurrency=2000)) == Permit(1000, 0)
    names = [f"me:1#{n}" for n in range(1, 1001)]
    assert centre.state()[PERMITS].keys() == set(names)
    centre.run(calls.renew(control, 0, "mail", 2000, names, lease_ms=500).at(NOW))
    centre.run(calls.release(control, 0, "mail", names, unused=0))
    assert centre.state() == OPEN | {RATE: {"clock": f"{T}"}}


# ---- rate


def test_rate(centre: Shard, control: ControlKeys) -> None:
    centre.seed(OPEN)
    # a tenth of a second's worth at once, and then as time goes by
    assert centre.run(permit(control, 50, rate=100)) == Permit(10, 0)
    assert centre.state() == OPEN | {RATE: {"tokens": "0.000000", "at_us": NOW}}
    assert centre.run(permit(control, 50, rate=100)) == Permit(0, 10)
    assert centre.run(permit(control, 50, rate=100, now_us=at(5))) == Permit(0, 5)
    assert centre.run(permit(control, 50, rate=100, now_us=at(35))) == Permit(3, 0)
    assert centre.run(permit(control, 50, rate=100, now_us=at(9_000))) == Permit(10, 0)


def test_those_that_wait_for_a_rate_have_turns(centre: Shard, control: ControlKeys) -> None:
    centre.seed(OPEN | {RATE: {"tokens": "0", "at_us": NOW}})

    def again_ms(waiter: str, now_us: str = NOW) -> int:
        permit_of = centre.run(permit(control, 1, rate=10, waiter=waiter, now_us=now_us))
        assert permit_of.granted == 0
        return permit_of.again_ms

    assert [again_ms(f"p{n}") for n in range(4)] == [100, 200, 300, 400]
    assert again_ms("") == 100, "who does not wait has no turn"
    # a turn is a second behind the first at most: those before it may be gone
    assert [again_ms(f"p{n}") for n in range(4, 14)] == [*range(500, 1101, 100), 1100, 1100, 1100]
    assert centre.state()[RATE]["turn_ms"] == f"{T + 1100}.000"
    # as it is used up, turns go on; after a pause they begin anew
    assert centre.run(permit(control, 1, rate=10, waiter="p0", now_us=at(100))).granted == 1
    assert again_ms("p0", at(100)) == 1100
    assert centre.run(permit(control, 1, rate=10, waiter="p1", now_us=at(9_000))).granted == 1
    assert again_ms("p1", at(9_000)) == 100


def test_turns_of_a_clock_that_was_ahead(centre: Shard, control: ControlKeys) -> None:
    centre.seed(OPEN | {RATE: {"tokens": "0", "at_us": NOW, "turn_ms": f"{T + 9_000_000}"}})
    assert centre.run(permit(control, 1, rate=10, waiter="p0")).again_ms == 1100


def test_a_second_at_a_rate_gives_that_many(centre: Shard, control: ControlKeys) -> None:
    centre.seed(OPEN | {RATE: {"tokens": "0", "at_us": NOW}})
    granted = [centre.run(permit(control, 3, rate=40, now_us=at(ms))).granted for ms in range(5, 1001, 5)]
    assert sum(granted) == 40


def test_a_rate_below_one_a_second(centre: Shard, control: ControlKeys) -> None:
    centre.seed(OPEN)
    assert centre.run(permit(control, 5, rate=0.5)) == Permit(1, 0)
    assert centre.run(permit(control, 5, rate=0.5)) == Permit(0, 2000)
    assert centre.run(permit(control, 5, rate=0.5, now_us=at(2000))) == Permit(1, 0)


def test_a_small_rate_gives_its_permit_however_often_it_is_asked_for(centre: Shard, control: ControlKeys) -> None:
    centre.seed(OPEN | {RATE: {"tokens": "0", "at_us": NOW}})
    for ms in range(1, 400):
        assert centre.run(permit(control, 1, rate=1 / 3600, now_us=at(ms))).granted == 0
    assert centre.run(permit(control, 1, rate=1 / 3600, now_us=at(3_600_000))).granted == 1


def test_a_clock_that_goes_back_gives_nothing(centre: Shard, control: ControlKeys) -> None:
    centre.seed(OPEN | {RATE: {"tokens": "0", "at_us": at(5000)}})
    assert centre.run(permit(control, 5, rate=100)).granted == 0
    assert centre.state()[RATE] == {"tokens": "0.000000", "at_us": NOW}


def test_unused_ones_do_not_count_for_the_rate(centre: Shard, control: ControlKeys) -> None:
    centre.seed(OPEN)
    centre.run(permit(control, 10, rate=100))
    centre.run(calls.release(control, 0, "mail", [], unused=4))
    assert centre.run(permit(control, 10, rate=100)) == Permit(4, 0)
    centre.do("DEL", control.bucket("mail"))
    centre.run(calls.release(control, 0, "mail", [], unused=4))
    assert centre.state() == OPEN


def test_who_used_all_writes_no_tokens(centre: Shard, control: ControlKeys) -> None:
    before = OPEN | {RATE: {"tokens": "3.000000", "at_us": NOW}}
    centre.seed(before)
    centre.run(calls.release(control, 0, "mail", ["none"], unused=0))
    assert centre.state() == before


def test_rate_and_concurrency(centre: Shard, control: ControlKeys) -> None:
    centre.seed(OPEN)
    assert centre.run(permit(control, 50, rate=100, concurrency=4)) == Permit(4, 0)
    # what concurrency forbids costs no tokens
    assert centre.run(permit(control, 50, rate=100, concurrency=4)).granted == 0
    assert centre.state()[RATE]["tokens"] == "6.000000"
    centre.run(calls.release(control, 0, "mail", [f"me:1#{n}" for n in range(1, 5)], unused=0))
    assert centre.run(permit(control, 50, rate=100, concurrency=9)) == Permit(6, 0)


@pytest.mark.parametrize(
    ("stored", "known", "is_stale"),
    [
        ("3:a:e", "3:a:e", False),
        ("3:a:e", "4:b:e", False),
        ("3:a:e", "3:b:e", True),
        ("3:a:e", "2:b:e", True),
        ("3:a:e", "4:b:x", True),
    ],
    ids=["the same", "a newer one", "another change of this epoch", "an older one", "another engine"],
)
def test_permits_go_by_one_topology(
    centre: Shard, control: ControlKeys, stored: str, known: str, is_stale: bool
) -> None:
    centre.seed({"topology": {"epoch": stored}})
    answer = centre.ask(permit(control, 1, concurrency=2, epoch=Stamp(known)))
    assert answer[:2] == (["stale", stored] if is_stale else ["ok", 1])
