"""peek: the counts of a shard; the state of its node's replicas, and the settings of that node. For stats()."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shardq.calls.answers import body
from shardq.calls.request import Call, Command
from shardq.layout.keys import ShardKeys
from shardq.scripts import script


@dataclass(frozen=True, slots=True)
class ShardCounts:
    """One shard at one instant."""

    now_us: int
    scheduled: int
    leased: int
    dead: int
    head_ms: int | None
    """Due time of the first scheduled task."""
    late_ms: int | None
    """Lateness of the task dispatched last."""
    reaped: int
    buried: int
    forwarded: int
    dispatched: Mapping[str, int]
    """Topic → tasks dispatched since the shard was opened."""
    ready: Mapping[str, int]
    """Topic → tasks in its ready list, for the topics asked for."""


Peek = Call[ShardCounts]


def peek(keys: ShardKeys, epoch: int, topics: Sequence[str], *, now_us: str = "") -> Call[ShardCounts]:
    def decode(answer: list[Any]) -> ShardCounts:
        now, scheduled, leased, dead, head, meta, counts, lengths = body(answer)
        late, reaped, buried, forwarded = (int(field) if field else 0 for field in meta)
        fields = iter(counts)
        return ShardCounts(
            now_us=int(now),
            scheduled=scheduled,
            leased=leased,
            dead=dead,
            head_ms=int(float(head)) if head else None,
            late_ms=late if meta[0] is not None else None,
            reaped=reaped,
            buried=buried,
            forwarded=forwarded,
            dispatched={topic.decode(): int(count) for topic, count in zip(fields, fields, strict=True)},
            ready=dict(zip(topics, lengths, strict=True)),
        )

    return Call(
        slot=keys.slot,
        words=[epoch, now_us],
        decode=decode,
        script=script("peek"),
        keys=(keys.meta, keys.due, keys.leased, keys.dead, keys.topics, *map(keys.ready, topics)),
    )


@dataclass(frozen=True, slots=True)
class Replication:
    """The state of one master's replicas."""

    replicas: int
    """Replicas connected now."""
    unconfirmed: int | None
    """Bytes of writes that no replica has confirmed: the most that is lost when the one furthest ahead takes over now.
    Replicas confirm once a second, so it is rarely 0 under load. None: there is no replica."""


def replication(slot: int) -> Command[Replication]:
    """Asks the master of a slot for the state of its replicas."""

    def decode(text: bytes) -> Replication:
        fields = info_fields(text)
        # slave0:ip=10.0.0.2,port=6379,state=online,offset=1234,lag=0
        rows = [value for name, value in fields.items() if name.startswith(b"slave") and b"state=online" in value]
        offsets = [int(row.partition(b"offset=")[2].partition(b",")[0]) for row in rows]
        written = int(fields[b"master_repl_offset"])
        return Replication(len(offsets), max(0, written - max(offsets)) if offsets else None)

    return Command(slot=slot, words=("INFO", "replication"), decode=decode)


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """The settings of a server that decide what it keeps."""

    server: str
    """Its run id: another with each start."""
    maxmemory: int
    """In bytes; 0: as much as there is."""
    policy: str
    """The eviction policy."""
    evicted: bool
    """True if it has evicted keys since it started."""
    appends: bool
    """True if it keeps an append-only file."""
    maxclients: int
    """The most connections that it takes; 0: it does not say."""
    clients: int
    """The connections that it has."""


def server_settings(slot: int) -> Command[ServerSettings]:
    """Asks the master of a slot for its settings."""

    def decode(text: bytes) -> ServerSettings:
        fields = info_fields(text)
        return ServerSettings(
            server=fields.get(b"run_id", b"").decode(),
            maxmemory=int(fields.get(b"maxmemory", b"0")),
            policy=fields.get(b"maxmemory_policy", b"").decode(),
            evicted=fields.get(b"evicted_keys", b"0") != b"0",
            # A server that does not say has nothing to complain about.
            appends=fields.get(b"aof_enabled") != b"0",
            maxclients=int(fields.get(b"maxclients", b"0")),
            clients=int(fields.get(b"connected_clients", b"0")),
        )

    return Command(slot=slot, words=("INFO", "server", "clients", "memory", "persistence", "stats"), decode=decode)


def saves(slot: int) -> Command[bool]:
    """True if the master of a slot writes snapshots by itself."""

    def decode(answer: list[bytes] | dict[bytes, bytes]) -> bool:
        words = [*answer, *answer.values()] if isinstance(answer, dict) else answer
        return words != [b"save", b""]

    return Command(slot=slot, words=("CONFIG", "GET", "save"), decode=decode)


def waits(slot: int) -> Command[int]:
    """Tries WAIT at the master of a slot; it waits for nothing."""
    return Command(slot=slot, words=("WAIT", 0, 1), decode=int)


def named(slot: int) -> Command[Any]:
    """Tries to name a connection; it gets the name that it has."""
    return Command(slot=slot, words=("CLIENT", "SETNAME", "shardq"), decode=lambda answer: answer)


def publishes(keys: ShardKeys) -> Command[None]:
    """Raises when the master of a shard lets us publish nothing. Nobody hears it: no process has the empty name."""
    return Command(slot=keys.slot, words=("SPUBLISH", keys.wake(""), ""), decode=lambda _: None)


def info_fields(text: bytes) -> dict[bytes, bytes]:
    """The fields of an answer to INFO."""
    return dict(row.partition(b":")[::2] for row in text.splitlines())
