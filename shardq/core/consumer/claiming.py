"""Claiming, written once for both consumers."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from shardq.core.calls import consume
from shardq.core.calls.consume import Claim, SettleBury, SettleRetry
from shardq.core.calls.request import Call, Epoch
from shardq.core.consumer import policy
from shardq.core.consumer.claim_planner import ShardClaim
from shardq.core.consumer.claims import ClaimNotes, Claims
from shardq.core.consumer.rate_limiter import LATE_S, permits_of
from shardq.core.consumer.ready_lists import not_empty
from shardq.core.consumer.settling import SettlementsByShard, back_unbegun, settle
from shardq.core.consumer.waiters import ReadyList
from shardq.core.consumer.wakeups import Wakeups
from shardq.core.drivers.retry import Spare
from shardq.core.layout.keys import ShardKeys
from shardq.core.model.record import UNREADABLE, UnreadableRecord
from shardq.core.model.task import Delivery
from shardq.core.operation import Many, Operation, Pause, bounded
from shardq.core.recovery import REFUSALS, Refusal
from shardq.core.upkeep import refresh
from shardq.errors import PayloadNotAuthentic, PayloadNotDecodable, ShardqError, Unanswered, Unavailable

log: logging.Logger = logging.getLogger("shardq.consumer")

T = TypeVar("T")

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

MOST_TOPICS = 64
"""A claim of more topics asks for those known to have something, so many at most, and for as many others in turn: each
topic costs each shard two keys. When that gives nothing, it looks which lists are not empty.
"""

GIVE_BACK_S = 1.0
"""The time to give back what an interrupted caller holds: whoever pressed Ctrl-C waits."""


def claim(
    claims: Claims,
    notes: ClaimNotes,
    max: int,
    shards: Sequence[int],
    wakeups: Wakeups | None = None,
    filled: Filled | None = None,
) -> Operation[list[Delivery]]:
    """Claims up to ``max`` deliveries of what is ready now in these shards: one trip to each node, or a few where the
    planner was wrong. With ``wakeups`` the process is registered in the lists found empty.

    Skips unreachable shards while others answer; waits for them when none does. What others have given waits for a
    silent server for a small part of the lease only. Deliveries whose leases have run out meanwhile are not returned.
    Gives back what comes for a caller who has left.
    """
    unreachable = claims.unreachable
    deliveries: list[Delivery] = []
    once = _claim if len(claims.topics) <= MOST_TOPICS else _claim_in_parts
    try:
        if not unreachable.again_at:
            deliveries = yield from once(claims, notes, max, shards, wakeups, filled, RETRY_FOR_S)
        elif not claims.cut_off():
            some = unreachable.to_ask(shards)
            deliveries = yield from once(claims, notes, max, some, wakeups, filled, RETRY_FOR_S)
        if not deliveries and unreachable.again_at and claims.cut_off():
            deliveries = yield from once(claims, notes, max, shards, wakeups, filled, None)
    except ShardqError:
        yield from give_back(claims, notes)
        raise
    if notes.caller_left:
        yield from give_back(claims, notes)
        return []
    return deliveries


def look(claims: Claims, shards: Sequence[int], topics: Sequence[str], wakeups: Wakeups) -> Operation[None]:
    """Learns how much the lists of these shards and topics have, up to ``MOST_TOPICS``, and takes nothing. The process
    is registered in those found empty.
    """
    shards = claims.unreachable.to_ask(shards)
    asks = [ShardClaim(shard, 0, dict.fromkeys(topics, 0)) for shard in shards]
    trip = _Trip(claims, claims.token(), time.monotonic(), RETRY_FOR_S)
    before = wakeups.waiters.wakeup_counts(shards, topics)
    requests = trip.requests(asks, claims.cache.topology.stamp, ClaimNotes(), wakeups)
    trip.read((yield Many(requests, Spare(trip.asked + claims.patience_s, lambda _: True))))
    wakeups.waiters.registered(before, trip.registered, trip.crowd)
    yield from trip.mended(())


def give_back(claims: Claims, notes: ClaimNotes) -> Operation[None]:
    """Gives back all that a claim got, unbegun: no attempt is counted. Leases that can't be given back now run out."""
    yield from give_back_leases(claims, notes.leases())
    try:
        yield from claims.limiter.unused(notes.permits)
    except ShardqError as exc:
        log.warning("permits could not be given back; they run out: %s", exc)


def give_back_leases(claims: Claims, leases: SettlementsByShard) -> Operation[None]:
    """The same for leases that are known."""
    try:
        if leases:
            yield from settle(claims, leases)
    except ShardqError as exc:
        count = sum(len(backs) for _, backs in leases.values())
        log.warning("%d tasks could not be given back; they come back when their leases run out: %s", count, exc)


def _claim_in_parts(
    claims: Claims,
    notes: ClaimNotes,
    max: int,
    shards: Sequence[int],
    wakeups: Wakeups | None,
    filled: Filled | None,
    retry_for_s: float | None,
) -> Operation[list[Delivery]]:
    """Claims from parts of many topics, until one gives something."""

    def part(only: Collection[str]) -> Operation[list[Delivery]]:
        return _claim(claims, notes, max, shards, wakeups, filled, retry_for_s, only)

    topics = claims.open_topics(claims.cache.topology)
    if not topics:
        return (yield from part(()))
    if wakeups is not None:
        # When it is registered for all, it was told to register anew.
        todo = wakeups.waiters.unregistered_topics(shards, topics) or topics
        for at in range(0, len(todo), MOST_TOPICS):
            deliveries = yield from part(frozenset(todo[at : at + MOST_TOPICS]))
            if deliveries or notes.caller_left:
                return deliveries
        return []
    known = [topic for topic in topics if claims.planner.known(topic, shards)]
    deliveries = yield from part(frozenset(known[:MOST_TOPICS]).union(claims.others_in_turn(topics, MOST_TOPICS)))
    if deliveries or notes.caller_left:
        return deliveries
    claims.ready_counts.expect((yield from _not_empty(claims, shards, topics)))
    known = [topic for topic in topics if claims.planner.known(topic, shards)]
    return (yield from part(frozenset(known[:MOST_TOPICS]))) if known else []


def _claim(
    claims: Claims,
    notes: ClaimNotes,
    max: int,
    shards: Sequence[int],
    wakeups: Wakeups | None,
    filled: Filled | None,
    retry_for_s: float | None,
    only: Collection[str] | None = None,
) -> Operation[list[Delivery]]:
    """Makes trips until nothing more is known to be there, or ``max`` deliveries are claimed.

    A trip goes by one topology: its topics, its limits and its epoch. A newer one may be learnt meanwhile, by another
    thread; shards refuse the older epoch, so that nothing is claimed past a limit or a pause that a trip did not know.
    ``only``: of these topics; None: of all.
    """
    topology = claims.cache.topology
    topics = claims.open_topics(topology, only)
    if not topics and claims.wanted_topics():
        # Nothing is asked for, so no shard would say that a topic is given out again.
        yield from refresh(claims.cache)
        topology = claims.cache.topology
        topics = claims.open_topics(topology, only)
    deliveries: list[Delivery] = []
    lease_s = claims.lease_ms / 1000
    asked = begun = time.monotonic()
    patience = claims.patience_s
    spare = Spare(begun + patience, lambda claim: bool(claim.ids))
    leased: list[tuple[float, Sequence[Delivery]]] = []
    """When deliveries were asked for: their leases began later."""
    met: set[int] = set()
    """The shards that were asked."""
    round = 0
    while round < ROUNDS and not (deliveries and asked >= spare.until):
        wanted = max - len(deliveries)
        trip = _Trip(claims, claims.token(), asked, retry_for_s)
        try:
            limits, caps = topology.limits, dict[str, int]()
            limited = [topic for topic in topics if topic in limits] if limits else ()
            if limited:
                wants = {topic: min(wanted, claims.planner.known(topic, shards)) for topic in limited}
                # Other topics, and what was claimed already, do not wait for a silent control slot.
                alone = not deliveries and len(limited) == len(topics)
                within = None if alone else patience
                caps = yield from claims.limiter.granted(wants, trip.token, notes.permits, claims.waiter, within)
                # Where no permit is left, there is nothing to ask a shard.
                topics = [topic for topic in topics if caps.get(topic, 1) or not wants[topic]]
            # After the first trip: only shards known to have something, and shards that were not asked yet.
            among = [s for s in shards if s not in met or claims.planner.left([s], topics)] if met else shards
            few = round == 0 and wakeups is None
            shard_claims = claims.planner.split(wanted, among, topics, caps, asked, few=few)
            asked_shards = [ask.shard for ask in shard_claims]
            met.update(asked_shards)
            before = wakeups.waiters.wakeup_counts(asked_shards, topics) if wakeups else {}
            requests = trip.requests(shard_claims, topology.stamp, notes, wakeups)
            trip.read((yield Many(requests, Spare(spare.until) if deliveries else spare)))
            if wakeups:
                wakeups.waiters.registered(before, trip.registered, trip.crowd)
            if filled is not None and not notes.caller_left and trip.got >= wanted and filled():
                yield Pause(0)
            found = trip.deliveries()
            if trip.refusals or trip.broken or trip.errors:
                mended = trip.mended(deliveries or found)
                yield from (bounded(mended, patience) if deliveries or found else mended)
            elif claims.recovery.rounds:
                claims.recovery.over()
        except ShardqError as exc:
            if not deliveries:
                raise
            # What was claimed already is worth more than the error, which the next claim meets again.
            log.warning("no more could be claimed: %s", exc)
            yield from claims.limiter.unused(notes.permits)
            break
        if limited:
            yield from claims.limiter.unused(notes.permits)
            if time.monotonic() - asked > LATE_S:
                found = yield from _with_permits(claims, found)
        deliveries += found
        leased.append((asked, found))
        asked = time.monotonic()
        if len(claims.topics) > 1 and claims.planner.weights is None:
            deliveries.sort(key=lambda delivery: claims.ranks[delivery.topic])
        if len(deliveries) >= max or notes.caller_left or not shard_claims:
            break
        if len(met) == len(shards) and not claims.planner.left(shards, topics):
            break
        # A trip that met only stale entries does not count: the next one goes on behind them.
        round += not trip.stale
        topology = claims.cache.topology
        topics = claims.open_topics(topology, only)
    if deliveries and time.monotonic() >= begun + lease_s:
        return (yield from _still_leased(claims, deliveries, leased, lease_s))
    return deliveries


def _still_leased(
    claims: Claims, deliveries: Sequence[Delivery], leased: Sequence[tuple[float, Sequence[Delivery]]], lease_s: float
) -> Operation[list[Delivery]]:
    """Returns the deliveries whose leases have surely not run out. ``leased``: when they were asked for."""
    now = time.monotonic()
    lapsed = {(each.id, each.token): each for asked, some in leased if now >= asked + lease_s for each in some}
    kept = [each for each in deliveries if (each.id, each.token) not in lapsed]
    log.warning("%d deliveries came when their leases of %g s could be over: not handed out", len(lapsed), lease_s)
    if not kept:
        # A lease may have begun long after it was asked for. Given back, it counts no attempt.
        yield from give_back_leases(claims, back_unbegun(lapsed.values()))
    return kept


def _with_permits(claims: Claims, found: list[Delivery]) -> Operation[list[Delivery]]:
    """Renews the permits of a claim that took long: they may lapse before its leases. Gives back what has none."""
    permits = permits_of(found)
    taken, sure = yield from claims.limiter.renewed(permits, claims.lease_ms)
    if not sure:
        taken = {name for names in permits.values() for name in names}
    yield from give_back_leases(claims, back_unbegun(delivery for delivery in found if delivery.token in taken))
    return [delivery for delivery in found if delivery.token not in taken]


@dataclass(slots=True)
class _Trip:
    """One request to each of some shards, and what they have answered."""

    claims: Claims
    token: str
    asked: float
    """The time at which the requests were made."""
    retry_for_s: float | None
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

    def requests(
        self, shard_claims: Sequence[ShardClaim], epoch: Epoch, notes: ClaimNotes, wakeups: Wakeups | None
    ) -> list[tuple[ShardClaim, Call[Claim]]]:
        claims = self.claims
        requests: list[tuple[ShardClaim, Call[Claim]]] = []
        numbers = dict.fromkeys(notes.permits.numbered, 1)
        for ask in shard_claims:
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
                retry_for_s=self.retry_for_s,
            )
            requests.append((ask, notes.of(ask.shard, self.token, call)))
            for topic in numbers:
                numbers[topic] += ask.shares.get(topic, 0)
        return requests

    def read(self, answers: Sequence[tuple[ShardClaim, Any]]) -> None:
        """Sorts the answers, and learns from them."""
        claims = self.claims
        for ask, result in answers:
            shard = ask.shard
            if isinstance(result, ShardqError):
                if isinstance(result, (Unavailable, Unanswered)) and self.retry_for_s is not None:
                    claims.note_unreachable(shard, list(ask.shares), result, time.monotonic() - self.asked)
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

    def deliveries(self) -> list[Delivery]:
        """Makes the deliveries of what was given. Those that can't be decoded go to ``broken``."""
        claims, deliveries = self.claims, list[Delivery]()
        plain = claims.plain
        headers: Mapping[str, str]
        tags: tuple[str, ...]
        for shard, claimed in self.given:
            pasts, token, tokens = claimed.pasts, self.token, claimed.tokens
            failures = lapses = 0
            alike = not pasts and not tokens and not claimed.foreign
            for position, (id, record) in enumerate(zip(claimed.ids, claimed.records, strict=True)):
                topic = id.partition("/")[0] if "/" in id else ""  # without a call: this is done for each task
                if not alike:
                    failures, lapses = pasts.get(position, (0, 0))
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
                        delay_ms = policy.delay_ms(policy.DEFAULT, failures + lapses + 1)
                        allowed = claims.topic_attempts.get(topic)
                        retry = SettleRetry(id, token, delay_ms, f"can't be decoded: {exc}", allowed)
                        self.broken.append((shard, retry))
                        continue
                # By position, and not by a generator, as above.
                deliveries.append(
                    Delivery(id, topic, payload, failures + lapses + 1, headers, token, shard, failures, lapses, tags)
                )
        return deliveries

    def mended(self, deliveries: Sequence[Delivery]) -> Operation[None]:
        """Recovers from refusals, and settles what can't be decoded. Raises an error if there are no deliveries: what
        was claimed elsewhere is worth more than the error, which the next claim meets again.
        """
        recovery = self.claims.recovery
        if self.refusals:
            self.errors += (yield from recovery.recover_all(self.refusals)).values()
        else:
            recovery.over()
        for shard, settlement in self.broken:
            try:
                yield from settle(self.claims, {shard: ([], [settlement])})
            except ShardqError as exc:
                self.errors.append(exc)
        for error in self.errors:
            if not deliveries:
                recovery.over()
                raise error
            log.warning("not all could be claimed: %s", error)


def ask_lengths(claims: Claims, shards: Sequence[int], wakeups: Wakeups) -> Operation[None]:
    """Tells the registry which lists are not empty, or can't be asked; a claim will tell more."""
    topics = claims.open_topics(claims.cache.topology)
    wakeups.waiters.not_empty((yield from _not_empty(claims, shards, topics)))


def _not_empty(claims: Claims, shards: Sequence[int], topics: Sequence[str]) -> Operation[list[ReadyList]]:
    """The lists of these shards and topics that have an entry, or can't be asked."""
    lists = [(keys, topic) for keys in map(claims.cache.keys, shards) for topic in topics]
    found = yield from not_empty(lists, retry_for_s=RETRY_FOR_S)
    return [(keys.shard, topic) for keys, topic in found]
