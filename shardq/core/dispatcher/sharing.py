"""Which shards a dispatcher serves: a pure function of the members and of what these say that they can't reach, so all
members agree without talking to each other. Used by ``dispatcher``. No I/O.

A shard has one owner. While the owner says that it can't reach the shard, a deputy serves it: the member that says so
of the fewest shards, as one that is cut off from a node says so of all that it owns there. A deputy that can't reach it
either says so, too, and there is another one. All of them try on until the owner reaches it again: moves are atomic, so
several pollers of one shard break nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

import mmh3

MOST_DEPUTIES = 3
"""After so many in vain there is no other: the shard's node is down, and its callers will all come back at once."""


class Share(NamedTuple):
    """The shards of one member."""

    polled: frozenset[int]
    left: frozenset[int]
    """Its shards that it can't reach, and that a deputy serves."""


def share(process: str, members: Collection[str], unreached: Mapping[str, Collection[int]], shards: int) -> Share:
    """The share of ``process``. ``unreached``: member → the shards that it says it can't reach."""
    owned = shares(members, shards)
    said = {name: frozenset(unreached.get(name, ())) for name in owned}
    polled, left = set(owned.get(process, ())), set[int]()
    for owner in owned:
        for shard in said[owner].intersection(owned[owner]):
            cut_off = {name for name in owned if shard in said[name]}
            deputy = None
            if len(cut_off) <= MOST_DEPUTIES:
                others = owned.keys() - cut_off
                deputy = max(others, key=lambda name: (-len(said[name]), _weight(name, shard)), default=None)
            if process == deputy or process in cut_off:
                polled.add(shard)
            if process in cut_off and deputy is not None:
                left.add(shard)
    return Share(frozenset(polled), frozenset(left))


def shares(members: Collection[str], shards: int) -> dict[str, list[int]]:
    """Member → the shards that it owns. Each shard has exactly one owner, and no member has more than
    ⌈shards ÷ members⌉.

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
        owned[max(free, key=lambda name: _weight(name, shard))].append(shard)
    return owned


def _weight(name: str, shard: int) -> tuple[int, str]:
    return mmh3.hash(f"{name}/{shard}"), name
