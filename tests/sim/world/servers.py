"""All servers of a simulated run: the cluster that they make, or the one that stands alone; who serves which slot."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from itertools import count
from typing import Any

from shardq.core.layout.slots import SLOTS, slot_of
from shardq.core.scripts import Script
from tests.sim.model.keyspace import Keyspace
from tests.sim.model.server import Failure
from tests.sim.world.disk import Disk, Policy, ServerKind
from tests.sim.world.hub import Hub
from tests.sim.world.network import Network
from tests.sim.world.nodes import Copy, Executed, Node


class Servers:
    """All nodes: one alone, or a cluster of several."""

    def __init__(
        self,
        hub: Hub,
        net: Network,
        seed: int,
        *,
        nodes: int,
        is_cluster: bool,
        replicated: bool,
        executed: Executed,
        scripts: Mapping[str, Script],
        instead: Mapping[str, Script],
        kind: ServerKind = "valkey9",
        disk: Policy | None = None,
        save_s: float = 0.0,
    ) -> None:
        self.hub = hub
        self.net = net
        self.draw = random.Random(f"{seed}/servers")
        self.shuffle = seed
        self.kind: ServerKind = kind
        self.is_cluster = is_cluster
        self.replicated = replicated
        self.executed = executed
        self.instead = instead
        self._scripts = {each.text.encode(): each for each in scripts.values()}
        self._ports = count(7001)
        self.nodes: list[Node] = []
        for _ in range(nodes):
            self.add()
        if disk is not None:
            for node in self.nodes:
                node.disk = Disk(node, disk, seed, save_s)
        bounds = [SLOTS * place // nodes for place in range(nodes + 1)]
        self.owners: list[Node] = [
            node for node, first, last in zip(self.nodes, bounds, bounds[1:], strict=False) for _ in range(first, last)
        ]
        self._table: list[Any] | None = None
        self.busy_slots: set[int] = set()
        """Slots that are just moved: what is asked of them is to be asked again."""
        self._left: dict[int, Node] = {}
        """Slots and the nodes that have just given them away, and are not told yet that it is done."""

    @property
    def url(self) -> str:
        if self.is_cluster:
            return "redis+cluster://" + ",".join(node.name for node in self.nodes)
        return f"redis://{self.nodes[0].name}"

    def add(self, space: Keyspace | None = None) -> Node:
        node = Node(self, ("127.0.0.1", next(self._ports)), space)
        self.nodes.append(node)
        self.net.peers[node.where] = node
        return node

    def script_of(self, text: bytes) -> Script:
        script = self._scripts.get(text)
        if script is None:
            script = self._scripts[text] = Script.of("", text.decode())
        return script

    def node_of(self, slot: int) -> Node:
        return self.owners[slot]

    # ---- what a node says about the whole

    def refusal(self, node: Node, keys: Sequence[bytes], *, asking: bool) -> Failure | None:
        """Why a node does not serve these keys; None: it does."""
        if not node.is_master:
            return self._moved(keys) if self.is_cluster and keys else Failure(b"READONLY it is a replica")
        if not self.is_cluster or not keys:
            return None
        slots = {slot_of(key.decode()) for key in keys}
        if len(slots) > 1:
            return Failure(b"CROSSSLOT Keys in request don't hash to the same slot")
        (slot,) = slots
        if slot in self.busy_slots:
            return Failure(b"TRYAGAIN Multiple keys request during rehashing of slot")
        if self.owners[slot] is node or asking:
            return None
        return self._moved(keys, b"ASK" if self._left.get(slot) is node else b"MOVED")

    def _moved(self, keys: Sequence[bytes], word: bytes = b"MOVED") -> Failure:
        slot = slot_of(keys[0].decode())
        return Failure(b"%s %d %s" % (word, slot, self.owners[slot].name.encode()))

    def told(self, what: bytes, asked: Node) -> Any:
        """CLUSTER SLOTS, NODES and MYID."""
        if not self.is_cluster:
            return Failure(b"ERR This instance has cluster support disabled")
        if what == b"NODES":
            return b""
        if what == b"MYID":
            return asked.name.encode()
        if self._table is None:
            self._table = list(self._ranges())
        return self._table

    def _ranges(self) -> Iterable[Any]:
        first = 0
        for slot in range(1, SLOTS + 1):
            if slot == SLOTS or self.owners[slot] is not self.owners[first]:
                host, port = self.owners[first].where
                yield [first, slot - 1, [host.encode(), port, self.owners[first].name.encode()]]
                first = slot

    # ---- what may happen to the whole

    def promote(self, old: Node, *, is_down: bool, skew_us: int) -> tuple[Node, Copy]:
        """The replica of a node takes its place, with what it has. Returns it, and what that was."""
        copy = old.copy
        assert copy is not None, "it has a replica"
        new = self.add()
        new.skew_us = skew_us
        new.space.restore(copy.snapshot)
        new.offset = copy.offset
        new.earlier, new.earlier_offset = old.history, copy.offset + 1
        new.copy = None
        old.copy, old.is_replaced = None, True
        self.owners = [new if owner is old else owner for owner in self.owners]
        self._table = None
        if is_down:
            old.go_down()
        return new, copy

    def demote(self, old: Node) -> None:
        """A node learns that another has taken its place, or starts again after that: it is a replica now."""
        old.is_master, old.is_up = False, True
        old.drop_subscriptions(list(old.subscribers))
        self.net.cut(lambda link: link.peer is old)

    def move_slot(self, slot: int, target: Node, seconds: float) -> None:
        """Moves a slot with its keys; while it lasts, requests are to be made again."""
        self.busy_slots.add(slot)
        self.hub.after(seconds * 1e6, lambda: self._moved_slot(slot, target, seconds))

    def _moved_slot(self, slot: int, target: Node, seconds: float) -> None:
        self.busy_slots.discard(slot)
        source = self.owners[slot]
        if not target.is_up or not source.is_up or target.is_replaced or source is target:
            return
        keys = [key for key in source.space.keys if slot_of(key.decode()) == slot]
        source.space.snapshot()
        target.space.snapshot()  # so that neither changes what the other has now
        for key in keys:
            target.space.keys[key] = source.space.keys.pop(key).copied(-1)
        source._wrote()
        target._wrote()
        source.moved_us = target.moved_us = self.hub.now_us
        self.owners[slot] = target
        self._table = None
        self._left[slot] = source
        self.hub.after(seconds * 1e6, lambda: self._left.pop(slot, None))
        source.drop_subscriptions([each for each in source.subscribers if slot_of(each.decode()) == slot])
