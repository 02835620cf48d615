"""Serves the routes of one poller: ready tasks of a routed topic go to its list. Called by ``poller``.

The forward script does it, or the ``forwarder`` where the script can't. Each dispatch is asked about all routed topics,
and answers which have ready tasks. Where there are many, it is asked about those that are known to have some, and a few
others in turn. What this poller moves is known to it. What others have made ready is looked for when they ring, by
commands that only tell which lists are not empty, and so many in a second that it costs little, however often they
ring.

A list that refuses payloads, because its name is taken by another type or an ACL forbids it, holds back its own topic
and no other, and is tried again until it works. ``RouteFaults`` keeps the routes that this process can't serve, and
why; the dispatcher has one, and shows it in ``stats()``. All shards share a list, but one shard alone may fail to reach
it, so faults are noted by shard. A route works again when each shard with a fault has put something on the list, or has
nothing left for it. The log names a cause once for a route, and says once that the route works again.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import msgspec

from shardq.core.calls import consume, dispatch
from shardq.core.drivers.owned import DedicatedConnection
from shardq.core.drivers.routing import DriverBase
from shardq.core.drivers.sync import Driver
from shardq.core.layout import destinations
from shardq.core.layout.keys import ShardKeys
from shardq.core.layout.slots import slot_of
from shardq.core.layout.topology import Route, Stamp, Topology
from shardq.core.model.ids import quoted_topic
from shardq.core.topology_recovery import REFUSALS
from shardq.errors import EngineClosed, ShardqError, Unanswered, Unavailable

log: logging.Logger = logging.getLogger("shardq.dispatcher")

MAX_TOPICS = 64
"""Ready lists declared to one dispatch. With more topics in use, the poller takes turns."""

MAX_ROUTED = MAX_TOPICS // 2
"""Routed topics among those; the others need room, too."""

FEW = 8
"""Routed topics that every dispatch is asked about, in turns, although nothing is known of them."""

TOGETHER = 100
"""Lists that are asked for by one command."""

LISTS_PER_S = 1000
"""The most lists that a rung poller asks for in a second, where more topics are routed than fit one dispatch."""

RETRY_S = 1.0
"""The wait before a list that refused is tried again: somebody has to change something first."""

Rouse = Callable[[int, Sequence[str]], None]
"""Tells the forwarder which topics have ready tasks in a shard."""


def reaches(driver: DriverBase, route: Route, keys: ShardKeys) -> bool:
    """True if the forward script of this shard can write to the route's list."""
    return not driver.is_cluster or slot_of(route.key) == keys.slot


def needs_forwarder(driver: DriverBase, topology: Topology, topic: str, keys: ShardKeys) -> bool:
    """True if the forwarder serves a routed topic in this shard, not the poller itself."""
    return topic in topology.limits or not reaches(driver, topology.routes[topic], keys)


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


class Forwarding:
    """The routes of one shard, for its poller's thread."""

    def __init__(
        self,
        driver: Driver,
        connection: DedicatedConnection,
        keys: ShardKeys,
        *,
        rouse: Rouse,
        faults: RouteFaults,
        timeout: float,
    ) -> None:
        self._driver = driver
        self._connection = connection
        self.keys = keys
        self._rouse = rouse
        self._faults = faults
        self._timeout = timeout
        self._epoch = Stamp("0")
        self._turn = 0
        """The routed topic with which the next turn begins, when not all go into one call."""
        self._known: dict[str, None] = {}
        """Routed topics that may have ready tasks, where not all go into one call."""
        self._look_at = math.inf
        """When to look for more of them."""
        self._looked_at = -math.inf
        self._refused: dict[str, tuple[Route, float]] = {}
        """Topic → the route that refused, and when to try it again."""

    def rung(self) -> None:
        """Notes that another process may have made tasks ready: the next steps ask about all routed topics."""
        self._epoch = Stamp("0")

    def given(self, known: Sequence[str], topology: Topology) -> list[str]:
        """The topics to declare to a dispatch: routed ones, and as many of those ``known`` as have room."""
        routed = list(topology.open_routes)
        if len(routed) > MAX_ROUTED:
            self._look(routed, topology)
            self._turn = (self._turn + FEW) % len(routed)
            others = [*routed[self._turn :], *routed[: self._turn]][:FEW]
            now = time.monotonic()
            again = [topic for topic, (_, at) in self._refused.items() if at <= now]
            routed = [topic for topic in (*self._known, *again) if topic in topology.open_routes]
            routed = [*routed[: MAX_ROUTED - FEW], *others]
        return list(dict.fromkeys([*routed, *known]))[:MAX_TOPICS]

    def _look(self, routed: Sequence[str], topology: Topology) -> None:
        """Looks which of the topics have ready tasks, if that is to be done."""
        now = time.monotonic()
        if topology.stamp != self._epoch:
            self._epoch, self._look_at = topology.stamp, max(now, self._looked_at + len(routed) / LISTS_PER_S)
        if now < self._look_at:
            return
        self._look_at, self._looked_at = math.inf, now
        parts = [routed[at : at + TOGETHER] for at in range(0, len(routed), TOGETHER)]
        while parts:
            some = parts.pop()
            count = self._connection.call(consume.ready_lists(self.keys, some), timeout=self._timeout)
            if count == len(some):
                self._known |= dict.fromkeys(some)
            elif count:
                half = len(some) // 2
                parts += [some[:half], some[half:]]

    def serve(self, ready: Sequence[str], given: Sequence[str], topology: Topology, *, limit: int) -> float:
        """Forwards one batch of each topic that has ready tasks by the answer of dispatch. Returns in how many seconds
        to dispatch again.
        """
        for topic in [topic for topic in self._refused if topic in given and topic not in ready]:
            # its tasks were cancelled, purged, or forwarded by another process
            self._faults.works(topic, self._refused.pop(topic)[0], self.keys.shard)
        for topic in [topic for topic, (route, _) in self._refused.items() if topology.routes.get(topic) != route]:
            del self._refused[topic]
        others = [topic for topic in ready if needs_forwarder(self._driver, topology, topic, self.keys)]
        for topic in others:
            self._refused.pop(topic, None)
        if others:
            self._rouse(self.keys.shard, others)
        waits = {topic: self._serve(topic, topology, limit) for topic in ready if topic not in others}
        self._known = {topic: None for topic in self._known if topic in topology.open_routes and topic not in given}
        # what has more left comes after those that were not asked yet
        self._known |= dict.fromkeys(topic for topic, wait in waits.items() if not wait)
        if self._known:
            return 0.0
        ats = [self._look_at, *(at for topic, (_, at) in self._refused.items() if topic not in given)]
        return min([*waits.values(), max(0.0, min(ats) - time.monotonic())])

    def _serve(self, topic: str, topology: Topology, limit: int) -> float:
        route = topology.routes[topic]
        now = time.monotonic()
        if (wait := self._refused.get(topic, (route, now))[1] - now) > 0:
            return wait
        call = dispatch.forward(
            self.keys, topology.stamp, topic, to=route.key, side=route.way, limit=limit, maxlen=route.maxlen
        )
        try:
            left = self._connection.call(call, timeout=self._timeout).left
        except (*REFUSALS, EngineClosed, Unavailable, Unanswered):
            raise  # a node that does not answer is no fault of the list
        except ShardqError as exc:
            self._refused[topic] = route, now + RETRY_S
            self._faults.failed(topic, route, self.keys.shard, exc)
            return RETRY_S
        if self._refused.pop(topic, None) is not None:
            self._faults.works(topic, route, self.keys.shard)
        return 0.0 if left else math.inf
