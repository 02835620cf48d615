"""Fleet-wide limits, as a consumer keeps them: permits before a claim, given back after it. Only limited topics pay.

A permit of a topic with limited concurrency belongs to one delivery until that is settled; a consumer that dies holds
it no longer than its lease.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from shardq.atlas import Atlas
from shardq.calls import limits
from shardq.calls.answers import Missing, Stale
from shardq.calls.consume import Ack, Other
from shardq.calls.request import Call
from shardq.consumer.taken import Taken, told
from shardq.layout.topology import Limit
from shardq.model.task import Delivery
from shardq.operation import Many, Operation, refreshed

Lease = tuple[str, str]
"""The id and the token of a delivery."""


@dataclass(slots=True)
class Permits:
    """Of one consumer."""

    atlas: Atlas
    lease_ms: int
    denied: dict[str, float] = field(default_factory=dict)
    """Topics that had none left, to the (monotonic) instant at which to ask again."""
    _held: dict[Lease, tuple[str, str]] = field(default_factory=dict)
    """Delivery → topic and name of its permit."""

    @property
    def any_held(self) -> bool:
        """True while there are permits to give back or to extend: most topics have no limits, and pay nothing."""
        return bool(self._held)

    def limited(self, topics: Collection[str]) -> Mapping[str, Limit]:
        """Those of these topics that have limits now."""
        known = self.atlas.topology.limits
        return {topic: known[topic] for topic in topics if topic in known} if known else {}

    def granted(self, wants: Mapping[str, int], token: str, taken: Taken) -> Operation[dict[str, int]]:
        """Asks for permits; answers how many of each topic there are. ``token`` names them, never used before."""
        grants = dict.fromkeys(wants, 0)
        now = time.monotonic()
        topology = self.atlas.topology
        for topic, want in wants.items():
            limit = topology.limits.get(topic)
            if limit is None or not want or self.denied.get(topic, 0.0) > now:
                continue
            prefix = f"{token}/{topic}/"
            call = limits.permit(
                self.atlas.control, topology.epoch, topic, limit, want, lease_ms=self.lease_ms, prefix=prefix
            )
            try:
                permit = yield told(call, partial(taken.permitted, topic, prefix))
            except (Stale, Missing):
                # the limits may have changed: none for now, and the next look knows them
                yield from refreshed(self.atlas)
                continue
            grants[topic] = permit.granted
            if permit.granted:
                self.denied.pop(topic, None)
            else:
                self.denied[topic] = now + permit.again_ms / 1000
        return grants

    def used(self, deliveries: Iterable[Delivery], taken: Taken) -> Operation[None]:
        """After the claim: one permit for each delivery, and back with the rest."""
        by_topic: dict[str, list[Delivery]] = {}
        for delivery in deliveries:
            by_topic.setdefault(delivery.topic, []).append(delivery)
        for topic, some in by_topic.items():
            names = taken.names(topic, len(some))
            limit = self.atlas.topology.limits.get(topic)
            if limit is not None and limit.concurrency is not None:
                for delivery, name in zip(some, names, strict=False):  # of a topic without limits there are none
                    self._held[delivery.id, delivery.token] = topic, name
        yield from self.unused(taken)

    def unused(self, taken: Taken) -> Operation[None]:
        """Back with those that belong to no delivery: they do not count for the rate."""
        yield from self._each(
            taken.permits(),
            lambda topic, names: limits.release(self.atlas.control, topic, names, unused=len(names)),
        )

    def settled(self, items: Iterable[Ack | Other]) -> Operation[None]:
        """These deliveries are settled, or lost: their permits go back. An error is no matter: permits lapse."""
        if not self._held:
            return
        by_topic: dict[str, list[str]] = {}
        for item in items:
            held = self._held.pop((item.id, item.token), None)
            if held is not None:
                by_topic.setdefault(held[0], []).append(held[1])
        yield from self._each(by_topic, lambda topic, names: limits.release(self.atlas.control, topic, names, unused=0))

    def extended(self, items: Iterable[Ack], lease_ms: int) -> Operation[None]:
        """These leases were extended, and with them their permits."""
        by_topic: dict[str, list[str]] = {}
        for item in items:
            held = self._held.get((item.id, item.token))
            if held is not None:
                by_topic.setdefault(held[0], []).append(held[1])
        yield from self._each(
            by_topic, lambda topic, names: limits.renew(self.atlas.control, topic, names, lease_ms=lease_ms)
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
            yield Many(calls)
