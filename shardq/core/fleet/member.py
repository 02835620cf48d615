"""The processes of an engine, as ``engine.fleet()`` returns them: read with one script, and never written. And which of
them serves which shard, topic and route, by what they report: for health, metrics and top.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from shardq.core.calls import control as calls
from shardq.core.fleet.lateness import OTHERS, Lateness
from shardq.core.fleet.report import Facts, decode, dense, shards_of
from shardq.core.layout.keys import ControlKeys
from shardq.core.layout.topology import Route
from shardq.core.operation import Operation

Kind = Literal["dispatcher", "worker"]


class Member(Facts, frozen=True, kw_only=True):
    """A process of the engine that lives: a dispatcher, which serves shards, or a worker, which runs handlers. One that
    does both is two members.

    Counters count since the process started. They are as old as its last report: 5 seconds for a dispatcher, 10 for a
    worker, at most.

    >>> for member in engine.fleet():
    ...     print(member.kind, member.host, member.pid, member.shards or member.topics, member.last_error)
    """

    kind: Kind
    name: str
    """The name under which it sends its heartbeats; no two processes share one."""
    seen_s: float = 0.0
    """Seconds since its last heartbeat, by the server's clock."""
    shards: tuple[int, ...] = ()
    """The shards that a dispatcher serves."""
    last_error: str = ""
    """The last error: of a handler, or of a dispatcher's shard. It has no payload but what the exception says."""
    dispatch_lateness: Mapping[str, Lateness] = {}
    """Topic → how late a dispatcher moved its tasks without a key to the ready list. ``*``: topics that are not named.
    """
    pickup_lateness: Mapping[str, Lateness] = {}
    """Topic → how long its tasks waited in a worker, from the answer to its claim to the handler's start."""
    key_wait: Mapping[str, Lateness] = {}
    """Topic → how long its tasks with a key had waited when a dispatcher moved them, from their due time on."""


def fleet(keys: ControlKeys) -> Operation[list[Member]]:
    """Reads all processes that live: dispatchers first, then workers, each by name."""
    seen = yield calls.fleet(keys).briefly()
    kinds: list[tuple[Kind, Mapping[str, int]]] = [("dispatcher", seen.dispatchers), ("worker", seen.workers)]
    return [
        member
        for kind, untils in kinds
        for name, until_ms in sorted(untils.items())
        if (member := _member(kind, name, seen.reports.get(name, b""), until_ms - seen.now_us / 1000))
    ]


def _member(kind: Kind, name: str, text: bytes, left_ms: float) -> Member | None:
    """None: its time is over. ``left_ms``: the time that is left of it."""
    if left_ms < 0:
        return None
    report = decode(text)
    if report is None:
        return Member(kind=kind, name=name)
    return Member(
        kind=kind,
        name=name,
        seen_s=round(max(0.0, report.alive_s - left_ms / 1000), 3),
        shards=shards_of(report.shards),
        last_error=report.error,
        dispatch_lateness={topic: dense(flat) for topic, flat in report.dispatch.items()},
        pickup_lateness={topic: dense(flat) for topic, flat in report.pickup.items()},
        key_wait={topic: dense(flat) for topic, flat in report.key_wait.items()},
        **{fact: getattr(report, fact) for fact in Facts.__struct_fields__},
    )


START_ONE = "call engine.start() in a process that stays up, or start `shardq run`"

NOBODY_DISPATCHES = "no dispatcher runs, so nobody moves tasks when they are due"

NO_DISPATCHER = f"{NOBODY_DISPATCHES}: {START_ONE}"


def is_told(members: Iterable[Member]) -> bool:
    """True if the report of each could be read: one of another version may serve anything."""
    return all(member.host for member in members)


def workers(members: Iterable[Member]) -> list[Member]:
    """The workers that live."""
    return [member for member in members if member.kind == "worker"]


def serves(worker: Member, topic: str) -> bool:
    """True if the worker says that it serves the topic, or may."""
    return topic in worker.topics or OTHERS in worker.topics


def knows(worker: Member, topic: str, task: str) -> bool:
    """True if the worker serves the topic, and says that it knows calls of the named task there, or may."""
    if not serves(worker, topic) or any((call.topic, call.task) == (topic, task) for call in worker.unknown):
        return False
    return task in worker.tasks or OTHERS in worker.tasks


def unforwarded(members: Sequence[Member], routes: Mapping[str, Route]) -> list[str]:
    """The topics of these routes elsewhere that no dispatcher says it forwards. None of them if one forwards more than
    it names, or its report can't be read.
    """
    serving = dispatchers(members)
    if not is_told(serving) or any(len(member.sinks) < member.forwards for member in serving):
        return []
    forwarded = {route.topic for member in serving for route in member.sinks}
    return sorted(topic for topic, route in routes.items() if not route.is_here and topic not in forwarded)


def dispatchers(members: Iterable[Member]) -> list[Member]:
    """The dispatchers that live."""
    return [member for member in members if member.kind == "dispatcher"]


def servers(members: Iterable[Member]) -> dict[int, Member]:
    """Shard → the dispatcher that says it serves it.

    >>> servers([Member(kind="dispatcher", name="a", host="h1", shards=(0, 2))])[2].host
    'h1'
    """
    return {shard: member for member in dispatchers(members) for shard in member.shards}


def unserved(members: Sequence[Member], shards: Iterable[int]) -> list[int]:
    """The shards that no dispatcher says it serves. None of them if a dispatcher's report can't be read, as one of
    another version: it may serve them.

    >>> unserved([Member(kind="dispatcher", name="a", host="h1", shards=(0, 2))], range(4))
    [1, 3]
    """
    if not is_told(dispatchers(members)):
        return []
    served = servers(members)
    return [shard for shard in shards if shard not in served]
