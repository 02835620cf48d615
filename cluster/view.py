"""The view that one node has of its cluster: the answer of CLUSTER NODES as values. No I/O. Called by ``Cluster``."""

from __future__ import annotations

from dataclasses import dataclass

SLOTS = 16384


@dataclass(frozen=True)
class Seen:
    """One node as another (or itself) sees it."""

    node_id: str
    port: int
    flags: frozenset[str]
    master_id: str | None
    """The master, of a replica."""
    epoch: int
    connected: bool
    slots: tuple[tuple[int, int], ...]
    """Ranges, both ends included. A replica has none of its own."""

    @property
    def is_master(self) -> bool:
        return "master" in self.flags

    @property
    def in_doubt(self) -> bool:
        """Failing, failed, or not yet properly met."""
        return bool(self.flags & {"fail", "fail?", "handshake", "noaddr"})

    def owns(self, slot: int) -> bool:
        return any(first <= slot <= last for first, last in self.slots)


View = dict[str, Seen]
"""node id → the node."""


def parse(answer: str) -> View:
    """The answer of CLUSTER NODES. Slots on the move (``[12->-…]``) are left out: they have not moved yet."""
    view = {}
    for line in answer.splitlines():
        node_id, address, flags, master_id, _, _, epoch, link, *ranges = line.split()
        slots = []
        for part in ranges:
            if not part.startswith("["):
                first, _, last = part.partition("-")
                slots.append((int(first), int(last or first)))
        view[node_id] = Seen(
            node_id=node_id,
            port=int(address.partition("@")[0].rpartition(":")[2]),
            flags=frozenset(flags.split(",")),
            master_id=None if master_id == "-" else master_id,
            epoch=int(epoch),
            connected=link == "connected",
            slots=tuple(slots),
        )
    return view


def layout(view: View) -> dict[str, tuple[tuple[tuple[int, int], ...], str | None]]:
    """The facts on which all nodes must agree before the cluster can be used: slots and roles by node id."""
    return {node_id: (seen.slots, seen.master_id) for node_id, seen in view.items()}
