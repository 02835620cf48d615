"""Shows how many tasks another number of shards would move, node by node: the estimates of a dry run.

Called by ``resize`` for --dry-run.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass

from shardq.cli.options import Given
from shardq.cli.output import say, tell
from shardq.cli.table import Table
from shardq.core.drivers.sync import Driver
from shardq.core.layout.keys import shard_keys
from shardq.core.resharding import Resize
from shardq.engine import Engine
from shardq.engine.tables import Column


@dataclass(frozen=True, slots=True)
class NodeFlow:
    """Tasks that would leave a node's shards, and come to them. Those that stay within the node count in both."""

    node: str
    leaving: int
    coming: int
    leaving_bytes: int
    coming_bytes: int


@dataclass(frozen=True, slots=True)
class ResizePreview:
    present: int
    preview: Resize
    nodes: list[NodeFlow]
    between: tuple[int, int]
    """Tasks and bytes that would go to another node."""

    @classmethod
    def of(cls, engine: Engine, driver: Driver, shards: int) -> ResizePreview:
        preview = engine.resize(shards, dry_run=True)
        leaving, coming = Counter[str](), Counter[str]()
        leaving_bytes, coming_bytes = Counter[str](), Counter[str]()
        between = between_bytes = 0
        for flow in preview.flows:
            source, target = (driver.node_of(shard_keys(engine.name, end).slot) for end in (flow.source, flow.target))
            leaving[source] += flow.tasks
            leaving_bytes[source] += flow.bytes
            coming[target] += flow.tasks
            coming_bytes[target] += flow.bytes
            if source != target:
                between += flow.tasks
                between_bytes += flow.bytes
        nodes = [
            NodeFlow(node, leaving[node], coming[node], leaving_bytes[node], coming_bytes[node])
            for node in sorted({*driver.nodes(), *leaving, *coming})
        ]
        return cls(engine.topology.shards, preview, nodes, (between, between_bytes))

    def show(self, given: Given, *, rate: float | None) -> None:
        tasks = self.preview.tasks or 0
        seconds = tasks / rate if rate else None
        if given.json:
            tell(
                {
                    "present": self.present,
                    "shards": self.preview.shards,
                    "tasks": tasks,
                    "bytes": self.preview.bytes,
                    "between_nodes": dict(zip(("tasks", "bytes"), self.between, strict=True)),
                    "nodes": [asdict(node) for node in self.nodes],
                    "seconds": seconds,
                }
            )
            return
        from rich.filesize import decimal

        size = decimal(self.preview.bytes or 0)
        Table(
            Column[NodeFlow]("node", lambda node: node.node, text=True),
            Column("leaving", lambda node: f"{node.leaving:,}", rank=1),
            Column("bytes", lambda node: decimal(node.leaving_bytes), rank=3),
            Column("coming", lambda node: f"{node.coming:,}", rank=2),
            Column("bytes", lambda node: decimal(node.coming_bytes), rank=4),
        ).print(self.nodes, totals=("all", f"{tasks:,}", size, f"{tasks:,}", size))
        say(
            f"from {self.present} to {self.preview.shards} shards: about {tasks:,} tasks would move, of {size}, "
            f"{self.between[0]:,} of them to another node" + (f", in {seconds:,.0f} s" if seconds is not None else "")
        )
        say("nothing was moved; tasks that are ready or leased would stay where they are until they are done")
