"""Proxies in front of the server: one breaks and stalls connections, another does not pass every command on.

What shardq can do without (subscribing, publishing, names of connections, the settings of the server) is reported by
stats(); what it needs is named at open.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from threading import Timer

import pytest

from cluster.server import Server
from shardq import Engine, LeaseLost, ServerFault, ShardqError, Task
from shardq.errors import NotReplicated, ServerTooOld
from tests.support.engines import Engines
from tests.support.proxies import Proxy
from tests.support.states import claim
from tests.support.waiting import wait_until

SHARDS = 4

OPTIONAL = ("CLIENT", "CONFIG", "WAIT", "SSUBSCRIBE", "SPUBLISH", "PUBSUB")
"""What a proxy may keep to itself."""


@pytest.fixture
def proxy(single: Server) -> Iterator[Proxy]:
    with Proxy(single.address) as proxy:
        yield proxy


def came_through(engine: Engine, ids: Sequence[str]) -> None:
    """Each of these is claimed and acknowledged, and nothing else."""
    consumer = engine.consumer()
    given = claim(consumer, len(ids))
    assert sorted(delivery.id for delivery in given) == sorted(ids)
    consumer.ack(given)


# ---- broken and slow connections


@pytest.mark.slow
def test_a_server_far_away_is_dispatched_in_large_batches(proxy: Proxy, name: str) -> None:
    """Every trip is slow here, whatever it carries. Batches that shrink for that need two minutes and more."""
    with Engine(proxy.url, name=name, shards=1, timeout=30.0) as engine:
        engine.push_many([Task(n) for n in range(2000)])
        proxy.delay_s = 0.06
        engine.start()
        wait_until(lambda: engine.stats().ready == 2000, "all are ready", timeout=30.0)
        proxy.mend()


@pytest.mark.slow
def test_idle_connections_that_are_dropped(engines: Engines, proxy: Proxy, name: str) -> None:
    engine = engines.opened(proxy.url, name=name, shards=SHARDS, timeout=30.0)
    engine.start()
    for _ in range(3):
        came_through(engine, engine.push_many([Task(n, delay=0.1) for n in range(40)]))
        came_through(engine, [engine.push("y", delay=0.1)])
        assert proxy.drop() > 1
    wait_until(lambda: engine.health().ok, "all is well again")
    assert engine.stats().leased == 0


@pytest.mark.slow
def test_a_reset_in_the_middle_of_an_answer(engines: Engines, proxy: Proxy, name: str) -> None:
    """A claim whose answer is cut off gave its tasks to nobody: they come back with their lease, once more each."""
    engine = engines.opened(proxy.url, name=name, shards=SHARDS, timeout=30.0)
    ids = engine.push_many([Task("x" * 2000) for _ in range(50)])
    engine.start()
    wait_until(lambda: engine.stats().ready == len(ids), "all are ready")
    consumer = engine.consumer(lease=1.0)
    proxy.cut_after = 20_000
    mending = Timer(0.3, proxy.mend)
    mending.start()
    done: set[str] = set()

    def all_done() -> bool:
        given = consumer.claim(50, wait=0.1)
        ids_given = {delivery.id for delivery in given}
        try:
            consumer.ack(given)
        except LeaseLost as exc:  # it took longer than the lease: they come again
            ids_given -= set(exc.ids)
        done.update(ids_given)
        return len(done) == len(ids)

    wait_until(all_done, "every task was given out")
    mending.join()
    assert done == set(ids)


@pytest.mark.parametrize("left", [0, 1, 3])
def test_a_push_whose_answer_is_cut_off_is_stored_once(engines: Engines, proxy: Proxy, name: str, left: int) -> None:
    engine = engines.opened(proxy.url, name=name, shards=SHARDS, timeout=30.0)
    engine.push("warm", delay=9000)
    proxy.cut_after = left
    mending = Timer(0.3, proxy.mend)
    mending.start()
    ids = engine.push_many([Task(n, delay=9000) for n in range(30)])
    mending.join()
    assert len(set(ids)) == 30
    assert engine.stats().scheduled == 1 + 30


# ---- commands that are not passed on


def test_what_is_optional(engines: Engines, single: Server, name: str) -> None:
    with Proxy(single.address, refused=("HELLO", *OPTIONAL)) as proxy:
        engine = engines.opened(proxy.url, name=name, shards=SHARDS, protocol=2)
        engine.start()
        came_through(engine, engine.push_many([Task(n, delay=0.1) for n in range(5)]))

        def told() -> list[str]:
            return [text for text in engine.health().warnings if "hear nothing" in text]

        (text,) = wait_until(told, "it is told that nothing is heard")
        assert text.startswith(
            f"{proxy.address} lets this process hear nothing, so due tasks and changes are looked for"
        )
        assert "SSUBSCRIBE" in text
        assert engine.health().ok
        engine.close()


def test_it_is_heard_again(engines: Engines, own_server: Server, name: str) -> None:
    own_server.ask("ACL", "SETUSER", "me", "on", ">secret9", "~*", "&*", "+@all", "-ssubscribe")
    engine = engines.opened(f"redis://me:secret9@{own_server.address}", name=name, shards=SHARDS)
    engine.start()
    wait_until(lambda: any("hear nothing" in text for text in engine.health().warnings), "it is not subscribed")
    own_server.ask("ACL", "SETUSER", "me", "+ssubscribe")
    wait_until(lambda: engine.health().warnings == [], "it hears")


def test_a_user_who_may_not_publish(
    engines: Engines, own_server: Server, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """What it pushes rings no poller: without a word it would be late."""
    own_server.ask("ACL", "SETUSER", "me", "on", ">secret9", "~*", "&*", "+@all", "-spublish")
    engine = engines.opened(f"redis://me:secret9@{own_server.address}", name=name, shards=SHARDS)
    (text,) = engine.health().warnings
    assert text.startswith(f"{own_server.address} lets this process publish nothing, so what it pushes rings no poller")
    assert "secret9" not in text
    own_server.ask("ACL", "SETUSER", "me", "+spublish")
    assert engine.health().warnings == []


@pytest.mark.parametrize(
    ("command", "error", "told"),
    [
        ("HELLO", ServerTooOld, "behind a proxy that speaks RESP2 only, set protocol=2"),
        ("EVALSHA", ServerFault, "unknown command 'NO-EVALSHA'.*a proxy in between may not pass it on"),
    ],
)
def test_what_is_needed(
    engines: Engines, single: Server, name: str, command: str, error: type[ShardqError], told: str
) -> None:
    with Proxy(single.address, refused=[command]) as proxy, pytest.raises(error, match=told):
        engines.opened(proxy.url, name=name, shards=SHARDS, timeout=10.0)


@pytest.mark.usefixtures("replica")
def test_copies_that_can_t_be_asked(engines: Engines, own_server: Server, name: str) -> None:
    """Nothing is wrong with the replica: it is the question that is refused."""
    with Proxy(own_server.address, refused=["WAIT"]) as proxy:
        engine = engines.opened(proxy.url, name=name, shards=SHARDS)
        with pytest.raises(NotReplicated, match=r"can't be asked: .*unknown command 'NO-WAIT'.* a proxy in between"):
            engine.push("x", delay=9000, durability="replicated")
        assert engine.stats().scheduled == 1
        engine.close()
