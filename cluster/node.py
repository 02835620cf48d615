"""One process of a cluster: a server with a second port, a node id, and a view of the others.

Made by ``Cluster``.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from cluster.ports import free_port
from cluster.server import Server, Tls
from cluster.view import View, parse


class Node(Server):
    """A server in cluster mode. ``group``: which master and replicas it is one of, whoever is master now."""

    def __init__(
        self, binary: Path, *, group: int, folder: Path | None, options: Mapping[str, str], tls: Tls | None = None
    ) -> None:
        super().__init__(binary, folder=folder, options=options, tls=tls)
        self.group = group
        self.node_id = ""
        self.bus_port = 0

    def launch(self) -> None:
        if not self.node_id:  # nobody has met it: a second try, on other ports, harms nobody
            self.bus_port = free_port()
            self.options["cluster-port"] = str(self.bus_port)
        super().launch()

    def view(self) -> View:
        """How this node sees the cluster."""
        return parse(self.ask("CLUSTER", "NODES"))
