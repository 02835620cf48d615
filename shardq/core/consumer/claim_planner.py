"""Plans claims: which shard is asked for how much of which topic, by the ready counts known. No I/O.

Without weights the order of topics is strict: a shard is asked for a lower topic only as far as no shard is known to
have a higher one. With weights each topic that has tasks gets its share, and the others get what one can't use. Each
claim begins at another shard, so that none starves behind shards that always have something.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count

from shardq.core.consumer.unreachable import UnreachableShards

FRESH_S = 0.02
"""A ready count is trusted for this long when a claim can be filled without asking its shard."""

FEW = 4
"""The number of shards asked at first, when no ready count tells where tasks are."""


@dataclass(frozen=True, slots=True)
class ShardClaim:
    """The part of a claim that goes to one shard."""

    shard: int
    max: int
    shares: Mapping[str, int]
    """Topic → how many at most; together at most ``max``."""


class ReadyCounts:
    """The ready counts that servers told the consumers of one engine: in a large fleet nobody asks what another
    consumer has just been told. Thread-safe: every value is replaced as a whole.
    """

    def __init__(self) -> None:
        self._left: dict[str, dict[int, int]] = {}
        """Topic → shard → tasks in its ready list."""
        self._asked_at: dict[str, dict[int, float]] = {}
        self._turns = count(1)
        self.unreachable = UnreachableShards()

    def learn(self, shard: int, left: Mapping[str, int], now_s: float) -> None:
        for topic, number in left.items():
            self._left.setdefault(topic, {})[shard] = number
        self.asking(shard, left, now_s)

    def asking(self, shard: int, topics: Iterable[str], now_s: float) -> None:
        """Notes that somebody is asking this shard now, so that others need not."""
        for topic in topics:
            self._asked_at.setdefault(topic, {})[shard] = now_s

    def of(self, topic: str) -> Mapping[int, int]:
        """Shard → the last known count."""
        return self._left.get(topic, {})

    def asked_at(self, topic: str) -> Mapping[int, float]:
        return self._asked_at.get(topic, {})

    def next_start(self) -> int:
        """A number that says at which shard the next claim begins."""
        return next(self._turns)


@dataclass(slots=True)
class ClaimPlanner:
    """Splits the claims of one consumer over shards and topics."""

    topics: Sequence[str]
    weights: Mapping[str, int] | None
    """None: strict order."""
    ready_counts: ReadyCounts
    _credit: dict[str, float] = field(default_factory=dict)
    """Topic → the tasks that earlier claims still owe it."""

    def left(self, shards: Sequence[int]) -> list[tuple[int, str]]:
        """The lists of these shards that are known to have something."""
        ready_counts = [(topic, self.ready_counts.of(topic)) for topic in self.topics]
        return [(shard, topic) for shard in shards for topic, of in ready_counts if of.get(shard)]

    def known(self, topic: str, shards: Sequence[int]) -> int:
        """The tasks of a topic that these shards are known to have."""
        of = self.ready_counts.of(topic)
        return sum(of.get(shard, 0) for shard in shards)

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
        start = self.ready_counts.next_start() % len(shards)
        order = [*shards[start:], *shards[:start]]
        unlimited = caps.get(topics[0], max) >= max
        if self.weights is None and unlimited and (shard_claims := self._highest(max, order, topics, now_s)):
            return shard_claims
        known = {topic: min(caps.get(topic, max), self.known(topic, shards)) for topic in topics}
        quotas = self._strict(max, known) if self.weights is None else self._weighted(max, known, self.weights)
        shares: dict[int, dict[str, int]] = {shard: dict.fromkeys(topics, 0) for shard in order}
        for topic, quota in quotas.items():
            of = self.ready_counts.of(topic)
            for shard in order:
                part = min(quota, of.get(shard, 0))
                shares[shard][topic] = part
                quota -= part
        totals = {shard: sum(parts.values()) for shard, parts in shares.items()}
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
        of = self.ready_counts.of(highest)
        shard_claims: list[ShardClaim] = []
        for shard in order:
            if part := min(max, of.get(shard, 0)):
                shard_claims.append(ShardClaim(shard, part, dict.fromkeys(topics, 0) | {highest: part}))
                max -= part
                if not max:
                    break
        else:
            return []
        # Also asks one shard that had none, the one not asked for longest; the others will have their turn.
        asked_at = self.ready_counts.asked_at(highest)
        others = [(asked_at.get(shard, 0.0), shard) for shard in order if not of.get(shard)]
        at, oldest = min(others, default=(now_s, 0))
        if now_s - at > FRESH_S:
            shard_claims.append(ShardClaim(oldest, 0, dict.fromkeys(topics, 0)))
            self.ready_counts.asking(oldest, topics, now_s)
        return shard_claims

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
    left: int,
    empty: list[int],
    shares: dict[int, dict[str, int]],
    totals: dict[int, int],
    caps: Mapping[str, int],
) -> None:
    """Spreads the rest over shards known to have nothing: tasks may have come since."""
    for position, shard in enumerate(empty):
        part = -(-left // (len(empty) - position))
        totals[shard] = part
        # Of a limited topic only what is known to be there, and permitted.
        shares[shard] = {topic: 0 if topic in caps else part for topic in shares[shard]}
        left -= part
