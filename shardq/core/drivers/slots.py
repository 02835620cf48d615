"""Which node serves which hash slot, as a value. No I/O; made by ``discover``, asked by the drivers.

A node is named by its address: ``host:port``, or the path of a unix socket.
"""

from __future__ import annotations

import random
from array import array
from collections.abc import Sequence
from typing import Any

SLOTS = 16384
# Owners are indexes into ``nodes`` in 16 bits; this one says that nobody serves the slot.
_NOBODY = 0xFFFF


class SlotMap:
    """Slot → address of its master. Never changed: a correction makes a new one."""

    __slots__ = ("_owners", "nodes")

    def __init__(self, nodes: Sequence[str], owners: array[int] | None = None) -> None:
        """Without owners the first node serves every slot."""
        self.nodes = tuple(nodes)
        self._owners = array("H", bytes(2 * SLOTS)) if owners is None else owners

    def node(self, slot: int) -> str | None:
        """The node that serves this slot, if one does. Slot -1: any node."""
        if slot < 0:
            return random.choice(self.nodes)  # another one when it is tried again
        owner = self._owners[slot]
        return None if owner == _NOBODY else self.nodes[owner]

    @property
    def unserved(self) -> int:
        """The number of slots that no node serves."""
        return self._owners.count(_NOBODY)

    def corrected(self, slot: int, address: str) -> SlotMap:
        """The same map but for one slot, as a MOVED told."""
        nodes = self.nodes if address in self.nodes else (*self.nodes, address)
        owners = self._owners[:]
        owners[slot] = nodes.index(address)
        return SlotMap(nodes, owners)

    def __repr__(self) -> str:
        return f"SlotMap({', '.join(self.nodes)}{f'; {self.unserved} slots unserved' if self.unserved else ''})"


def from_cluster_slots(answer: list[Any], *, asked: str) -> SlotMap:
    """Reads CLUSTER SLOTS: a list of [first, last, [host, port, id, …] of the master, replicas…].

    A node that does not know its own host leaves it empty: that is the one we asked, or its host.
    """
    nodes: list[str] = []
    owners = array("H", [_NOBODY]) * SLOTS
    for first, last, master, *_replicas in answer:
        address = located(_text(master[0]), int(master[1]), asked=asked)
        if address not in nodes:
            nodes.append(address)
        owners[first : last + 1] = array("H", [nodes.index(address)]) * (last + 1 - first)
    return SlotMap(nodes, owners)


def located(host: str, port: int, *, asked: str) -> str:
    """The address of a node as another one told it; an empty or unknown host is that of the one asked."""
    return f"{host_of(asked) if host in ('', '?') else host}:{port}"


def host_of(address: str) -> str:
    """The host of ``host:port`` (IPv6 without brackets)."""
    return address.rpartition(":")[0]


def port_of(address: str) -> int:
    """The port of ``host:port``."""
    return int(address.rpartition(":")[2])


def _text(raw: bytes | str | None) -> str:
    return raw.decode() if isinstance(raw, bytes) else raw or ""
