"""Where to claim: what each shard was last known to have, and how a claim is split by that. Pure.

Without weights the order of topics is strict: a shard is asked for a lower topic only as far as no shard is known to
have a higher one. With weights each topic that has tasks gets its share, and what one can't use the others get. The
shard asked first changes with every claim, so that none starves behind others that always have something.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count

FRESH_S = 0.02
"""How long the length of a list is believed when the claim can be filled without asking that shard."""

FEW = 4
"""Shards asked at first for what no hint covers."""


@dataclass(frozen=True, slots=True)
class Ask:
    """What one shard is asked for."""

    shard: int
    max: int
    shares: Mapping[str, int]
    """Of each topic at most; together at most ``max``."""


class Stocks:
    """What the consumers of one engine were told of ready lists, last by whichever of them: in a large fleet nobody
    needs to ask what another has just heard. Safe for threads: every value is replaced whole.
    """

    def __init__(self) -> None:
        self._left: dict[str, dict[int, int]] = {}
        """By topic and shard."""
        self._asked_at: dict[str, dict[int, float]] = {}
        self._turns = count(1)

    def learn(self, shard: int, left: Mapping[str, int], now_s: float) -> None:
        for topic, number in left.items():
            self._left.setdefault(topic, {})[shard] = number
        self.asking(shard, left, now_s)

    def asking(self, shard: int, topics: Iterable[str], now_s: float) -> None:
        """Somebody is about to learn it: others need not ask, too."""
        for topic in topics:
            self._asked_at.setdefault(topic, {})[shard] = now_s

    def of(self, topic: str) -> Mapping[int, int]:
        """Shard → how much it was last known to have."""
        return self._left.get(topic, {})

    def asked_at(self, topic: str) -> Mapping[int, float]:
        return self._asked_at.get(topic, {})

    def turn(self) -> int:
        """Where the next claim begins."""
        return next(self._turns)


@dataclass(slots=True)
class Hints:
    """How one consumer splits its claims, by what is known of its topics' ready lists."""

    topics: Sequence[str]
    weights: Mapping[str, int] | None
    """None: strict order."""
    stocks: Stocks
    _credit: dict[str, float] = field(default_factory=dict)
    """What weighted topics are owed of earlier claims."""

    def left(self, shards: Sequence[int]) -> list[tuple[int, str]]:
        """The lists of these shards that are known to have something."""
        stocks = [(topic, self.stocks.of(topic)) for topic in self.topics]
        return [(shard, topic) for shard in shards for topic, of in stocks if of.get(shard)]

    def known(self, topic: str, shards: Sequence[int]) -> int:
        """How much these shards were last known to have of a topic."""
        of = self.stocks.of(topic)
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
    ) -> list[Ask]:
        """Asks that add up to at most ``max``; those of 0 only look. ``caps``: of these topics no more.

        ``few``: what no hint covers may be asked of a few shards first; in a backlog they have it, and a trip to all is
        what makes a large fleet slow.
        """
        if not shards or not topics:
            return []
        start = self.stocks.turn() % len(shards)
        order = [*shards[start:], *shards[:start]]
        unlimited = caps.get(topics[0], max) >= max
        if self.weights is None and unlimited and (asks := self._highest(max, order, topics, now_s)):
            return asks
        known = {topic: min(caps.get(topic, max), self.known(topic, shards)) for topic in topics}
        quotas = self._strict(max, known) if self.weights is None else self._weighted(max, known, self.weights)
        shares: dict[int, dict[str, int]] = {shard: dict.fromkeys(topics, 0) for shard in order}
        for topic, quota in quotas.items():
            of = self.stocks.of(topic)
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
        return [Ask(shard, totals[shard], shares[shard]) for shard in order]

    def _highest(self, max: int, order: Sequence[int], topics: Sequence[str], now_s: float) -> list[Ask]:
        """All of it from the highest topic, where that is known to have as much; else nothing. In a backlog most
        claims are such, and end at the first shard."""
        highest = topics[0]
        of = self.stocks.of(highest)
        asks: list[Ask] = []
        for shard in order:
            if part := min(max, of.get(shard, 0)):
                asks.append(Ask(shard, part, dict.fromkeys(topics, 0) | {highest: part}))
                max -= part
                if not max:
                    break
        else:
            return []
        # and a look at one of those that had none, the one not asked for longest; the rest will have their turn
        asked_at = self.stocks.asked_at(highest)
        others = [(asked_at.get(shard, 0.0), shard) for shard in order if not of.get(shard)]
        at, oldest = min(others, default=(now_s, 0))
        if now_s - at > FRESH_S:
            asks.append(Ask(oldest, 0, dict.fromkeys(topics, 0)))
            self.stocks.asking(oldest, topics, now_s)
        return asks

    @staticmethod
    def _strict(max: int, known: Mapping[str, int]) -> dict[str, int]:
        quotas: dict[str, int] = {}
        for topic, number in known.items():
            quotas[topic] = min(max, number)
            max -= quotas[topic]
        return quotas

    def _weighted(self, max: int, known: Mapping[str, int], weights: Mapping[str, int]) -> dict[str, int]:
        """Shares by weight over time: what rounding denies a topic now it is owed at the next claim."""
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
        # a topic that had nothing to give is owed nothing later
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
    """What no hint covers is asked of the shards known to have nothing: tasks may have come since."""
    for position, shard in enumerate(empty):
        part = -(-left // (len(empty) - position))
        totals[shard] = part
        # of a limited topic only what is known, and permitted
        shares[shard] = {topic: 0 if topic in caps else part for topic in shares[shard]}
        left -= part
