"""permit, release and renew: what the whole fleet may take of a limited topic."""

from __future__ import annotations

import pytest

from shardq.calls import limits as calls
from shardq.calls.answers import Missing, Stale
from shardq.calls.limits import Permit
from shardq.calls.request import Call
from shardq.layout.keys import ControlKeys
from shardq.layout.topology import Limit
from tests.lua.shard import EPOCH, NOW, Shard, State, T, at

OPEN: State = {"topology": {"epoch": f"{EPOCH}"}}

RATE, PERMITS = "limits/rate/mail", "limits/permits/mail"


def permit(
    keys: ControlKeys,
    want: int,
    *,
    rate: float | None = None,
    concurrency: int | None = None,
    now_us: str = NOW,
    prefix: str = "me:1:",
    epoch: int = EPOCH,
) -> Call[Permit]:
    return calls.permit(keys, epoch, "mail", Limit(rate, concurrency), want, lease_ms=100, prefix=prefix, now_us=now_us)


def test_without_a_topology_or_with_an_older_one(centre: Shard, control: ControlKeys) -> None:
    with pytest.raises(Missing):
        centre.run(permit(control, 1, concurrency=1))
    centre.seed(OPEN)
    assert centre.ask(permit(control, 1, concurrency=1, epoch=EPOCH - 1)) == ["stale", f"{EPOCH}"]
    with pytest.raises(Stale):
        centre.run(permit(control, 1, concurrency=1, epoch=EPOCH - 1))
    assert centre.state() == OPEN
    # the topology is not a copy here: a newer caller just goes on
    assert centre.run(permit(control, 1, concurrency=1, epoch=EPOCH + 1)) == Permit(1, 0)


def test_concurrency(centre: Shard, control: ControlKeys) -> None:
    centre.seed(OPEN)
    assert centre.ask(permit(control, 2, concurrency=3)) == ["ok", 2, 0]
    assert centre.run(permit(control, 2, concurrency=3, prefix="me:2:")) == Permit(1, 0)
    assert centre.state() == OPEN | {
        RATE: {"clock": f"{T}"},
        PERMITS: {"me:1:1": T + 100, "me:1:2": T + 100, "me:2:1": T + 100},
    }
    # none: when the first lapses, but never later than in 50 ms, as one may be given back
    assert centre.run(permit(control, 2, concurrency=3, now_us=at(20))) == Permit(0, 50)
    assert centre.run(permit(control, 2, concurrency=3, now_us=at(90))) == Permit(0, 10)
    assert centre.run(permit(control, 2, concurrency=3, now_us=at(100), prefix="me:3:")) == Permit(2, 0)
    assert centre.state()[PERMITS] == {"me:3:1": T + 200, "me:3:2": T + 200}


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
        assert centre.ask(calls.release(control, "mail", ["me:1:1", "me:1:3", "none"], unused=0)) == ["ok"]
        assert centre.state()[PERMITS] == {"me:1:2": T + 100}


def test_renewed_they_live_on_and_only_if_they_live(centre: Shard, control: ControlKeys) -> None:
    centre.seed(OPEN)
    centre.run(permit(control, 2, concurrency=3))
    for _ in range(2):
        renewal = calls.renew(control, "mail", ["me:1:1", "gone"], lease_ms=100, now_us=at(60))
        assert centre.ask(renewal) == ["ok"]
        assert centre.state()[PERMITS] == {"me:1:1": T + 160, "me:1:2": T + 100}
    assert centre.ask(calls.renew(control, "mail", [], lease_ms=100, now_us=at(60))) == ["ok"]


def test_a_thousand_permits(centre: Shard, control: ControlKeys) -> None:
    centre.seed(OPEN)
    assert centre.run(permit(control, 5000, concurrency=2000)) == Permit(1000, 0)
    names = [f"me:1:{n}" for n in range(1, 1001)]
    assert centre.state()[PERMITS].keys() == set(names)
    centre.run(calls.renew(control, "mail", names, lease_ms=500, now_us=NOW))
    centre.run(calls.release(control, "mail", names, unused=0))
    assert centre.state() == OPEN | {RATE: {"clock": f"{T}"}}


def test_rate(centre: Shard, control: ControlKeys) -> None:
    centre.seed(OPEN)
    # a tenth of a second's worth at once, and then as time goes by
    assert centre.run(permit(control, 50, rate=100)) == Permit(10, 0)
    assert centre.state() == OPEN | {RATE: {"tokens": "0.000000", "at_us": NOW}}
    assert centre.run(permit(control, 50, rate=100)) == Permit(0, 10)
    assert centre.run(permit(control, 50, rate=100, now_us=at(5))) == Permit(0, 5)
    assert centre.run(permit(control, 50, rate=100, now_us=at(35))) == Permit(3, 0)
    assert centre.run(permit(control, 50, rate=100, now_us=at(9_000))) == Permit(10, 0)


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


def test_unused_ones_do_not_count_for_the_rate(centre: Shard, control: ControlKeys) -> None:
    centre.seed(OPEN)
    centre.run(permit(control, 10, rate=100))
    centre.run(calls.release(control, "mail", [], unused=4))
    assert centre.run(permit(control, 10, rate=100)) == Permit(4, 0)
    centre.do("DEL", control.bucket("mail"))
    centre.run(calls.release(control, "mail", [], unused=4))
    assert centre.state() == OPEN


def test_rate_and_concurrency(centre: Shard, control: ControlKeys) -> None:
    centre.seed(OPEN)
    assert centre.run(permit(control, 50, rate=100, concurrency=4)) == Permit(4, 0)
    # what concurrency forbids costs no tokens
    assert centre.run(permit(control, 50, rate=100, concurrency=4)).granted == 0
    assert centre.state()[RATE]["tokens"] == "6.000000"
    centre.run(calls.release(control, "mail", [f"me:1:{n}" for n in range(1, 5)], unused=0))
    assert centre.run(permit(control, 50, rate=100, concurrency=9)) == Permit(6, 0)
