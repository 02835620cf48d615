"""Serves the routes of one poller: ready tasks of a routed topic go to its list. Called by ``poller``.

The forward script does it, or the ``forwarder`` where the script can't. Each dispatch is asked about all routed topics
(with many of them, about some in turns), and answers which have ready tasks. So nothing needs to be remembered here.

A list that refuses payloads, because its name is taken by another type or an ACL forbids it, holds back its own topic
and no other. ``faults`` shows it, and it is tried again until it works.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence

from shardq.core.calls import dispatch
from shardq.core.calls.request import Missing, Stale
from shardq.core.dispatcher.faults import RouteFaults
from shardq.core.dispatcher.forwarder import needs_forwarder
from shardq.core.drivers.owned import DedicatedConnection
from shardq.core.drivers.sync import Driver
from shardq.core.layout.keys import ShardKeys
from shardq.core.layout.topology import Route, Topology
from shardq.errors import EngineClosed, ShardqError, Unanswered, Unavailable

MAX_TOPICS = 64
"""Ready lists declared to one dispatch. With more topics in use, the poller takes turns."""

MAX_ROUTED = MAX_TOPICS // 2
"""Routed topics among those, which every dispatch is asked about; the others need room, too."""

RETRY_S = 1.0
"""The wait before a list that refused is tried again: somebody has to change something first."""

Rouse = Callable[[int, Sequence[str]], None]
"""Tells the forwarder which topics have ready tasks in a shard."""


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
        self._keys = keys
        self._rouse = rouse
        self._faults = faults
        self._timeout = timeout
        self._epoch = 0
        self._turn = 0
        """The routed topic with which the next turn begins, when not all go into one call."""
        self._turns = 0
        """Turns to take without a sleep in between."""
        self._refused: dict[str, tuple[Route, float]] = {}
        """Topic → the route that refused, and when to try it again."""

    def rung(self) -> None:
        """Notes that another process may have made tasks ready: the next steps ask about all routed topics."""
        self._epoch = 0

    def given(self, known: Sequence[str], topology: Topology) -> list[str]:
        """The topics to declare to a dispatch: routed ones, and as many of those ``known`` as have room."""
        routed = list(topology.open_routes)
        if topology.epoch != self._epoch:
            self._epoch, self._turns = topology.epoch, -(-len(routed) // MAX_ROUTED)
        self._turns -= 1
        if len(routed) > MAX_ROUTED:
            self._turn = (self._turn + MAX_ROUTED) % len(routed)
            routed = [*routed[self._turn :], *routed[: self._turn]][:MAX_ROUTED]
        return list(dict.fromkeys([*routed, *known]))[:MAX_TOPICS]

    def serve(self, ready: Sequence[str], given: Sequence[str], topology: Topology, *, limit: int) -> float:
        """Forwards one batch of each topic that has ready tasks by the answer of dispatch. Returns in how many seconds
        to dispatch again.
        """
        for topic in [topic for topic in self._refused if topic in given and topic not in ready]:
            # its tasks were cancelled, purged, or forwarded by another process
            self._faults.works(topic, self._refused.pop(topic)[0], self._keys.shard)
        for topic in [topic for topic, (route, _) in self._refused.items() if topology.routes.get(topic) != route]:
            del self._refused[topic]
        others = [topic for topic in ready if needs_forwarder(self._driver, topology, topic, self._keys)]
        for topic in others:
            self._refused.pop(topic, None)
        if others:
            self._rouse(self._keys.shard, others)
        waits = [self._serve(topic, topology, limit) for topic in ready if topic not in others]
        return min(waits, default=math.inf) if self._turns <= 0 else 0.0

    def _serve(self, topic: str, topology: Topology, limit: int) -> float:
        route = topology.routes[topic]
        now = time.monotonic()
        if (wait := self._refused.get(topic, (route, now))[1] - now) > 0:
            return wait
        call = dispatch.forward(
            self._keys, topology.epoch, topic, to=route.key, side=route.way, limit=limit, maxlen=route.maxlen
        )
        try:
            left = self._connection.call(call, timeout=self._timeout).left
        except (Stale, Missing, EngineClosed, Unavailable, Unanswered):
            raise  # a node that does not answer is no fault of the list
        except ShardqError as exc:
            self._refused[topic] = route, now + RETRY_S
            self._faults.failed(topic, route, self._keys.shard, exc)
            return RETRY_S
        if self._refused.pop(topic, None) is not None:
            self._faults.works(topic, route, self._keys.shard)
        return 0.0 if left else math.inf
