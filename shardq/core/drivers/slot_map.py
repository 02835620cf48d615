"""Which node serves which slot, as a value. No I/O."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

from shardq.core.drivers.settings import located

SLOTS = 16384


class SlotMap:
    """Slot → address of its master: ``host:port``, or the path of a unix socket. Never changed: a correction makes a
    new one.
    """

    __slots__ = ("epoch", "ids", "nodes", "owners")

    def __init__(
        self,
        nodes: Sequence[str],
        owners: list[str | None] | None = None,
        ids: Mapping[str, str] | None = None,
        *,
        epoch: int = 0,
    ) -> None:
        """Without owners the first node serves every slot."""
        self.epoch: int = epoch
        """The config-epoch by which sentinels have named the master."""
        self.nodes: tuple[str, ...] = tuple(nodes)
        self.ids: Mapping[str, str] = ids or {}
        """Address → the id of the cluster's node there, as far as it is known."""
        self.owners: list[str | None] = [nodes[0]] * SLOTS if owners is None else owners
        """Slot → the node that serves it, if one does."""

    def node(self, slot: int) -> str | None:
        """The node that serves this slot, if one does. Slot -1: any node."""
        # another one when it is tried again
        return self.owners[slot] if slot >= 0 else random.choice(self.nodes)

    @property
    def unserved(self) -> int:
        """The number of slots that no node serves."""
        return self.owners.count(None)

    def corrected(self, slot: int, address: str) -> SlotMap:
        """The same map but for one slot, as a MOVED told."""
        nodes = self.nodes if address in self.nodes else (*self.nodes, address)
        owners = self.owners.copy()
        owners[slot] = address
        return SlotMap(nodes, owners, self.ids)

    def __repr__(self) -> str:
        return f"SlotMap({', '.join(self.nodes)}{f'; {self.unserved} slots unserved' if self.unserved else ''})"


def from_cluster_slots(answer: list[Any], *, asked: str) -> SlotMap:
    """Reads CLUSTER SLOTS: a list of [first, last, [host, port, id, …] of the master, replicas…].

    A node that does not know its own host leaves it empty: that is the one we asked, or its host.
    """
    nodes: list[str] = []
    owners: list[str | None] = [None] * SLOTS
    ids: dict[str, str] = {}
    for first, last, master, *_replicas in answer:
        address = located(text_of(master[0]), int(master[1]), asked=asked)
        if address not in nodes:
            nodes.append(address)
        if len(master) > 2:
            ids[address] = text_of(master[2])
        owners[first : last + 1] = [address] * (last + 1 - first)
    return SlotMap(nodes, owners, ids)


def members_of(answer: list[Any], *, asked: str) -> tuple[frozenset[str], frozenset[str]]:
    """The ids and the addresses of all nodes that an answer to CLUSTER SLOTS names."""
    nodes = [node for _first, _last, *some in answer for node in some]
    addresses = frozenset(located(text_of(node[0]), int(node[1]), asked=asked) for node in nodes)
    return frozenset(text_of(node[2]) for node in nodes if len(node) > 2), addresses


def text_of(raw: bytes | str | None) -> str:
    return raw.decode() if isinstance(raw, bytes) else raw or ""
