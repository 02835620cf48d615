"""The metrics: their names, labels and meaning. ``exposition`` fills them, the page's table is compared with them."""

from __future__ import annotations

from typing import Literal, NamedTuple

Kind = Literal["gauge", "counter", "histogram"]

Scope = Literal["engine", "process"]
"""engine: the same from every process that is asked, so take the ``max`` of them. process: its own part, so add up."""


class Metric(NamedTuple):
    name: str
    """The name as it is exported; a histogram's without its suffixes."""
    kind: Kind
    scope: Scope
    labels: tuple[str, ...]
    """Beside ``engine``, the engine's name, which all have."""
    help: str


UP = Metric(
    "shardq_up",
    "gauge",
    "process",
    (),
    "1 if every shard was read in time for this scrape, 0 if not; then what tells the engine may be missing.",
)
HEALTHY = Metric(
    "shardq_healthy", "gauge", "engine", (), "The verdict of health(): 1 if all is well, 0 if a reason is against it."
)
UNHEALTHY = Metric(
    "shardq_unhealthy",
    "gauge",
    "engine",
    ("reason",),
    "1 while health() has a reason of this kind, 0 while it has none.",
)
UNSEEN = Metric(
    "shardq_unseen_shards", "gauge", "engine", (), "Shards that could not be read; no count holds their tasks."
)
TASKS = Metric(
    "shardq_tasks", "gauge", "engine", ("state", "topic"), "Tasks that are scheduled, ready, leased or dead."
)
DIED = Metric(
    "shardq_died_total",
    "counter",
    "engine",
    ("topic",),
    "Tasks that died, counted by the servers; missing while a shard can't be read.",
)
HEAD_AGE = Metric(
    "shardq_head_age_seconds", "gauge", "engine", (), "How long the first scheduled task has been due; 0 if none is."
)
OLDEST_READY = Metric(
    "shardq_oldest_ready_seconds", "gauge", "engine", ("topic",), "How long the oldest ready task has waited at least."
)
UNSERVED = Metric("shardq_unserved_shards", "gauge", "engine", (), "Shards that no living dispatcher serves.")
UNSWEPT = Metric(
    "shardq_unswept_shards",
    "gauge",
    "engine",
    (),
    "Shards with tasks that may belong elsewhere, while a change of the number of shards is under way.",
)
MISPLACED = Metric(
    "shardq_misplaced_tasks",
    "gauge",
    "engine",
    (),
    "Scheduled and dead tasks that a change of the number of shards has still to move: an estimate by their counts.",
)
REPLICATION_LAG = Metric(
    "shardq_replication_lag_bytes", "gauge", "engine", ("node",), "Bytes of writes that no replica has confirmed."
)
PUSHED = Metric("shardq_pushed_total", "counter", "process", (), "Tasks that this process pushed and that are stored.")
DISPATCHED = Metric(
    "shardq_dispatched_total", "counter", "process", ("topic",), "Tasks that this process moved to ready lists."
)
HANDLED = Metric(
    "shardq_handled_total",
    "counter",
    "process",
    ("topic", "outcome"),
    "Calls of this process's handlers that ended: done, retried, buried or snoozed.",
)
DISPATCH_LATENESS = Metric(
    "shardq_dispatch_lateness_seconds",
    "histogram",
    "process",
    ("topic",),
    "From the due time to the ready list, by the server's clock.",
)
PICKUP_LATENESS = Metric(
    "shardq_pickup_lateness_seconds",
    "histogram",
    "process",
    ("topic",),
    "From the answer to a worker's claim to the start of the handler.",
)
HANDLER = Metric(
    "shardq_handler_seconds", "histogram", "process", ("topic",), "From the start of a handler to its end."
)

SINK_SENT = Metric(
    "shardq_sink_sent_total",
    "counter",
    "process",
    ("topic",),
    "Tasks that this process sent to a sink, which took them.",
)
SINK_FAILED = Metric(
    "shardq_sink_failed_total", "counter", "process", ("topic",), "Tries of this process that a sink did not take."
)
SINK_RETRIED = Metric(
    "shardq_sink_retried_total", "counter", "process", ("topic",), "Those of them that count as an attempt of the task."
)
SINK_BURIED = Metric(
    "shardq_sink_buried_total",
    "counter",
    "process",
    ("topic",),
    "Tasks that are dead: the sink refused them for good, or they had no attempt left.",
)
SINK_CIRCUIT_OPEN = Metric(
    "shardq_sink_circuit_open",
    "gauge",
    "process",
    ("topic",),
    "1 while the sink of the topic is down for this process, 0 while it is not.",
)

OUTBOX_MOVED = Metric(
    "shardq_outbox_moved_total",
    "counter",
    "process",
    ("table",),
    "Rows that this process's outbox relays moved to the engine.",
)
OUTBOX_REFUSED = Metric(
    "shardq_outbox_refused_total",
    "counter",
    "process",
    ("table",),
    'Those of them whose id was taken, with on_conflict="reject".',
)
OUTBOX_OLDEST = Metric(
    "shardq_outbox_oldest_seconds",
    "gauge",
    "process",
    ("table",),
    "How long the oldest row had waited when the relay read it last; 0 if none did.",
)
OUTBOX_STUCK = Metric(
    "shardq_outbox_stuck", "gauge", "process", ("table",), "1 while the relay can't move rows, 0 while it can."
)
OUTBOX_PUT_ASIDE = Metric(
    "shardq_outbox_put_aside",
    "gauge",
    "process",
    ("table",),
    "Rows of the table that were refused too often: they wait for `shardq outbox retry` or `drop`.",
)

METRICS = (
    *(UP, HEALTHY, UNHEALTHY, UNSEEN, TASKS, DIED, HEAD_AGE, OLDEST_READY),
    *(UNSERVED, UNSWEPT, MISPLACED, REPLICATION_LAG),
    *(PUSHED, DISPATCHED, HANDLED, DISPATCH_LATENESS, PICKUP_LATENESS, HANDLER),
    *(SINK_SENT, SINK_FAILED, SINK_RETRIED, SINK_BURIED, SINK_CIRCUIT_OPEN),
    *(OUTBOX_MOVED, OUTBOX_REFUSED, OUTBOX_OLDEST, OUTBOX_STUCK, OUTBOX_PUT_ASIDE),
)
