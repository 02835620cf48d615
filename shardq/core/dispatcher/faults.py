"""Keeps the routes that this process can't serve, and why. Called by ``forwarding`` and ``forwarder``; the dispatcher
has one ``RouteFaults``, and shows it in ``stats()``.

All shards share a list, but one shard alone may fail to reach it. So faults are noted by shard. A route works again
when each shard with a fault has put something on the list, or has nothing left for it. The log names a cause once for a
route, whatever changes in the topology meanwhile, and says once that the route works again.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable
from dataclasses import dataclass, field

import msgspec

from shardq.core.layout import destinations
from shardq.core.layout.topology import Route, Topology
from shardq.core.model.ids import quoted_topic
from shardq.errors import Unanswered, Unavailable

log = logging.getLogger("shardq.dispatcher")


class RouteFault(msgspec.Struct, frozen=True):
    """A route that this process can't serve."""

    topic: str
    to: str
    """The list, stream or URL, without its secrets."""
    error: str
    """The reason."""
    shards: tuple[int, ...]
    """The shards that hold tasks back for it; empty for a URL, which all share."""

    @property
    def named(self) -> str:
        """Where it goes, as a sentence names it."""
        return destinations.named(self.to)


@dataclass(slots=True)
class _Trouble:
    reasons: dict[int, str] = field(default_factory=dict)
    """Shard → the reason of its fault."""
    said: set[type[Exception]] = field(default_factory=set)
    """Kinds of errors that were logged."""


class RouteFaults:
    """The faults of all routes. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._troubles: dict[tuple[str, str], _Trouble] = {}
        """Topic and list → the faults of its route."""

    def failed(self, topic: str, route: Route, shard: int, exc: Exception, *, said: bool = False) -> None:
        """Notes that the topic's tasks in this shard can't go to the list. ``said``: its node's outage was logged."""
        reason = f"{type(exc).__name__}: {exc}"
        # one cause, though each script and each node words it in its own way
        cause = Unavailable if isinstance(exc, Unanswered) else type(exc)
        with self._lock:
            trouble = self._troubles.setdefault((topic, route.to), _Trouble())
            trouble.reasons[shard] = reason
            if said or cause in trouble.said:
                return
            trouble.said.add(cause)
        fields = {"topic": topic, "shard": shard, "error": type(exc).__name__}
        log.error(
            "topic %s can't be forwarded to %s, trying again: %s", quoted_topic(topic), route.named, exc, extra=fields
        )

    def works(self, topic: str, route: Route, shard: int) -> None:
        """Notes that they can, or that none are left."""
        if not self._troubles:
            return
        with self._lock:
            trouble = self._troubles.get((topic, route.to))
            if trouble is None or trouble.reasons.pop(shard, None) is None or trouble.reasons:
                return
            del self._troubles[topic, route.to]
        if trouble.said:
            log.warning("topic %s is forwarded to %s again", quoted_topic(topic), route.named, extra={"topic": topic})

    def keep(self, topology: Topology, shards: Iterable[int]) -> None:
        """Forgets routes that were removed, and shards that other processes serve now."""
        mine = set(shards)
        with self._lock:
            for topic, to in list(self._troubles):
                trouble = self._troubles[topic, to]
                trouble.reasons = {shard: why for shard, why in trouble.reasons.items() if shard in mine}
                route = topology.routes.get(topic)
                if route is None or route.to != to or not trouble.reasons:
                    del self._troubles[topic, to]

    def shown(self, topology: Topology, shards: Iterable[int]) -> tuple[RouteFault, ...]:
        """The faults of open routes in the given shards, by topic."""
        routes, mine, found = topology.open_routes, set(shards), list[RouteFault]()
        with self._lock:
            for (topic, to), trouble in sorted(self._troubles.items()):
                reasons = {shard: why for shard, why in sorted(trouble.reasons.items()) if shard in mine}
                if reasons and topic in routes and routes[topic].to == to:
                    found.append(RouteFault(topic, to, next(iter(reasons.values())), tuple(reasons)))
        return tuple(found)
