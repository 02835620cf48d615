"""A hash slot on its way from one node to another, in steps, so that a test can stop in the middle.

Made by ``Cluster.begin_move``. The steps are those of any resharding tool.
"""

from __future__ import annotations

from collections.abc import Sequence

from cluster.node import Node
from cluster.ports import HOST
from cluster.server import ServerFailed

_MIGRATE_TIMEOUT_MS = 10_000


class Move:
    """From its making until ``finish`` the slot is half open: absent keys are sent on to the target (ASK),
    and a script with one present and one absent key is answered TRYAGAIN."""

    def __init__(self, slot: int, *, source: Node, target: Node, masters: Sequence[Node]) -> None:
        if source is target:
            raise ServerFailed(f"slot {slot} is already at {target.address}")
        self.slot = slot
        self.source = source
        self.target = target
        self._others = [node for node in masters if node not in (source, target)]
        target.ask("CLUSTER", "SETSLOT", slot, "IMPORTING", source.node_id)
        source.ask("CLUSTER", "SETSLOT", slot, "MIGRATING", target.node_id)

    def carry(self, batch: int = 100) -> int:
        """Move up to ``batch`` keys; how many there were."""
        keys = self.source.ask("CLUSTER", "GETKEYSINSLOT", self.slot, batch, decode=False)
        if keys:
            to = (HOST, self.target.port, "", 0, _MIGRATE_TIMEOUT_MS)
            self.source.ask("MIGRATE", *to, "KEYS", *keys, timeout=_MIGRATE_TIMEOUT_MS / 1000)
        return len(keys)

    def finish(self) -> None:
        """Move what is left, then give the slot to the target on every node, the target first: so there is no
        instant at which nobody owns it."""
        while self.carry():
            pass
        for node in (self.target, self.source, *self._others):
            node.ask("CLUSTER", "SETSLOT", self.slot, "NODE", self.target.node_id)
