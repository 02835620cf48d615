"""peek: the counts of a shard; the state of a node's replicas, its settings and its clock. For stats() and health()."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from shardq.calls.answers import body
from shardq.calls.request import Call, Command
from shardq.layout.keys import ShardKeys


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
    waited_ms: Mapping[str, int]
    """Topic → how long the head of its ready list has been seen there, by this look or earlier ones of anybody; only
    topics that have a ready task.
    """
    died: Mapping[str, int]
    """Topic → tasks that died since the shard came into use, for the topics of which any did."""
    died_lately: int
    """The dead tasks that died in the last ten minutes."""
    trimmed: int
    """Dead tasks that were removed because they were too old or too many."""
    trimmed_ms: int | None
    """When one was last removed because there were too many."""
    drawn: Mapping[Drawn, Mapping[str, int]]
    """State → topic → how many of the ids drawn from this state, if any were to be drawn."""

    @property
    def head_age(self) -> float | None:
        """Seconds since the first scheduled task was due."""
        return None if self.head_ms is None else self.now_us / 1e6 - self.head_ms / 1e3


Drawn = Literal["scheduled", "leased", "dead"]
"""A state of which ids are drawn to tell their topics: its set is too large to be gone through."""

DRAWN: tuple[Drawn, ...] = get_args(Drawn)

Peek = Call[ShardCounts]


def peek(keys: ShardKeys, epoch: int, topics: Sequence[str], *, draw: int = 0, now_us: str = "") -> Call[ShardCounts]:
    """Counts the tasks of a shard. ``draw``: how many ids to draw from each state, at most."""

    def decode(answer: list[Any]) -> ShardCounts:
        now, scheduled, leased, dead, head, meta, counts, lengths, waited, drawn, died, deaths = body(answer)
        late, reaped, buried, forwarded = (int(field) if field else 0 for field in meta)
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
            dispatched=_by_topic(counts),
            ready=dict(zip(topics, lengths, strict=True)),
            waited_ms={topic: ms for topic, ms in zip(topics, waited, strict=True) if ms >= 0},
            died=_by_topic(died),
            died_lately=deaths[0],
            trimmed=int(deaths[1] or 0),
            trimmed_ms=int(deaths[2]) if deaths[2] else None,
            drawn={state: _by_topic(flat) for state, flat in zip(DRAWN, drawn, strict=True)},
        )

    return Call.of("peek", keys, [epoch, now_us, draw, *topics], decode, topics=topics)


def dispatched(keys: ShardKeys) -> Command[Mapping[str, int]]:
    """Topic → tasks dispatched since the shard was opened."""

    def decode(answer: Any) -> Mapping[str, int]:
        flat = [word for pair in answer.items() for word in pair] if isinstance(answer, dict) else answer
        return _by_topic(flat)

    return Command(slot=keys.slot, words=("HGETALL", keys.topics), decode=decode)


def scheduled(keys: ShardKeys) -> Command[int]:
    return Command(slot=keys.slot, words=("ZCARD", keys.due), decode=int)


def ready(keys: ShardKeys, topic: str) -> Command[int]:
    return Command(slot=keys.slot, words=("LLEN", keys.ready(topic)), decode=int)


def died(keys: ShardKeys, topics: Sequence[str]) -> Command[int]:
    """The tasks of these topics that died since the shard came into use."""
    return Command(
        slot=keys.slot,
        words=("HMGET", keys.meta, *(f"died/{topic}" for topic in topics)),
        decode=lambda counts: sum(int(count or 0) for count in counts),
    )


def newest_dead(keys: ShardKeys, count: int) -> Command[list[str]]:
    """The ids of the last tasks that died."""
    return Command(
        slot=keys.slot,
        words=("ZRANGE", keys.dead, 0, count - 1, "REV"),
        decode=lambda ids: [id.decode() for id in ids],
    )


def reasons_of(keys: ShardKeys, ids: Sequence[str]) -> Command[list[str]]:
    """The reasons of dead tasks; empty for one without."""
    return Command(
        slot=keys.slot,
        words=("HMGET", keys.why, *ids),
        decode=lambda reasons: [(reason or b"").decode(errors="replace") for reason in reasons],
    )


def _by_topic(flat: list[Any]) -> dict[str, int]:
    fields = iter(flat)
    return {topic.decode(): int(count) for topic, count in zip(fields, fields, strict=True)}


@dataclass(frozen=True, slots=True)
class Replication:
    """The state of one master, and of its replicas."""

    replicas: int
    """Replicas connected now."""
    unconfirmed: int | None
    """Bytes of writes that no replica has confirmed: the most that is lost when the one furthest ahead takes over now.
    Replicas confirm once a second, so it is rarely 0 under load. None: there is no replica."""
    silent: Mapping[str, int | None]
    """Replica → seconds since it confirmed anything, if that was ``SILENT_S`` ago or longer; None while it copies the
    whole data set."""
    memory: int
    """The bytes that the master uses."""
    maxmemory: int
    """The most that it may use; 0: as much as there is."""
    cpu_s: float
    """The seconds of a core that it has used since it started."""


SILENT_S = 10
"""A replica confirms once a second. One that has not for so long hangs, or is cut off."""


def replication(slot: int) -> Command[Replication]:
    """Asks the master of a slot for its state, and that of its replicas."""

    def decode(text: bytes) -> Replication:
        fields = info_fields(text)
        # slave0:ip=10.0.0.2,port=6379,state=online,offset=1234,lag=0
        rows = [
            dict(pair.partition("=")[::2] for pair in value.decode().split(","))
            for name, value in fields.items()
            if name.startswith(b"slave") and b"state=" in value
        ]
        online = [row for row in rows if row["state"] == "online"]
        written = int(fields[b"master_repl_offset"])
        lags = {f"{row['ip']}:{row['port']}": int(row["lag"]) if row in online else None for row in rows}
        return Replication(
            replicas=len(online),
            unconfirmed=max(0, written - max(int(row["offset"]) for row in online)) if online else None,
            silent={replica: lag for replica, lag in lags.items() if lag is None or lag >= SILENT_S},
            memory=int(fields.get(b"used_memory", b"0")),
            maxmemory=int(fields.get(b"maxmemory", b"0")),
            cpu_s=sum(float(fields.get(name, b"0")) for name in (b"used_cpu_sys", b"used_cpu_user")),
        )

    return Command(slot=slot, words=("INFO", "replication", "memory", "cpu"), decode=decode)


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """The settings of a server that decide what it keeps."""

    server: str
    """Its run id: another with each start."""
    maxmemory: int
    """In bytes; 0: as much as there is."""
    memory: int
    """The bytes that it uses."""
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
            memory=int(fields.get(b"used_memory", b"0")),
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


def clock(slot: int) -> Command[float]:
    """The time of the master of a slot, in seconds."""
    return Command(slot=slot, words=("TIME",), decode=lambda answer: int(answer[0]) + int(answer[1]) / 1e6)


@dataclass(frozen=True, slots=True, order=True)
class FailedNode:
    """A node that its cluster has declared failed."""

    address: str
    is_master: bool
    slots: tuple[tuple[int, int], ...]
    """The slots that no other node has taken over: first and last of each range."""

    def serves(self, slot: int) -> bool:
        """True if the slot is one of those that are lost with it."""
        return any(first <= slot <= last for first, last in self.slots)


def failed_nodes() -> Command[list[FailedNode]]:
    """The nodes that a cluster has declared failed, as any of its nodes tells; nodes without an address are left out.
    An error at a single server.
    """

    def decode(text: bytes) -> list[FailedNode]:
        # id 10.0.0.1:6379@16379,host master,fail - 0 0 3 disconnected 0-5460 7000 [7001->-id]
        rows = [row.split(" ") for row in text.decode().splitlines() if row]
        return sorted(
            FailedNode(
                row[1].partition("@")[0], "master" in row[2], tuple(_range(word) for word in row[8:] if word[0] != "[")
            )
            for row in rows
            if "fail" in row[2].split(",") and "noaddr" not in row[2]
        )

    return Command[list[FailedNode]](slot=-1, words=("CLUSTER", "NODES"), decode=decode).briefly()


def _range(word: str) -> tuple[int, int]:
    first, _, last = word.partition("-")
    return int(first), int(last or first)


def info_fields(text: bytes) -> dict[bytes, bytes]:
    """The fields of an answer to INFO."""
    return dict(row.partition(b":")[::2] for row in text.splitlines())
