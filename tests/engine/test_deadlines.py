"""A call ends when its time is over: every public call of both engines, on servers that are frozen, gone or slow,
before and after the engine was opened. A call that was late beside all others is measured again, alone: it may be the
machine.
"""

from __future__ import annotations

import contextlib
import inspect
import time
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from cluster.cluster import Cluster
from cluster.server import Server
from shardq import Consumer, Delivery, Engine, PushError, Resize, ShardqError, Task
from shardq.core.layout.keys import control_keys, shard_keys
from tests.support.engines import Engines
from tests.support.proxies import Proxy
from tests.support.waiting import wait_until

TIMEOUT_S = 1.0
SLACK_S = 0.5
"""The promise: the timeout, and so much more."""

WAIT_S = 0.5
SHARDS = 8
TRIES = 3
"""The measurements of a call that was late."""


def _deliveries() -> list[Delivery]:
    """Two of each shard, whose leases are gone."""
    numbers = range(2 * SHARDS)
    return [Delivery(f"nobody-{n}", "", n, 1, {}, f"token-{n}", n % SHARDS, 0, 0, ()) for n in numbers]


def _many() -> list[Task]:
    return [Task(n, delay=60) for n in range(400)]


def _settled(consumer: Consumer) -> None:
    with consumer.settling(_deliveries()):
        pass


def _listened(consumer: Consumer) -> None:
    for _ in consumer:
        break


def _buffered(engine: Engine) -> None:
    with engine.buffered() as buffer:
        buffer.push("x").result()


@dataclass(frozen=True)
class Row:
    call: Callable[[Engine, Consumer], object]
    within: float = TIMEOUT_S
    """The time that it has."""


def on_engine(call: Callable[[Engine], object], within: float = TIMEOUT_S) -> Row:
    return Row(lambda engine, consumer: call(engine), within)


def on_consumer(call: Callable[[Consumer], object], within: float = TIMEOUT_S) -> Row:
    return Row(lambda engine, consumer: call(consumer), within)


ROWS = {
    "open": [on_engine(lambda engine: engine.open())],
    "start": [on_engine(lambda engine: engine.start())],
    "push": [
        on_engine(lambda engine: engine.push("x")),
        on_engine(lambda engine: engine.push("x", id="mine", dedup=60)),
        on_engine(lambda engine: engine.push("x", durability="replicated")),
    ],
    "push_many": [
        on_engine(lambda engine: engine.push_many(_many())),
        on_engine(lambda engine: engine.push_many([Task(n, id=str(n), delay=60) for n in range(100)])),
        on_engine(lambda engine: engine.push_many(_many(), durability="fsynced")),
    ],
    "push_iter": [on_engine(lambda engine: next(iter(engine.push_iter(_many()))))],
    "buffered": [on_engine(_buffered)],
    "get": [on_engine(lambda engine: engine.get("x"))],
    "cancel": [on_engine(lambda engine: engine.cancel("x"))],
    "reschedule": [on_engine(lambda engine: engine.reschedule("x", delay=1))],
    "requeue": [on_engine(lambda engine: engine.requeue("x"))],
    "tasks": [on_engine(lambda engine: engine.tasks())],
    "dead": [on_engine(lambda engine: next(iter(engine.dead()), None))],
    "changes": [on_engine(lambda engine: engine.changes())],
    "history": [on_engine(lambda engine: engine.history())],
    "forecast": [on_engine(lambda engine: engine.forecast())],
    "cancel_all": [
        on_engine(lambda engine: engine.cancel_all(everything=True)),
        on_engine(lambda engine: engine.cancel_all(tag="x")),
    ],
    "requeue_all": [on_engine(lambda engine: engine.requeue_all(everything=True))],
    "reschedule_all": [on_engine(lambda engine: engine.reschedule_all(everything=True, delay=1))],
    "purge": [on_engine(lambda engine: engine.purge("mail"))],
    "forward": [on_engine(lambda engine: engine.forward("mail", to="list"))],
    "pause": [on_engine(lambda engine: engine.pause("mail"))],
    "resume": [on_engine(lambda engine: engine.resume("mail"))],
    "keys": [on_engine(lambda engine: engine.keys("mail"))],
    "hold": [on_engine(lambda engine: engine.hold("mail", key="ann", until=None))],
    "limit": [on_engine(lambda engine: engine.limit("mail", rate=1))],
    "configure": [on_engine(lambda engine: engine.configure(max_attempts=9))],
    "resize": [
        on_engine(lambda engine: engine.resize(SHARDS + 1)),
        on_engine(lambda engine: engine.resize(SHARDS - 1)),
        on_engine(lambda engine: engine.resize(SHARDS + 1, dry_run=True)),
        on_engine(lambda engine: engine.resize(dry_run=True)),
        on_engine(lambda engine: engine.resize(dry_run=True).progress(), 2 * TIMEOUT_S),
        on_engine(lambda engine: engine.resize(dry_run=True).done(), 2 * TIMEOUT_S),
        on_engine(lambda engine: engine.resize(dry_run=True).wait(timeout=WAIT_S), WAIT_S + TIMEOUT_S),
    ],
    "export": [on_engine(lambda engine: next(iter(engine.export())))],
    "restore": [
        on_engine(lambda engine: engine.restore(['{"payload": 1}', '{"id": "x", "state": "ready", "payload": 1}']))
    ],
    "stats": [on_engine(lambda engine: engine.stats())],
    "health": [on_engine(lambda engine: engine.health())],
    "fleet": [on_engine(lambda engine: engine.fleet())],
    "every": [on_engine(lambda engine: engine.every("nightly", interval=60))],
    "schedules": [on_engine(lambda engine: engine.schedules())],
    "schedule": [
        on_engine(lambda engine: engine.schedule("nightly").pause()),
        on_engine(lambda engine: engine.schedule("nightly").resume()),
        on_engine(lambda engine: engine.schedule("nightly").remove()),
        on_engine(lambda engine: engine.schedule("nightly").run()),
        on_engine(lambda engine: engine.schedule(owner="billing").prune(keep=[])),
    ],
    "stop": [on_engine(lambda engine: engine.stop())],
    "close": [on_engine(lambda engine: engine.close())],
    "consumer": [on_engine(lambda engine: engine.consumer())],
    "consumer.claim": [
        on_consumer(lambda consumer: consumer.claim(1)),
        on_consumer(lambda consumer: consumer.claim(100)),
        on_consumer(lambda consumer: consumer.claim(1, wait=WAIT_S), WAIT_S + TIMEOUT_S),
    ],
    "consumer.ack": [on_consumer(lambda consumer: consumer.ack(_deliveries()))],
    "consumer.retry": [on_consumer(lambda consumer: consumer.retry(_deliveries(), delay=1))],
    "consumer.snooze": [on_consumer(lambda consumer: consumer.snooze(_deliveries(), 60))],
    "consumer.hold": [on_consumer(lambda consumer: consumer.hold(_deliveries(), 60))],
    "consumer.bury": [on_consumer(lambda consumer: consumer.bury(_deliveries(), "of no use"))],
    "consumer.extend": [on_consumer(lambda consumer: consumer.extend(_deliveries(), 60))],
    "consumer.settling": [on_consumer(_settled)],
    "consumer.close": [on_consumer(lambda consumer: consumer.close())],
}
"""Public name → its calls."""

NO_CALLS = {
    "name", "topology", "task", "worker",  # Nothing is sent.
}  # fmt: skip

STEPS_THROUGH_ALL = {("purge", 0), ("cancel_all", 1)}
"""Calls that go through all tasks, and report at the end alone: each of their requests ends in time."""

CALLS = [(name, number) for name, rows in ROWS.items() for number in range(len(rows))]


def test_every_public_call_has_a_row() -> None:
    public = {name for name in dir(Engine) if not name.startswith("_")}
    public |= {f"consumer.{name}" for name in dir(Consumer) if not name.startswith("_")}
    assert public - NO_CALLS == set(ROWS)
    assert {name for name, member in inspect.getmembers(Resize, inspect.isroutine) if not name.startswith("_")} == {
        "progress", "done", "wait",
    }  # fmt: skip


class Table:
    """The calls, each with an engine of its own, so that none meets what another has done."""

    def __init__(
        self,
        engines: Engines,
        url: str,
        name: str,
        opened: bool,
        *,
        leave_out: Collection[tuple[str, int]] = (),
        spools: Path | None = None,
    ) -> None:
        self._engines = engines
        self._rows: dict[tuple[str, int], tuple[Row, Engine, Consumer | None]] = {}
        for call in CALLS:
            if call in leave_out or (call[0] == "buffered" and engines.kind == "asyncio"):
                continue
            row = ROWS[call[0]][call[1]]
            number = len(self._rows)
            spool = None if spools is None else spools / str(number)
            engine = engines.make(url, name=f"{name}-{number}", shards=SHARDS, timeout=TIMEOUT_S, spool=spool)
            if opened:
                engine.open()
            needs = call[0].startswith("consumer.") and (opened or engines.kind == "asyncio")
            self._rows[call] = row, engine, engine.consumer() if needs else None

    def late(self) -> dict[str, float]:
        """Makes all calls, and measures again those that were late. Returns the time of those that are."""
        with ThreadPoolExecutor(len(self._rows)) as threads:
            took = dict(zip(self._rows, threads.map(self._measured, self._rows), strict=True))
        for _ in range(TRIES):
            for call in [call for call, seconds in took.items() if seconds > self._rows[call][0].within + SLACK_S]:
                took[call] = self._measured(call)
        return {
            f"{name} {number}": round(took[name, number], 2)
            for name, number in took
            if took[name, number] > self._rows[name, number][0].within + SLACK_S
        }

    def _measured(self, call: tuple[str, int]) -> float:
        row, engine, consumer = self._rows[call]
        began = time.monotonic()
        with contextlib.suppress(ShardqError, StopIteration):
            if call[0].startswith("consumer.") and consumer is None:
                consumer = engine.consumer()
            self._engines.done(row.call(engine, consumer))  # type: ignore[arg-type]  # those that need one have it
        return time.monotonic() - began


@pytest.fixture(params=["opened", "not opened"])
def opened(request: pytest.FixtureRequest) -> bool:
    return bool(request.param == "opened")


@contextlib.contextmanager
def frozen(server: Server) -> Iterator[None]:
    server.pause()
    try:
        yield
    finally:
        server.resume()


def test_a_frozen_server(engines: Engines, own_server: Server, name: str, opened: bool) -> None:
    table = Table(engines, own_server.url, name, opened)
    with frozen(own_server):
        assert table.late() == {}


def test_a_frozen_server_and_a_spool(engines: Engines, own_server: Server, name: str, tmp_path: Path) -> None:
    table = Table(engines, own_server.url, name, True, spools=tmp_path)
    with frozen(own_server):
        assert table.late() == {}
    engines.close()


def test_a_cluster_without_an_answer(engines: Engines, lasting_cluster: Cluster, name: str, opened: bool) -> None:
    table = Table(engines, lasting_cluster.url, name, opened)
    with contextlib.ExitStack() as all_frozen:
        for node in lasting_cluster.masters:
            all_frozen.enter_context(frozen(node))
        assert table.late() == {}


def test_a_frozen_node_of_three(engines: Engines, lasting_cluster: Cluster, name: str, opened: bool) -> None:
    table = Table(engines, lasting_cluster.url, name, opened)
    with frozen(lasting_cluster.masters[0]):
        assert table.late() == {}


def test_a_server_that_refuses_connections(engines: Engines, own_server: Server, name: str, opened: bool) -> None:
    table = Table(engines, own_server.url, name, opened)
    own_server.kill()
    assert table.late() == {}


def test_a_slow_server(engines: Engines, own_server: Server, name: str, opened: bool) -> None:
    with Proxy(own_server.address) as proxy:
        table = Table(engines, proxy.url, name, opened, leave_out=STEPS_THROUGH_ALL)
        proxy.delay_s = 0.9 * TIMEOUT_S
        assert table.late() == {}
        proxy.mend()
        engines.close()


def test_what_other_nodes_answer_is_kept(engines: Engines, lasting_cluster: Cluster, name: str) -> None:
    engine = engines.opened(lasting_cluster.url, name=name, shards=SHARDS, timeout=4.0)
    slots = [shard_keys(name, shard).slot for shard in range(SHARDS)]
    control = lasting_cluster.node_of_slot(control_keys(name).slot)
    victim = next(node for node in map(lasting_cluster.node_of_slot, slots) if node is not control)
    silent = {shard for shard, slot in enumerate(slots) if lasting_cluster.node_of_slot(slot) is victim}
    ids = [f"mine-{n}" for n in range(400)]
    lost = {id for id in ids if engine.topology.shard_of(id) in silent}
    engine.push_many([Task(n, delay=60) for n in range(400)])
    with frozen(victim):
        with pytest.raises(PushError) as caught:
            engine.push_many([Task(n, id=id, delay=60) for n, id in enumerate(ids)])
        stats = engine.stats()
        health = engine.health()
    assert set(caught.value.stored) == set(ids) - lost
    assert set(caught.value.unknown) | set(caught.value.failed) == lost
    for seen in (stats, health.stats):
        assert {shard.shard for shard in seen.shards if shard.error} == silent
    wait_until(lambda: not any(shard.error for shard in engine.stats().shards), "all answer again")
    assert all(engine.get(id) is not None for id in caught.value.stored)
    assert all(engine.get(id) is None for id in caught.value.failed)
