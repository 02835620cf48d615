"""One poller's routes: what is ready of a routed topic goes on to its list, by the forward script or by the relay.

A list that refuses (something else has its name, or an ACL forbids it) holds back its own topic and no other: said
once in the log, shown in ``stats()``, tried again until it takes.

A topic is looked at when this poller has moved something of it. Others move tasks too: a process that is just giving
the shard up, or a dispatch of ours whose answer was lost. So all routes are looked at after every connect, once more
soon after the first look, and then now and then.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable

from shardq.atlas import Atlas
from shardq.calls import dispatch
from shardq.calls.answers import Missing, Stale
from shardq.dispatcher.pacing import LONGEST_SLEEP_S
from shardq.drivers.sync import Driver, Line
from shardq.errors import EngineClosed, ShardqError, Unanswered, Unavailable
from shardq.layout.keys import ShardKeys
from shardq.layout.slots import slot_of

log = logging.getLogger("shardq.dispatcher")

RETRY_S = 1.0
"""Before a list that refused is tried again: somebody has to change something first."""


SETTLED_S = 1.0
"""A process that gave the shard up has ended its last dispatch of it by then."""


class Forwarding:
    """For the poller's thread."""

    def __init__(
        self, driver: Driver, line: Line, atlas: Atlas, keys: ShardKeys, *, relay: Callable[[int], None], timeout: float
    ) -> None:
        self.error: str | None = None
        """Why a list is not served; None while all are."""
        self._driver = driver
        self._line = line
        self._atlas = atlas
        self._keys = keys
        self._relay = relay
        self._timeout = timeout
        self._seen = (0, 0)
        """The epoch, and the connection of the line, at the last look at all routes."""
        self._look_at = 0.0
        """When to look at all of them again."""
        self._open: set[str] = set()
        """Topics whose ready list may hold something."""
        self._refused: dict[str, float] = {}
        """Topic → when to try it again."""

    def serve(self, touched: Iterable[str], *, limit: int) -> float:
        """Forwards one batch of each topic that has something; answers in how many seconds there is more to do.

        ``touched``: topics that may have got something since.
        """
        topology = self._atlas.topology
        now = time.monotonic()
        if topology.epoch != self._seen[0]:
            self._refused = {}
        if (seen := (topology.epoch, self._line.connects)) != self._seen:
            # whatever is ready already goes too, also what another process left there
            self._open, self._seen, self._look_at = set(topology.open_routes), seen, now + SETTLED_S
        elif now >= self._look_at:
            self._open.update(topology.open_routes)
            self._look_at = now + LONGEST_SLEEP_S
        self._open.update(topology.open_routes.keys() & set(touched))
        wait = self._look_at - now
        for topic in sorted(self._open):
            wait = min(wait, self._serve(topic, limit))
        if not self._refused:
            self.error = None
        return wait

    def _serve(self, topic: str, limit: int) -> float:
        route = self._atlas.topology.routes.get(topic)
        if route is None or (self._driver.is_cluster and slot_of(route.to) != self._keys.slot):
            self._open.discard(topic)
            if route is not None:
                self._relay(self._keys.shard)
            return math.inf
        now = time.monotonic()
        if (wait := self._refused.get(topic, now) - now) > 0:
            return wait
        call = dispatch.forward(self._keys, self._seen[0], topic, to=route.to, side=route.side, limit=limit)
        try:
            left = self._line.call(call, timeout=self._timeout).left
        except (Stale, Missing, EngineClosed, Unavailable, Unanswered):
            raise  # a node that does not answer is no fault of the list
        except ShardqError as exc:
            if topic not in self._refused:
                log.error("shard %d can't forward %r to %r, trying on: %s", self._keys.shard, topic, route.to, exc)
            self._refused[topic] = now + RETRY_S
            self.error = f"{type(exc).__name__}: {exc}"
            return RETRY_S
        if self._refused.pop(topic, None) is not None:
            log.warning("shard %d forwards %r again", self._keys.shard, topic)
        if left:
            return 0.0
        self._open.discard(topic)
        return math.inf
