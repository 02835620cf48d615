"""The state that the claims of one consumer share: who claims, with which lease, and what it knows of shards."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from shardq.core.consumer.claim_planner import ClaimPlanner, ReadyCounts
from shardq.core.consumer.rate_limiter import RateLimiter
from shardq.core.consumer.waiting.registry import Waiter
from shardq.core.layout.topology import Route
from shardq.core.model.ids import quoted_topic
from shardq.core.model.record import PLAIN, Codec, decode_payload
from shardq.core.recovery import Recovery
from shardq.core.topology_cache import TopologyCache
from shardq.errors import ShardqError

log = logging.getLogger("shardq.consumer")

Decode = Callable[[bytes, Codec], tuple[Any, Mapping[str, str], tuple[str, ...]]]
"""Makes payload, headers and tags of a record."""


class Claims:
    """One consumer's identity, options and knowledge. Not for two threads at once."""

    def __init__(
        self,
        cache: TopologyCache,
        topics: Sequence[str],
        *,
        name: str,
        lease_ms: int,
        codec: Codec,
        ready_counts: ReadyCounts,
        forwarded: dict[str, object] | None = None,
        weights: Mapping[str, int] | None = None,
        topic_attempts: Mapping[str, int] | None = None,
        route: Route | None = None,
        decode: Decode = decode_payload,
    ) -> None:
        self.cache = cache
        self.topics = list(topics)
        self.name = name
        self.lease_ms = lease_ms
        self.codec = codec
        self.topic_attempts = topic_attempts or {}
        """Topic → the attempts, failed or lapsed, that its handler allows. Other topics: the engine's number."""
        self.route = route
        """The route that the consumer serves: it gets what others do not, as long as its topic has this route."""
        self.decode = decode
        self.plain = PLAIN if decode is decode_payload else {}
        """The decoders of records that need no ``decode``."""
        self.ready_counts = ready_counts
        self.forwarded = {} if forwarded is None else forwarded
        """Forwarded topics that the log has named; shared by the consumers of an engine."""
        self.planner = ClaimPlanner(self.topics, weights, ready_counts)
        self.limiter = RateLimiter(cache, lease_ms)
        self.unreachable = ready_counts.unreachable
        self.left_out: frozenset[str] = frozenset()
        """Topics that the worker of this consumer can't handle now."""
        self.waiter: Waiter | None = None
        """The waiter of the present claim; None unless it waits."""
        self.recovery = Recovery(cache)
        """The recovery from refusals of claims, as long as each claim meets some."""
        self._calls = 0

    def cut_off(self) -> bool:
        """True if no shard could be reached."""
        return self.unreachable.all_of(self.cache.topology.span())

    def note_unreachable(self, shard: int, topics: Sequence[str], why: ShardqError, took_s: float) -> None:
        """Notes a shard that can't be reached, and expects nothing of it."""
        self.unreachable.note(shard, why, took_s)
        self.ready_counts.learn(shard, dict.fromkeys(topics, 0), time.monotonic())

    def leave_out(self, topics: frozenset[str]) -> None:
        """Leaves these topics out of claims from now on, and ends a claim that waits. May be called from any thread."""
        self.left_out = topics
        waiter = self.waiter
        if waiter is not None:
            waiter.wake()

    def wanted_topics(self) -> list[str]:
        """The topics that are not left out."""
        left_out = self.left_out
        return [topic for topic in self.topics if topic not in left_out] if left_out else self.topics

    def open_topics(self) -> list[str]:
        """The wanted topics that are neither paused nor forwarded; of one that serves a route, those that have it."""
        topology, wanted = self.cache.topology, self.wanted_topics()
        if not topology.paused and not topology.routes and not self.forwarded and self.route is None:
            return wanted
        if self.route is not None:
            return [t for t in wanted if t not in topology.paused and topology.routes.get(t) == self.route]
        self._log_routes(topology.routes)
        return [topic for topic in wanted if topic not in topology.paused and topic not in topology.routes]

    def _log_routes(self, routes: Mapping[str, Route]) -> None:
        """Logs once of a topic that it is forwarded, and that it no longer is."""
        for topic in self.topics:
            route, mark = routes.get(topic), object()
            if route is not None and self.forwarded.setdefault(topic, mark) is mark:
                text = "the topic %s is forwarded to %s: consumers get nothing of it until that ends"
                log.warning(text, quoted_topic(topic), route.named)
            elif route is None and self.forwarded.pop(topic, None) is not None:
                log.warning("the topic %s is no longer forwarded: consumers get its tasks", quoted_topic(topic))

    def log_if_all_forwarded(self) -> None:
        """Logs, when a consumer is made, that all of its topics are forwarded: it will get nothing."""
        routes = self.cache.topology.routes
        if all(topic in routes for topic in self.topics):
            where = ", ".join(f"{quoted_topic(topic)} to {routes[topic].named}" for topic in self.topics)
            log.warning("every topic of this consumer is forwarded, so it gets nothing until that ends: %s", where)
            self.forwarded.update(dict.fromkeys(self.topics, object()))

    def token(self) -> str:
        """Returns a token for a lease, never used before: the consumer's name and a number."""
        self._calls += 1
        return f"{self.name}:{self._calls}"
