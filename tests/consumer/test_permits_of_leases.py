"""A permit of a topic with limited concurrency goes with the lease: whoever has the delivery can settle and extend it,
in whatever process, and the fleet never runs more than the limit. A permit that goes back wakes one who waits for it.
"""

from __future__ import annotations

import pickle
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from shardq import Consumer, Delivery, Engine, LeaseLost, Task
from shardq.core.consumer import claiming, settling
from shardq.core.layout.keys import control_keys, shard_keys
from tests.support.engines import SHARDS, Engines
from tests.support.servers import Servers
from tests.support.states import FAR_S, claim, make_ready, ready_of
from tests.support.waiting import wait_until

LONG_S = 600.0
"""A lease that ends behind every test: nothing here is freed because it lapsed."""

SOON_S = 3.0
"""Below the 5 s after which a consumer that was denied looks by itself."""


def permits(engine: Engine, servers: Servers) -> dict[str, float]:
    """The permits that are held → the instants at which they lapse."""
    keys = control_keys(engine.name)
    return {name.decode(): until for name, until in servers.master(keys.slot).zscan_iter(keys.permits("mail"))}


def deadlines(engine: Engine, servers: Servers) -> list[float]:
    """The ends of all leases."""
    shards = [shard_keys(engine.name, shard) for shard in range(SHARDS)]
    return [until for keys in shards for _, until in servers.master(keys.slot).zscan_iter(keys.leased)]


def carried(delivery: Delivery) -> Delivery:
    """The delivery as it comes to another process."""
    copy: Delivery = pickle.loads(pickle.dumps(delivery))
    return copy


ENDS: dict[str, Callable[[Consumer, Delivery], object]] = {
    "ack": lambda consumer, delivery: consumer.ack(delivery),
    "retry": lambda consumer, delivery: consumer.retry(delivery, delay=FAR_S),
    "bury": lambda consumer, delivery: consumer.bury(delivery, "of no use"),
    "snooze": lambda consumer, delivery: consumer.snooze(delivery, FAR_S),
}


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
def test_whoever_settles_frees_the_place(
    running: Engine, other: Engine, servers: Servers, end: Callable[[Consumer, Delivery], object]
) -> None:
    running.limit("mail", concurrency=1)
    make_ready(running, 2)
    (delivery,) = claim(running.consumer("mail", lease=LONG_S), 1)
    assert other.consumer("mail").claim(1) == []
    end(other.consumer("elsewhere"), carried(delivery))
    assert permits(running, servers) == {}
    assert len(claim(other.consumer("mail"), 1)) == 1


def test_whoever_extends_keeps_the_place(running: Engine, other: Engine, servers: Servers) -> None:
    running.limit("mail", concurrency=1)
    make_ready(running, 2)
    (delivery,) = claim(running.consumer("mail", lease=20), 1)
    other.consumer("elsewhere").extend(carried(delivery), LONG_S)
    ((_, lapse),) = permits(running, servers).items()
    (deadline,) = deadlines(running, servers)
    assert deadline > servers.now_ms(control_keys(running.name).slot) + 100_000
    assert lapse > deadline


def test_no_permit_lapses_before_its_lease(running: Engine, servers: Servers) -> None:
    running.limit("mail", concurrency=8)
    make_ready(running, 8)
    consumer = running.consumer("mail", lease=50)
    deliveries = claim(consumer, 8)
    assert permits(running, servers).keys() == {delivery.token for delivery in deliveries}
    assert min(permits(running, servers).values()) > max(deadlines(running, servers))
    consumer.extend(deliveries[:4], LONG_S)
    lapses = permits(running, servers)
    longer = [lapses[delivery.token] for delivery in deliveries[:4]]
    assert min(longer) > max(deadlines(running, servers))


def test_a_lease_that_was_revoked_keeps_the_place_until_it_is_settled(
    running: Engine, other: Engine, servers: Servers
) -> None:
    """Its handler runs on, though a push has replaced its task."""
    running.limit("mail", concurrency=1)
    running.push("old", topic="mail", id="one")
    (delivery,) = claim(running.consumer("mail", lease=LONG_S), 1)
    running.push("new", topic="mail", id="one", on_conflict="replace")
    wait_until(lambda: ready_of(running, "mail") == 1, "the new one is ready")
    consumer = other.consumer("mail")
    assert consumer.claim(1) == []
    consumer.ack(carried(delivery))
    assert [found.payload for found in claim(consumer, 1)] == ["new"]


def test_a_lease_that_ran_out_and_whose_place_is_taken_is_not_extended(
    running: Engine, other: Engine, servers: Servers
) -> None:
    running.limit("mail", concurrency=1)
    make_ready(running, 2)
    holder, keys = running.consumer("mail", lease=LONG_S), control_keys(running.name)
    (delivery,) = claim(holder, 1)
    # as if it had lapsed
    servers.ask(keys.slot, "ZREM", keys.permits("mail"), delivery.token)
    heir = other.consumer("mail", lease=LONG_S)
    (second,) = claim(heir, 1)
    with pytest.raises(LeaseLost):
        holder.extend(delivery, LONG_S)
    heir.ack(second)
    holder.extend(delivery, LONG_S)
    assert permits(running, servers).keys() == {delivery.token}, "its place was free again"


def test_a_claim_that_took_long_has_its_permits_renewed(
    running: Engine, servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its leases may have begun later than its permits allow for."""
    monkeypatch.setattr(claiming, "LATE_S", -1.0)
    monkeypatch.setattr(settling, "LATE_S", -1.0)
    running.limit("mail", concurrency=3)
    make_ready(running, 5)
    consumer = running.consumer("mail", lease=LONG_S)
    deliveries = claim(consumer, 3)
    assert consumer.claim(5) == []
    assert permits(running, servers).keys() == {delivery.token for delivery in deliveries}
    consumer.extend(deliveries, 2 * LONG_S)
    consumer.ack(deliveries)
    assert permits(running, servers) == {}
    assert len(claim(consumer, 2)) == 2


def test_what_could_not_be_decoded_frees_its_place(running: Engine, servers: Servers) -> None:
    running.limit("mail", concurrency=1)
    (id,) = running.push_many([Task("x", topic="mail")])
    keys = running.topology.shard_of(id)
    wait_until(lambda: ready_of(running, "mail") == 1, "it is ready")
    slot, task = shard_keys(running.name, keys).slot, shard_keys(running.name, keys).task
    servers.ask(slot, "HSET", task, id, b"\x11{")
    consumer = running.consumer("mail", lease=LONG_S)
    wait_until(lambda: consumer.claim(1) == [] and ready_of(running, "mail") == 0, "its attempt has failed")
    assert permits(running, servers) == {}


# ---- waiting


def waits(engine: Engine, servers: Servers) -> bool:
    keys = control_keys(engine.name)
    return bool(servers.ask(keys.slot, "ZCARD", keys.waiting("mail")))


def calls(servers: Servers, engine: Engine) -> int:
    """Scripts that the node of the control slot has run since it began."""
    info = servers.master(control_keys(engine.name).slot).info("commandstats")
    return int(info["cmdstat_evalsha"]["calls"])


def quiet(servers: Servers, engine: Engine) -> Callable[[], bool]:
    """Returns a condition: no script has run there for a second."""
    last, since = -1, 0.0

    def is_quiet() -> bool:
        nonlocal last, since
        if (now := calls(servers, engine)) != last:
            last, since = now, time.monotonic()
        return time.monotonic() - since > 1

    return is_quiet


@pytest.mark.parametrize("end", ["ack", "retry"])
def test_a_permit_that_goes_back_wakes_who_waits_for_it(
    running: Engine, other: Engine, servers: Servers, end: str
) -> None:
    running.limit("mail", concurrency=1)
    make_ready(running, 2)
    holder = running.consumer("mail", lease=LONG_S)
    held = claim(holder, 1)
    with ThreadPoolExecutor(1) as threads:
        claimed: Future[list[Delivery]] = threads.submit(other.consumer("mail").claim, 1, wait=20)
        wait_until(lambda: waits(running, servers), "it waits for a permit")
        began = time.monotonic()
        ENDS[end](holder, held[0])
        assert len(claimed.result(20)) == 1
        assert time.monotonic() - began < SOON_S


@pytest.mark.slow
@pytest.mark.parametrize("url", ["single"], indirect=True)
def test_who_waits_for_a_permit_does_not_poll(running: Engine, other: Engine, servers: Servers) -> None:
    running.limit("mail", concurrency=1)
    make_ready(running, 20)
    consumers = [engine.consumer("mail", lease=LONG_S) for engine in (running, other) for _ in range(4)]
    held = claim(consumers[0], 1)
    ended = threading.Event()
    running.stop()

    def waited(consumer: Consumer) -> list[Delivery]:
        found: list[Delivery] = []
        while not found and not ended.is_set():
            found = consumer.claim(1, wait=20)
        return found

    with ThreadPoolExecutor(8) as threads:
        waiting = [threads.submit(waited, consumer) for consumer in consumers]
        try:
            wait_until(quiet(servers, running), "nobody asks for a second", timeout=20)
            keys = control_keys(running.name)
            assert servers.ask(keys.slot, "ZCARD", keys.waiting("mail")) == 2, "both processes are registered"
            for _ in range(8):
                before = calls(servers, running)
                consumers[0].ack(held)
                wait_until(lambda: sum(each.done() for each in waiting), "one is woken", timeout=SOON_S)
                (woken,) = [each for each in waiting if each.done()]
                waiting.remove(woken)
                held = woken.result()
                assert calls(servers, running) - before < 40, "and not all of them"
        finally:
            ended.set()
            running.limit("mail", None)


def test_all_that_waits_gets_its_turn(running: Engine, other: Engine) -> None:
    """Consumers of one process, too, which the servers wake as one; also when permits go back all at once."""
    count = 12
    running.limit("mail", concurrency=count)
    make_ready(running, 2 * count)
    holder = running.consumer("mail", lease=LONG_S)
    held = claim(holder, count)
    consumers = [engine.consumer("mail", lease=LONG_S) for engine in (running, other) for _ in range(count // 2)]
    with ThreadPoolExecutor(count) as threads:
        waiting = [threads.submit(consumer.claim, 1, wait=30) for consumer in consumers]
        began = time.monotonic()
        holder.ack(held)
        assert sum(len(each.result(30)) for each in waiting) == count
        assert time.monotonic() - began < SOON_S


def test_one_that_was_woken_and_does_not_come_back_passes_it_on(
    running: Engine, other: Engine, servers: Servers
) -> None:
    running.limit("mail", concurrency=1)
    make_ready(running, 2)
    holder = running.consumer("mail", lease=LONG_S)
    (delivery,) = claim(holder, 1)
    # it is registered first, and has left when the permit goes back
    assert other.consumer("mail").claim(1, wait=0.3) == []
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(running.consumer("mail").claim, 1, wait=20)
        keys = control_keys(running.name)
        wait_until(lambda: servers.ask(keys.slot, "ZCARD", keys.waiting("mail")) == 2, "both are registered")
        began = time.monotonic()
        holder.ack(delivery)
        assert len(waiting.result(20)) == 1
        assert time.monotonic() - began < SOON_S


@pytest.mark.parametrize("url", ["single"], indirect=True)
def test_a_worker_keeps_all_its_places_busy(engines: Engines, running: Engine, other: Engine) -> None:
    """Also where a worker in another process waits for the same places."""
    most, count = 3, 60
    running.limit("mail", concurrency=most)
    lock, at_once, most_at_once, done = threading.Lock(), 0, 0, 0

    def handle(delivery: Delivery) -> None:
        nonlocal at_once, most_at_once, done
        with lock:
            at_once += 1
            most_at_once = max(most_at_once, at_once)
        time.sleep(0.01)  # the work
        with lock:
            at_once -= 1
            done += 1

    workers = [engine.worker(concurrency=4, topics=["mail"]) for engine in (running, other)]
    for worker in workers:
        worker.on("mail")(handle)
    with engines.working(workers[0]), engines.working(workers[1]):
        running.push_many([Task(n, topic="mail") for n in range(count)])
        wait_until(lambda: done == count, "all are handled", timeout=30)
    assert most_at_once == most
