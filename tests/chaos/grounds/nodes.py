"""A cluster whose masters have a replica each. Its nodes tell others, and clients, the ports of their proxies."""

from __future__ import annotations

import time

import redis

from cluster.cluster import Cluster
from cluster.node import Node
from cluster.ports import free_port
from cluster.server import Server
from cluster.view import View
from shardq.core.layout.keys import shard_keys
from tests.chaos.grounds.ground import MOST_SHARDS, NAME, SETTLED_S, Ground, in_step, source
from tests.chaos.proxy import HOST

MASTERS = 3

ASKED_S = 2.0


class _ProxiedNode(Node):
    """It tells others, and clients, the ports of its proxies."""

    def __init__(self, ground: Nodes, number: int, group: int) -> None:
        super().__init__(ground.binary, group=group, folder=None, options=ground.options)
        self._ground = ground
        self.options["bind-source-addr"] = source(number)
        self.public_bus = 0

    def launch(self) -> None:
        if not self.node_id:
            proxies, options = self._ground.proxies, self.options
            self.bus_port = free_port()
            self.public_bus = proxies.open(self.bus_port)
            self._ground.ports[self] = public = proxies.open(self.port)
            options |= {
                "cluster-port": str(self.bus_port), "cluster-announce-port": str(public),
                "cluster-announce-bus-port": str(self.public_bus),
            }  # fmt: skip
        Server.launch(self)


class _Proxied(Cluster):
    def __init__(self, ground: Nodes) -> None:
        super().__init__(ground.binary, masters=MASTERS, replicas=1, options=ground.kept)
        ground.options = dict(self._options)
        self._ground = ground

    def view(self) -> View:
        """Asks again where a node ends while it is asked."""
        until_s = time.monotonic() + ASKED_S
        while True:
            try:
                return super().view()
            except redis.ConnectionError:
                if time.monotonic() > until_s:
                    raise
                time.sleep(0.05)

    def _new_node(self, *, group: int) -> Node:
        return _ProxiedNode(self._ground, len(self.nodes), group)

    def _introduce(self, node: Node, others: list[Node]) -> None:
        assert isinstance(node, _ProxiedNode)
        for other in others:
            assert isinstance(other, _ProxiedNode)
            node.ask("CLUSTER", "MEET", HOST, self._ground.ports[other], other.public_bus)


class Nodes(Ground):
    kind = "cluster"

    def _start(self) -> None:
        self.options: dict[str, str] = {}
        self.cluster = self._stack.enter_context(_Proxied(self))

    @property
    def url(self) -> str:
        return "redis+cluster://" + ",".join(f"{HOST}:{self.ports[node]}" for node in self.cluster.nodes)

    @property
    def servers(self) -> list[Server]:
        return list(self.cluster.nodes)

    def masters(self) -> list[Server]:
        return list(self.cluster.masters)

    def replica_of(self, master: Server) -> Server | None:
        assert isinstance(master, Node)
        some = [each for each in self.cluster.replicas_of(master) if in_step(each)]
        return some[0] if some else None

    def server_of(self, slot: int) -> Server:
        return self.cluster.node_of_slot(slot)

    def part(self, master: Server) -> None:
        assert isinstance(master, _ProxiedNode)
        number = self.cluster.nodes.index(master)
        others = [source(each) for each in range(len(self.cluster.nodes)) if each != number]
        self.proxies.hold(self.ports[master], others)
        self.proxies.hold(master.public_bus, others)
        for node in self.cluster.nodes:
            if node is not master:
                assert isinstance(node, _ProxiedNode)
                self.proxies.hold(node.public_bus, [source(number)])

    def unite(self, master: Server) -> None:
        self.proxies.flow(self.ports[master])
        for node in self.cluster.nodes:
            assert isinstance(node, _ProxiedNode)
            self.proxies.flow(node.public_bus)

    def settle(self, timeout: float = SETTLED_S) -> None:
        self.cluster.wait_ok(timeout=timeout)

    def shards_of(self, server: Server) -> frozenset[int] | None:
        assert isinstance(server, Node)
        seen = self.cluster.view()[server.node_id]
        return frozenset(shard for shard in range(MOST_SHARDS) if seen.owns(shard_keys(NAME, shard).slot))
