"""What is stored of every task, wherever it is: the steps of a migration change nothing of it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from tests.sim.invariants import Shard

STILL = frozenset(
    ("reserve", "take", "put", "clear", "swept", "stock", "remember", "forget", "seal", "unmark", "open", "declare")
)
"""Scripts after which all tasks, and all dedup windows, are as they were before."""


class Stored(NamedTuple):
    """One task."""

    state: str
    instant: bytes
    lease: bytes
    why: bytes
    record: bytes


class Picture(NamedTuple):
    tasks: dict[bytes, Stored]
    windows: dict[bytes, int]
    """Id → the latest end of a dedup window, in any shard. Its fraction is no time, but marks the push."""


def picture(shards: Sequence[Shard]) -> Picture:
    tasks: dict[bytes, Stored] = {}
    windows: dict[bytes, int] = {}
    for shard in shards:
        keys = shard.keys
        lease, why = shard.fields(keys.lease), shard.fields(keys.why)
        places = [(name, shard.scores(getattr(keys, name))) for name in ("due", "leased", "dead")]
        for id, record in shard.fields(keys.task).items():
            state, score = next(((name, scores[id]) for name, scores in places if id in scores), ("ready", 0.0))
            tasks[id] = Stored(state, b"%.0f" % score, lease.get(id, b""), why.get(id, b""), record)
        for id, parcel in shard.fields(keys.moved).items():
            number, target, kind, instant, lease_bytes, why_bytes, rest = parcel.split(b"|", 6)
            there = shards[int(target)]
            if b"%s|%s" % (id, number) in there.fields(there.keys.staged):
                first, second = int(lease_bytes), int(lease_bytes) + int(why_bytes)
                parts = rest[:first], rest[first:second], rest[second:]
                state = kind.partition(b":")[0].decode().replace("first", "due")  # a task in `due` tells no number
                tasks[id] = Stored(state, instant, *parts)
        for member, until in shard.scores(keys.seen).items():
            windows[member] = max(windows.get(member, 0), math.ceil(until))
    return Picture(tasks, windows)
