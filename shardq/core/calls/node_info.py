"""The settings, clock, cluster and replicas of a node; seal, and the questions that follow it on its connection: do
replicas, or the disk, have what was written?
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from shardq.core.calls.request import NOW, Call, Command, Epoch, body, nothing
from shardq.core.layout.keys import ShardKeys
from shardq.core.scripts import script


@dataclass(frozen=True, slots=True)
class Replication:
    """The state of one master, and of its replicas."""

    replicas: int  # replicas connected now
    unconfirmed: int | None
    """Bytes of writes that no replica has confirmed: the most that is lost when the one furthest ahead takes over now.
    Replicas confirm once a second, so it is rarely 0 under load. None: there is no replica."""
    silent: Mapping[str, int | None]
    """Replica → seconds since it confirmed anything, if that was ``SILENT_S`` ago or longer; None while it copies the
    whole data set."""
    memory: int  # the bytes that the master uses
    maxmemory: int  # the most that it may use; 0: as much as there is
    cpu_s: float  # the seconds of a core that it has used since it started


SILENT_S = 10  # a replica confirms once a second. One that has not for so long hangs, or is cut off.


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

    return Command(slot, ("INFO", "replication", "memory", "cpu"), decode)


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """The settings of a server that decide what it keeps."""

    server: str  # its run id: another with each start
    maxmemory: int  # in bytes; 0: as much as there is
    memory: int  # the bytes that it uses
    policy: str  # the eviction policy
    evicted: bool  # true if it has evicted keys since it started
    appends: bool  # true if it keeps an append-only file
    maxclients: int  # the most connections that it takes; 0: it does not say
    clients: int  # the connections that it has


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

    return Command(slot, ("INFO", "server", "clients", "memory", "persistence", "stats"), decode)


def run_id(slot: int) -> Command[str]:
    """The id of the process that serves a slot: another one with each start, on each node."""
    return Command(slot, ("INFO", "server"), lambda text: info_fields(text).get(b"run_id", b"").decode())


def saves(slot: int) -> Command[bool]:
    """True if the master of a slot writes snapshots by itself."""

    def decode(answer: list[bytes] | dict[bytes, bytes]) -> bool:
        words = [*answer, *answer.values()] if isinstance(answer, dict) else answer
        return words != [b"save", b""]

    return Command(slot, ("CONFIG", "GET", "save"), decode)


def waits(slot: int) -> Command[int]:
    """Tries WAIT at the master of a slot; it waits for nothing."""
    return Command(slot, ("WAIT", 0, 1), int)


def named(slot: int) -> Command[Any]:
    """Tries to name a connection; it gets the name that it has."""
    return Command(slot, ("CLIENT", "SETNAME", "shardq"), lambda answer: answer)


def clock(slot: int) -> Command[float]:
    """The time of the master of a slot, in seconds."""
    return Command(slot, ("TIME",), lambda answer: int(answer[0]) + int(answer[1]) / 1e6)


@dataclass(frozen=True, slots=True, order=True)
class FailedNode:
    """A node that its cluster has declared failed."""

    address: str
    is_master: bool
    slots: tuple[tuple[int, int], ...]  # the slots that no other node has taken over: first and last of each range

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


def knows_waitaof(fields: Mapping[bytes, bytes]) -> bool:
    """True if this server knows WAITAOF; ``fields`` of INFO."""
    return b"valkey_version" in fields or _version(fields, b"redis_version") >= (7, 2)


def answers_early(fields: Mapping[bytes, bytes]) -> bool:
    """True if this server may answer WAITAOF before its disk has the write, under ``appendfsync everysec``. Redis 7.4
    brought that, and 8.0 mended it; Valkey has had it since 8.0, and no version is known to have mended it.
    """
    if b"valkey_version" in fields:
        return _version(fields, b"valkey_version") >= (8, 0)
    return (7, 4) <= _version(fields, b"redis_version") < (8, 0)


def _version(fields: Mapping[bytes, bytes], name: bytes) -> tuple[int, ...]:
    """The first two numbers of a version; 0 for what is none."""
    parts = fields.get(name, b"").split(b".")[:2]
    return tuple(int(part) if part.isdigit() else 0 for part in parts)


def early_version(slot: int) -> Command[str]:
    """The name and version of the server of a slot, if it keeps an append-only file and may answer WAITAOF too early.
    Empty otherwise.
    """

    def decode(text: bytes) -> str:
        fields = info_fields(text)
        if fields.get(b"aof_enabled") != b"1" or not answers_early(fields):
            return ""
        name, version = ("Valkey", b"valkey_version") if b"valkey_version" in fields else ("Redis", b"redis_version")
        return f"{name} {fields[version].decode()}"

    return Command(slot, ("INFO", "server", "persistence"), decode)


def seal(meta: str, slot: int, epoch: Epoch) -> Call[None]:
    """A write to wait for: replicas that have it have everything that was written on the node before it."""
    return Call(slot=slot, words=[epoch, NOW, "", 0, 0], decode=nothing, script=script("seal"), keys=(meta,))


def beat(keys: ShardKeys, epoch: Epoch, mover: str, number: int, least: int = 0) -> Call[tuple[int, int]]:
    """Notes the number of a beat of those who move rows in; 0 only asks. Returns the highest before, and the shard's
    clock in ms. With a lower one before than ``least`` it notes nothing: the server went back.
    """

    def decode(answer: list[Any]) -> tuple[int, int]:
        before, now_ms = body(answer)
        return before, now_ms

    return Call.of("seal", keys, [epoch, NOW, mover, number, least], decode)


@dataclass(frozen=True, slots=True)
class Lineage:
    """The replication history that a server's data belongs to. A replica has a prefix of its master's."""

    is_master: bool
    history: str  # the name of the history that it writes, or follows
    offset: int  # the length of that history, in bytes
    earlier: str  # the name of the history that it followed before it was promoted, or had before it was restarted
    earlier_length: int  # the bytes of the earlier history that it has
    replicas: int  # the replicas that follow it now


def lineage(slot: int = -1) -> Command[Lineage]:
    """Asks a server for its lineage: any, or the master of a slot."""

    def decode(text: bytes) -> Lineage:
        fields = info_fields(text)
        return Lineage(
            is_master=fields.get(b"role") == b"master",
            history=fields.get(b"master_replid", b"").decode(),
            offset=int(fields.get(b"master_repl_offset", b"0")),
            earlier=fields.get(b"master_replid2", b"").decode(),
            earlier_length=int(fields.get(b"second_repl_offset", b"0")) - 1,
            replicas=sum(name.startswith(b"slave") and b"state=online" in row for name, row in fields.items()),
        )

    return Command(slot, ("INFO", "replication"), decode)


def replicas(slot: int) -> Command[int]:
    """The number of replicas connected to the master of a slot."""

    def decode(text: bytes) -> int:
        return int(info_fields(text)[b"connected_slaves"])

    return Command(slot, ("INFO", "replication"), decode)


def wait(slot: int, replicas: int, *, timeout_ms: int) -> Command[int]:
    """The number of replicas that have what this connection wrote."""
    return Command(slot, ("WAIT", replicas, timeout_ms), int)


def wait_aof(slot: int, *, timeout_ms: int) -> Command[int]:
    """Tries WAITAOF: an error where the master has no append-only file, or does not know it. ``drivers.disk`` says why
    its answer says little.
    """
    return Command(slot, ("WAITAOF", 1, 0, timeout_ms), lambda answer: int(answer[0]))
