"""Faults in which roles change, and those of replicas and sentinels."""

from __future__ import annotations

from collections.abc import Mapping

import psutil
import redis

from cluster.server import Server
from tests.chaos.grounds.nodes import Nodes
from tests.chaos.grounds.pair import Pair
from tests.chaos.nemesis.nemesis import BEHIND_US, Nemesis, Way, effective, stood_still, until
from tests.chaos.plan import Fault, FaultKind
from tests.judge.judge import Setback
from tests.judge.witness import monotonic_us

ALONE_S = 0.6
"""For so long a replica gets nothing before its master is killed."""

NOTICED_US = 0.5e6
"""So long before it is seen here a program may have seen that another master is there."""

LEFT_S = 5.0
"""So long after most sentinels name another master, every program must have left the old one."""


def _promote(nemesis: Nemesis, fault: Fault) -> str:
    with nemesis.with_replica(fault) as (master, replica):
        from_us, shards = monotonic_us(), nemesis.ground.shards_of(master)
        if isinstance(nemesis.ground, Nodes):
            replica.ask("CLUSTER", "FAILOVER")  # the two of them agree, and nothing is lost
            until(lambda: is_master(replica), "the replica is master")
        else:
            nemesis.ground.sentinels[0].ask("SENTINEL", "FAILOVER", "main")
            until(lambda: is_master(replica), "the replica is master")
            until(lambda: not is_master(master), "the master has become its replica")
            nemesis.split(from_us, shards)
        return f"{replica.address} in place of {master.address}"


def _take_over(nemesis: Nemesis, fault: Fault) -> str:
    with nemesis.with_replica(fault) as (master, replica):
        from_us, shards = monotonic_us(), nemesis.ground.shards_of(master)
        replica.ask("CLUSTER", "FAILOVER", "TAKEOVER")
        until(lambda: is_master(replica), "the replica is master")
        until(lambda: not is_master(master), "the master has become its replica")
        nemesis.split(from_us, shards)
        return f"{replica.address} in place of {master.address}"


def _fail_over(nemesis: Nemesis, fault: Fault) -> str:
    with nemesis.with_replica(fault) as (master, replica):
        from_us, shards = monotonic_us(), nemesis.ground.shards_of(master)
        port = nemesis.ground.ports[master]
        # what is acknowledged from now on is on one server only
        nemesis.ground.proxies.hold(port, [str(replica.options["bind-source-addr"])])
        nemesis.lasts(ALONE_S)
        master.kill()
        nemesis.ground.proxies.cut(port)
        nemesis.ground.proxies.flow(port)
        nemesis.facts.setbacks.append((Setback(monotonic_us(), from_us - BEHIND_US), shards))
        try:
            until(lambda: _serves(nemesis, replica), "the replica is master")
            nemesis.lasts(fault.seconds)
        finally:
            nemesis.ground.restart(master)
        return f"{replica.address} in place of {master.address}"


def _freeze_over(nemesis: Nemesis, fault: Fault) -> str:
    with nemesis.with_replica(fault) as (master, replica):
        from_us, shards = monotonic_us(), nemesis.ground.shards_of(master)
        master.pause()
        until(lambda: _serves(nemesis, replica), "the replica is master")
        nemesis.lasts(fault.seconds)
        master.resume()
        until(lambda: not is_master(master), "the master has become its replica")
        nemesis.split(from_us, shards)
        return f"{replica.address} in place of {master.address}"


def _split(nemesis: Nemesis, fault: Fault) -> str:
    with nemesis.with_replica(fault) as (master, replica):
        from_us, shards = monotonic_us(), nemesis.ground.shards_of(master)
        nemesis.ground.part(master)
        try:
            until(lambda: is_master(replica), "the replica is master")
            nemesis.lasts(fault.seconds)
            are_both = is_master(master) and is_master(replica)
        finally:
            nemesis.ground.unite(master)
        until(lambda: not is_master(master), "the master has become its replica")
        nemesis.split(from_us, shards)
    effective(are_both)
    return f"{replica.address} and {master.address}"


def _split_off(nemesis: Nemesis, fault: Fault) -> str:
    ground = nemesis.ground
    assert isinstance(ground, Pair)
    with nemesis.with_replica(fault) as (master, replica), nemesis.one(["sentinels"], fault):
        from_us, shards = monotonic_us(), ground.shards_of(master)
        number = fault.target % len(ground.sentinels)
        ground.part_with(master, number)
        try:
            until(lambda: _serves(nemesis, replica), "the replica is master")
            promoted_us = monotonic_us()
            nemesis.lasts(fault.seconds)
            are_both = is_master(master) and is_master(replica)
        finally:
            ground.unite(master)
        until(lambda: not is_master(master), "the master has become its replica")
        left_us = promoted_us + LEFT_S * 1e6
        nemesis.split(from_us, shards, promoted_us=promoted_us - NOTICED_US, left_us=left_us)
    effective(are_both)
    return f"{replica.address}, and {master.address} with the sentinel {ground.sentinels[number].address}"


def _kill_replica(nemesis: Nemesis, fault: Fault) -> str:
    with nemesis.with_replica(fault) as (_, replica):
        replica.kill()
        nemesis.lasts(fault.seconds)
        nemesis.ground.restart(replica)
        return replica.address


def _freeze_replica(nemesis: Nemesis, fault: Fault) -> str:
    with nemesis.with_replica(fault) as (_, replica):
        is_still = stood_still(replica, fault.seconds)
    effective(is_still)
    return replica.address


def _hold_replica(nemesis: Nemesis, fault: Fault) -> str:
    with nemesis.with_replica(fault) as (master, replica):
        source = str(replica.options["bind-source-addr"])
        count = nemesis.ground.proxies.hold(nemesis.ground.ports[master], [source])
        nemesis.lasts(fault.seconds)
        nemesis.ground.proxies.flow(nemesis.ground.ports[master])
    effective(count > 0)
    return replica.address


def _kill_sentinel(nemesis: Nemesis, fault: Fault) -> str:
    with nemesis.one(["sentinels"], fault):
        sentinel = nemesis.ground.sentinels[fault.target % len(nemesis.ground.sentinels)]
        sentinel.kill()
        nemesis.lasts(fault.seconds)
        nemesis.ground.restart(sentinel)
        return sentinel.address


def _freeze_sentinel(nemesis: Nemesis, fault: Fault) -> str:
    with nemesis.one(["sentinels"], fault):
        sentinel = nemesis.ground.sentinels[fault.target % len(nemesis.ground.sentinels)]
        sentinel.pause()
        nemesis.lasts(fault.seconds)
        is_still = psutil.Process(sentinel.pid).status() == psutil.STATUS_STOPPED
        sentinel.resume()
        effective(is_still)
        return sentinel.address


def _serves(nemesis: Nemesis, replica: Server) -> bool:
    """True if it is master, and all that should know it do."""
    return is_master(replica) and replica in nemesis.masters()


def is_master(server: Server) -> bool:
    try:
        return bool(server.ask("ROLE", timeout=2.0)[0] == "master")
    except redis.RedisError:
        return False


WAYS: Mapping[FaultKind, Way] = {
    "promote": _promote,
    "take over": _take_over,
    "fail over": _fail_over,
    "freeze over": _freeze_over,
    "split": _split,
    "split off": _split_off,
    "kill replica": _kill_replica,
    "freeze replica": _freeze_replica,
    "hold replica": _hold_replica,
    "kill sentinel": _kill_sentinel,
    "freeze sentinel": _freeze_sentinel,
}
