"""The names of all keys and channels; the only module that writes a brace into one.

Called by ``calls``, which declares keys to scripts, and by what listens to channels. Every name of a shard
carries the shard's tag in braces, on a single server too, so that names never depend on where they live and
all keys and channels of a shard are in one slot. A changed name needs the table in ``lua/README.md`` and
``tests/layout/test_keys.py`` changed with it, and strands what is stored under the old one.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass

from shardq.core.layout.slots import MAX_SHARDS, slot_of, tag

_OF_SHARD = re.compile(r"shardq:\{[^:}]+:(\d+)\.")


@dataclass(frozen=True, slots=True)
class ShardKeys:
    """The names of one shard, ready made."""

    shard: int
    slot: int
    prefix: str
    """The beginning of every name of the shard, the colon included."""
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
    bell: str
    """The channel for a task that falls due earlier than the poller knows."""

    def ready(self, topic: str) -> str:
        """The list of a topic's ready ids."""
        return f"{self.prefix}ready/{topic}"

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
    members: str
    workers: str
    reports: str
    limits: str
    schedules: str
    history: str
    changes: str
    news: str
    """The channel for changes of the members, the topology, routes, pauses, limits and schedules."""

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


@functools.lru_cache(maxsize=4 * MAX_SHARDS)
def shard_keys(name: str, shard: int) -> ShardKeys:
    """The names of shard ``shard`` of the engine ``name``."""
    prefix = f"shardq:{{{tag(name, shard)}}}:"
    return ShardKeys(
        shard=shard,
        slot=slot_of(prefix),
        prefix=prefix,
        meta=f"{prefix}meta",
        due=f"{prefix}due",
        task=f"{prefix}task",
        leased=f"{prefix}leased",
        lease=f"{prefix}lease",
        dead=f"{prefix}dead",
        why=f"{prefix}why",
        ghost=f"{prefix}ghost",
        seen=f"{prefix}seen",
        topics=f"{prefix}topics",
        looks=f"{prefix}looks",
        moved=f"{prefix}moved",
        staged=f"{prefix}staged",
        bell=f"{prefix}bell",
    )


@functools.lru_cache(maxsize=64)
def control_keys(name: str) -> ControlKeys:
    """The names of the engine ``name`` as a whole."""
    prefix = f"shardq:{{{name}}}:"
    return ControlKeys(
        slot=slot_of(prefix),
        prefix=prefix,
        topology=f"{prefix}topology",
        members=f"{prefix}members",
        workers=f"{prefix}workers",
        reports=f"{prefix}reports",
        limits=f"{prefix}limits",
        schedules=f"{prefix}schedules",
        history=f"{prefix}history",
        changes=f"{prefix}changes",
        news=f"{prefix}news",
    )


def shard_named(key: str) -> int | None:
    """The shard that a key belongs to; None for one of an engine as a whole, or of another program."""
    found = _OF_SHARD.match(key)
    return int(found[1]) if found else None


def patterns(name: str) -> tuple[str, str]:
    """The patterns of an ACL that match all names of the engine ``name``: of its shards, and of the whole."""
    return f"shardq:{{{name}:*", f"{control_keys(name).prefix}*"
