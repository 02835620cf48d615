"""The collector for a registry of prometheus_client: the process's own counters, and one snapshot of the engine."""

from __future__ import annotations

import dataclasses
import itertools
import logging
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import msgspec
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector as PrometheusCollector

from shardq import Engine
from shardq.core.fleet.lateness import OTHERS, Lateness
from shardq.core.fleet.report import RouteStats, together
from shardq.core.model.printable import quoted
from shardq.engine.around import TABLE, EngineAccess, EngineBase, Snapshot, SnapshotReader, with_findings
from shardq.errors import InvalidOption
from shardq.worker.report import DOUBLINGS, SIZE_DOUBLINGS, Durations, Sizes

if TYPE_CHECKING:
    from shardq import AsyncEngine

log: logging.Logger = logging.getLogger("shardq.metrics")

MOST_TOPICS = 200
"""Topics with series of their own in a gauge; those with the fewest tasks count together as ``OTHERS``."""

WAIT_S = 3.0
"""A scrape waits so long for a snapshot; Prometheus gives up after ten seconds."""

FRESH_S = 1.0
"""A snapshot younger than this answers another scrape."""

STATES = ("scheduled", "held", "ready", "leased", "dead")

Family = CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily

_FAMILIES = {"counter": CounterMetricFamily, "gauge": GaugeMetricFamily, "histogram": HistogramMetricFamily}


class Metric(NamedTuple):
    """One row of the table of ``README.md``."""

    name: str
    """The name as it is exported; a histogram's without its suffixes."""
    kind: str
    scope: str
    """engine: the same from every process that is asked, so take the ``max`` of them. process: its own part, so add up.
    """
    labels: tuple[str, ...]
    """Beside ``engine``, the engine's name, which all have."""
    help: str

    def family(self) -> Family:
        name = self.name.removesuffix("_total") if self.kind == "counter" else self.name
        family: Family = _FAMILIES[self.kind](name, self.help, labels=["engine", *self.labels])
        return family


def _metrics(table: str) -> dict[str, Metric]:
    """Name without ``shardq_`` → metric, from lines of name | kind | scope | labels | help."""
    rows = [[cell.strip() for cell in line.split("|")] for line in table.strip().splitlines()]
    return {
        name: Metric(f"shardq_{name}", kind, scope, tuple(of.split()), help) for name, kind, scope, of, help in rows
    }


METRICS = _metrics("""
up | gauge | process | | 1 if every shard was read in time for this scrape, 0 if not; then what tells the engine may \
be missing.
healthy | gauge | engine | | The verdict of health(): 1 if all is well, 0 if a reason is against it.
finding | gauge | engine | name severity | 1 while health() has a finding of this name, 0 while it has none.
unseen_shards | gauge | engine | | Shards that could not be read; no count holds their tasks.
tasks | gauge | engine | state topic | Tasks that are scheduled, ready, leased or dead, or held: \
due, and waiting for their key.
retrying | gauge | engine | topic | Scheduled tasks with an attempt that failed: they wait for another one.
died_total | counter | engine | topic | Tasks that died, counted by the servers; missing while a shard can't be read.
head_age_seconds | gauge | engine | | How long the first scheduled task has been due; 0 if none is.
oldest_ready_seconds | gauge | engine | topic | How long the oldest ready task has waited at least.
unserved_shards | gauge | engine | | Shards that no living dispatcher serves.
unswept_shards | gauge | engine | | Shards with tasks that may belong elsewhere, while a change of the number of \
shards is under way.
misplaced_tasks | gauge | engine | | Scheduled and dead tasks that a change of the number of shards has still to \
move: an estimate by their counts.
replication_lag_bytes | gauge | engine | node | Bytes of writes that no replica has confirmed.
pushed_total | counter | process | | Tasks that this process pushed and that are stored.
dispatched_total | counter | process | topic | Tasks that this process moved to ready lists.
handled_total | counter | process | topic outcome | Attempts that ended in this process's handlers: done, retried, \
buried or snoozed.
dispatch_lateness_seconds | histogram | process | topic | From the due time to the ready list, by the server's clock, \
of tasks without a key.
key_wait_seconds | histogram | process | topic | From the due time of a task with a key to the ready list: it \
may wait for its key meanwhile.
pickup_lateness_seconds | histogram | process | topic | From the answer to a worker's claim to the start of the \
handler.
handler_seconds | histogram | process | topic | From the start of a handler to its end. One of batches counts calls, \
not tasks.
handler_batch_size | histogram | process | topic | Tasks that a call of a handler of batches got.
sink_sent_total | counter | process | topic | Tasks that this process sent to a sink, which took them.
sink_failed_total | counter | process | topic | Tries of this process that a sink did not take.
sink_retried_total | counter | process | topic | Those of them that count as an attempt of the task.
sink_buried_total | counter | process | topic | Tasks that are dead: the sink refused them for good, or they had no \
attempt left.
sink_circuit_open | gauge | process | topic | 1 while the sink of the topic is down for this process, 0 while it is \
not.
outbox_moved_total | counter | process | table | Rows that this process's outbox relays moved to the engine.
outbox_unconfirmed | gauge | process | table | Rows that were sent and stay in the table, as the servers' replicas and \
disks have not confirmed them yet.
outbox_refused_total | counter | process | table | Those of them whose id was taken, with on_conflict="reject".
outbox_oldest_seconds | gauge | process | table | How long the oldest row had waited when the relay read it last; 0 \
if none did.
outbox_stuck | gauge | process | table | 1 while the relay can't move rows, 0 while it can.
outbox_put_aside | gauge | process | table | Rows of the table that were refused too often: they wait for `shardq \
outbox retry` or `drop`.
far_loaded_total | counter | process | | Far tasks that this process's dispatcher loaded from the far store.
far_left_seconds | gauge | process | | How long until a far task may be late, if nothing is loaded from now on.
""")


def collector(engine: Engine | AsyncEngine) -> Collector:
    """Returns a collector of the engine's metrics, for a registry of prometheus_client.

    From then on the engine's workers in this process count how their tasks end. A scrape calls it in any thread, also
    in that of an event loop. It waits for the servers for three seconds at most.

    >>> registry.register(shardq.metrics.collector(engine))
    """
    if not isinstance(engine, EngineBase):
        raise InvalidOption(f"collector({quoted(engine)}) is not possible; give an Engine or an AsyncEngine")
    return Collector(engine)


class Collector(PrometheusCollector):
    """The metrics of one engine, as ``collector`` makes it."""

    def __init__(self, engine: Engine | AsyncEngine) -> None:
        self._engine = engine
        self._snapshots = _ScrapedSnapshots(engine)
        self._sink_topics: set[str] = set()
        """The topics of sinks with series of their own, where there are many."""
        EngineAccess(engine).running.outcomes()

    def describe(self) -> Iterable[Family]:
        """Tells a registry the names, without asking the servers."""
        return [metric.family() for metric in METRICS.values()]

    def collect(self) -> Iterator[Family]:
        """Yields each metric with its samples."""
        families = {name: metric.family() for name, metric in METRICS.items()}
        samples = _Samples(families, self._engine.name)
        self._add_own(samples)
        snapshot = self._snapshots.newest()
        is_whole = snapshot is not None and not any(shard.error for shard in snapshot.stats.shards)
        samples.add("up", float(is_whole))
        if snapshot is not None:
            _add_snapshot(samples, snapshot)
        yield from families.values()

    def _add_own(self, samples: _Samples) -> None:
        """Adds what this process has done."""
        samples.add("pushed_total", EngineAccess(self._engine).pushed)
        running = EngineAccess(self._engine).running
        dispatcher = running.dispatcher
        lateness, waits = dispatcher.lateness() if dispatcher else {}, running.key_waits()
        for topic in {**lateness, **waits}:
            moved = [found[topic] for found in (lateness, waits) if topic in found]
            samples.add("dispatched_total", sum(each.count for each in moved), topic)
        for name, found in (("dispatch_lateness_seconds", lateness), ("key_wait_seconds", waits)):
            for topic, each in found.items():
                samples.add_durations(name, _durations(each), topic)
        for sink in self._named(dispatcher.sent_elsewhere()) if dispatcher else ():
            for name in ("sent", "failed", "retried", "buried"):
                samples.add(f"sink_{name}_total", getattr(sink, name), sink.topic)
            samples.add("sink_circuit_open", float(sink.circuit != "closed"), sink.topic)
        for relay in [relay.stats() for relay in list(running.relays)]:
            samples.add("outbox_moved_total", relay.moved, relay.table)
            samples.add("outbox_unconfirmed", relay.sent, relay.table)
            samples.add("outbox_refused_total", relay.refused, relay.table)
            samples.add("outbox_oldest_seconds", relay.oldest_s, relay.table)
            samples.add("outbox_stuck", float(bool(relay.problem)), relay.table)
            samples.add("outbox_put_aside", relay.failed, relay.table)
        if (loader := running.loader()) is not None:
            samples.add("far_loaded_total", loader.loaded)
            samples.add("far_left_seconds", loader.left_s)
        for topic, seen in running.outcomes().snapshot().items():
            for outcome, count in seen.outcomes.items():
                samples.add("handled_total", count, topic, outcome)
            samples.add_durations("pickup_lateness_seconds", seen.pickup, topic)
            samples.add_durations("handler_seconds", seen.handler, topic)
            if any(seen.batch.counts):
                samples.add_sizes("handler_batch_size", seen.batch, topic)

    def _named(self, sinks: Sequence[RouteStats]) -> list[RouteStats]:
        """One for each topic; of more than ``MOST_TOPICS`` those that were first to send something, and the sum of the
        others. A topic keeps its name: a counter must not go back.
        """
        if len(sinks) <= MOST_TOPICS and not self._sink_topics:
            return list(sinks)
        for sink in sinks:
            if (sink.sent or sink.failed) and len(self._sink_topics) < MOST_TOPICS:
                self._sink_topics.add(sink.topic)
        named = [sink for sink in sinks if sink.topic in self._sink_topics]
        others = [msgspec.structs.replace(sink, topic=OTHERS) for sink in sinks if sink.topic not in self._sink_topics]
        return [*named, *together(others)]


class _ScrapedSnapshots:
    """Reads snapshots in a thread, one at a time, so that a silent server holds up no scrape. One that takes too long
    answers a later scrape. Thread-safe.
    """

    def __init__(self, engine: Engine | AsyncEngine) -> None:
        self._engine = engine
        self._lock = threading.Lock()
        self._running: threading.Event | None = None
        """Set when the reading under way is over."""
        self._newest: Snapshot | None = None
        self._read_at = 0.0
        self._failing = False

    def newest(self) -> Snapshot | None:
        """Returns a snapshot; None if it can't be read, or not within ``WAIT_S``."""
        with self._lock:
            if self._newest is not None and time.monotonic() - self._read_at < FRESH_S:
                return self._newest
            if self._running is None:
                self._newest, self._running = None, threading.Event()
                name = "shardq-metrics-snapshot"
                threading.Thread(target=self._run, args=(self._running,), name=name, daemon=True).start()
            running = self._running
        return self._newest if running.wait(WAIT_S) else None

    def _run(self, over: threading.Event) -> None:
        snapshot = None
        try:
            snapshot = self._read()
            self._failing = False
        except Exception as exc:  # noqa: BLE001  a scrape must not fail for it: shardq_up tells
            if not self._failing:
                self._failing = True
                log.warning("the engine %r can't be read for its metrics, trying again: %s", self._engine.name, exc)
        with self._lock:
            self._newest, self._read_at, self._running = snapshot, time.monotonic(), None
        over.set()

    def _read(self) -> Snapshot:
        engine = self._engine
        if isinstance(engine, Engine):
            return SnapshotReader(engine, resharding=True).read()
        # An event loop may be busy, or wait for this very scrape: an engine for threads reads in its place.
        options = EngineAccess(engine).options
        with Engine(
            options.url,
            name=options.name,
            shards=options.shards,
            timeout=options.timeout,
            connect_timeout=options.connect_timeout,
            protocol=options.protocol,
            fsync=options.fsync,
        ) as beside:
            snapshot = SnapshotReader(beside, resharding=True).read()
        return dataclasses.replace(
            snapshot, health=with_findings(snapshot.health, EngineAccess(engine).running.findings())
        )


class _Samples:
    """The samples of one scrape."""

    def __init__(self, families: Mapping[str, Family], engine: str) -> None:
        self._families = families
        self._engine = engine

    def add(self, name: str, value: float, *labels: str) -> None:
        family = self._families[name]
        assert not isinstance(family, HistogramMetricFamily)
        family.add_metric([self._engine, *labels], value)

    def add_durations(self, name: str, durations: Durations, *labels: str) -> None:
        edges = [2**doubling / 1000 for doubling in range(DOUBLINGS)]
        self._add_histogram(name, edges, durations.counts, durations.total_s, labels)

    def add_sizes(self, name: str, sizes: Sizes, *labels: str) -> None:
        edges = [float(2**doubling) for doubling in range(SIZE_DOUBLINGS + 1)]
        self._add_histogram(name, edges, [*sizes.counts, 0], sizes.total, labels)

    def _add_histogram(
        self, name: str, edges: Sequence[float], counts: Sequence[int], total: float, labels: Sequence[str]
    ) -> None:
        """``counts``: those up to each edge that are below no other, and then those above all."""
        family = self._families[name]
        assert isinstance(family, HistogramMetricFamily)
        buckets = zip([*map(str, edges), "+Inf"], map(float, itertools.accumulate(counts)), strict=True)
        family.add_metric([self._engine, *labels], list(buckets), total)


def _add_snapshot(samples: _Samples, snapshot: Snapshot) -> None:
    stats = snapshot.stats
    samples.add("healthy", float(snapshot.health.ok))
    told = {(finding.name, finding.severity) for finding in snapshot.health.findings}
    for row in TABLE.values():
        for severity in row.severities if row.look == "cheap" else ():
            samples.add("finding", float((row.name, severity) in told), row.name, severity)
    samples.add("unseen_shards", len(stats.missing))
    resharding = (snapshot.unserved, snapshot.unswept, snapshot.misplaced)
    for name, count in zip(("unserved_shards", "unswept_shards", "misplaced_tasks"), resharding, strict=True):
        if count is not None:
            samples.add(name, count)
    if stats.is_blind:
        return  # no sample is better than a zero
    samples.add("head_age_seconds", max(0.0, stats.head_age or 0.0))
    for state in STATES:
        counts = {topic: getattr(each, state) for topic, each in stats.topics.items()}
        for topic, count in _largest(counts).items():
            samples.add("tasks", count, state, topic)
    for topic, count in _largest({topic: each.retrying for topic, each in stats.topics.items()}).items():
        samples.add("retrying", count, topic)
    if not stats.missing:
        # without the deaths of one shard it would go back, and then rise by deaths of long ago
        for topic, count in _largest({topic: each.died for topic, each in stats.topics.items()}).items():
            samples.add("died_total", count, topic)
    oldest = {topic: each.oldest_ready for topic, each in stats.topics.items() if each.oldest_ready is not None}
    for topic in sorted(oldest, key=lambda topic: -oldest[topic])[:MOST_TOPICS]:
        samples.add("oldest_ready_seconds", oldest[topic], topic)
    for node, replication in stats.replication.items():
        if replication.unconfirmed is not None:
            samples.add("replication_lag_bytes", replication.unconfirmed, node)


def _largest(counts: Mapping[str, int]) -> dict[str, int]:
    """The topics with the most tasks; the others together."""
    topics = sorted(counts, key=lambda topic: (-counts[topic], topic))
    kept = {topic: counts[topic] for topic in topics[:MOST_TOPICS]}
    rest = topics[MOST_TOPICS:]
    return kept | {OTHERS: sum(counts[topic] for topic in rest)} if rest else kept


def _durations(lateness: Lateness) -> Durations:
    """A histogram of lateness in the bins of the others. All edges are edges there too, so no count changes."""
    durations = Durations()
    for highest_ms, count in lateness.bins:
        durations.counts[min(highest_ms.bit_length(), DOUBLINGS)] += count
        durations.total_s += highest_ms * count / 1000
    return durations
