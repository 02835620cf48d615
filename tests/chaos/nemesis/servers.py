"""Faults of one server, and of the way to it, in which no role changes."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress

import redis

from cluster.server import Server
from shardq.core.layout.keys import shard_keys
from tests.chaos.grounds.ground import NAME, set_clock
from tests.chaos.nemesis.nemesis import BEHIND_US, LeftOut, Nemesis, Way, effective, stood_still, until
from tests.chaos.nemesis.programs import files_of
from tests.chaos.plan import Fault, FaultKind
from tests.chaos.proxy import HOST
from tests.judge.judge import Setback
from tests.judge.witness import monotonic_us

REPLIES = (1, 20, 300, 5000)
"""Bytes of answers after which a connection is cut."""

DELAYS_S = (0.02, 0.3, 1.0)

IN_A_REPLY_S = 2.0
"""So long an answer is waited for that can be cut."""

CLOCK_S = 2.0
"""A clock that was set is off by what it should be, give or take this."""


def _kill(nemesis: Nemesis, fault: Fault) -> str:
    if nemesis.ground.has_replicas and fault.seconds:
        raise LeftOut("it would fail over")
    with nemesis.master(fault) as master, nemesis.losing():
        master.kill()
        nemesis.lasts(fault.seconds)
        nemesis.ground.restart(master)
        return master.address


def _freeze(nemesis: Nemesis, fault: Fault) -> str:
    with nemesis.master(fault) as master, nemesis.losing():
        effective(stood_still(master, fault.seconds))
        return master.address


def _cut(nemesis: Nemesis, fault: Fault) -> str:
    with nemesis.master(fault) as master, nemesis.losing():
        count = nemesis.ground.proxies.cut(nemesis.ground.ports[master])
        effective(count > 0)
        return f"{count} connections to {master.address}"


def _cut_in_a_reply(nemesis: Nemesis, fault: Fault) -> str:
    with nemesis.master(fault) as master, nemesis.losing():
        after = REPLIES[fault.target % len(REPLIES)]
        proxies, port = nemesis.ground.proxies, nemesis.ground.ports[master]
        proxies.cut(port, after=after)
        since_s = time.monotonic()
        while not (is_cut := proxies.was_cut(port)) and time.monotonic() < since_s + IN_A_REPLY_S:
            nemesis.lasts(0.05)
        proxies.flow(port)
        effective(is_cut)
        return f"after {after} bytes of {master.address}"


def _part(nemesis: Nemesis, fault: Fault) -> str:
    with nemesis.master(fault) as master, nemesis.losing():
        count = nemesis.ground.proxies.hold(nemesis.ground.ports[master], [HOST])
        nemesis.lasts(fault.seconds)
        nemesis.ground.proxies.flow(nemesis.ground.ports[master])
        effective(count > 0)
        return f"{count} connections to {master.address}"


def _slow(nemesis: Nemesis, fault: Fault) -> str:
    with nemesis.master(fault) as master, nemesis.losing():
        delay_s = DELAYS_S[fault.target % len(DELAYS_S)]
        port = nemesis.ground.ports[master]
        nemesis.ground.proxies.delay(port, delay_s)
        took_s = _seconds_of_a_ping(port)
        nemesis.lasts(fault.seconds)
        nemesis.ground.proxies.flow(port)
        effective(took_s >= delay_s)
        return f"{master.address} by {delay_s:g} s"


def _seconds_of_a_ping(port: int) -> float:
    """By the way of programs."""
    began_s = time.monotonic()
    client = redis.Redis(host=HOST, port=port, socket_timeout=5.0)
    with suppress(redis.RedisError):
        client.ping()
    client.close()
    return time.monotonic() - began_s


def _fill_disk(nemesis: Nemesis, fault: Fault) -> str:
    with nemesis.master(fault) as master, nemesis.losing():
        from_us, shards = monotonic_us(), nemesis.ground.shards_of(master)
        try:
            with files_of(master.pid, most=0):
                nemesis.lasts(fault.seconds)
                is_full = _is_refused(nemesis, master, "MISCONF")
        finally:
            with suppress(redis.RedisError):
                master.ask("PING")
            # where each write is to be on the disk, Valkey ends at one that can't be, and in a cluster at a change of
            # roles that it can't note. What it had answered, and not written, is gone.
            if not master.running:
                nemesis.ground.restart(master)
                nemesis.facts.setbacks.append((Setback(monotonic_us(), from_us - BEHIND_US, is_failover=False), shards))
        until(lambda: _ask(master, "INFO", "persistence")["aof_last_write_status"] == "ok", "it writes again")
        effective(is_full)
        return master.address


def _ask(server: Server, *words: str) -> Mapping[str, str]:
    try:
        return server.ask(*words)  # type: ignore[no-any-return]
    except redis.RedisError:
        return {"aof_last_write_status": "no answer"}


def _is_refused(nemesis: Nemesis, master: Server, error: str) -> bool:
    """True if it takes no write, with this error, or is gone."""
    shards = nemesis.ground.shards_of(master)
    shard = min(shards, default=None) if shards is not None else 0
    if shard is None:
        raise LeftOut("it has no shard")
    key = f"{shard_keys(NAME, shard).prefix}probe"
    try:
        for _ in range(3):
            master.ask("SET", key, "1", "PX", "1000")
            time.sleep(0.05)
    except redis.ConnectionError:
        return not master.running
    except redis.ResponseError as exc:
        return error in f"{type(exc).__name__} {exc}"
    return False


def _fill_memory(nemesis: Nemesis, fault: Fault) -> str:
    return _configured(nemesis, fault, "maxmemory", "1", "0", "OutOfMemory")


def _demand_replicas(nemesis: Nemesis, fault: Fault) -> str:
    return _configured(nemesis, fault, "min-replicas-to-write", "5", "0", "NOREPLICAS")


def _configured(nemesis: Nemesis, fault: Fault, option: str, value: str, usual: str, error: str) -> str:
    with nemesis.master(fault) as master, nemesis.losing():
        master.ask("CONFIG", "SET", option, value)
        try:
            is_refused = _is_refused(nemesis, master, error)
            nemesis.lasts(fault.seconds)
        finally:
            master.ask("CONFIG", "SET", option, usual)
        effective(is_refused)
        return master.address


def _flush_scripts(nemesis: Nemesis, fault: Fault) -> str:
    with nemesis.master(fault) as master:
        had = int(master.ask("INFO", "memory")["number_of_cached_scripts"])
        master.ask("SCRIPT", "FLUSH")
        effective(had > 0)
        return f"{had} of {master.address}"


def _make_read_only(nemesis: Nemesis, fault: Fault) -> str:
    with nemesis.master(fault) as master, nemesis.losing():
        master.ask("REPLICAOF", HOST, 1)
        try:
            is_refused = _is_refused(nemesis, master, "ReadOnly")
            nemesis.lasts(fault.seconds)
        finally:
            master.ask("REPLICAOF", "NO", "ONE")
        effective(is_refused)
        return master.address


class _Clocks:
    """Clocks that were set stay so until the end; then all are as far ahead as any was, so that all is due that was
    pushed meanwhile.
    """

    def __init__(self, nemesis: Nemesis) -> None:
        self._nemesis = nemesis
        self._ahead_s = 0.0

    def set(self, server: Server, seconds: float) -> None:
        set_clock(server, seconds)
        self._ahead_s = max(self._ahead_s, seconds)

    def end(self) -> None:
        for server in self._nemesis.ground.servers:
            set_clock(server, self._ahead_s)


def _set_clock(nemesis: Nemesis, fault: Fault) -> str:
    with nemesis.one(nemesis.ground.servers, fault) as server, nemesis.losing():
        clocks = next((undo.__self__ for undo in nemesis.undo if hasattr(undo, "__self__")), None)
        if not isinstance(clocks, _Clocks):
            clocks = _Clocks(nemesis)
            nemesis.undo.append(clocks.end)
        clocks.set(server, fault.seconds)
        effective(_is_off_by(server, fault.seconds))
        return f"{server.address} by {fault.seconds:g} s"


def _is_off_by(server: Server, seconds: float) -> bool:
    try:
        return abs(float(server.ask("TIME")[0]) - time.time() - seconds) < CLOCK_S
    except redis.RedisError:
        return False


WAYS: Mapping[FaultKind, Way] = {
    "kill server": _kill,
    "freeze server": _freeze,
    "cut": _cut,
    "cut in a reply": _cut_in_a_reply,
    "part": _part,
    "slow": _slow,
    "fill disk": _fill_disk,
    "fill memory": _fill_memory,
    "demand replicas": _demand_replicas,
    "flush scripts": _flush_scripts,
    "make read-only": _make_read_only,
    "set clock": _set_clock,
}
