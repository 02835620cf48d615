"""Every shard has one poller among several processes, whichever of them starts, stops or dies."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator

import pytest

from shardq import Engine, Task
from shardq.core.dispatcher.membership import PERIOD_S
from shardq.core.layout.keys import control_keys, shard_keys
from tests.dispatcher.shards import id_in, mine
from tests.support.servers import Servers
from tests.support.states import state_of
from tests.support.waiting import wait_until
from tests.support.workers import Worker

SHARDS = 8


@pytest.fixture
def engine(url: str, name: str) -> Iterator[Engine]:
    with Engine(url, name=name, shards=SHARDS, timeout=10.0) as engine:
        yield engine


@pytest.fixture
def other(engine: Engine, url: str, name: str) -> Iterator[Worker]:
    """Another process that dispatches."""
    with Worker("tests.support.dispatching", url, name, SHARDS) as worker:
        assert worker.said()
        yield worker


def members(servers: Servers, name: str) -> list[str]:
    keys = control_keys(name)
    return [member.decode() for member in servers.ask(keys.slot, "ZRANGE", keys.members, 0, -1)]


def served(engine: Engine, shards: Collection[int] = range(SHARDS)) -> bool:
    """Whether a task due now becomes ready in half a second in all of these shards, whoever does it."""
    ids = {shard: id_in(engine, shard) for shard in shards}
    receipts = engine.push_many([Task("x", id=id, on_conflict="replace") for id in ids.values()])
    assert len(receipts) == len(shards)
    deadline = time.monotonic() + 0.5
    while time.monotonic() < deadline:
        if all(state_of(engine, id) == "ready" for id in ids.values()):
            return True
    return False


ALL = set(range(SHARDS))


def test_two_processes_share_the_shards_evenly(engine: Engine, other: Worker, servers: Servers, name: str) -> None:
    engine.start()
    wait_until(lambda: len(mine(engine)) == SHARDS // 2, "this process serves a half")
    wait_until(
        lambda: len(known := sorted(engine.stats().dispatchers)) == 2 and known == sorted(members(servers, name)),
        "both are known",
    )
    wait_until(lambda: served(engine), "every shard is served")
    other.stop()
    wait_until(lambda: mine(engine) == ALL, "this process serves them all")


def test_two_engines_of_one_process_split_without_overlap(engine: Engine, url: str, name: str) -> None:
    with Engine(url, name=name) as second, Engine(url, name=name) as third:
        for each in (engine, second, third):
            each.start()

        def split() -> bool:
            owned = [mine(each) for each in (engine, second, third)]
            return sorted(map(len, owned)) == [2, 3, 3] and set.union(*owned) == ALL

        wait_until(split, "each shard has one poller")
        second.stop()

        def shared() -> bool:
            one, other = mine(engine), mine(third)
            return len(one) == len(other) == 4 and one | other == ALL

        wait_until(shared, "the two that are left share")


@pytest.mark.slow
def test_the_shards_of_a_killed_process_are_served_again(engine: Engine, other: Worker) -> None:
    engine.start()
    wait_until(lambda: len(mine(engine)) == SHARDS // 2, "this process serves a half")
    own = mine(engine)
    other.kill()
    undisturbed = 0

    def taken_over() -> bool:
        nonlocal undisturbed
        goes_on = served(engine, own)
        if mine(engine) == ALL:
            return True
        undisturbed += goes_on
        return False

    # three seconds it takes to notice, and does not depend on anything but the heartbeats
    wait_until(taken_over, "this process serves them all", timeout=15)
    assert undisturbed >= 3  # those who live were served all the time, not only after the takeover
    wait_until(lambda: served(engine), "every shard is served")


def test_a_process_that_stops_is_replaced_at_once(engine: Engine, url: str, name: str) -> None:
    with Engine(url, name=name) as second:
        engine.start()

        def at_once() -> bool:
            second.start()
            wait_until(lambda: len(mine(engine)) == len(mine(second)) == SHARDS // 2, "they share")
            second.stop()
            stopped = time.monotonic()
            wait_until(lambda: mine(engine) == ALL, "the other one serves them all")
            return time.monotonic() - stopped < 0.4

        # without being told it would take until the next beat, a second after the one that met the newcomer
        wait_until(lambda: at_once() and at_once(), "it is told, and does not find out by itself")


@pytest.mark.slow
def test_a_heartbeat_from_the_future_does_not_live_forever(engine: Engine, servers: Servers, name: str) -> None:
    keys = control_keys(name)
    ahead_ms = int(servers.now_ms(keys.slot)) + 3_600_000
    servers.ask(keys.slot, "ZADD", keys.members, ahead_ms, "ghost-of-another-clock")
    engine.start()
    wait_until(lambda: mine(engine) == ALL, "all shards are served by the living")
    wait_until(lambda: len(members(servers, name)) == 1, "the ghost is gone")


def test_members_stand_while_their_slot_can_not_be_reached(
    engine: Engine, servers: Servers, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    engine.start()
    wait_until(lambda: mine(engine) == ALL, "all shards are served")
    keys = control_keys(name)
    servers.ask(keys.slot, "RENAME", keys.members, f"{keys.prefix}elsewhere")
    servers.ask(keys.slot, "SET", keys.members, "not a sorted set")

    def said() -> list[str]:
        fails, again = "the heartbeat fails, keeping the present shards", "the heartbeat works again"
        texts = [record.getMessage() for record in caplog.records]
        return [kind for text in texts for kind in (fails, again) if text.startswith(kind)]

    wait_until(lambda: "fails" in "".join(said()[-1:]), "the log says it")
    wait_until(lambda: served(engine), "all shards are served meanwhile")
    assert "fails" in said()[-1]
    servers.ask(keys.slot, "DEL", keys.members, f"{keys.prefix}elsewhere")
    wait_until(lambda: "again" in said()[-1], "the log says it")
    # once an outage, not once a beat; a server that stands still for a second is one too
    assert ["again" in text for text in said()] == [False, True] * (len(said()) // 2)
    wait_until(lambda: mine(engine) == ALL, "all shards are still served")


def test_a_stopped_process_leaves_nothing_of_itself(engine: Engine, servers: Servers, name: str) -> None:

    def signed_off() -> bool:
        engine.start()
        assert members(servers, name)
        engine.stop()
        return members(servers, name) == []

    # signing off may fail where the server stands still just then; who never does leaves a name each time
    wait_until(signed_off, "no name is left")
    assert shard_keys(name, 0).prefix.encode() + b"meta" in servers.held(name)


def test_who_is_alone_sends_few_heartbeats_and_hears_at_once_of_another(
    engine: Engine, servers: Servers, url: str, name: str
) -> None:
    keys = control_keys(name)

    def left_s(process: str) -> float:
        """The seconds for which a process still counts as alive."""
        return (float(servers.ask(keys.slot, "ZSCORE", keys.members, process) or 0) - servers.now_ms(keys.slot)) / 1000

    engine.start()
    (process,) = engine.stats().dispatchers
    wait_until(lambda: left_s(process) > PERIOD_S, "it knows that it is alone")
    with Engine(url, name=name) as second:
        second.start()
        # it gives the first one no more time than any other has
        wait_until(lambda: left_s(process) <= PERIOD_S, "its time is cut")
        wait_until(lambda: len(mine(engine)) == len(mine(second)) == SHARDS // 2, "they share")
        assert left_s(process) <= PERIOD_S
    wait_until(lambda: left_s(process) > PERIOD_S, "it is alone again")


@pytest.mark.slow
def test_one_that_was_alone_and_was_killed_is_replaced_soon(
    engine: Engine, other: Worker, servers: Servers, name: str
) -> None:
    keys = control_keys(name)

    def left_s() -> float:
        [(_, until_ms)] = servers.ask(keys.slot, "ZRANGE", keys.members, 0, -1, "WITHSCORES")
        return (float(until_ms) - servers.now_ms(keys.slot)) / 1000

    wait_until(lambda: left_s() > PERIOD_S, "it knows that it is alone")
    other.kill()
    engine.start()
    assert mine(engine) != ALL, "the dead one counts as alive"
    wait_until(lambda: mine(engine) == ALL, "this process serves them all", timeout=15)
