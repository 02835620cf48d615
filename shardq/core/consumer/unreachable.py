"""The shards that the consumers of one engine could not reach a moment ago: one of them learns it for all."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

from shardq.errors import ShardqError

log = logging.getLogger("shardq.consumer")

AGAIN_S = 0.25
"""A shard that could not be reached is asked again after this time."""

AWAY_SHARE = 3
LONGEST_AWAY_S = 3.0
"""One that was silent is left alone for so many times what it took, and at most so long: most of the time of a claim
belongs to those that answer.
"""


class UnreachableShards:
    """Thread-safe: each method is one operation of a dict, or two of which the second only logs."""

    def __init__(self) -> None:
        self._again_at: dict[int, float] = {}
        """Shard → the (monotonic) time at which to ask it again."""

    def __bool__(self) -> bool:
        return bool(self._again_at)

    def note(self, shard: int, why: ShardqError, took_s: float) -> None:
        """Notes a shard that can't be reached, and was waited for so long: the others are asked meanwhile."""
        first = not self._again_at
        self._again_at[shard] = time.monotonic() + min(max(AGAIN_S, AWAY_SHARE * took_s), LONGEST_AWAY_S)
        if first:
            log.warning("some shards can't be reached, claiming from the others: %s", why)

    def answered(self, shard: int) -> None:
        """Notes that a shard answers."""
        if self._again_at.pop(shard, None) is not None and not self._again_at:
            log.info("all shards can be reached again")

    def all_of(self, shards: Sequence[int]) -> bool:
        """True if none of these shards could be reached."""
        return bool(self._again_at) and self._again_at.keys() >= set(shards)

    def to_ask(self, shards: Sequence[int]) -> Sequence[int]:
        """Those of the shards that are to be asked now."""
        if not self._again_at:
            return shards
        now = time.monotonic()
        return [shard for shard in shards if self._again_at.get(shard, now) <= now]
