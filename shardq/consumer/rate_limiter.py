"""The fleet-wide rate limiter (a token bucket) and concurrency limiter, as one consumer uses it: permits are asked for
before a claim, and given back after it. Topics without limits cost nothing.

A permit of a topic with limited concurrency belongs to one delivery until that is settled. A consumer that dies holds
it no longer than its lease.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from shardq.calls import limits
from shardq.calls.answers import Missing, Stale
from shardq.calls.consume import Leased
from shardq.calls.request import Call
from shardq.consumer.claim_notes import ClaimNotes, noting
from shardq.layout.topology import Limit
from shardq.model.task import Delivery
from shardq.operation import Many, Operation
from shardq.recovery import refresh
from shardq.topology_cache import TopologyCache

Lease = tuple[str, str]
"""The id and the token of a delivery."""


class Denial(NamedTuple):
    """No permit was left. It says nothing about another limit of the topic."""

    limit: Limit
    again_at: float
    """The (monotonic) time at which to ask again."""


@dataclass(slots=True)
class RateLimiter:
    """The permits of one consumer."""

    cache: TopologyCache
    lease_ms: int
    _denials: dict[str, Denial] = field(default_factory=dict)
    """Topic → its last denial."""
    _held: dict[Lease, tuple[str, str]] = field(default_factory=dict)
    """Delivery → the topic and the name of its permit."""

    @property
    def any_held(self) -> bool:
        """True while there are permits to give back or to extend."""
        return bool(self._held)

    def limited(self, topics: Collection[str]) -> Mapping[str, Limit]:
        """Those of these topics that have limits now."""
        known = self.cache.topology.limits
        return {topic: known[topic] for topic in topics if topic in known} if known else {}

    def granted(self, wants: Mapping[str, int], token: str, notes: ClaimNotes) -> Operation[dict[str, int]]:
        """Asks for permits. Returns how many of each topic were granted. ``token`` names them and is never used
        again.
        """
        grants = dict.fromkeys(wants, 0)
        now = time.monotonic()
        topology = self.cache.topology
        for topic, want in wants.items():
            limit = topology.limits.get(topic)
            if limit is None or not want or self._again_at(topic) > now:
                continue
            prefix = f"{token}/{topic}/"
            call = limits.permit(
                self.cache.control, topology.epoch, topic, limit, want, lease_ms=self.lease_ms, prefix=prefix
            )
            try:
                permit = yield noting(call, partial(notes.permitted, topic, prefix))
            except (Stale, Missing):
                # The limits may have changed: no permits now, and the next claim knows the new limits.
                yield from refresh(self.cache)
                continue
            grants[topic] = permit.granted
            if permit.granted:
                self._denials.pop(topic, None)
            else:
                self._denials[topic] = Denial(limit, now + permit.again_ms / 1000)
        return grants

    def denied(self) -> dict[str, float]:
        """Returns the topics that had no permit left under their present limits → the (monotonic) time at which to ask
        again.
        """
        return {topic: at for topic in self._denials if (at := self._again_at(topic))}

    def forget_denials(self) -> None:
        """Has the next claim ask for all permits again."""
        self._denials.clear()

    def _again_at(self, topic: str) -> float:
        denial = self._denials.get(topic)
        return denial.again_at if denial is not None and denial.limit == self.cache.topology.limits.get(topic) else 0.0

    def used(self, deliveries: Iterable[Delivery], notes: ClaimNotes) -> Operation[None]:
        """Assigns a permit to each delivery after the claim, and gives the others back."""
        by_topic: dict[str, list[Delivery]] = {}
        for delivery in deliveries:
            by_topic.setdefault(delivery.topic, []).append(delivery)
        for topic, some in by_topic.items():
            names = notes.names(topic, len(some))
            limit = self.cache.topology.limits.get(topic)
            if limit is not None and limit.concurrency is not None:
                for delivery, name in zip(some, names, strict=False):  # of a topic without limits there are none
                    self._held[delivery.id, delivery.token] = topic, name
        yield from self.unused(notes)

    def unused(self, notes: ClaimNotes) -> Operation[None]:
        """Gives back the permits that belong to no delivery. They do not count for the rate."""
        yield from self._each(
            notes.permits(),
            lambda topic, names: limits.release(self.cache.control, topic, names, unused=len(names)),
        )

    def settled(self, items: Iterable[Leased]) -> Operation[None]:
        """Gives back the permits of deliveries that were settled or lost. Errors are ignored: permits run out."""
        if not self._held:
            return
        by_topic: dict[str, list[str]] = {}
        for item in items:
            held = self._held.pop((item.id, item.token), None)
            if held is not None:
                by_topic.setdefault(held[0], []).append(held[1])
        yield from self._each(by_topic, lambda topic, names: limits.release(self.cache.control, topic, names, unused=0))

    def extended(self, items: Iterable[Leased], lease_ms: int) -> Operation[None]:
        """Extends permits along with their leases."""
        by_topic: dict[str, list[str]] = {}
        for item in items:
            held = self._held.get((item.id, item.token))
            if held is not None:
                by_topic.setdefault(held[0], []).append(held[1])
        yield from self._each(
            by_topic, lambda topic, names: limits.renew(self.cache.control, topic, names, lease_ms=lease_ms)
        )

    def _each(
        self, by_topic: Mapping[str, Sequence[str]], make: Callable[[str, Sequence[str]], Call[None]]
    ) -> Operation[None]:
        calls = [
            make(topic, names[at : at + limits.MAX_PERMITS])
            for topic, names in by_topic.items()
            for at in range(0, len(names), limits.MAX_PERMITS)
        ]
        if calls:
            yield Many(dict(enumerate(calls)))
