"""A trip of a claim: one request to each of some shards, and what they have answered. ``claiming`` makes trips until
nothing more is known to be there.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from shardq.core.calls import consume
from shardq.core.calls.consume import Claim, SettleBury, SettleRetry
from shardq.core.calls.request import Call, Epoch
from shardq.core.consumer import policy
from shardq.core.consumer.claim_planner import ShardClaim
from shardq.core.consumer.claims import ClaimNotes, Claims
from shardq.core.consumer.settling import noted, settle
from shardq.core.consumer.waiters import ReadyList
from shardq.core.consumer.wakeups import Wakeups
from shardq.core.drivers.retry import Spare
from shardq.core.layout.keys import ShardKeys
from shardq.core.layout.topology import Limit
from shardq.core.model.record import UNREADABLE, UnreadableRecord, last_reason
from shardq.core.model.task import Delivery
from shardq.core.operation import Operation, bounded
from shardq.core.recovery import REFUSALS, Refusal
from shardq.errors import PayloadNotAuthentic, PayloadNotDecodable, ShardqError, Unanswered, Unavailable

log: logging.Logger = logging.getLogger("shardq.consumer")

Filled = Callable[[], bool]
"""Called when a claim has all it wants, before records are decoded. Returns True if it has begun something that needs a
turn of the event loop to be sent.
"""

RETRY_FOR_S = 0.05
"""The retry time for a shard that can't be reached, while others can: they have work meanwhile."""

ROUNDS = 3
"""Trips of one claim. The planner can be wrong when others claim too. A third trip finds tasks nearly always; what it
misses, the next claim gets.
"""


@dataclass(frozen=True, slots=True)
class Request:
    """A consumer's request."""

    claims: Claims
    notes: ClaimNotes
    max: int
    shards: Sequence[int]
    wakeups: Wakeups | None
    filled: Filled | None
    retry_for_s: float | None = RETRY_FOR_S


@dataclass(slots=True)
class Got:
    """The deliveries of one claim so far, and how its trips went."""

    request: Request
    begun: float
    asked: float
    """When the requests of the present trip were made."""
    spare: Spare
    deliveries: list[Delivery] = field(default_factory=list)
    leased: list[tuple[float, Sequence[Delivery]]] = field(default_factory=list)
    """When deliveries were asked for: their leases began later."""
    met: set[int] = field(default_factory=set)
    """The shards that were asked."""
    rounds: int = 0
    """The trips that count."""

    def is_all(self, trip: Trip, found: Sequence[Delivery]) -> bool:
        """Adds what a trip was given. Returns True if it was the last one."""
        request, planner = self.request, self.request.claims.planner
        self.deliveries += found
        self.leased.append((self.asked, found))
        self.asked = time.monotonic()
        if self.deliveries:
            self.spare = Spare(self.spare.until)
        if len(planner.topics) > 1 and planner.weights is None:
            self.deliveries.sort(key=lambda delivery: request.claims.ranks[delivery.topic])
        if len(self.deliveries) >= request.max or request.notes.caller_left or not trip.shard_claims:
            return True
        if len(self.met) == len(request.shards) and not planner.left(request.shards, trip.topics):
            return True
        # A trip that met only stale entries does not count: the next one goes on behind them.
        self.rounds += not trip.stale
        return self.rounds >= ROUNDS or (bool(self.deliveries) and self.asked >= self.spare.until)


@dataclass(slots=True)
class Trip:
    """One request to each of some shards, and what they have answered."""

    request: Request
    earlier: Got
    """The deliveries of earlier trips."""
    token: str
    wanted: int
    topics: Sequence[str]
    caps: Mapping[str, int] = field(default_factory=dict)
    """Limited topic → how many of it are permitted."""
    shard_claims: Sequence[ShardClaim] = ()
    wakeup_counts: dict[ReadyList, int] = field(default_factory=dict)
    """Those of the lists before they were asked."""
    got: int = 0
    """The number of tasks that were given."""
    stale: bool = False
    """True if a shard met only entries that no consumer can get."""
    registered: list[ReadyList] = field(default_factory=list)
    """The lists found empty, where the process is registered now."""
    crowd: int = 0
    """The most processes that wait for one of these."""
    given: list[tuple[int, Claim]] = field(default_factory=list)
    refusals: list[tuple[ShardKeys, Refusal]] = field(default_factory=list)
    errors: list[ShardqError] = field(default_factory=list)
    broken: list[tuple[int, SettleRetry | SettleBury]] = field(default_factory=list)
    """Tasks that can't be decoded, or read at all."""

    def permit(self, limited: Sequence[str], limits: Mapping[str, Limit]) -> Operation[None]:
        """Gets permits for limited topics. Where none is left, there is nothing to ask a shard."""
        request, claims, deliveries = self.request, self.request.claims, self.earlier.deliveries
        wants = {topic: min(self.wanted, claims.planner.known(topic, request.shards)) for topic in limited}
        # Other topics, and what was claimed already, do not wait for a silent control slot.
        alone = not deliveries and len(limited) == len(self.topics)
        within = None if alone else claims.patience_s
        permits = request.notes.permits
        self.caps = yield from claims.limiter.granted(wants, self.token, permits, claims.waiter, within)
        self.topics = [topic for topic in self.topics if self.caps.get(topic, 1) or not wants[topic]]

    def requests(self, epoch: Epoch, asks: Sequence[ShardClaim] | None = None) -> list[tuple[ShardClaim, Call[Claim]]]:
        """``asks``: what is asked of each shard; None: what the planner says."""
        request, earlier, topics = self.request, self.earlier, self.topics
        claims, notes, wakeups, shards = request.claims, request.notes, request.wakeups, request.shards
        if met := earlier.met:
            # After the first trip: only shards known to have something, and shards that were not asked yet.
            shards = [shard for shard in shards if shard not in met or claims.planner.left([shard], topics)]
        few = earlier.rounds == 0 and wakeups is None
        if asks is None:
            asks = claims.planner.split(self.wanted, shards, topics, self.caps, earlier.asked, few=few)
        self.shard_claims = asks
        asked_shards = [ask.shard for ask in self.shard_claims]
        met.update(asked_shards)
        if wakeups:
            self.wakeup_counts = wakeups.waiters.wakeup_counts(asked_shards, topics)
        requests: list[tuple[ShardClaim, Call[Claim]]] = []
        numbers = dict.fromkeys(notes.permits.numbered, 1)
        for ask in self.shard_claims:
            keys = claims.cache.keys(ask.shard)
            call = consume.claim(
                keys,
                epoch,
                ask.shares,
                # One script gives at most 1,000; a larger claim takes another trip.
                max=min(ask.max, consume.MAX_CLAIM),
                lease_ms=claims.lease_ms,
                token=self.token,
                max_attempts=claims.topic_attempts,
                permits=dict(numbers),
                waiter=wakeups.process if wakeups and wakeups.is_subscribed(keys) else "",
                retry_for_s=request.retry_for_s,
            )
            requests.append((ask, notes.of(ask.shard, self.token, call)))
            for topic in numbers:
                numbers[topic] += ask.shares.get(topic, 0)
        return requests

    def read(self, answers: Sequence[tuple[ShardClaim, Any]]) -> None:
        """Sorts the answers, and learns from them."""
        request, claims = self.request, self.request.claims
        for ask, result in answers:
            shard = ask.shard
            if isinstance(result, ShardqError):
                if isinstance(result, (Unavailable, Unanswered)) and request.retry_for_s is not None:
                    claims.note_unreachable(shard, list(ask.shares), result, time.monotonic() - self.earlier.asked)
                elif isinstance(result, REFUSALS):
                    self.refusals.append((claims.cache.keys(shard), result))
                else:
                    self.errors.append(result)
                continue
            claims.cache.heard_at = time.monotonic()
            if claims.unreachable.again_at:
                claims.unreachable.answered(shard)
            claims.ready_counts.learn(shard, dict(zip(ask.shares, result.left, strict=True)), time.monotonic())
            if result.ids:
                self.given.append((shard, result))
                self.got += len(result.ids)
            elif result.dropped:
                self.stale = True
            for topic, left, size in zip(ask.shares, result.left, result.crowds, strict=True):
                # A crowd is counted only where the process was registered.
                if size and not left:
                    self.registered.append((shard, topic))
                    self.crowd = max(self.crowd, size)
        if request.wakeups:
            request.wakeups.waiters.registered(self.wakeup_counts, self.registered, self.crowd)

    def deliveries(self) -> list[Delivery]:
        """Makes the deliveries of what was given. Those that can't be decoded go to ``broken``."""
        claims, deliveries = self.request.claims, list[Delivery]()
        plain = claims.plain
        headers: Mapping[str, str]
        tags: tuple[str, ...]
        for shard, claimed in self.given:
            pasts, token, tokens = claimed.pasts, self.token, claimed.tokens
            failures, lapses, attempt, past = 0, 0, 1, ""
            alike = not pasts and not tokens and not claimed.foreign
            for position, (id, record) in enumerate(zip(claimed.ids, claimed.records, strict=True)):
                topic = id.partition("/")[0] if "/" in id else ""  # without a call: this is done for each task
                if not alike:
                    failures, lapses = pasts.get(position, (0, 0))
                    attempt = failures + lapses + 1
                    past = last_reason(record) or "" if failures else ""
                    token = tokens.get(position, self.token)
                    if position in claimed.foreign:
                        self.broken.append((shard, SettleBury(id, token, UNREADABLE)))
                        continue
                to_payload = plain.get(record[0])
                if to_payload is not None:
                    try:
                        payload, headers, tags = to_payload(record[1:]), {}, ()
                    except Exception:  # noqa: BLE001  decode, below, meets it again and says what is wrong
                        to_payload = None
                if to_payload is None:
                    try:
                        payload, headers, tags = claims.decode(record, claims.codec, id)
                    except UnreadableRecord:
                        self.broken.append((shard, SettleBury(id, token, UNREADABLE)))
                        continue
                    except PayloadNotDecodable as exc:
                        fields = {"task_id": id, "topic": topic, "shard": shard, "error": type(exc).__name__}
                        if isinstance(exc, PayloadNotAuthentic):  # no other try can cure it
                            log.error("task %s is refused, and dead: %s", id, exc, extra=fields)
                            self.broken.append((shard, SettleBury(id, token, f"refused: {exc}")))
                            continue
                        log.error("task %s can't be decoded, which is a failed attempt: %s", id, exc, extra=fields)
                        delay_ms = policy.delay_ms(policy.DEFAULT, attempt)
                        allowed = claims.topic_attempts.get(topic)
                        retry = SettleRetry(id, token, delay_ms, f"can't be decoded: {exc}", allowed)
                        self.broken.append((shard, noted(retry, past)))
                        continue
                # By position, and not by a generator, as above.
                deliveries.append(
                    Delivery(id, topic, payload, attempt, headers, token, shard, failures, lapses, tags, past)
                )
        return deliveries

    def mend(self, deliveries: Sequence[Delivery]) -> Operation[None]:
        """Recovers, in a small part of the lease if there are deliveries."""
        mended = self._mended(deliveries)
        return (yield from bounded(mended, self.request.claims.patience_s) if deliveries else mended)

    def _mended(self, deliveries: Sequence[Delivery]) -> Operation[None]:
        """Recovers from refusals, and settles what can't be decoded. Raises an error if there are no deliveries: what
        was claimed elsewhere is worth more than the error, which the next claim meets again.
        """
        recovery = self.request.claims.recovery
        if self.refusals:
            self.errors += (yield from recovery.recover_all(self.refusals)).values()
        else:
            recovery.over()
        for shard, settlement in self.broken:
            try:
                yield from settle(self.request.claims, {shard: ([], [settlement])})
            except ShardqError as exc:
                self.errors.append(exc)
        for error in self.errors:
            if not deliveries:
                recovery.over()
                raise error
            log.warning("not all could be claimed: %s", error)
