"""``Hold`` of tasks without a key: their topics wait. They are paused, for the whole fleet; where that can't be, this
consumer takes nothing of them for so long.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from functools import partial

from shardq.core.calls import control
from shardq.core.calls.consume import SettleHold
from shardq.core.consumer.claim_state import Claims
from shardq.core.model.ids import quoted_topic, topic_of
from shardq.core.operation import Operation, bounded
from shardq.core.topology_cache import TopologyCache
from shardq.core.topology_edits import edit_topology, with_holds
from shardq.core.topology_upkeep import WRITERS
from shardq.errors import AccessDenied, ShardqError

log: logging.Logger = logging.getLogger("shardq.consumer")

PAUSE_S = 2.0
"""The time for a pause: other settlements wait."""


def delays_of_topics(holds: Iterable[SettleHold]) -> dict[str, int]:
    """Topic → for how many ms it is to wait."""
    delays: dict[str, int] = {}
    for each in holds:
        if each.delay_ms:
            topic = topic_of(each.id)
            delays[topic] = max(each.delay_ms, delays.get(topic, 0))
    return delays


def pause_topics(claims: Claims, delays: Mapping[str, int]) -> Operation[None]:
    """Pauses topics that this consumer has on hold already. Never raises: the tasks are settled."""
    try:
        yield from bounded(_pause(claims.cache, delays), PAUSE_S)
    except ShardqError as exc:
        why = f"only users of the role {WRITERS} may pause it" if isinstance(exc, AccessDenied) else exc
        what = "this consumer takes nothing of the topic %s for %g s, and others go on: %s (said once)"
        for topic, delay_ms in delays.items():
            if topic not in claims.said_holds:
                claims.said_holds.add(topic)
                log.warning(what, quoted_topic(topic), delay_ms / 1000, why)
    else:
        # from now on the topology says it, and whoever resumes the topic
        claims.hold(dict.fromkeys(delays, 0))


def _pause(cache: TopologyCache, delays: Mapping[str, int]) -> Operation[None]:
    # a script's clock, not the server's: a test may move it
    now_ms: int = yield control.script_clock_ms(cache.control, cache.topology.stamp)
    until_ms = {topic: now_ms + delay_ms for topic, delay_ms in delays.items()}
    if with_holds(cache.topology, until_ms) != cache.topology:
        yield from edit_topology(cache, partial(with_holds, until_ms=until_ms))
