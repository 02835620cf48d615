"""The engine as the rooms around it use it: the command, HTTP, the dashboard, metrics, traces, the outbox, integrations
and ``testing`` import what they need of the package ``engine`` from here, and what is public from ``shardq``. No other
file of the package is for them: a test reads all imports. Delivery, workers and features know no engine.
"""

# Access to an engine's inside, open or not; and the base of both kinds of engine.
from shardq.engine import forms, tables
from shardq.engine.access import EngineAccess
from shardq.engine.base import EngineBase

# What is wrong: the table, its views, and those who look.
from shardq.engine.doctor import LOOKED_AT, OK, Wrong, find_all
from shardq.engine.engine_wide import KEPT, Change, drawn_of_a_shard, whole_of_a_shard
from shardq.engine.findings import TABLE, named, reds
from shardq.engine.health import MAX_DEAD, MAX_LATE_S, MAX_READY_AGE_S, of_far, of_spool, with_findings

# What was given, checked as the engine checks it.
from shardq.engine.options import (
    DEFAULT_CONNECT_TIMEOUT_S,
    DEFAULT_LEASE_S,
    DEFAULT_NAME,
    DEFAULT_SHARDS,
    DEFAULT_TIMEOUT_S,
    MAX_LENGTH,
    MOST_OF_KEY,
    STATS_TIMEOUT_S,
    Options,
    checked_id,
    moved_due,
    route_of,
    topics_given,
)
from shardq.engine.servers import find_failed, lost, mute, unsaid

# What an engine tells, and how it is shown.
from shardq.engine.snapshot import NodeSnapshot, Snapshot, SnapshotReader, Snapshots, behind
from shardq.engine.stats import RelayStats, ShardStats, largest
from shardq.engine.tables import (
    COUNTS,
    DEAD,
    DISPATCHED,
    FIRST_DUE,
    LATENESS,
    MOST_TOPICS,
    NODE,
    PER_SECOND,
    POLLER,
    SHARD,
    Column,
    ShardColumn,
    ShardRow,
    View,
    age,
    counted,
    dispatcher_column,
    instant,
    is_failing,
    milliseconds,
    number,
    of_shard,
    per_second,
    process,
    ranges,
    topic_settings,
)
from shardq.engine.topic_keys import MOST, KeyList
from shardq.engine.versions import upgrade

# Connections and threads beside an engine.
from shardq.engine.wiring import DriverFactory, Target, connected, spool_mover

# fmt: off
__all__ = [
    "COUNTS", "Change", "Column", "DEAD", "DEFAULT_CONNECT_TIMEOUT_S", "DEFAULT_LEASE_S", "DEFAULT_NAME",
    "DEFAULT_SHARDS", "DEFAULT_TIMEOUT_S", "DISPATCHED", "DriverFactory", "EngineAccess", "EngineBase", "FIRST_DUE",
    "KEPT", "KeyList", "LATENESS", "LOOKED_AT", "MAX_DEAD", "MAX_LATE_S", "MAX_LENGTH", "MAX_READY_AGE_S", "MOST",
    "MOST_OF_KEY", "MOST_TOPICS", "NODE", "NodeSnapshot", "OK", "Options", "PER_SECOND", "POLLER", "RelayStats",
    "SHARD", "STATS_TIMEOUT_S", "ShardColumn", "ShardRow", "ShardStats", "Snapshot", "SnapshotReader", "Snapshots",
    "TABLE", "Target", "View", "Wrong", "age", "behind", "checked_id", "connected", "counted", "dispatcher_column",
    "drawn_of_a_shard", "find_all", "find_failed", "forms", "instant", "is_failing", "largest", "lost",
    "milliseconds", "moved_due", "mute", "named", "number", "of_far", "of_shard", "of_spool", "per_second",
    "process", "ranges", "reds", "route_of", "spool_mover", "tables", "topic_settings", "topics_given", "unsaid",
    "upgrade", "whole_of_a_shard", "with_findings",
]
