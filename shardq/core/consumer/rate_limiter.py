"""The fleet-wide rate limiter (a token bucket) and concurrency limiter, as one consumer uses it: permits are asked for
before a claim, and given back when a lease ends. Topics without limits cost nothing.

A permit belongs to a lease, whose token is its name. The consumer remembers none: whoever settles or extends a delivery
tells by its token. A permit that nobody gives back lapses after its lease.
"""

from __future__ import annotations

import operator
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple, TypeVar

from shardq.core.calls import consume
from shardq.core.calls.consume import Leased
from shardq.core.calls.request import Call, Missing, Stale
from shardq.core.consumer.claim_notes import ClaimNotes, noting
from shardq.core.consumer.waiting.registry import Waiter
from shardq.core.consumer.waiting.wakeups import Wakeups
from shardq.core.layout.topology import Limit
from shardq.core.model.ids import topic_of
from shardq.core.operation import Many, Operation
from shardq.core.recovery import refresh
from shardq.core.topology_cache import TopologyCache
from shardq.errors import ShardqError

T = TypeVar("T")

LATE_S = consume.MARGIN_MS / 1000
"""A claim, or an extension, that takes longer has its permits renewed: leases may have begun too late for them."""

NamesByTopic = Mapping[str, Sequence[str]]

_token_of = operator.attrgetter("token")


def permits_of(items: Iterable[Leased]) -> dict[str, list[str]]:
    """Topic → the names of the permits that these leases have. Most have none."""
    items = list(items)
    by_topic: dict[str, list[str]] = {}
    if any(consume.MARK in token for token in set(map(_token_of, items))):
        for item in items:
            if consume.MARK in item.token:
                by_topic.setdefault(topic_of(item.id), []).append(item.token)
    return by_topic


class Denial(NamedTuple):
    """No permit was left. It says nothing about another limit of the topic, and nothing after one went back."""

    limit: Limit
    wakeups: int
    again_at: float
    """The (monotonic) time at which to ask again."""


@dataclass(slots=True)
class RateLimiter:
    """The permits of one consumer."""

    cache: TopologyCache
    lease_ms: int
    wakeups: Wakeups | None = None
    """None until the consumer waits for the first time."""
    _denials: dict[str, Denial] = field(default_factory=dict)
    """Topic → its last denial."""

    def limited(self, topics: Collection[str]) -> Mapping[str, Limit]:
        """Those of these topics that have limits now."""
        known = self.cache.topology.limits
        return {topic: known[topic] for topic in topics if topic in known} if known else {}

    def granted(
        self, wants: Mapping[str, int], token: str, notes: ClaimNotes, waiter: Waiter | None = None
    ) -> Operation[dict[str, int]]:
        """Asks for permits. Returns how many of each topic were granted. ``token`` is that of the claim. ``waiter``:
        the process is woken when a permit goes back, if none is granted now.
        """
        grants = dict.fromkeys(wants, 0)
        now = time.monotonic()
        topology = self.cache.topology
        for topic, want in wants.items():
            limit = topology.limits.get(topic)
            if limit is None or not want or self._again_at(topic) > now:
                continue
            wakeups = self._wakeups_of(topic)
            process, others_wait = "", False
            if waiter is not None and self.wakeups is not None:
                process, others_wait = self.wakeups.waiting_for_permits(waiter, topic)
            call = consume.permit(
                self.cache.control,
                topology.epoch,
                topic,
                limit,
                want,
                lease_ms=self.lease_ms,
                token=token,
                waiter=process,
                others_wait=others_wait,
            )
            try:
                permit = yield noting(call, partial(notes.permitted, topic, limit, token))
            except (Stale, Missing):
                # The limits may have changed: no permits now, and the next claim knows the new limits.
                yield from refresh(self.cache)
                continue
            grants[topic] = permit.granted
            if permit.granted:
                self._denials.pop(topic, None)
            else:
                self._denials[topic] = Denial(limit, wakeups, now + permit.again_ms / 1000)
        return grants

    def denied(self) -> dict[str, float]:
        """Returns the topics that had no permit left, as far as that still says anything → the (monotonic) time at
        which to ask again.
        """
        return {topic: at for topic in self._denials if (at := self._again_at(topic))}

    def forget_denials(self) -> None:
        """Has the next claim ask for all permits again."""
        self._denials.clear()

    def _again_at(self, topic: str) -> float:
        denial = self._denials.get(topic)
        if denial is None or denial.limit != self.cache.topology.limits.get(topic):
            return 0.0
        return denial.again_at if denial.wakeups == self._wakeups_of(topic) else 0.0

    def _wakeups_of(self, topic: str) -> int:
        return 0 if self.wakeups is None else self.wakeups.waiters.permit_wakeups(topic)

    def unused(self, notes: ClaimNotes) -> Operation[None]:
        """Gives back the permits that belong to no lease. They do not count for the rate."""
        yield from self._each(
            notes.permits(),
            lambda topic, names: consume.release(self.cache.control, topic, names, unused=len(names)),
        )

    def released(self, permits: NamesByTopic) -> Operation[None]:
        """Gives back the permits of leases that were settled or lost. Errors are ignored: permits lapse."""
        yield from self._each(permits, lambda topic, names: consume.release(self.cache.control, topic, names, unused=0))

    def renewed(self, permits: NamesByTopic, lease_ms: int) -> Operation[tuple[set[str], bool]]:
        """Lets permits lapse later. Returns the names of those whose places are taken, and False if some could not be
        renewed now.
        """
        known = self.cache.topology.limits
        results = yield from self._each(
            permits,
            lambda topic, names: consume.renew(
                self.cache.control, topic, known.get(topic, Limit()).concurrency, names, lease_ms=lease_ms
            ),
        )
        answered = [taken for taken in results if not isinstance(taken, ShardqError)]
        return {name for taken in answered for name in taken}, len(answered) == len(results)

    def _each(
        self, by_topic: NamesByTopic, make: Callable[[str, Sequence[str]], Call[T]]
    ) -> Operation[list[T | ShardqError]]:
        calls = [
            make(topic, names[at : at + consume.MAX_PERMITS])
            for topic, names in by_topic.items()
            for at in range(0, len(names), consume.MAX_PERMITS)
        ]
        return [result for _, result in (yield Many(dict(enumerate(calls))))] if calls else []
