"""The collector for a registry of prometheus_client: the process's own counters, and one look at the engine."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector as PrometheusCollector

from shardq.engine.base import EngineBase
from shardq.engine.health import KINDS
from shardq.engine.parts import counted_outcomes, dispatcher_of, pushed_by
from shardq.engine.sync import Engine
from shardq.errors import InvalidOption
from shardq.fleet.lateness import OTHERS, Lateness
from shardq.metrics import catalogue
from shardq.metrics.catalogue import METRICS, Metric
from shardq.metrics.look import Looker, Seen
from shardq.worker.outcomes import DOUBLINGS, Durations

if TYPE_CHECKING:
    from shardq.engine.aio import AsyncEngine

MOST_TOPICS = 200
"""Topics with series of their own in a gauge; those with the fewest tasks count together as ``OTHERS``."""

STATES = ("scheduled", "ready", "leased", "dead")

Family = CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily

_FAMILIES = {"counter": CounterMetricFamily, "gauge": GaugeMetricFamily, "histogram": HistogramMetricFamily}


def collector(engine: Engine | AsyncEngine) -> Collector:
    """Returns a collector of the engine's metrics, for a registry of prometheus_client.

    From then on the engine's workers in this process count how their tasks end. A scrape calls it in any thread, also
    in that of an event loop. It waits for the servers for three seconds at most.

    >>> registry.register(shardq.metrics.collector(engine))
    """
    if not isinstance(engine, EngineBase):
        raise InvalidOption(f"collector({engine!r}) is not possible; give an Engine or an AsyncEngine")
    return Collector(engine)


class Collector(PrometheusCollector):
    """The metrics of one engine, as ``collector`` makes it."""

    def __init__(self, engine: Engine | AsyncEngine) -> None:
        self._engine = engine
        self._looker = Looker(engine)
        counted_outcomes(engine)

    def describe(self) -> Iterable[Family]:
        """Tells a registry the names, without a look."""
        return [_family(metric) for metric in METRICS]

    def collect(self) -> Iterator[Family]:
        """Yields each metric with its samples."""
        families = {metric: _family(metric) for metric in METRICS}
        samples = _Samples(families, self._engine.name)
        self._add_own(samples)
        seen = self._looker.look()
        is_whole = seen is not None and not any(shard.error for shard in seen.health.stats.shards)
        samples.add(catalogue.UP, float(is_whole))
        if seen is not None:
            _add_seen(samples, seen)
        yield from families.values()

    def _add_own(self, samples: _Samples) -> None:
        """Adds what this process has done."""
        samples.add(catalogue.PUSHED, pushed_by(self._engine))
        dispatcher = dispatcher_of(self._engine)
        for topic, lateness in (dispatcher.lateness() if dispatcher else {}).items():
            samples.add(catalogue.DISPATCHED, lateness.count, topic)
            samples.add_durations(catalogue.DISPATCH_LATENESS, _durations(lateness), topic)
        for sink in dispatcher.sinks() if dispatcher else ():
            samples.add(catalogue.SINK_SENT, sink.sent, sink.topic)
            samples.add(catalogue.SINK_FAILED, sink.failed, sink.topic)
            samples.add(catalogue.SINK_RETRIED, sink.retried, sink.topic)
            samples.add(catalogue.SINK_BURIED, sink.buried, sink.topic)
            samples.add(catalogue.SINK_CIRCUIT_OPEN, float(sink.circuit != "closed"), sink.topic)
        for relay in [relay.stats() for relay in list(self._engine.relays)]:
            samples.add(catalogue.OUTBOX_MOVED, relay.moved, relay.table)
            samples.add(catalogue.OUTBOX_REFUSED, relay.refused, relay.table)
            samples.add(catalogue.OUTBOX_OLDEST, relay.oldest_s, relay.table)
            samples.add(catalogue.OUTBOX_STUCK, float(bool(relay.problem)), relay.table)
            samples.add(catalogue.OUTBOX_PUT_ASIDE, relay.failed, relay.table)
        for topic, seen in counted_outcomes(self._engine).snapshot().items():
            for outcome, count in seen.outcomes.items():
                samples.add(catalogue.HANDLED, count, topic, outcome)
            samples.add_durations(catalogue.PICKUP_LATENESS, seen.pickup, topic)
            samples.add_durations(catalogue.HANDLER, seen.handler, topic)


class _Samples:
    """The samples of one scrape."""

    def __init__(self, families: Mapping[Metric, Family], engine: str) -> None:
        self._families = families
        self._engine = engine

    def add(self, metric: Metric, value: float, *labels: str) -> None:
        family = self._families[metric]
        assert not isinstance(family, HistogramMetricFamily)
        family.add_metric([self._engine, *labels], value)

    def add_durations(self, metric: Metric, durations: Durations, *labels: str) -> None:
        family = self._families[metric]
        assert isinstance(family, HistogramMetricFamily)
        buckets, below = list[tuple[str, float]](), 0
        for doubling, count in enumerate(durations.counts):
            below += count
            buckets.append(("+Inf" if doubling == DOUBLINGS else str(2**doubling / 1000), below))
        family.add_metric([self._engine, *labels], buckets, durations.total_s)


def _family(metric: Metric) -> Family:
    name = metric.name.removesuffix("_total") if metric.kind == "counter" else metric.name
    family: Family = _FAMILIES[metric.kind](name, metric.help, labels=["engine", *metric.labels])
    return family


def _add_seen(samples: _Samples, seen: Seen) -> None:
    stats = seen.health.stats
    samples.add(catalogue.HEALTHY, float(seen.health.ok))
    for kind in KINDS:
        samples.add(catalogue.UNHEALTHY, float(kind in seen.health.kinds), kind)
    samples.add(catalogue.UNSEEN, len(stats.missing))
    if seen.unserved is not None:
        samples.add(catalogue.UNSERVED, seen.unserved)
    if seen.unswept is not None:
        samples.add(catalogue.UNSWEPT, seen.unswept)
    if seen.misplaced is not None:
        samples.add(catalogue.MISPLACED, seen.misplaced)
    if stats.is_blind:
        return  # no sample is better than a zero
    samples.add(catalogue.HEAD_AGE, max(0.0, stats.head_age or 0.0))
    for state in STATES:
        counts = {topic: getattr(each, state) for topic, each in stats.topics.items()}
        for topic, count in _largest(counts).items():
            samples.add(catalogue.TASKS, count, state, topic)
    if not stats.missing:
        # without the deaths of one shard it would go back, and then rise by deaths of long ago
        for topic, count in _largest({topic: each.died for topic, each in stats.topics.items()}).items():
            samples.add(catalogue.DIED, count, topic)
    oldest = {topic: each.oldest_ready for topic, each in stats.topics.items() if each.oldest_ready is not None}
    for topic in sorted(oldest, key=lambda topic: -oldest[topic])[:MOST_TOPICS]:
        samples.add(catalogue.OLDEST_READY, oldest[topic], topic)
    for node, replication in stats.replication.items():
        if replication.unconfirmed is not None:
            samples.add(catalogue.REPLICATION_LAG, replication.unconfirmed, node)


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
