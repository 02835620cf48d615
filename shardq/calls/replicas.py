"""seal, and the questions that follow it on its connection: do replicas, or the disk, have what was written?"""

from __future__ import annotations

from dataclasses import dataclass

from shardq.calls.answers import nothing
from shardq.calls.observe import info_fields
from shardq.calls.request import Call, Command
from shardq.scripts import script


def seal(meta: str, slot: int, epoch: int, *, now_us: str = "") -> Call[None]:
    """A write to wait for: replicas that have it have everything that was written on the node before it."""
    return Call(slot=slot, words=[epoch, now_us], decode=nothing, script=script("seal"), keys=(meta,))


@dataclass(frozen=True, slots=True)
class Lineage:
    """The replication history that a server's data belongs to. A replica has a prefix of its master's."""

    is_master: bool
    history: str
    """The name of the history that it writes, or follows."""
    offset: int
    """The length of that history, in bytes."""
    earlier: str
    """The name of the history that it followed before it was promoted, or had before it was restarted."""
    earlier_length: int
    """The bytes of the earlier history that it has."""


def lineage() -> Command[Lineage]:
    """Asks a server for its lineage."""

    def decode(text: bytes) -> Lineage:
        fields = info_fields(text)
        return Lineage(
            is_master=fields.get(b"role") == b"master",
            history=fields.get(b"master_replid", b"").decode(),
            offset=int(fields.get(b"master_repl_offset", b"0")),
            earlier=fields.get(b"master_replid2", b"").decode(),
            earlier_length=int(fields.get(b"second_repl_offset", b"0")) - 1,
        )

    return Command(slot=-1, words=("INFO", "replication"), decode=decode)


def replicas(slot: int) -> Command[int]:
    """The number of replicas connected to the master of a slot."""

    def decode(text: bytes) -> int:
        return int(info_fields(text)[b"connected_slaves"])

    return Command(slot=slot, words=("INFO", "replication"), decode=decode)


def wait(slot: int, replicas: int, *, timeout_ms: int) -> Command[int]:
    """The number of replicas that have what this connection wrote."""
    return Command(slot=slot, words=("WAIT", replicas, timeout_ms), decode=int)


def wait_aof(slot: int, *, timeout_ms: int) -> Command[int]:
    """1 when what this connection wrote is on the master's disk. An error where that is never known."""
    return Command(slot=slot, words=("WAITAOF", 1, 0, timeout_ms), decode=lambda answer: int(answer[0]))
