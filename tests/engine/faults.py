"""A fault for each row of the table of findings. A fault is made on real servers and parts, yields how to look at it,
and is undone; where ``shardq doctor --fix`` mends it, that undoes it.
"""

from __future__ import annotations

import resource
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from cluster.ports import free_port
from cluster.server import Server
from shardq import Engine, Task, outbox
from shardq.core.dispatcher import poller
from shardq.core.drivers import descriptors
from shardq.core.fleet import report
from shardq.core.fleet.report import Report, encode
from shardq.core.layout import formats
from shardq.core.layout.keys import ControlKeys, ShardKeys, control_keys, shard_keys
from shardq.core.layout.topology import Topology
from shardq.core.model.record import RAW, encode_record
from shardq.engine import health
from shardq.features.far import far as of_engine
from shardq.features.far import rows
from shardq.features.far import statements as sql
from shardq.outbox import OutboxRelay
from shardq.relay import table_rows
from shardq.relay.database import open_database
from shardq.worker import report as reporter
from tests.support.states import FAR_S, claim, put, ready_of
from tests.support.waiting import wait_until
from tests.support.worlds import SHARDS, World

SEEN_S = 60.0


@dataclass
class Looked:
    """How a fault is looked at: by which engine, and with which bounds."""

    engine: Engine
    bounds: Mapping[str, Any] = field(default_factory=dict)


Fault = Iterator[Looked]

FAULTS: dict[str, Callable[..., Fault]] = {}
"""Row → what makes its fault in a world."""

ON_TUNED: dict[str, Callable[..., Fault]] = {}
"""Likewise, in a world and on a server that may be set up otherwise."""


def fault(of: dict[str, Callable[..., Fault]], *names: str) -> Callable[[Callable[..., Fault]], Callable[..., Fault]]:
    def note(make: Callable[..., Fault]) -> Callable[..., Fault]:
        of.update(dict.fromkeys(names, make))
        return make

    return note


in_a_world = partial(fault, FAULTS)
on_a_server = partial(fault, ON_TUNED)


def keys_of(world: World, id: str = "", *, shard: int = 0, keyed: bool = False) -> ShardKeys:
    return shard_keys(world.name, world.engine.topology.shard_of(id) if id else shard, keyed=keyed)


# ---- processes and shards


@in_a_world("no_dispatcher")
def nobody_dispatches(world: World) -> Fault:
    yield Looked(world.engine)
    world.engine.start()


@in_a_world("overdue")
def due_long_ago(world: World) -> Fault:
    world.engine.push("x", at=time.time() - 100)
    yield Looked(world.engine)
    world.engine.start()


@in_a_world("unserved_shards")
def a_dispatcher_that_serves_nothing(world: World) -> Fault:
    keys = control_keys(world.name)
    report = Report(alive_s=FAR_S, host="elsewhere", pid=1)
    world.servers.ask(keys.slot, "ZADD", keys.members, int((time.time() + FAR_S) * 1000), "idle-1")
    world.servers.ask(keys.slot, "HSET", keys.reports, "idle-1", encode(report))
    yield Looked(world.engine)
    world.servers.ask(keys.slot, "ZREM", keys.members, "idle-1")


@in_a_world("unseen_shards", "failing_poller")
def a_key_of_another_type(world: World) -> Fault:
    world.engine.start()
    for shard in range(SHARDS):
        id = next(id for id in map(str, range(1000)) if world.engine.topology.shard_of(id) == shard)
        world.engine.push("x", id=id, delay=0.5)  # the poller looks by itself then
    keys = keys_of(world)
    world.servers.ask(keys.slot, "DEL", keys.due)
    world.servers.ask(keys.slot, "SET", keys.due, "of another program")
    yield Looked(world.engine)
    world.servers.ask(keys.slot, "DEL", keys.due)


@in_a_world("unseen_fleet")
def members_of_another_type(world: World) -> Fault:
    keys = control_keys(world.name)
    world.servers.ask(keys.slot, "SET", keys.members, "of another program")
    yield Looked(world.engine)
    world.servers.ask(keys.slot, "DEL", keys.members)


@in_a_world("stuck_poller")
def pollers_that_stand_still(world: World) -> Fault:
    world.engine.start()
    with world.monkeypatch.context() as patch:
        patch.setattr(health, "STUCK_S", 0.0)  # they have made a step a moment ago
        yield Looked(world.engine)


@in_a_world("unread_topology")
def a_later_format(world: World) -> Fault:
    world.engine.start()
    keys, topology = control_keys(world.name), world.engine.topology

    def write(format: int, epoch: int) -> None:
        stamp = topology.following(epoch=topology.epoch + epoch).stamp
        world.servers.ask(keys.slot, "HSET", keys.topology, "format", format, "epoch", stamp)

    write(formats.FORMAT + 1, 1)
    yield Looked(world.engine)
    write(formats.FORMAT, 2)


@in_a_world("held_resize")
def paused_tasks_in_the_way(world: World) -> Fault:
    world.engine.pause("mail")
    world.ready("mail", 40)
    world.engine.resize(SHARDS * 2)
    yield Looked(world.engine)
    world.engine.resume("mail")
    consumer = world.engine.consumer("mail")
    while world.engine.stats().topics["mail"].ready:
        consumer.ack(consumer.claim(50, wait=1))


# ---- topics and workers


@in_a_world("no_worker")
def nobody_works(world: World) -> Fault:
    world.ready("mail", 3)
    world.age("mail")
    yield Looked(world.engine)
    world.engine.purge("mail")


@in_a_world("backlog")
def a_consumer_is_slow(world: World) -> Fault:
    world.ready("mail", 3)
    claim(world.another().consumer("mail", lease=600), 1)
    world.age("mail")
    yield Looked(world.engine)
    world.engine.purge("mail")


@in_a_world("limit")
def a_limit_lets_no_more_through(world: World) -> Fault:
    world.engine.limit("mail", concurrency=1)
    world.ready("mail", 3)
    claim(world.another().consumer("mail", lease=600), 1)
    world.age("mail")
    yield Looked(world.engine)
    world.engine.purge("mail")


@in_a_world("held_places")
def another_topic_holds_the_places(world: World) -> Fault:
    world.monkeypatch.setattr(reporter, "LONG_S", 0.1)
    world.monkeypatch.setattr("shardq.core.fleet.report.LEAST_GAP_S", 0.1)
    world.engine.start()
    over = threading.Event()
    worker = world.engine.worker(concurrency=1)
    worker.on("mail")(lambda _: over.wait())
    worker.on("sms")(print)
    world.run(worker)
    world.stack.callback(over.set)
    world.engine.push("x", topic="mail")
    wait_until(lambda: world.engine.stats().leased, "it hangs")
    world.engine.push_many(Task(n, topic="sms") for n in range(50))
    wait_until(lambda: ready_of(world.engine, "sms") > 40, "the others wait")
    wait_until(lambda: world.engine.fleet()[-1].longest, "the worker reports it")
    world.age("sms")
    yield Looked(world.engine)
    over.set()


@in_a_world("deaf")
def nobody_is_woken(world: World) -> Fault:
    world.deafen("mail")
    yield Looked(world.engine)
    world.engine.purge("mail")


@in_a_world("stuck_worker")
def all_handlers_hang(world: World) -> Fault:
    world.monkeypatch.setattr(reporter, "LONG_S", 0.1)
    world.monkeypatch.setattr("shardq.core.fleet.report.LEAST_GAP_S", 0.1)
    world.monkeypatch.setattr(reporter, "STUCK_S", 0.1)
    world.engine.start()
    over = threading.Event()
    world.work("mail", lambda _: over.wait(), concurrency=1)
    world.stack.callback(over.set)
    world.engine.push("x", topic="mail")
    yield Looked(world.engine)
    over.set()


@in_a_world("stuck_key")
def a_task_that_its_key_waits_for(world: World) -> Fault:
    world.monkeypatch.setattr(reporter, "LONG_S", 0.1)
    world.monkeypatch.setattr("shardq.core.fleet.report.LEAST_GAP_S", 0.1)
    world.engine.start()
    over = threading.Event()
    world.work("mail", lambda _: over.wait(), concurrency=4)
    world.stack.callback(over.set)
    for _ in range(2):
        world.engine.push("x", topic="mail", key="ann")
    yield Looked(world.engine, {"max_ready_age": 1.0})
    over.set()


@in_a_world("unknown_task")
def a_call_that_no_worker_knows(world: World) -> Fault:
    world.engine.start()
    world.engine.push({"task": "shop.refund", "args": [], "kwargs": {}}, topic="mail")
    other = world.another()
    other.task(topic="mail", name="shop.send")(print)
    world.run(other.worker())
    yield Looked(world.engine)
    newer = world.another()
    newer.task(topic="mail", name="shop.give_back", aliases=["shop.refund"])(print)
    world.run(newer.worker())


@in_a_world("worker")
def a_list_that_can_not_be_claimed(world: World) -> Fault:
    broken = [keys_of(world, shard=shard) for shard in range(SHARDS)]
    for keys in broken:
        world.servers.ask(keys.slot, "SET", keys.ready("mail"), "of another program")
    world.engine.start()
    world.work("mail", print)
    yield Looked(world.engine)
    for keys in broken:
        world.servers.ask(keys.slot, "DEL", keys.ready("mail"))
    world.engine.push("x", topic="mail")  # its next claim waits for one


@in_a_world("deaths")
def tasks_die(world: World) -> Fault:
    world.engine.start()
    put(world.engine, "dead", topic="mail")
    yield Looked(world.engine, {"max_dead": 0})
    world.engine.purge("mail")


@in_a_world("trimmed")
def dead_tasks_are_removed(world: World) -> Fault:
    world.monkeypatch.setattr(poller, "TRIM_S", 0.1)
    world.engine.configure(dead_count=SHARDS)
    world.engine.start()
    for _ in range(3 * SHARDS):
        put(world.engine, "dead", topic="mail")
    yield Looked(world.engine)
    world.monkeypatch.setattr(health, "LATELY_S", 0.0)  # it was long ago


# ---- routes


@in_a_world("unserved_route")
def a_sink_that_no_dispatcher_serves(world: World) -> Fault:
    world.engine.forward("mail", to=f"http://127.0.0.1:{free_port()}/")
    yield Looked(world.engine)
    world.engine.forward("mail", to=None)


@in_a_world("route")
def a_sink_that_is_down(world: World) -> Fault:
    world.engine.forward("mail", to=f"http://127.0.0.1:{free_port()}/")
    world.engine.start()
    world.engine.push("x", topic="mail")
    yield Looked(world.engine)
    world.engine.forward("mail", to=None)


@in_a_world("slow_route")
def tasks_wait_for_a_sink(world: World) -> Fault:
    world.ready("mail", 3)
    world.engine.stop()
    world.engine.forward("mail", to=f"http://127.0.0.1:{free_port()}/")
    world.age("mail")
    yield Looked(world.engine)
    world.engine.forward("mail", to=None)


# ---- schedules


def schedule(world: World, name: str, interval: float = 1.0) -> tuple[ControlKeys, Callable[..., Any]]:
    world.engine.every(name, interval=interval, topic="t")
    world.stack.callback(lambda: world.engine.schedule(name).remove())
    keys = control_keys(world.name)
    return keys, partial(world.servers.ask, keys.slot)


@in_a_world("overdue_schedule")
def nobody_pushes_occurrences(world: World) -> Fault:
    keys, ask = schedule(world, "tick")
    state = msgspec.json.decode(ask("HGET", keys.schedules, "tick"))
    state["since_ms"] -= 60_000
    ask("HSET", keys.schedules, "tick", msgspec.json.encode(state))
    yield Looked(world.engine)
    world.engine.start()


@in_a_world("unread_schedule")
def an_entry_of_another_program(world: World) -> Fault:
    keys = control_keys(world.name)
    world.servers.ask(keys.slot, "HSET", keys.schedules, "odd", b"{}")
    yield Looked(world.engine)
    world.engine.schedule("odd").remove()


@in_a_world("failing_schedule")
def a_time_zone_that_is_none(world: World) -> Fault:
    keys, ask = schedule(world, "tick", 3600.0)
    declared = ask("HGET", keys.schedules, "tick/declared")
    strange = declared.replace(b'"cron":null', b'"cron":"* * * * *"').replace(b'"UTC"', b'"Mars/Olympus"')
    ask("HSET", keys.schedules, "strange", ask("HGET", keys.schedules, "tick"), "strange/declared", strange)
    world.engine.start()
    yield Looked(world.engine)
    world.engine.schedule("strange").remove()


# ---- outbox, spool and far store


@in_a_world("outbox_stuck")
def a_table_that_is_not_there(world: World) -> Fault:
    database = open_database(f"sqlite:///{world.shell.temporary}/app.db")
    world.stack.callback(database.dispose)
    world.stack.enter_context(OutboxRelay(world.engine, database))
    yield Looked(world.engine)
    outbox.create(database)


@in_a_world("outbox_put_aside")
def a_row_that_is_refused(world: World) -> Fault:
    world.monkeypatch.setattr(table_rows, "FIRST_RETRY_S", 0.01)
    database = open_database(f"sqlite:///{world.shell.temporary}/app.db")
    world.stack.callback(database.dispose)
    outbox.create(database)
    with database.begin() as connection:
        outbox.push(connection, "x", id="bad", delay=FAR_S)
        connection.execute(outbox.table.update().values(dedup=-1))
    relay = world.stack.enter_context(OutboxRelay(world.engine, database))
    yield Looked(world.engine)
    relay.stop()


def spooled(world: World, *, shards: int = SHARDS, **options: Any) -> Path:
    """A spool with a push that found no server."""
    path = world.shell.temporary / "orders.spool"
    nowhere = f"redis://127.0.0.1:{free_port()}"
    with Engine(nowhere, name=world.name, shards=shards, timeout=1.0, connect_timeout=0.1, spool=path) as engine:
        assert engine.push("x", delay=FAR_S, **options).outcome == "spooled"
    return path


@in_a_world("spool_refused")
def a_conflict_that_was_spooled(world: World) -> Fault:
    world.engine.push("taken", id="taken", delay=FAR_S)
    path = spooled(world, id="taken", on_conflict="reject")
    yield Looked(world.stack.enter_context(Engine(world.url, name=world.name, spool=path)))
    assert world.shell.run("spool", "failed", str(path), "--drop").code == 0


@in_a_world("spool_broken")
def a_file_that_is_none(world: World) -> Fault:
    path = spooled(world)
    engine = Engine(world.url, name=world.name, spool=path)
    path.write_bytes(b"\xff" * path.stat().st_size)
    looked = Looked(world.stack.enter_context(engine))
    yield looked
    for file in path.parent.glob(f"{path.name}*"):
        file.unlink()
    looked.engine = world.stack.enter_context(Engine(world.url, name=world.name, spool=path))


def with_far(world: World) -> tuple[Engine, str]:
    """An engine with a far store that holds a far task."""
    world.monkeypatch.setattr(rows, "MARGIN_S", 1.0)
    world.monkeypatch.setattr(of_engine, "LEAST_AHEAD_S", 0.1)
    path = f"{world.shell.temporary}/far.db"
    engine = world.stack.enter_context(Engine(world.url, name=world.name, far=path, ahead=60, timeout=3.0))
    engine.push("far", delay=FAR_S)
    return engine, path


@in_a_world("far")
def a_database_that_is_locked(world: World) -> Fault:
    engine, path = with_far(world)
    other = sqlite3.connect(path)
    world.stack.callback(other.close)
    other.execute(f"ALTER TABLE {sql.TABLE} RENAME TO elsewhere")
    other.commit()
    yield Looked(engine)
    other.execute(f"ALTER TABLE elsewhere RENAME TO {sql.TABLE}")
    other.commit()


@in_a_world("far_late")
def nobody_loads_what_is_due(world: World) -> Fault:
    engine, path = with_far(world)
    other = sqlite3.connect(path)
    world.stack.callback(other.close)
    other.execute(f"UPDATE {sql.TABLE} SET due = due - 100 * 86400000")
    other.commit()
    yield Looked(engine)
    other.execute(f"DELETE FROM {sql.TABLE}")
    other.commit()


@in_a_world("far_unloaded")
def a_dispatcher_without_the_store(world: World) -> Fault:
    engine, _ = with_far(world)
    world.engine.start()
    yield Looked(engine)
    world.engine.stop()


@in_a_world("far_copies")
def a_copy_is_used_beside_the_store(world: World) -> Fault:
    engine, path = with_far(world)
    copy = world.stack.enter_context(closing(sqlite3.connect(f"{path}-copy")))
    with closing(sqlite3.connect(path)) as store:
        store.backup(copy)
    with Engine(world.url, name=world.name, far=f"{path}-copy") as other:
        other.push("far", delay=FAR_S)  # no dispatcher loads from the other one by then
        other.start()
        engine.start()
        yield Looked(engine)


@in_a_world("far_own_ids")
def far_tasks_under_ids_of_the_caller_s_own(world: World) -> Fault:
    world.monkeypatch.setattr(health, "MOST_OWN_FAR", 2)
    engine, _ = with_far(world)
    ids = [engine.push("x", id=f"own-{number}", delay=FAR_S) for number in range(2)]
    yield Looked(engine)
    for id in ids:
        engine.cancel(id)


# ---- what only doctor looks at


def a_task(world: World, **options: Any) -> tuple[str, ShardKeys]:
    id = world.engine.push("x", delay=FAR_S, **options)
    return id, keys_of(world, id)


@in_a_world("other_versions")
def processes_of_another_version(world: World) -> Fault:
    world.engine.start()
    with world.monkeypatch.context() as patch:
        signed = report._signed
        patch.setattr(report, "_signed", lambda given: msgspec.structs.replace(signed(given), version="0.0.1"))
        yield Looked(world.engine)


@in_a_world("old_format")
def an_engine_of_an_older_build(world: World) -> Fault:
    with world.monkeypatch.context() as patch:
        patch.setattr(formats, "FORMAT", formats.FORMAT + 1)
        yield Looked(world.engine)


@in_a_world("lost_shard")
def the_meta_of_a_shard_is_gone(world: World) -> Fault:
    keys = keys_of(world)
    world.servers.ask(keys.slot, "DEL", keys.meta)
    yield Looked(world.engine)


@in_a_world("behind_shard")
def a_shard_that_missed_a_change(world: World) -> Fault:
    world.engine.pause("mail")
    keys = keys_of(world)
    world.servers.ask(keys.slot, "HSET", keys.meta, "epoch", world.engine.topology.following(epoch=1).stamp)
    yield Looked(world.engine)


@in_a_world("ahead_shard")
def a_topology_that_went_back(world: World) -> Fault:
    keys = control_keys(world.name)
    before = world.servers.ask(keys.slot, "DUMP", keys.topology)
    world.engine.pause("mail")
    world.servers.ask(keys.slot, "RESTORE", keys.topology, 0, before, "REPLACE")
    yield Looked(world.another())


@in_a_world("strays")
def a_shard_out_of_use_has_tasks(world: World) -> Fault:
    id = next(id for id in map(str, range(1000)) if Topology(epoch=1, shards=10).shard_of(id) == 9)
    keys = shard_keys(world.name, 9)
    world.servers.ask(keys.slot, "HSET", keys.task, id, encode_record(RAW, b"hi"))
    world.servers.ask(keys.slot, "HSET", keys.meta, "epoch", world.engine.topology.stamp)
    world.servers.ask(keys.slot, "ZADD", keys.due, 4_000_000_000_000, id)
    yield Looked(world.engine)
    world.servers.ask(keys.slot, "DEL", keys.task, keys.meta, keys.due)


@in_a_world("misplaced")
def a_task_in_another_shard(world: World) -> Fault:
    id, home = a_task(world)
    other = keys_of(world, shard=(home.shard + 1) % SHARDS)
    record = world.servers.ask(home.slot, "HGET", home.task, id)
    due = world.servers.ask(home.slot, "ZSCORE", home.due, id)
    world.servers.ask(home.slot, "HDEL", home.task, id)
    world.servers.ask(home.slot, "ZREM", home.due, id)
    world.servers.ask(other.slot, "HSET", other.task, id, record)
    world.servers.ask(other.slot, "ZADD", other.due, due, id)
    yield Looked(world.engine)


@in_a_world("lost_task")
def a_record_without_a_place(world: World) -> Fault:
    id, keys = a_task(world)
    world.servers.ask(keys.slot, "ZREM", keys.due, id)
    yield Looked(world.engine)


@in_a_world("unlaned_task")
def a_task_that_its_key_does_not_know(world: World) -> Fault:
    for _ in range(2):
        id, _ = a_task(world, topic="mail", key="ann")
    keys = keys_of(world, id, keyed=True)
    (_, entry) = world.servers.ask(keys.slot, "ZRANGE", keys.keys, 0, -1)
    world.servers.ask(keys.slot, "ZREM", keys.keys, entry)
    yield Looked(world.engine)


@in_a_world("empty_id")
def a_place_without_a_record(world: World) -> Fault:
    id, keys = a_task(world)
    world.servers.ask(keys.slot, "HDEL", keys.task, id)
    yield Looked(world.engine)
    world.servers.ask(keys.slot, "ZREM", keys.due, id)


@in_a_world("unread_field")
def a_parcel_of_another_program(world: World) -> Fault:
    keys = keys_of(world)
    world.servers.ask(keys.slot, "HSET", keys.moved, "odd", b"\xff")
    yield Looked(world.engine)
    world.servers.ask(keys.slot, "HDEL", keys.moved, "odd")


# ---- servers


@in_a_world("unasked_server")
def no_url_is_given(world: World) -> Fault:
    world.monkeypatch.delenv("SHARDQ_URL", raising=False)
    world.monkeypatch.setenv("XDG_DATA_HOME", world.shell.environment["XDG_DATA_HOME"])
    looked = Looked(world.stack.enter_context(Engine(name=world.name)))
    yield looked
    looked.engine = world.engine


@in_a_world("few_files")
def few_open_files_are_allowed(world: World) -> Fault:
    world.engine.start()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = descriptors.in_use() + 60
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
    try:
        yield Looked(world.engine)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@in_a_world("clocks")
def this_machine_s_clock_is_wrong(world: World) -> Fault:
    now = time.time
    with world.monkeypatch.context() as patch:
        patch.setattr(time, "time", lambda: now() + 100)
        yield Looked(world.engine)


def on(server: Server, world: World, user: str = "") -> Engine:
    """The world's engine, on a server that may be set up otherwise; as a user of its own."""
    url = server.url if not user else server.url.replace("redis://", f"redis://{user}:pw@")
    return world.stack.enter_context(Engine(url, name=world.name, shards=2))


def configured(names: str, before: Mapping[str, str], after: Mapping[str, str]) -> None:
    """A row that a setting of the server brings, and another one takes away."""

    def make(world: World, server: Server) -> Fault:
        engine = on(server, world)
        server.ask("CONFIG", "SET", *(word for pair in before.items() for word in pair))
        yield Looked(engine)
        server.ask("CONFIG", "SET", *(word for pair in after.items() for word in pair))

    on_a_server(*names.split())(make)


configured(
    "evicts",
    {"maxmemory": "1gb", "maxmemory-policy": "allkeys-lru"},
    {"maxmemory": "0", "maxmemory-policy": "noeviction"},
)
configured("no_disk", {"appendonly": "no", "save": ""}, {"appendonly": "yes"})


@on_a_server("nearly_full")
def a_server_is_nearly_full(world: World, server: Server) -> Fault:
    engine = on(server, world)
    used = int(server.ask("INFO", "memory")["used_memory"])
    server.ask("CONFIG", "SET", "maxmemory", str(used + used // 20))
    yield Looked(engine)
    server.ask("CONFIG", "SET", "maxmemory", "0")


@on_a_server("evicted")
def a_server_has_evicted(world: World, server: Server) -> Fault:
    engine = on(server, world)
    server.ask("SETRANGE", "filler", 64 << 20, "x")
    used = int(server.ask("INFO", "memory")["used_memory"])
    server.ask("CONFIG", "SET", "maxmemory-policy", "allkeys-lru", "maxmemory", str(used // 2))
    wait_until(lambda: server.ask("INFO", "stats")["evicted_keys"], "it evicts")
    server.ask("CONFIG", "SET", "maxmemory-policy", "noeviction", "maxmemory", "0")
    yield Looked(engine)
    server.ask("CONFIG", "RESETSTAT")


@on_a_server("few_clients")
def few_clients_are_allowed(world: World, server: Server) -> Fault:
    engine = on(server, world)
    before = server.ask("CONFIG", "GET", "maxclients")["maxclients"]
    server.ask("CONFIG", "SET", "maxclients", "40")
    yield Looked(engine, {"deep": True})
    server.ask("CONFIG", "SET", "maxclients", before)


def refused(name: str, command: str, *, start: bool = False) -> None:
    """A row that a command brings which the user may not give."""

    def make(world: World, server: Server) -> Fault:
        user = f"u{world.name}"
        server.ask("ACL", "SETUSER", user, "on", ">pw", "+@all", f"-{command}", "allchannels", "allkeys")
        engine = on(server, world, user)
        if start:
            engine.start()
        yield Looked(engine)
        server.ask("ACL", "SETUSER", user, f"+{command}")

    on_a_server(name)(make)


refused("refused_info", "info")
refused("refused_wait", "wait")
refused("refused_name", "client|setname")
refused("refused_publish", "spublish")
refused("refused_subscribe", "ssubscribe", start=True)
refused("unlooked", "hrandfield")


@on_a_server("early_fsync")
def a_server_that_answers_waitaof_early(world: World, server: Server) -> Fault:
    yield Looked(on(server, world))
    server.ask("CONFIG", "SET", "appendonly", "no")
    world.stack.callback(server.ask, "CONFIG", "SET", "appendonly", "yes")


@on_a_server("spool_waits")
def a_full_server_takes_nothing_of_what_was_spooled(world: World, server: Server) -> Fault:
    on(server, world)
    path = spooled(world, shards=2)
    server.ask("CONFIG", "SET", "maxmemory", "1")
    yield Looked(world.stack.enter_context(Engine(server.url, name=world.name, spool=path)))
    server.ask("CONFIG", "SET", "maxmemory", "0")


@on_a_server("new_replica")
def a_replica_that_copies_all(world: World, server: Server) -> Fault:
    engine = on(server, world)
    server.ask("CONFIG", "SET", "repl-diskless-sync-delay", "2")
    replica = Server(server.binary, options={"replicaof": server.address.replace(":", " ")})
    starting = threading.Thread(target=world.stack.enter_context, args=[replica])
    starting.start()
    yield Looked(engine)
    starting.join()
