"""A server's clock goes back, or ahead: lengths of time go by the steady clock, due times by the server's."""

from __future__ import annotations

import uuid

import pytest

from shardq.core.calls import by_id, consume, resharding
from shardq.core.calls.consume import Permit, SettleAck
from shardq.core.layout.keys import ControlKeys, ShardKeys
from shardq.core.layout.topology import Limit
from tests.lua.shard import EPOCH, Shard, State, T, at, meta, named, record
from tests.lua.test_dispatch import dispatch

A = record("a")

HOUR = 3_600_000
LEASE = 30_000

READY: State = {"task": {"a": A, "b": A}, "ready/": ["a", "b"]}


def claimed(shard: Shard, keys: ShardKeys, ms: int, *, token: str = "tok", lease_ms: int = LEASE) -> list[str]:
    """The ids of a claim of one, ``ms`` after T."""
    call = consume.claim(keys, EPOCH, {"": 1}, max=1, lease_ms=lease_ms, token=token).at(at(ms))
    return shard.run(call).ids


def reaped(shard: Shard, keys: ShardKeys, ms: int) -> int:
    return shard.run(dispatch(keys, now_us=at(ms))).reaped


@pytest.mark.parametrize("back", [1, 1000, LEASE, HOUR, T])
def test_a_lease_of_the_dead_holds_no_longer(shard: Shard, keys: ShardKeys, back: int) -> None:
    shard.seed({"meta": meta()} | READY)
    assert reaped(shard, keys, 0) == 0
    assert claimed(shard, keys, 0) == ["a"]
    assert reaped(shard, keys, -back) == 0
    answer = shard.run(dispatch(keys, now_us=at(LEASE - 1 - back)))
    assert answer.reaped == 0
    assert answer.next_us == (T + LEASE - back) * 1000, "the poller comes when it has run out"
    assert reaped(shard, keys, LEASE - back) == 1


def test_a_lease_given_before_anybody_noted_the_step(shard: Shard, keys: ShardKeys) -> None:
    """It counts from where the clock was; nobody's lease runs out early, and none is longer than it would be then."""
    shard.seed({"meta": meta()} | READY)
    assert claimed(shard, keys, 0) == ["a"]
    assert claimed(shard, keys, 5 - HOUR, token="new") == ["b"]
    assert reaped(shard, keys, 10 - HOUR) == 0
    assert reaped(shard, keys, 9 - HOUR + LEASE) == 0
    assert reaped(shard, keys, 10 - HOUR + LEASE) == 2


def test_a_lease_that_is_extended_after_the_step(shard: Shard, keys: ShardKeys) -> None:
    shard.seed({"meta": meta()} | READY)
    assert claimed(shard, keys, 0) == ["a"]
    assert reaped(shard, keys, -HOUR) == 0
    extend = consume.extend(keys, EPOCH, [SettleAck("a", "tok")], lease_ms=LEASE).at(at(20_000 - HOUR))
    assert shard.run(extend) == {}
    assert reaped(shard, keys, 20_000 + LEASE - 1 - HOUR) == 0
    assert reaped(shard, keys, 20_000 + LEASE - HOUR) == 1


def test_back_twice_and_ahead_again(shard: Shard, keys: ShardKeys) -> None:
    shard.seed({"meta": meta()} | READY)
    assert reaped(shard, keys, -HOUR) == 0
    assert reaped(shard, keys, -3 * HOUR) == 0
    assert claimed(shard, keys, -3 * HOUR) == ["a"]
    assert reaped(shard, keys, LEASE - 1 - 3 * HOUR) == 0
    # a step ahead ends leases before their time: the task is given out again
    assert reaped(shard, keys, 0) == 1


def test_the_clock_is_noted_once_a_second_and_when_it_went_back(shard: Shard, keys: ShardKeys) -> None:
    shard.seed({"meta": meta(wake_at="")})
    for ms, after in (
        (0, meta(wake_at="")),
        (999, meta(wake_at="")),
        (1000, meta(wake_at="", clock=T + 1000)),
        (900, meta(wake_at="", clock=T + 1000, ahead=100)),
        (950, meta(wake_at="", clock=T + 1000, ahead=100)),
        (1900, meta(wake_at="", clock=T + 2000, ahead=100)),
    ):
        shard.run(dispatch(keys, now_us=at(ms)))
        assert shard.state() == {"meta": after}


def test_what_is_told_of_a_lease_is_by_the_servers_clock(shard: Shard, keys: ShardKeys) -> None:
    shard.seed({"meta": meta()} | READY)
    claimed(shard, keys, 0)
    for ms in (5 - HOUR, 10 - HOUR):
        found = shard.run(by_id.get(keys, EPOCH, "a").at(at(ms)))
        assert found is not None
        assert found.instant_ms == T + ms + LEASE
    shard.run(dispatch(keys, now_us=at(10 - HOUR)))
    found = shard.run(by_id.get(keys, EPOCH, "a").at(at(20 - HOUR)))
    assert found is not None
    assert found.instant_ms == T + 10 - HOUR + LEASE


def pushed(shard: Shard, keys: ShardKeys, ms: int, *, dedup_ms: int = 10_000) -> list[str]:
    """What becomes of an id that is not there; ``ms`` after T."""
    call = by_id.push_unique(keys, EPOCH, ["a", 0, A, "keep", dedup_ms]).at(at(ms))
    answer: list[str] = shard.ask(call)[1:]
    shard.do("DEL", keys.task, keys.due)
    return answer


def test_a_dedup_window_is_no_longer_open_than_it_was_to_be(shard: Shard, keys: ShardKeys) -> None:
    shard.seed({"meta": meta()})
    assert pushed(shard, keys, 0) == ["pushed"]
    shard.run(dispatch(keys, now_us=at(-HOUR)))
    assert pushed(shard, keys, 9_999 - HOUR) == ["seen"]
    assert pushed(shard, keys, 10_000 - HOUR) == ["pushed"]
    shard.run(dispatch(keys, now_us=at(19_999 - HOUR)))
    assert "seen" in shard.state()
    shard.run(dispatch(keys, now_us=at(20_000 - HOUR)))
    assert "seen" not in shard.state(), "it is trimmed"


def test_dedup_windows_that_move_from_a_clock_to_another(shard: Shard, keys: ShardKeys) -> None:
    shard.seed({"meta": meta(ahead=HOUR, clock=T + HOUR)})
    windows = {"a": f"{T + 2 * HOUR + 5000}.5"}
    for _ in range(2):
        shard.run(resharding.remember(keys, EPOCH, windows, ahead_ms=2 * HOUR).at(at(0)))
        assert shard.state()["seen"] == {"a": T + HOUR + 5000.5}


def test_who_waits_keeps_its_place(shard: Shard, keys: ShardKeys) -> None:
    def wait(process: str, ms: int) -> None:
        call = consume.claim(keys, EPOCH, {"": 1}, max=1, lease_ms=1, token="t", waiter=process).at(at(ms))
        shard.run(call)

    shard.seed({"meta": meta()})
    wait("first", 0)
    shard.run(dispatch(keys, now_us=at(-HOUR)))
    wait("second", 10 - HOUR)
    assert list(shard.state()["waiting/"]) == ["first", "second"]
    # and one that did not come back is forgotten after an hour, not two
    wait("third", 0)
    assert list(shard.state()["waiting/"]) == ["second", "third"]


def test_a_permit_of_the_dead_holds_no_longer(centre: Shard, control: ControlKeys) -> None:
    def ask(ms: int, prefix: str) -> Permit:
        limit = Limit(None, 1)
        call = consume.permit(control, EPOCH, "mail", limit, 1, lease_ms=LEASE, token=prefix).at(at(ms))
        return centre.run(call)

    centre.seed({"topology": {"epoch": f"{EPOCH}"}})
    assert ask(0, "a") == Permit(1, 0)
    assert ask(-HOUR, "b") == Permit(0, 50)
    length = LEASE + consume.MARGIN_MS
    assert ask(length - 10 - HOUR, "b") == Permit(0, 10)
    centre.run(consume.renew(control, 0, "mail", 1, ["a#1"], lease_ms=LEASE).at(at(length - 5 - HOUR)))
    assert ask(length - HOUR, "b") == Permit(0, 50)
    assert ask(2 * length - 5 - HOUR, "b") == Permit(1, 0)


def test_a_permit_that_is_renewed_before_anybody_asks(centre: Shard, control: ControlKeys) -> None:
    centre.seed({"topology": {"epoch": f"{EPOCH}"}})
    limit = Limit(None, 1)

    def ask(ms: int, prefix: str) -> Permit:
        call = consume.permit(control, EPOCH, "mail", limit, 1, lease_ms=LEASE, token=prefix).at(at(ms))
        return centre.run(call)

    ask(0, "a")
    centre.run(consume.renew(control, 0, "mail", 1, ["a#1"], lease_ms=LEASE).at(at(20_000)))
    centre.run(consume.renew(control, 0, "mail", 1, ["a#1"], lease_ms=LEASE).at(at(30_000 - HOUR)))
    assert ask(30_000 + LEASE + consume.MARGIN_MS - 1 - HOUR, "b").granted == 0
    assert ask(30_000 + LEASE + consume.MARGIN_MS - HOUR, "b").granted == 1


def test_a_rate_goes_on_from_where_the_clock_is(centre: Shard, control: ControlKeys) -> None:
    def ask(ms: int) -> int:
        call = consume.permit(control, EPOCH, "mail", Limit(100, None), 5, lease_ms=1, token="a").at(at(ms))
        return centre.run(call).granted

    centre.seed({"topology": {"epoch": f"{EPOCH}"}, "limits/rate/mail": {"tokens": "0", "at_us": at(0)}})
    assert ask(-HOUR) == 0
    assert ask(30 - HOUR) == 3
    # ahead: no more than a tenth of a second's worth
    assert ask(HOUR) + ask(HOUR) + ask(HOUR) == 10


def test_a_due_time_is_an_instant(shard: Shard, keys: ShardKeys) -> None:
    """Never early by the server's clock, however far that goes back; and a step ahead makes it due."""
    shard.seed({"meta": meta()})
    shard.run(by_id.push(keys, EPOCH, ["a", -50, A]).at(at(0)))
    shard.run(dispatch(keys, now_us=at(-HOUR)))
    assert shard.run(dispatch(keys, now_us=at(49))).moved == 0
    assert shard.run(dispatch(keys, now_us=at(HOUR))).moved == 1


@pytest.mark.parametrize(("ms", "noted"), [(0, 0), (999, 0), (1000, 1000), (1001, 1001), (-1, 0)])
def test_it_is_noted_once_a_second(shard: Shard, keys: ShardKeys, ms: int, noted: int) -> None:
    shard.seed({"meta": meta(ahead=5)})
    shard.run(dispatch(keys, now_us=at(ms - 5)))
    ahead = 6 if ms < 0 else 5
    fields = shard.state()["meta"]
    assert (fields["clock"], fields["ahead"]) == (f"{T + noted}", f"{ahead}")


@pytest.mark.parametrize("noted", [T + 5000, T - 5000], ids=["it went back", "it went on"])
@pytest.mark.parametrize("command", ["HSET", "HDEL"])
def test_a_clock_that_may_not_be_noted(shard: Shard, keys: ShardKeys, noted: int, command: str) -> None:
    """All else is done; the next one notes it."""
    shard.seed({"meta": meta(clock=noted), "task": {"a": A}, "due": {"a": T}})
    user = f"u{uuid.uuid4().hex}"
    shard.do("ACL", "SETUSER", user, "on", "nopass", "+@all", f"-{command.lower()}", "allchannels", "allkeys")
    with shard.as_user(user) as asker:
        assert named(asker.ask(dispatch(keys)))["moved"] == 1
    shard.do("ACL", "DELUSER", user)
    assert shard.state()["ready/"] == ["a"]


def test_what_ran_out_before_the_clock_went_back_has_run_out(shard: Shard, keys: ShardKeys) -> None:
    """Also for the dispatch that notes it."""
    held = {"a": T + 5000, "b": T + 5001}
    shard.seed(
        {
            "meta": meta(clock=T + 5000),
            "task": dict.fromkeys(held, A),
            "leased": held,
            "lease": dict.fromkeys(held, "0:0::tok"),
            "seen": {"old": T + 5000, "new": T + 9000},
        }
    )
    answer = shard.run(dispatch(keys))
    assert (answer.reaped, answer.next_us) == (1, (T + 1) * 1000)
    state = shard.state()
    assert (state["leased"], state["seen"]) == ({"b": T + 5001}, {"new": T + 9000})


def test_the_end_of_a_window_is_told_by_the_clock_of_the_server(shard: Shard, keys: ShardKeys) -> None:
    shard.seed({"meta": meta(clock=T + 5000, ahead=5000), "seen": {"a": T + 9000}})
    assert shard.run(dispatch(keys)).next_us == (T + 4000) * 1000
