"""Servers that forget what they had acknowledged, and an address that leads to another server."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import redis

from cluster import servers
from cluster.server import Server
from shardq import Engine, Task
from shardq.core.layout.keys import control_keys, shard_keys
from tests.chaos.forgotten import Forgotten
from tests.chaos.grounds.ground import MOST_SHARDS, NAME
from tests.chaos.nemesis.nemesis import LeftOut, Nemesis, Way, effective, until
from tests.chaos.plan import Fault, FaultKind
from tests.chaos.proxy import HOST
from tests.judge.judge import Setback
from tests.judge.witness import monotonic_us

FOLDER, MANIFEST, BASE, TAIL = "appendonlydir", "appendonly.aof.manifest", "appendonly.aof.1.base.rdb", "1.incr.aof"

PATIENCE_S = 10.0
"""For servers that other faults work on."""

OPENS_S = 4.0
"""By then a program that was started has opened its engine."""

INNOCENTS = 40
"""Tasks of the engine to which an address leads."""

BEFORE_MS = 60_000
"""By so much that engine is older."""


def _lose_tail(nemesis: Nemesis, fault: Fault) -> str:
    """What is written from now on does not come to the disk, and whoever waits for that waits in vain. It is lost."""
    with nemesis.master(fault) as master, nemesis.losing():
        from_us, shards = monotonic_us(), nemesis.ground.shards_of(master)
        master.ask("CONFIG", "SET", "appendfsync", "no")
        master.ask("PING")  # what was answered before is in the file now
        folder = master.folder / FOLDER
        manifest = (folder / MANIFEST).read_text()
        file = folder / manifest.split("file ")[-1].split(" ")[0]
        size = file.stat().st_size
        nemesis.lasts(fault.seconds)
        master.kill()
        lost = file.stat().st_size - size
        is_same = (folder / MANIFEST).read_text() == manifest
        if is_same:
            with file.open("r+b") as writing:
                writing.truncate(size)
        nemesis.ground.restart(master)
        _forgot(nemesis, Forgotten(from_us, monotonic_us(), shards), is_failover=nemesis.plan.durability == "fsynced")
        effective(is_same and lost > 0)
        return f"{lost:,} bytes of {master.address}"


def _restore_older(nemesis: Nemesis, fault: Fault) -> str:
    """The time of the fault is that of the snapshots."""
    some = _chosen(nemesis, fault)
    saved: dict[Server, tuple[float, Path]] = {}
    with nemesis.each(some, PATIENCE_S):
        for server in some:
            saved[server] = monotonic_us(), _saved(server, f"before-{fault.at_s:g}.rdb")
    nemesis.lasts(fault.seconds)
    with nemesis.each(some, PATIENCE_S), nemesis.losing(), _cut_off(nemesis, some):
        if not set(some) <= set(nemesis.masters()):
            raise LeftOut("another one is master now")
        for server in some:
            server.kill()
            _put_back(server, saved[server][1])
        for server in some:
            nemesis.ground.restart(server)
        for server in some:
            had = _ids_of(server) if nemesis.plan.ground == "cluster" else None
            shards = nemesis.ground.shards_of(server)
            _forgot(nemesis, Forgotten(saved[server][0], monotonic_us(), shards, had))
    return f"{', '.join(server.address for server in some)}, {fault.seconds:g} s"


def _flush(nemesis: Nemesis, fault: Fault) -> str:
    some = _chosen(nemesis, fault)
    with nemesis.each(some, PATIENCE_S), nemesis.losing():
        had = 0
        for server in some:
            from_us, shards = monotonic_us(), nemesis.ground.shards_of(server)
            had += int(server.ask("DBSIZE"))
            server.ask("FLUSHALL")
            _forgot(nemesis, Forgotten(from_us, monotonic_us(), shards, ()), since_us=0.0)
        effective(had > 0)
        return f"{had} keys of {', '.join(server.address for server in some)}"


def _chosen(nemesis: Nemesis, fault: Fault) -> Sequence[Server]:
    masters = nemesis.masters()
    if not masters:
        raise LeftOut("there is none")
    return masters if fault.target % 2 else [masters[fault.target // 2 % len(masters)]]


def _forgot(
    nemesis: Nemesis, forgotten: Forgotten, *, since_us: float | None = None, is_failover: bool = False
) -> None:
    """``since_us``: if it is not the beginning; ``is_failover``: what was pushed durably stays."""
    nemesis.forgotten.append(forgotten)
    since_us = forgotten.from_us if since_us is None else since_us
    nemesis.facts.setbacks.append((Setback(forgotten.at_us, since_us, is_failover=is_failover), forgotten.shards))


def _saved(server: Server, name: str) -> Path:
    try:
        server.ask("BGSAVE")
    except redis.ResponseError as exc:
        raise LeftOut("it saves already") from exc
    until(lambda: server.ask("INFO", "persistence")["rdb_bgsave_in_progress"] == 0, "it has saved")
    if server.ask("INFO", "persistence")["rdb_last_bgsave_status"] != "ok":
        raise LeftOut("it can't save")
    return Path(shutil.copy(server.folder / "dump.rdb", server.folder / name))


def _put_back(server: Server, snapshot: Path) -> None:
    """The snapshot becomes the base of an append-only file in which nothing is yet."""
    folder = server.folder / FOLDER
    shutil.rmtree(folder)
    folder.mkdir()
    shutil.move(snapshot, folder / BASE)
    tail = f"appendonly.aof.{TAIL}"
    (folder / tail).write_bytes(b"")
    (folder / MANIFEST).write_text(f"file {BASE} seq 1 type b\nfile {tail} seq 1 type i\n")


@contextmanager
def _cut_off(nemesis: Nemesis, some: Sequence[Server]) -> Iterator[None]:
    """No program reaches them, for a block: what they come back with can be seen."""
    ports = [nemesis.ground.ports[server] for server in some]
    for port in ports:
        nemesis.ground.proxies.hold(port, [HOST])
        nemesis.ground.proxies.cut(port)
    try:
        yield
    finally:
        for port in ports:
            nemesis.ground.proxies.flow(port)


def _ids_of(server: Server) -> frozenset[str]:
    """The tasks that it has, of any number of shards, with those that are moved from it."""
    ids: set[str] = set()
    with server.client(decode=True) as client:
        for keys in (shard_keys(NAME, shard) for shard in range(MOST_SHARDS)):
            try:
                ids.update(client.hkeys(keys.task))
            except redis.ResponseError:  # another master has this slot
                continue
    return frozenset(ids)


def _lead_elsewhere(nemesis: Nemesis, fault: Fault) -> str:
    """To an engine of the same name that was there before. Programs that start meanwhile would rightly use that."""
    with nemesis.master(fault) as master, Server(servers.binary()) as other:
        with Engine(other.url, name=NAME, shards=3) as engine:
            engine.push_many([Task(number, delay=3600.0) for number in range(INNOCENTS)])
        other.ask("HINCRBY", control_keys(NAME).topology, "created", -BEFORE_MS)
        known = _seen(other)
        port, proxies = nemesis.ground.ports[master], nemesis.ground.proxies
        with nemesis.processes.may_start, nemesis.losing():
            time.sleep(OPENS_S)
            proxies.retarget(port, other.port)
            proxies.cut(port)
            nemesis.lasts(fault.seconds)
            proxies.retarget(port, master.port)
            proxies.cut(port)
        asked = int(other.ask("INFO", "stats")["total_connections_received"])
        for key, value in _seen(other).items():
            if value != known.get(key):
                nemesis.wrong.append(f"another engine was written to: {key} was {known.get(key)}, and is {value}")
        effective(asked > len(nemesis.processes.current))
        return f"{master.address} to {other.address}"


def _seen(server: Server) -> Mapping[str, object]:
    """What nobody but its own programs may change, by key."""
    control = control_keys(NAME)
    seen = {control.topology: server.ask("HGETALL", control.topology)}
    seen |= {control.members: server.ask("ZRANGE", control.members, 0, -1)}
    for keys in (shard_keys(NAME, shard) for shard in range(MOST_SHARDS)):
        seen |= {keys.task: sorted(server.ask("HKEYS", keys.task)), keys.meta: server.ask("HGET", keys.meta, "epoch")}
    return seen


WAYS: Mapping[FaultKind, Way] = {
    "lead elsewhere": _lead_elsewhere,
    "lose tail": _lose_tail,
    "restore older": _restore_older,
    "flush": _flush,
}
