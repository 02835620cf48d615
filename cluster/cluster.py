"""A real cluster of processes on this machine: start it, look at it, wait until all its nodes agree.

Called by the tests, the benches and ``python -m cluster``. What one node says
is parsed in ``view.py``; a slot on the move is ``moves.py``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

import redis

from cluster import servers
from cluster.moves import Move
from cluster.node import Node
from cluster.ports import HOST
from cluster.server import ServerFailed, Tls
from cluster.view import SLOTS, Seen, View, layout

JOIN_TIMEOUT_S = 60.0  # on a machine that is busy
PROMOTION_TIMEOUT_S = 60.0
NODE_TIMEOUT_MS = 2000  # short enough for a test to wait for a promotion, long enough for a busy machine
_POLL_S = 0.02

_OPTIONS = {
    "cluster-enabled": "yes",
    "cluster-announce-ip": HOST,
    "cluster-allow-replica-migration": "no",  # only a test moves a replica
    "cluster-replica-validity-factor": "0",  # a replica stands for election however old its data is
    "repl-diskless-sync-delay": "0",  # the default waits 5 s for other replicas
    "repl-ping-replica-period": "1",
}


class Cluster:
    """A cluster on 127.0.0.1, as a context manager. It ends with this process unless it was ``let_go``.

    >>> with Cluster(masters=3, replicas=1) as cluster:
    ...     victim = cluster.node_of_slot(0)
    ...     victim.kill()
    ...     cluster.wait_promoted(victim).ask("PING")
    True
    """

    def __init__(
        self,
        binary: Path | None = None,
        *,
        masters: int = 3,
        replicas: int = 1,
        node_timeout_ms: int = NODE_TIMEOUT_MS,
        options: Mapping[str, str] | None = None,
        folder: Path | None = None,
        tls: Tls | None = None,
    ) -> None:
        if masters < 1 or replicas < 0:
            raise ValueError(f"a cluster has at least 1 master and 0 replicas, not {masters} and {replicas}")
        self.binary = binary or servers.binary()
        self.nodes: list[Node] = []
        self._folder = folder
        self._tls = tls
        self._size = masters
        self._replicas = replicas
        self._options = {**_OPTIONS, "cluster-node-timeout": str(node_timeout_ms), **(options or {})}
        if tls:
            self._options = {"tls-cluster": "yes", "tls-replication": "yes", **self._options}

    def __repr__(self) -> str:
        return f"<Cluster {self.url} {sum(node.running for node in self.nodes)} of {len(self.nodes)} running>"

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def url(self) -> str:
        return ("rediss" if self._tls else "redis") + "+cluster://" + ",".join(node.address for node in self.nodes)

    @property
    def masters(self) -> list[Node]:
        """The running nodes that own slots *now*, by their first slot."""
        owners = [seen for seen in self.view().values() if seen.slots]
        owners.sort(key=lambda seen: seen.slots)
        return [node for seen in owners if (node := self._node(seen.node_id)).running]

    @property
    def replicas(self) -> list[Node]:
        """The running nodes that follow a master *now*, in order of start."""
        view = self.view()
        return [node for node in self.nodes if node.running and not view[node.node_id].is_master]

    def start(self) -> None:
        """All of it: every process up, every node agreeing."""
        self.launch()
        self.join()

    def launch(self) -> None:
        """Start all processes, without joining them yet."""
        for number in range(self._size * (1 + self._replicas)):
            self.nodes.append(self._new_node(group=number % self._size))
        for node in self.nodes:
            node.launch()
        for node in self.nodes:
            self._await_node(node)

    def join(self) -> None:
        """Make a cluster of the processes."""
        masters = self.nodes[: self._size]
        for number, master in enumerate(masters):
            first = number * SLOTS // self._size
            last = (number + 1) * SLOTS // self._size - 1
            master.ask("CLUSTER", "ADDSLOTSRANGE", first, last)
        for number, node in enumerate(self.nodes):
            # Epochs are given, not found by colliding; every pair meets, not left to gossip: seconds saved.
            node.ask("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
            self._introduce(node, self.nodes[:number])
        self._until(self._all_met, "every node has met every other")
        for replica in self.nodes[self._size :]:
            replica.ask("CLUSTER", "REPLICATE", masters[replica.group].node_id)
        self.wait_ok()

    def let_go(self) -> None:
        """From now on it outlives this process."""
        for node in self.nodes:
            node.let_go()

    def close(self) -> None:
        """Stop every process; temporary files go. Idempotent."""
        for node in self.nodes:
            node.close()

    def view(self) -> View:
        """How the cluster is seen by the running node that knows the latest."""
        views = [node.view() for node in self._running()]
        return max(views, key=lambda view: max(seen.epoch for seen in view.values()))

    def node_of_slot(self, slot: int) -> Node:
        """Who owns a slot now."""
        owner = next((seen for seen in self.view().values() if seen.owns(slot)), None)
        if owner is None:
            raise ServerFailed(f"no node of {self!r} owns slot {slot}")
        return self._node(owner.node_id)

    def replicas_of(self, master: Node) -> list[Node]:
        """The running replicas of a master."""
        view = self.view()
        return [node for node in self._running() if view[node.node_id].master_id == master.node_id]

    def begin_move(self, slot: int, target: Node) -> Move:
        """Open a slot for moving, and leave it there: see ``Move`` for the rest."""
        return Move(slot, source=self.node_of_slot(slot), target=target, masters=self.masters)

    def move_slot(self, slot: int, target: Node, *, batch: int = 100) -> None:
        """Move a slot with its keys, as a resharding tool does."""
        move = self.begin_move(slot, target)
        while move.carry(batch):
            pass
        move.finish()

    def wait_ok(self, *, timeout: float = JOIN_TIMEOUT_S) -> None:
        """Wait until all running nodes agree: state ok, same slots and roles, replicas in step."""
        self._until(self._agreed, "every running node agrees on the cluster and says it is ok", timeout)

    def wait_promoted(self, lost: Node, *, timeout: float = PROMOTION_TIMEOUT_S) -> Node:
        """Wait until a replica has taken the place of a master that was killed or paused; that replica."""
        promoted: list[Node] = []

        def stands_in() -> bool:
            promoted[:] = [node for node in self.masters if node.group == lost.group and node is not lost]
            return bool(promoted) and self._agreed()

        self._until(stands_in, f"a replica takes the place of {lost.address}", timeout)
        return promoted[0]

    def add_node(self, *, replica_of: Node | None = None) -> Node:
        """One more process: a master without slots, or a replica."""
        group = max(node.group for node in self.nodes) + 1 if replica_of is None else replica_of.group
        node = self._new_node(group=group)
        node.launch()
        self._await_node(node)
        others = self._running()
        self.nodes.append(node)
        self._introduce(node, others)
        self._until(self._all_met, "every node has met the new one")
        if replica_of is not None:
            node.ask("CLUSTER", "REPLICATE", replica_of.node_id)
        self.wait_ok()
        return node

    def _new_node(self, *, group: int) -> Node:
        folder = self._folder / f"node-{len(self.nodes) + 1}" if self._folder else None
        return Node(self.binary, group=group, folder=folder, options=self._options, tls=self._tls)

    def _await_node(self, node: Node) -> None:
        node.wait_answering()
        node.node_id = node.ask("CLUSTER", "MYID")

    def _introduce(self, node: Node, others: list[Node]) -> None:
        for other in others:
            node.ask("CLUSTER", "MEET", HOST, other.port, other.bus_port)

    def _node(self, node_id: str) -> Node:
        return next(node for node in self.nodes if node.node_id == node_id)

    def _running(self) -> list[Node]:
        nodes = [node for node in self.nodes if node.running]
        if not nodes:
            raise ServerFailed(f"no node of {self!r} runs")
        return nodes

    def _all_met(self) -> bool:
        known = {node.node_id for node in self.nodes}
        return all(
            set(view) == known and not any(seen.in_doubt for seen in self._present(view))
            for view in (node.view() for node in self._running())
        )

    def _present(self, view: View) -> list[Seen]:
        """Those of a view whose process runs: the others may be in doubt as they like."""
        running = {node.node_id for node in self._running()}
        return [seen for seen in view.values() if seen.node_id in running]

    def _agreed(self) -> bool:
        nodes = self._running()
        views = [node.view() for node in nodes]
        if any(layout(view) != layout(views[0]) for view in views[1:]):
            return False
        if any(seen.in_doubt or not seen.connected for view in views for seen in self._present(view)):
            return False
        return all(self._healthy(node, views[0]) for node in nodes)

    def _healthy(self, node: Node, view: View) -> bool:
        state = dict(line.split(":", 1) for line in node.ask("CLUSTER", "INFO").splitlines())
        if state["cluster_state"] != "ok":
            return False
        followers = sum(seen.master_id == node.node_id for seen in self._present(view))
        role, *rest = node.ask("ROLE")
        if role == "master":
            return len(rest[1]) >= followers
        return bool(rest[2] == "connected")

    def _until(self, done: Callable[[], bool], what: str, timeout: float = JOIN_TIMEOUT_S) -> None:
        deadline = time.monotonic() + timeout
        trouble = "no node in trouble"
        while True:
            try:
                if done():
                    return
            except redis.RedisError as exc:  # a node that is just dying, or loading
                trouble = f"{type(exc).__name__}: {exc}"
            if time.monotonic() > deadline:
                tails = "\n".join(f"{node!r}\n{node.log_tail()}" for node in self.nodes)
                raise ServerFailed(f"waited {timeout:.0f} s until {what}, in vain ({trouble}):\n{tails}")
            time.sleep(_POLL_S)
