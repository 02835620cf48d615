"""doctor finds what is wrong on real servers, says what to do, and mends without losing a task."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest

from cluster.ports import HOST, free_port
from cluster.server import Server
from shardq import Engine, Task
from shardq.core.dispatcher.poller import LONGEST_SLEEP_S
from shardq.core.layout.keys import ShardKeys, shard_keys
from shardq.core.layout.slots import MAX_SHARDS
from shardq.core.layout.topology import Topology
from shardq.core.model.record import RAW, encode_record
from shardq.engine.doctor import OK
from tests.cli.conftest import SHARDS
from tests.cli.shell import ON_BOTH, Done, Shell
from tests.support.servers import Servers
from tests.support.states import FAR_S, STATES, claim, put, state_of
from tests.support.waiting import wait_until


@pytest.fixture
def own(shell: Shell, own_server: Server, name: str) -> Iterator[tuple[Engine, tuple[str, ...]]]:
    """An engine on a server of its own that is as it should be, with pollers, and the options that name it."""
    own_server.ask("CONFIG", "SET", "appendonly", "yes")
    with Engine(own_server.url, name=name, shards=2) as engine:
        engine.start()
        yield engine, ("--url", own_server.url, "--name", name)


def found(shell: Shell, *words: str) -> dict[str, list[dict[str, Any]]]:
    """Check → what was found."""
    told = shell.run("doctor", "--json", *words)
    wrong = {each["check"]: each["findings"] for each in told.objects if not each["ok"]}
    assert told.code == (1 if wrong else 0), told
    return wrong


def texts_of(told: Done, check: str) -> list[str]:
    """What a check found, before it was mended."""
    return [each["text"] for line in told.objects if line["check"] == check for each in line.get("findings", ())]


def test_a_server_that_answers_waitaof_early_is_named(
    shell: Shell, own: tuple[Engine, tuple[str, ...]], own_server: Server
) -> None:
    _, words = own
    (persistence,) = (each for each in shell.run("doctor", "--json", *words).objects if each["check"] == "persistence")
    version = str(own_server.ask("INFO", "server").get("valkey_version", ""))
    told = f"{own_server.address} (Valkey {version}) may answer WAITAOF before the disk has the write"
    seen = [(each["severity"], told in each["text"]) for each in persistence["findings"]]
    assert seen == [("info", True)] * bool(version)
    assert persistence["ok"] is True


def keys_of(engine: Engine, id: str) -> ShardKeys:
    return shard_keys(engine.name, engine.topology.shard_of(id))


def move(servers: Servers, id: str, home: ShardKeys, other: ShardKeys) -> None:
    """Puts a scheduled task in a shard that is not its own."""
    record = servers.ask(home.slot, "HGET", home.task, id)
    due = servers.ask(home.slot, "ZSCORE", home.due, id)
    servers.ask(home.slot, "HDEL", home.task, id)
    servers.ask(home.slot, "ZREM", home.due, id)
    servers.ask(other.slot, "HSET", other.task, id, record)
    servers.ask(other.slot, "ZADD", other.due, due, id)


def test_a_server_that_was_not_asked_for_is_told_once(shell: Shell) -> None:
    assert shell.run("push", "1").code == 0
    done = shell.run("doctor")
    assert (done.out + done.err).count("SHARDQ_EMBEDDED=never") == 1


@contextmanager
def asleep(engine: Engine, shard: int) -> Iterator[None]:
    """Has the poller of a shard sleep for its longest at the begin of the block. A task must be ready there at the end,
    long before the poller would look by itself.
    """
    engine.start()
    first = next(id for id in map(str, itertools.count()) if engine.topology.shard_of(id) == shard)
    engine.push("x", id=first)
    wait_until(lambda: state_of(engine, first) == "ready", "its poller has made a step")
    yield
    wait_until(lambda: engine.stats().shards[shard].ready == 2, "it is rung", timeout=LONGEST_SLEEP_S / 2)


def test_all_is_well(shell: Shell, own: tuple[Engine, tuple[str, ...]]) -> None:
    engine, options = own
    for state in STATES:
        put(engine, state, topic=state)
    engine.push_many([Task(n, delay=FAR_S) for n in range(50)])
    for words in ([], ["--all"]):
        done = shell.run("doctor", *words, *options)
        assert (done.code, done.err) == (0, ""), done
        lines = [line for line in done.lines if line[0] != " "]
        assert [line.split()[0] for line in lines] == list(OK)
        assert all(" ok: " in line for line in lines)


@contextmanager
def busy(engine: Engine, *, tasks_per_s: int = 1000) -> Iterator[None]:
    """Pushes, and handles, so many a second until the end of the block: each is scheduled for a moment."""
    end = threading.Event()

    def push() -> None:
        while not end.wait(0.05):
            engine.push_many([Task(n, delay=0.2 + n / tasks_per_s) for n in range(tasks_per_s // 20)])

    def take() -> None:
        consumer = engine.consumer(lease=60)
        while not end.is_set():
            consumer.ack(consumer.claim(10, wait=0.1))

    with ThreadPoolExecutor() as threads:
        runs = [threads.submit(each) for each in (push, take, take)]
        try:
            yield
        finally:
            end.set()
            for run in runs:
                run.result()


def test_a_busy_engine_is_well(shell: Shell, own: tuple[Engine, tuple[str, ...]]) -> None:
    engine, options = own
    engine.push_many([Task(n, delay=FAR_S) for n in range(5_000)])  # reading them takes a while
    with busy(engine):
        wait_until(lambda: engine.stats().dispatched > 1000, "tasks go through")
        for _ in range(5):
            assert "records" not in found(shell, "--all", *options)


@pytest.mark.slow
@ON_BOTH
def test_a_task_that_nobody_will_ever_get(shardq: Shell, engine: Engine, servers: Servers) -> None:
    ids = engine.push_many([Task(n, delay=FAR_S, topic="mail") for n in range(20)])
    lost = ids[3]
    keys = keys_of(engine, lost)
    servers.ask(keys.slot, "ZREM", keys.due, lost)
    assert state_of(engine, lost) == "ready", "so it seems, and it is in no list"
    (told,) = found(shardq)["records"]
    assert told["text"].startswith(f"shard {keys.shard}: 1 task with a record in no list or set, like '{lost}'")
    assert told["fix"].startswith("schedule them for now")
    with asleep(engine, keys.shard):
        assert "fixed 1: schedule them for now" in shardq.run("doctor", "--fix", "--all").out
    assert "records" not in found(shardq)
    (delivery,) = claim(engine.consumer("mail"), 1)
    assert delivery.id == lost
    assert {state_of(engine, id) for id in ids if id != lost} == {"scheduled"}


def test_what_is_in_a_list_is_not_lost(shardq: Shell, engine: Engine) -> None:
    engine.start()
    ids = engine.push_many([Task(n, topic="mail") for n in range(40)])
    wait_until(lambda: engine.stats().ready == 40, "all are ready")
    cancelled, again = ids[:5], ids[5:10]
    for id in cancelled:
        engine.cancel(id)
    for id in again:
        engine.reschedule(id, delay=0)  # its old entry is a ghost now
    wait_until(lambda: engine.stats().scheduled == 0, "all are ready again")
    claim(engine.consumer("mail", lease=60), 5)
    assert "records" not in found(shardq, "--all")


@pytest.mark.slow
@ON_BOTH
def test_ids_without_a_record(shardq: Shell, engine: Engine, servers: Servers) -> None:
    id = engine.push("x", delay=FAR_S)
    keys = keys_of(engine, id)
    servers.ask(keys.slot, "HDEL", keys.task, id)
    (told,) = found(shardq)["records"]
    assert told["text"].startswith(f"shard {keys.shard}: 1 id in a set without a record, like '{id}'")
    assert told["fix"] is None


@pytest.mark.slow
@ON_BOTH
def test_a_task_that_its_key_does_not_know(shardq: Shell, engine: Engine, servers: Servers) -> None:
    """It is scheduled, and no alarm of its key ever leads to it."""
    first, lost = (engine.push(n, topic="mail", key="ann", id=f"{n}", delay=0.2) for n in (1, 2))
    keys = shard_keys(engine.name, engine.topology.shard_of(lost), keyed=True)
    (_, entry) = servers.ask(keys.slot, "ZRANGE", keys.keys, 0, -1)
    servers.ask(keys.slot, "ZREM", keys.keys, entry)
    (told,) = found(shardq)["records"]
    assert told["text"].startswith(f"shard {keys.shard}: 1 task scheduled without its key knowing it, like '{lost}'")
    assert "fixed 1: have their keys know them" in shardq.run("doctor", "--fix", "--all").out
    assert "records" not in found(shardq)
    engine.start()
    consumer = engine.consumer("mail")
    for id in (first, lost):
        (delivery,) = claim(consumer, 1)
        assert delivery.id == id
        consumer.ack(delivery)


@ON_BOTH
def test_a_task_in_a_shard_that_is_not_its_own(shardq: Shell, engine: Engine, servers: Servers) -> None:
    id = engine.push("x", delay=FAR_S)
    home = keys_of(engine, id)
    other = shard_keys(engine.name, (home.shard + 1) % SHARDS)
    move(servers, id, home, other)
    assert engine.get(id) is None
    (told,) = found(shardq)["places"]
    assert told["text"].startswith(f"shard {other.shard}: 1 of 1 ids belong to another shard, like '{id}'")
    assert "fixed 1: move those" in shardq.run("doctor", "--fix").out
    assert "places" not in found(shardq)
    task = engine.get(id)
    assert task is not None
    assert (task.state, task.payload) == ("scheduled", "x")
    assert engine.stats().scheduled == 1


@ON_BOTH
def test_a_due_task_in_another_shard_is_dispatched_at_once(shardq: Shell, engine: Engine, servers: Servers) -> None:
    id = engine.push("x", delay=FAR_S)
    home = keys_of(engine, id)
    away = next(shard for shard in range(SHARDS) if shard != home.shard)
    move(servers, id, home, shard_keys(engine.name, away))
    with asleep(engine, home.shard):
        servers.ask(shard_keys(engine.name, away).slot, "ZADD", shard_keys(engine.name, away).due, 1, id)
        assert "fixed 1: move those" in shardq.run("doctor", "--fix").out


def test_what_is_not_mended_is_wrong_still(
    shell: Shell, own: tuple[Engine, tuple[str, ...]], own_server: Server
) -> None:
    engine, options = own
    id = put(engine, "ready", topic="mail")
    home = keys_of(engine, id)
    other = shard_keys(engine.name, 1 - home.shard)
    own_server.ask("HSET", other.task, id, own_server.ask("HGET", home.task, id))
    own_server.ask("RPUSH", other.ready("mail"), id)
    own_server.ask("DEL", home.task, home.ready("mail"))
    done = shell.run("doctor", "--fix", *options)
    assert "fixed 0: move those" in done.out
    assert "1 is left" in done.out
    assert done.code == 1


@pytest.mark.slow
@ON_BOTH
def test_tasks_in_a_shard_out_of_use(shardq: Shell, engine: Engine, servers: Servers) -> None:
    """As of a server that came back older. Look-ups find them from then on."""
    id = next(id for id in map(str, range(1000)) if Topology(epoch=1, shards=10).shard_of(id) == 9)
    keys = shard_keys(engine.name, 9)
    servers.ask(keys.slot, "HSET", keys.meta, "epoch", engine.topology.stamp)
    servers.ask(keys.slot, "HSET", keys.task, id, encode_record(RAW, b"hi"))
    servers.ask(keys.slot, "ZADD", keys.due, 4_000_000_000_000, id)
    assert engine.get(id, decode=False) is None
    told = shardq.run("doctor", "--json", "--fix")
    (text,) = texts_of(told, "epochs")
    assert text.startswith(
        "shard 9: out of use, and tasks or dedup windows are there that nobody looks for, as a server"
    )
    assert engine.get(id, decode=False) is not None
    engine.start()
    wait_until(lambda: not engine.topology.priors, "it is moved home")
    assert engine.get(id, decode=False) is not None
    assert servers.ask(keys.slot, "EXISTS", keys.task) == 0
    assert "epochs" not in found(shardq)


@ON_BOTH
def test_every_shard_that_there_can_be(shardq: Shell, engine: Engine, servers: Servers) -> None:
    """One of which nothing else is left, far past those in use: no meta leads there."""
    id = next(id for id in map(str, range(10_000)) if Topology(epoch=1, shards=301).shard_of(id) == 300)
    keys, other = (shard_keys(engine.name, shard) for shard in (300, MAX_SHARDS - 1))
    servers.ask(keys.slot, "HSET", keys.task, id, encode_record(RAW, b"hi"))
    servers.ask(keys.slot, "ZADD", keys.due, 4_000_000_000_000, id)
    assert "epochs" not in found(shardq)
    servers.ask(other.slot, "ZADD", other.seen, 4_000_000_000_000, "seen-there")
    (told,) = found(shardq, "--all")["epochs"]
    assert told["text"].startswith(f"shards 300, {other.shard}: out of use")
    servers.ask(other.slot, "DEL", other.seen)
    assert "fixed 1: look for tasks there, too" in shardq.run("doctor", "--all", "--fix").out
    assert "epochs" not in found(shardq, "--all")
    assert engine.get(id, decode=False) is not None


@ON_BOTH
def test_a_shard_that_missed_a_change(shardq: Shell, engine: Engine, servers: Servers) -> None:
    engine.pause("mail")
    behind, lost = (shard_keys(engine.name, shard) for shard in (1, 2))
    servers.ask(behind.slot, "HSET", behind.meta, "epoch", engine.topology.following(epoch=1).stamp)
    servers.ask(lost.slot, "DEL", lost.meta)
    told = shardq.run("doctor", "--json", "--fix")
    assert told.code == 1, "nobody dispatches"
    assert texts_of(told, "epochs") == [
        f"shard {lost.shard} was never opened, or its data was lost",
        f"shard {behind.shard} missed the change to epoch 2",
    ]
    assert {servers.ask(keys.slot, "HGET", keys.meta, "epoch") for keys in (behind, lost)} == {
        engine.topology.stamp.encode()
    }
    assert "epochs" not in found(shardq)


def test_servers_processes_and_files(shell: Shell, own: tuple[Engine, tuple[str, ...]], own_server: Server) -> None:
    engine, options = own
    own_server.ask("SETRANGE", "filler", 64 << 20, "x")  # connections take memory: nothing is to be evicted for them
    used = int(own_server.ask("INFO", "memory")["used_memory"])
    own_server.ask("CONFIG", "SET", "maxmemory", str(used + used // 15), "maxmemory-policy", "allkeys-lru")
    wrong = found(shell, *options)
    assert wrong.keys() == {"eviction", "memory"}
    assert wrong["eviction"][0]["advice"] == "set maxmemory-policy to noeviction"
    own_server.ask("CONFIG", "SET", "maxmemory", "0", "appendonly", "no", "maxclients", "40")
    engine.stop()
    wait_until(lambda: not engine.fleet(), "it is gone, or found to be")
    wrong = found(shell, *options)
    assert wrong.keys() == {"persistence", "clients", "dispatchers"}
    assert "set appendonly to yes" in wrong["persistence"][0]["advice"]
    assert "raise its maxclients" in wrong["clients"][0]["advice"]
    assert "or start `shardq run`" in wrong["dispatchers"][0]["advice"]


@pytest.mark.slow
def test_what_can_not_be_told(shell: Shell) -> None:
    began = time.monotonic()
    done = shell.run("doctor", "--url", f"redis://{HOST}:{free_port()}", "--timeout", "30s")
    assert (done.code, done.err) == (2, "")
    assert done.out.startswith("can't tell: ")
    assert time.monotonic() - began < 60
