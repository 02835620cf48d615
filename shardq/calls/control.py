"""The topology, the metas of shards, and the members: everything about the whole and not about one task."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shardq.calls.answers import body
from shardq.calls.request import Call, Command, Word
from shardq.layout.keys import ControlKeys, ShardKeys

Fields = Mapping[bytes, bytes]

OPENED = "opened"
"""The first word of the news that shards were opened; their numbers follow."""


@dataclass(frozen=True, slots=True)
class Declared:
    changed: bool
    fields: Fields
    """The fields of the present topology, whoever made it."""


def declare(keys: ControlKeys, seen_epoch: int, fields: Fields) -> Call[Declared]:
    """Replaces the topology of ``seen_epoch``; 0 creates it. Sent twice it answers that somebody has changed it."""
    flat: list[Word] = []
    for field, value in fields.items():
        flat += (field, value)
    return Call.of(
        "declare", keys, [seen_epoch, keys.news, *flat], lambda answer: Declared(answer[0] == b"ok", pairs(answer[1:]))
    )


def read_topology(keys: ControlKeys) -> Command[Fields]:
    """Reads the topology; empty when there is none. HGETALL gives a map or a flat list, by protocol."""
    return Command(
        slot=keys.slot,
        words=("HGETALL", keys.topology),
        decode=lambda answer: answer if isinstance(answer, dict) else pairs(answer),
    )


def open_shard(keys: ShardKeys, epoch: int, topology: str, *, anew: bool = False) -> Call[bool]:
    """Opens a shard. Returns True if there was nothing, as far as is known. ``anew``: the shard is to be used from now
    on, and must show again that it is polled.
    """

    def again() -> Call[bool]:
        # It may find what the call whose answer was lost has written.
        call = open_shard(keys, epoch, topology, anew=anew)
        call.decode, call.resend = lambda answer: body(answer) is not None, None
        return call

    return Call.of(
        "open", keys, [epoch, topology, "1" if anew else "0"], lambda answer: bool(body(answer)[0]), resend=again
    )


def tell_opened(keys: ControlKeys, shards: Iterable[int]) -> Command[int]:
    """Tells those who wait that no process is registered in these shards."""
    return Command(slot=keys.slot, words=("SPUBLISH", keys.news, " ".join([OPENED, *map(str, shards)])), decode=int)


def opened_by(message: str | None) -> list[int]:
    """The shards that such news is about; none if it is other news."""
    word, *shards = (message or "").split(" ")
    return [int(shard) for shard in shards] if word == OPENED else []


def read_copy(keys: ShardKeys) -> Command[bytes | None]:
    """The topology that a shard was last told, as text."""
    return Command(slot=keys.slot, words=("HGET", keys.meta, "topology"), decode=lambda text: text)


def clock_ms(keys: ControlKeys) -> Command[int]:
    """The time, by the clock of the control slot's master."""
    return Command(slot=keys.slot, words=("TIME",), decode=lambda answer: int(answer[0]) * 1000)


def add_change(keys: ControlKeys, text: bytes) -> Command[int]:
    """Notes a change of an operator. ``engine.changes`` has its form."""
    return Command(slot=keys.slot, words=("LPUSH", keys.changes, text), decode=int)


def keep_changes(keys: ControlKeys, count: int) -> Command[None]:
    return Command(slot=keys.slot, words=("LTRIM", keys.changes, 0, count - 1), decode=lambda _: None)


def read_changes(keys: ControlKeys) -> Command[list[bytes]]:
    """The newest first."""
    return Command(slot=keys.slot, words=("LRANGE", keys.changes, 0, -1), decode=list)


def alive(keys: ControlKeys, now_ms: int) -> Command[list[str]]:
    """The dispatchers that count as alive, sorted.

    The set of members alone does not tell which of them live: the last one to die is in it until somebody else gives a
    heartbeat.
    """
    return Command(
        slot=keys.slot,
        words=("ZRANGEBYSCORE", keys.members, now_ms, "+inf"),
        decode=lambda names: sorted(name.decode() for name in names),
    )


def living(keys: ControlKeys) -> Command[int]:
    """The number of dispatchers, those that died in the last seconds included."""
    return Command(slot=keys.slot, words=("ZCARD", keys.members), decode=int)


@dataclass(frozen=True, slots=True)
class HeartbeatAnswer:
    """The members, by the clock of the control slot's master."""

    now_us: int
    members: Mapping[str, int]
    """Name → the instant until which it counts as alive, in ms."""
    epoch: int
    """The epoch of the stored topology; 0 when there is none."""
    topology: Fields
    """Empty when its epoch is the one that the caller knows."""
    joined: bool = False
    """True if the process was no member before: then nothing is stored of an earlier report."""


def heartbeat(
    keys: ControlKeys,
    process: str,
    *,
    alive_ms: int,
    others_ms: int,
    epoch: int,
    report: bytes = b"",
    leave: bool = False,
    now_us: str = "",
) -> Call[HeartbeatAnswer]:
    """``alive_ms``: how long the process counts as alive without another heartbeat; ``others_ms``: how long the others
    do at most, whatever they said themselves. ``report``: empty when it is the one before.
    """
    return Call.of(
        "heartbeat",
        keys,
        [process, now_us, alive_ms, others_ms, epoch, "leave" if leave else "stay", keys.news, report],
        _heartbeat_answer,
    )


def _heartbeat_answer(answer: list[Any]) -> HeartbeatAnswer:
    _, now_us, members, epoch, topology, joined = answer
    return HeartbeatAnswer(
        now_us=int(now_us),
        members={name.decode(): int(until) for name, until in pairs(members).items()},
        epoch=int(epoch or 0),
        topology=pairs(topology),
        joined=bool(joined),
    )


def pairs(flat: Sequence[bytes]) -> dict[bytes, bytes]:
    """The fields of a flat list."""
    fields = iter(flat)
    return dict(zip(fields, fields, strict=True))
