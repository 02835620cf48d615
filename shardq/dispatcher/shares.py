"""Which process serves which shard: a pure function of the members, so that all of them agree without talking."""

from __future__ import annotations

from collections.abc import Collection

import mmh3


def shares(members: Collection[str], shards: int) -> dict[str, list[int]]:
    """Every shard to exactly one member, none with more than ⌈shards ÷ members⌉.

    Each shard goes to the member it rates highest (rendezvous hashing) among those that still have room, so that a
    member that joins or leaves moves few other shards.
    """
    names = sorted(members)
    owned: dict[str, list[int]] = {name: [] for name in names}
    if not names:
        return owned
    room = -(-shards // len(names))
    for shard in range(shards):
        free = [name for name in names if len(owned[name]) < room]
        owned[max(free, key=lambda name: (mmh3.hash(f"{name}/{shard}"), name))].append(shard)
    return owned
