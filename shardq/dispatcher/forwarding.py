"""One poller's routes: what is ready of a routed topic goes on to its list, by the forward script or by the relay.

Dispatch says which routed topics have something ready, whoever moved it, and it is asked with all of them, or with as
many as go into one call in turns. So nothing is kept here of what may be where.

A list that refuses (something else has its name, or an ACL forbids it) holds back its own topic and no other: told by
``faults``, tried again until it takes.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence

from shardq.calls import dispatch
from shardq.calls.answers import Missing, Stale
from shardq.dispatcher.faults import RouteFaults
from shardq.dispatcher.relay import is_relayed
from shardq.drivers.sync import DedicatedConnection, Driver
from shardq.errors import EngineClosed, ShardqError, Unanswered, Unavailable
from shardq.layout.keys import ShardKeys
from shardq.layout.topology import Route, Topology

MAX_TOPICS = 64
"""Ready lists declared to one dispatch. With more topics in use at once the poller takes turns."""

MAX_ROUTED = MAX_TOPICS // 2
"""Routed topics among those, given although nothing is known of them: the others need room, too."""

RETRY_S = 1.0
"""Before a list that refused is tried again: somebody has to change something first."""

Relayed = Callable[[int, Sequence[str]], None]
"""Tells the relay of a shard, and of topics that are ready there."""


class Forwarding:
    """The routes of one shard, for its poller's thread."""

    def __init__(
        self,
        driver: Driver,
        connection: DedicatedConnection,
        keys: ShardKeys,
        *,
        relay: Relayed,
        faults: RouteFaults,
        timeout: float,
    ) -> None:
        self._driver = driver
        self._connection = connection
        self._keys = keys
        self._relay = relay
        self._faults = faults
        self._timeout = timeout
        self._epoch = 0
        self._turn = 0
        """Where the next turn of routed topics begins, when not all go into one call."""
        self._turns = 0
        """How many more of them are to be taken at once."""
        self._refused: dict[str, tuple[Route, float]] = {}
        """Topic → the route that failed, and when to try it again."""

    def rung(self) -> None:
        """Something may be ready that this poller has not moved: the next steps ask for all routed topics."""
        self._epoch = 0

    def given(self, known: Sequence[str], topology: Topology) -> list[str]:
        """The topics to dispatch: routed ones, and of those ``known`` as many as there is room for."""
        routed = list(topology.open_routes)
        if topology.epoch != self._epoch:
            self._epoch, self._turns = topology.epoch, -(-len(routed) // MAX_ROUTED)
        self._turns -= 1
        if len(routed) > MAX_ROUTED:
            self._turn = (self._turn + MAX_ROUTED) % len(routed)
            routed = [*routed[self._turn :], *routed[: self._turn]][:MAX_ROUTED]
        return list(dict.fromkeys([*routed, *known]))[:MAX_TOPICS]

    def serve(self, ready: Sequence[str], given: Sequence[str], topology: Topology, *, limit: int) -> float:
        """Forwards one batch of each topic that has something ready, as dispatch has answered; answers in how many
        seconds to dispatch again.
        """
        for topic in [topic for topic in self._refused if topic in given and topic not in ready]:
            # taken back, purged, or forwarded by another process
            self._faults.works(topic, self._refused.pop(topic)[0], self._keys.shard)
        for topic in [topic for topic, (route, _) in self._refused.items() if topology.routes.get(topic) != route]:
            del self._refused[topic]
        relayed = [topic for topic in ready if is_relayed(self._driver, topology, topic, self._keys)]
        for topic in relayed:
            self._refused.pop(topic, None)
        if relayed:
            self._relay(self._keys.shard, relayed)
        waits = [self._serve(topic, topology, limit) for topic in ready if topic not in relayed]
        return min(waits, default=math.inf) if self._turns <= 0 else 0.0

    def _serve(self, topic: str, topology: Topology, limit: int) -> float:
        route = topology.routes[topic]
        now = time.monotonic()
        if (wait := self._refused.get(topic, (route, now))[1] - now) > 0:
            return wait
        call = dispatch.forward(self._keys, topology.epoch, topic, to=route.to, side=route.side, limit=limit)
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
