"""Plans claims: which shard is asked for how much of which topic, by the ready counts known, and by the shards that
could not be reached a moment ago. No I/O.

Without weights the order of topics is strict: a shard is asked for a lower topic only as far as no shard is known to
have a higher one. With weights each topic that has tasks gets its share, and the others get what one can't use. Each
claim begins at another shard, so that none starves behind shards that always have something.
"""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import NamedTuple

from shardq.core.consumer.waiter_registry import PERMITS, ReadyList
from shardq.core.fleet.lateness import TopicLateness
from shardq.core.layout.topology import Limit
from shardq.errors import ShardqError

log: logging.Logger = logging.getLogger("shardq.consumer")

AGAIN_S = 0.25
"""A shard that could not be reached is asked again after this time."""

AWAY_SHARE = 3
LONGEST_AWAY_S = 3.0
"""One that was silent is left alone for so many times what it took, and at most so long: most of the time of a claim
belongs to those that answer.
"""

LEASE_SHARE = 8
SILENCE_S = 2.0
"""A server that is silent while others have given tasks is waited for no longer than this, nor than one part in
``LEASE_SHARE`` of the lease: theirs run meanwhile. Busy disks and big MIGRATEs stop a server for a second.
"""

FRESH_S = 0.02
"""A ready count is trusted for this long when a claim can be filled without asking its shard."""

FEW = 4
"""The number of shards asked at first, when no ready count tells where tasks are."""


def patience_s(lease_s: float) -> float:
    """How long a silent server is waited for, where leases run meanwhile."""
    return min(SILENCE_S, lease_s / LEASE_SHARE)


@dataclass(frozen=True, slots=True)
class ShardClaim:
    """The part of a claim that goes to one shard."""

    shard: int
    max: int
    shares: Mapping[str, int]
    """Topic → how many at most; together at most ``max``."""


class UnreachableShards:
    """The shards that the consumers of one engine could not reach a moment ago: one of them learns it for all.
    Thread-safe: each method is one operation of a dict, or two of which the second only logs.
    """

    def __init__(self) -> None:
        self.again_at: dict[int, float] = {}
        """Shard → the (monotonic) time at which to ask it again. Empty when all shards can be reached."""

    def note(self, shard: int, why: ShardqError, took_s: float) -> None:
        """Notes a shard that can't be reached, and was waited for so long: the others are asked meanwhile."""
        first = not self.again_at
        self.again_at[shard] = time.monotonic() + min(max(AGAIN_S, AWAY_SHARE * took_s), LONGEST_AWAY_S)
        if first:
            log.warning("some shards can't be reached, claiming from the others: %s", why)

    def answered(self, shard: int) -> None:
        """Notes that a shard answers."""
        if self.again_at.pop(shard, None) is not None and not self.again_at:
            log.info("all shards can be reached again")

    def all_of(self, shards: Sequence[int]) -> bool:
        """True if none of these shards could be reached."""
        return bool(self.again_at) and self.again_at.keys() >= set(shards)

    def to_ask(self, shards: Sequence[int]) -> Sequence[int]:
        """Returns the shards that are to be asked now."""
        if not self.again_at:
            return shards
        now = time.monotonic()
        return [shard for shard in shards if self.again_at.get(shard, now) <= now]


class Denial(NamedTuple):
    """No permit was left. It says nothing about another limit of the topic, and nothing after one went back."""

    limit: Limit
    wakeups: int
    again_at: float
    """The (monotonic) time at which to ask again."""


class ReadyCounts:
    """The ready counts that servers told the consumers of one engine: in a large fleet no consumer asks what
    another has just been told. Thread-safe: every value is replaced as a whole.
    """

    def __init__(self) -> None:
        self.left: defaultdict[str, dict[int, int]] = defaultdict(dict)
        """Topic → shard → the last known number of tasks in its ready list."""
        self.asked_at: defaultdict[str, dict[int, float]] = defaultdict(dict)
        """Topic → shard → when it was asked last."""
        self.turns: count[int] = count(1)
        """Numbers that say at which shard a claim begins."""
        self.unreachable: UnreachableShards = UnreachableShards()
        self.key_waits: TopicLateness = TopicLateness()
        """How long the tasks had waited to which settlements of this engine have handed a key."""
        self.denials: dict[tuple[str, bool], Denial] = {}
        """Topic, and True for those whose process is woken when a permit goes back → the last denial."""

    def learn(self, shard: int, left: Mapping[str, int], now_s: float) -> None:
        """Notes what a shard has left, by topic."""
        for topic, number in left.items():
            self.left[topic][shard] = number
            self.asked_at[topic][shard] = now_s

    def expect(self, lists: Collection[ReadyList]) -> None:
        """Notes lists that are said to have something. A consumer that was woken for one asks it, or passes it on."""
        for shard, topic in lists:
            if shard != PERMITS:
                of = self.left[topic]
                of[shard] = of.get(shard) or 1


@dataclass(slots=True)
class ClaimPlanner:
    """Splits the claims of one consumer over shards and topics."""

    topics: Sequence[str]
    weights: Mapping[str, int] | None
    """None: strict order."""
    ready_counts: ReadyCounts
    _credit: dict[str, float] = field(default_factory=dict)
    """Topic → the tasks that earlier claims still owe it."""

    def left(self, shards: Sequence[int], topics: Sequence[str] | None = None) -> list[tuple[int, str]]:
        """The lists of these shards, and topics, that are known to have something. None: of all topics."""
        ready_counts = [(topic, self.ready_counts.left[topic]) for topic in (self.topics if topics is None else topics)]
        return [(shard, topic) for shard in shards for topic, of in ready_counts if of.get(shard)]

    def known(self, topic: str, shards: Sequence[int]) -> int:
        """The tasks of a topic that these shards are known to have."""
        of = self.ready_counts.left[topic]
        return sum(of.get(shard, 0) for shard in shards)

    def just_emptied(self, shards: Sequence[int], topics: Sequence[str], now_s: float) -> bool:
        """True if all of these lists were asked a moment ago, and have nothing as far as that is known."""
        counts, since = self.ready_counts, now_s - FRESH_S
        return all(
            counts.asked_at[topic].get(shard, since) > since and not counts.left[topic].get(shard)
            for shard in shards
            for topic in topics
        )

    def split(
        self,
        max: int,
        shards: Sequence[int],
        topics: Sequence[str],
        caps: Mapping[str, int],
        now_s: float,
        *,
        few: bool = False,
    ) -> list[ShardClaim]:
        """Splits ``max`` over shards; a shard claim of 0 only asks for the counts. ``caps``: topic → how many at most.

        ``few``: what no count covers may be asked of a few shards first. In a backlog they have it, and a trip to all
        shards is what makes a large fleet slow.
        """
        if not shards or not topics:
            return []
        start = next(self.ready_counts.turns) % len(shards)
        order = [*shards[start:], *shards[:start]]
        unlimited = caps.get(topics[0], max) >= max
        if self.weights is None and unlimited and (shard_claims := self._highest(max, order, topics, now_s)):
            return shard_claims
        known = {topic: min(caps.get(topic, max), self.known(topic, shards)) for topic in topics}
        quotas = self._strict(max, known) if self.weights is None else self._weighted(max, known, self.weights)
        shares: dict[int, dict[str, int]] = {shard: dict.fromkeys(topics, 0) for shard in order}
        for topic, quota in quotas.items():
            of = self.ready_counts.left[topic]
            for shard in order:
                part = min(quota, of.get(shard, 0))
                shares[shard][topic] = part
                quota -= part
        totals = {shard: sum(parts.values()) for shard, parts in shares.items()}
        if all(topic in caps and caps[topic] < min(max, self.known(topic, shards)) for topic in topics):
            # the limits are what bounds it: no other shard could give more
            shard_claims = [ShardClaim(shard, total, shares[shard]) for shard, total in totals.items() if total]
            return [*shard_claims, *self._oldest(order, totals, topics, now_s)] if shard_claims else []
        left = max - sum(totals.values())
        if left:
            empty = [shard for shard in order if not totals[shard]]
            if few and len(topics) == 1:
                empty = empty[:FEW]
                order = [shard for shard in order if totals[shard] or shard in empty]
            _spread(left, empty, shares, totals, caps)
        return [ShardClaim(shard, totals[shard], shares[shard]) for shard in order]

    def _highest(self, max: int, order: Sequence[int], topics: Sequence[str], now_s: float) -> list[ShardClaim]:
        """The whole claim from the highest topic, if it is known to have as much; else nothing. Most claims in a
        backlog end at the first shard that way.
        """
        highest = topics[0]
        of = self.ready_counts.left[highest]
        shard_claims: list[ShardClaim] = []
        for shard in order:
            if part := min(max, of.get(shard, 0)):
                shard_claims.append(ShardClaim(shard, part, dict.fromkeys(topics, 0) | {highest: part}))
                max -= part
                if not max:
                    break
        else:
            return []
        return [*shard_claims, *self._oldest(order, of, topics, now_s)]

    def _oldest(
        self, order: Sequence[int], having: Mapping[int, int], topics: Sequence[str], now_s: float
    ) -> list[ShardClaim]:
        """Also asks one shard that had none, the one not asked for longest; the others will have their turn."""
        asked_at = self.ready_counts.asked_at
        fresh = oldest = (now_s - FRESH_S, -1)
        for shard in order:
            if not having.get(shard) and (asked := (asked_at[topics[0]].get(shard, 0.0), shard)) < oldest:
                oldest = asked
        if oldest is fresh:
            return []
        for topic in topics:  # one consumer asks for all
            asked_at[topic][oldest[1]] = now_s
        return [ShardClaim(oldest[1], 0, dict.fromkeys(topics, 0))]

    @staticmethod
    def _strict(max: int, known: Mapping[str, int]) -> dict[str, int]:
        quotas: dict[str, int] = {}
        for topic, number in known.items():
            quotas[topic] = min(max, number)
            max -= quotas[topic]
        return quotas

    def _weighted(self, max: int, known: Mapping[str, int], weights: Mapping[str, int]) -> dict[str, int]:
        """Shares by weight over time: what rounding denies a topic now, the next claim owes it."""
        quotas = dict.fromkeys(known, 0)
        while max:
            open_ = [topic for topic in known if known[topic] > quotas[topic]]
            if not open_:
                break
            whole = sum(weights[topic] for topic in open_)
            for topic in open_:
                self._credit[topic] = self._credit.get(topic, 0.0) + max * weights[topic] / whole
            for topic in sorted(open_, key=lambda topic: -self._credit[topic]):
                part = min(max, known[topic] - quotas[topic], round(self._credit[topic]))
                if part > 0:
                    quotas[topic] += part
                    self._credit[topic] -= part
                    max -= part
            if max and not any(self._credit[topic] >= 0.5 for topic in open_):
                break
        # A topic that had nothing to give is owed nothing later.
        for topic in known:
            if known[topic] <= quotas[topic]:
                self._credit[topic] = 0.0
        return quotas


def _spread(
    left: int, empty: list[int], shares: dict[int, dict[str, int]], totals: dict[int, int], caps: Mapping[str, int]
) -> None:
    """Spreads the rest over shards known to have nothing: tasks may have come since."""
    for position, shard in enumerate(empty):
        part = -(-left // (len(empty) - position))
        totals[shard] = part
        # Of a limited topic only what is known to be there, and permitted.
        shares[shard] = {topic: 0 if topic in caps else part for topic in shares[shard]}
        left -= part
