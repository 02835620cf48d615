"""Says which process serves which shard. Called by ``dispatcher``, and by the command for ``shardq shards``.

It is a pure function of the members, so all of them agree without talking to each other.
"""

from __future__ import annotations

from collections.abc import Collection

import mmh3


def shares(members: Collection[str], shards: int) -> dict[str, list[int]]:
    """Member → its shards. Each shard has exactly one member, and no member has more than ⌈shards ÷ members⌉.

    A shard goes to the member that hashes highest with it (rendezvous hashing) among those with room, so few shards
    change hands when a member joins or leaves.
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
