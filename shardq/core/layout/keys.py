"""The names of all keys and channels; the only module that writes a brace into one.

Every name of a shard carries the shard's tag in braces, on a single server too, so that names never depend on where
they live and all keys and channels of a shard are in one slot. A changed name needs the table in ``lua/README.md`` and
``tests/layout/test_keys.py`` changed with it, and strands what is stored under the old one.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Collection
from dataclasses import dataclass, fields
from typing import ClassVar

from shardq.core.layout.slots import MAX_SHARDS, slot_of, tag

END_SLOTS = 8

_OF_SHARD = re.compile(r"shardq:\{[^:}]+:(\d+)\.")
_TOPOLOGY = re.compile(r"shardq:\{([^:}]+)\}:topology")


@dataclass(frozen=True, slots=True)
class ShardKeys:
    """The names of one shard, ready made."""

    shard: int
    slot: int
    prefix: str  # the beginning of every name of the shard, the colon included
    keyed: bool  # True in an engine that has keys: scripts then take the names from ``keys`` on, too
    meta: str
    due: str
    task: str
    leased: str
    lease: str
    dead: str
    why: str
    ghost: str
    seen: str
    topics: str
    looks: str
    moved: str
    staged: str
    copy: str
    bell: str  # the channel for a task that falls due earlier than the poller knows
    keys: str
    placed: str
    alarms: str
    rests: str
    holds: str
    gates: str

    @property
    def moving(self) -> tuple[str, ...]:
        """The keys whose contents a resize moves; none of them is left in a shard that it takes out of use."""
        return self.task, self.moved, self.seen

    def ready(self, topic: str) -> str:
        """The list of a topic's ready ids."""
        return f"{self.prefix}ready/{topic}"

    @property
    def ends(self) -> list[str]:
        """The slots of the ring of ends."""
        return [f"{self.prefix}ends/{slot}" for slot in range(END_SLOTS)]

    def waiting(self, topic: str) -> str:
        """The processes with a consumer idle on a topic, by how long they wait: a sorted set."""
        return f"{self.prefix}waiting/{topic}"

    def wake(self, process: str) -> str:
        """The channel on which a waiting process hears that it has something to claim."""
        return f"{self.prefix}wake/{process}"


@dataclass(frozen=True, slots=True)
class ControlKeys:
    """The names that belong to the engine as a whole; one slot of their own."""

    slot: int
    prefix: str
    topology: str
    settings: str
    edits: str
    members: str
    workers: str
    reports: str
    unreached: str
    limits: str
    schedules: str
    history: str
    changes: str
    news: str  # the channel for changes of the members, the topology and its settings, and news of features
    keyed: ClassVar[bool] = False

    def bucket(self, topic: str) -> str:
        """The tokens of a topic with a limited rate."""
        return f"{self.limits}/rate/{topic}"

    def permits(self, topic: str) -> str:
        """The holders of permits of a topic with limited concurrency."""
        return f"{self.limits}/permits/{topic}"

    def waiting(self, topic: str) -> str:
        """The processes that wait for a permit of the topic, by how long: a sorted set."""
        return f"{self.limits}/waiting/{topic}"

    def wake(self, process: str) -> str:
        """The channel on which a waiting process hears that a permit went back."""
        return f"{self.prefix}wake/{process}"


# After its prefix a key or a channel has the name of its field.
_OF_A_SHARD = [each.name for each in fields(ShardKeys)][4:]
_OF_THE_WHOLE = [each.name for each in fields(ControlKeys)][2:]


@functools.lru_cache(maxsize=4 * MAX_SHARDS)
def shard_keys(name: str, shard: int, keyed: bool = False) -> ShardKeys:
    """The names of shard ``shard`` of the engine ``name``."""
    prefix = f"shardq:{{{tag(name, shard)}}}:"
    return ShardKeys(shard, slot_of(prefix), prefix, keyed, *(prefix + each for each in _OF_A_SHARD))


@functools.lru_cache(maxsize=64)
def control_keys(name: str) -> ControlKeys:
    """The names of the engine ``name`` as a whole."""
    prefix = f"shardq:{{{name}}}:"
    return ControlKeys(slot_of(prefix), prefix, *(prefix + each for each in _OF_THE_WHOLE))


def shard_named(key: str) -> int | None:
    """The shard that a key belongs to; None for one of an engine as a whole, or of another program."""
    found = _OF_SHARD.match(key)
    return int(found[1]) if found else None


def engine_named(key: str) -> str | None:
    """The engine whose topology a key is; None for another key."""
    found = _TOPOLOGY.fullmatch(key)
    return found[1] if found else None


def topologies() -> str:
    """The pattern that matches the topologies of all engines."""
    return "shardq:{*}:topology"


def patterns(name: str) -> tuple[str, str]:
    """The patterns that match all names of the engine ``name``: of its shards, and of the whole."""
    return f"shardq:{{{name}:*", f"{control_keys(name).prefix}*"


def field_patterns(name: str, chosen: Collection[str]) -> list[str]:
    """The patterns that match the keys of some fields: of all shards, and of the whole."""
    prefixes = dict.fromkeys((*_OF_A_SHARD, "ready", "waiting", "ends"), f"shardq:{{{name}:*}}:")
    prefixes |= dict.fromkeys(_OF_THE_WHOLE, control_keys(name).prefix)
    some = ("ready", "waiting", "ends", "limits")
    return [f"{prefix}{each}{'/*' * (each in some)}" for each, prefix in prefixes.items() if each in chosen]
