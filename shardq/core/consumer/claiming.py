"""Claiming, written once for both consumers."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from shardq.core.calls import consume
from shardq.core.calls.consume import Claim, SettleBury, SettleRetry
from shardq.core.calls.request import Call, Epoch
from shardq.core.consumer import policy
from shardq.core.consumer.claim_planner import ShardClaim
from shardq.core.consumer.claim_state import ClaimNotes, Claims
from shardq.core.consumer.rate_limiter import LATE_S, permits_of
from shardq.core.consumer.ready_lists import not_empty
from shardq.core.consumer.settling import SettlementsByShard, back_unbegun, noted, settle
from shardq.core.consumer.waiter_registry import ReadyList
from shardq.core.consumer.wakeups import Wakeups
from shardq.core.drivers.retry import Spare
from shardq.core.layout.keys import ShardKeys
from shardq.core.layout.topology import Limit
from shardq.core.locks import raised_by_handler
from shardq.core.model.printable import counted
from shardq.core.model.record import UNREADABLE, UnreadableRecord, last_reason, pushed_s_of
from shardq.core.model.task import Delivery
from shardq.core.model.task_options import parted
from shardq.core.operation import Many, Operation, Pause, bounded
from shardq.core.topology_recovery import REFUSALS, Refusal
from shardq.core.topology_upkeep import refresh
from shardq.errors import PayloadNotAuthentic, PayloadNotDecodable, ShardqError, Unanswered, Unavailable

log: logging.Logger = logging.getLogger("shardq.consumer")

T = TypeVar("T")

Filled = Callable[[], bool]
"""Called when a claim has all it wants, before records are decoded. Returns True if it has begun something that needs a
turn of the event loop to be sent.
"""

RETRY_FOR_S = 0.05
"""The retry time for a shard that can't be reached, while others can: they have work meanwhile."""

PROBE_S = 0.01
"""The retry time for one that could not be reached a moment ago: it takes two tries, of which the second goes by a map
of the cluster that was read anew. The tasks of the others wait for no more.
"""

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


@dataclass(frozen=True, slots=True)
class _Request:
    """A consumer's request."""

    claims: Claims
    notes: ClaimNotes
    max: int
    shards: Sequence[int]
    wakeups: Wakeups | None
    filled: Filled | None
    retry_for_s: float | None = RETRY_FOR_S
    wants: Mapping[str, int] | None = None
    """Topic → how many of it, of no other topics, and only of what is known to be there; None: of all topics."""


def claim(
    claims: Claims,
    notes: ClaimNotes,
    max: int,
    shards: Sequence[int],
    wakeups: Wakeups | None = None,
    filled: Filled | None = None,
    wants: Mapping[str, int] | None = None,
) -> Operation[list[Delivery]]:
    """Claims up to ``max`` deliveries of what is ready now in these shards: one trip to each node, or a few where the
    planner was wrong. With ``wakeups`` the process is registered in the lists found empty. ``wants``: topic → how many
    of it at most; of no other topics, up to ``MOST_TOPICS``.

    Skips unreachable shards while others answer; waits for them when none does. What others have given waits for a
    silent server for a small part of the lease only. Deliveries whose leases have run out meanwhile are not returned.
    Gives back what comes for a caller who has left.
    """
    unreachable = claims.unreachable
    deliveries: list[Delivery] = []
    request = _Request(claims, notes, max, shards, wakeups, filled, wants=wants)
    once = _claim if len(claims.topics) <= MOST_TOPICS else _claim_in_parts
    try:
        if not unreachable.again_at:
            deliveries = yield from once(request)
        elif not claims.cut_off():
            deliveries = yield from once(replace(request, shards=unreachable.to_ask(shards)))
        if not deliveries and unreachable.again_at and claims.cut_off():
            deliveries = yield from once(replace(request, retry_for_s=None))
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
    shards, now = claims.unreachable.to_ask(shards), time.monotonic()
    request = _Request(claims, ClaimNotes(), 0, shards, wakeups, None)
    got = _Got(request, now, now, Spare(now + claims.patience_s, lambda _: True))
    trip = _Trip(request, got, f"{claims.name}:{next(claims.numbers)}", 0, topics)
    asks = [ShardClaim(shard, 0, dict.fromkeys(topics, 0)) for shard in shards]
    trip.read((yield Many(trip.requests(claims.cache.topology.stamp, asks), got.spare)))
    yield from trip.mend(())


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
        what = "%s could not be given back, and will be when the lease runs out: %s"
        log.warning(what, counted(count, "task"), exc)


def _claim_in_parts(request: _Request) -> Operation[list[Delivery]]:
    """Claims from parts of many topics, until one gives something."""
    claims, shards, wakeups = request.claims, request.shards, request.wakeups
    topics = claims.open_topics(claims.cache.topology)
    if not topics:
        return (yield from _claim(request, ()))
    if wakeups is not None:
        # When it is registered for all, it was told to register anew.
        todo = wakeups.waiters.unregistered_topics(shards, topics) or topics
        for at in range(0, len(todo), MOST_TOPICS):
            deliveries = yield from _claim(request, frozenset(todo[at : at + MOST_TOPICS]))
            if deliveries or request.notes.caller_left:
                return deliveries
        return []
    others = claims.others_in_turn(topics, MOST_TOPICS)
    deliveries = yield from _claim(request, _known(request, topics).union(others))
    if deliveries or request.notes.caller_left:
        return deliveries
    claims.ready_counts.expect((yield from _not_empty(claims, shards, topics)))
    known = _known(request, topics)
    return (yield from _claim(request, known)) if known else []


def _known(request: _Request, topics: Sequence[str]) -> frozenset[str]:
    """The first of these topics that are known to have something."""
    known = [topic for topic in topics if request.claims.planner.known(topic, request.shards)]
    return frozenset(known[:MOST_TOPICS])


def _claim(request: _Request, only: Collection[str] | None = None) -> Operation[list[Delivery]]:
    """Makes trips until nothing more is known to be there, or all that was asked for is claimed.

    A trip goes by one topology: its topics, its limits and its epoch. A newer one may be learnt meanwhile, by another
    thread; shards refuse the older epoch, so that nothing is claimed past a limit or a pause that a trip did not know.
    ``only``: of these topics; None: of all.
    """
    claims, notes = request.claims, request.notes
    topology = claims.cache.topology
    only = request.wants if request.wants is not None else only
    topics = claims.open_topics(topology, only)
    if not topics and claims.wanted_topics():
        # Nothing is asked for, so no shard would say that a topic is given out again.
        yield from refresh(claims.cache)
        topology = claims.cache.topology
        topics = claims.open_topics(topology, only)
    now = time.monotonic()
    got = _Got(request, now, now, Spare(now + claims.patience_s, lambda claim: bool(claim.ids)))
    while True:
        token = f"{claims.name}:{next(claims.numbers)}"
        trip = _Trip(request, got, token, request.max - len(got.deliveries), topics)
        if request.wants is not None:
            had = Counter(delivery.topic for delivery in got.deliveries)
            trip.caps = {topic: left for topic in topics if (left := request.wants[topic] - had[topic]) > 0}
            trip.topics = [topic for topic in topics if topic in trip.caps]
        limited = [topic for topic in trip.topics if topic in topology.limits] if topology.limits else ()
        try:
            if limited:
                yield from trip.permit(limited, topology.limits)
            requests = trip.requests(topology.stamp)
            trip.read((yield Many(requests, got.spare)))
            if request.filled is not None and not notes.caller_left and trip.got >= trip.wanted and request.filled():
                yield Pause(0)
            found = trip.deliveries()
            if trip.refusals or trip.broken or trip.errors:
                yield from trip.mend(got.deliveries or found)
            elif claims.recovery.rounds:
                claims.recovery.over()
        except ShardqError as exc:
            if not got.deliveries:
                raise
            # What was claimed already is worth more than the error, which the next claim meets again.
            log.warning("no more could be claimed: %s", exc)
            yield from claims.limiter.unused(notes.permits)
            break
        if limited:
            yield from claims.limiter.unused(notes.permits)
            if time.monotonic() - got.asked > LATE_S:
                found = yield from _with_permits(claims, found)
        if got.is_all(trip, found):
            break
        topology = claims.cache.topology
        topics = claims.open_topics(topology, only)
    lease_s = claims.lease_ms / 1000
    if got.deliveries and time.monotonic() >= got.begun + lease_s:
        return (yield from _still_leased(claims, got.deliveries, got.leased, lease_s))
    return got.deliveries


@dataclass(slots=True)
class _Got:
    """The deliveries of one claim so far, and how its trips went."""

    request: _Request
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

    def is_all(self, trip: _Trip, found: Sequence[Delivery]) -> bool:
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


def _still_leased(
    claims: Claims, deliveries: Sequence[Delivery], leased: Sequence[tuple[float, Sequence[Delivery]]], lease_s: float
) -> Operation[list[Delivery]]:
    """Returns the deliveries whose leases have surely not run out. ``leased``: when they were asked for."""
    now = time.monotonic()
    lapsed = {(each.id, each.token): each for asked, some in leased if now >= asked + lease_s for each in some}
    kept = [each for each in deliveries if (each.id, each.token) not in lapsed]
    what = "%s came when the lease of %g s could be over: not handed out"
    log.warning(what, counted(len(lapsed), "task"), lease_s)
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

    request: _Request
    earlier: _Got
    """The deliveries of earlier trips."""
    token: str
    wanted: int
    topics: Sequence[str]
    caps: Mapping[str, int] = field(default_factory=dict)
    """Limited topic → how many of it are permitted; and of each topic, where they are given, how many are wanted."""
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
        known = claims.planner.known
        wants = {t: min(self.wanted, self.caps.get(t, self.wanted), known(t, request.shards)) for t in limited}
        # Other topics, and what was claimed already, do not wait for a silent control slot.
        alone = not deliveries and len(limited) == len(self.topics)
        within = None if alone else claims.patience_s
        permits = request.notes.permits
        granted = yield from claims.limiter.granted(wants, self.token, permits, claims.waiter, within)
        self.caps = {**self.caps, **granted}
        self.topics = [topic for topic in self.topics if self.caps.get(topic, 1) or not wants.get(topic)]

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
        unreachable = claims.unreachable.again_at
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
                retry_for_s=PROBE_S if ask.shard in unreachable and request.retry_for_s else request.retry_for_s,
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
        plain, keeps_ends = claims.plain, bool(claims.cache.topology.ends_rule)
        headers: Mapping[str, str]
        tags: tuple[str, ...]
        for shard, claimed in self.given:
            pasts, token, tokens = claimed.pasts, self.token, claimed.tokens
            failures, lapses, attempt, past, fence = 0, 0, 1, "", 0
            alike = not pasts and not tokens and not claimed.foreign and not claimed.fence
            for position, (id, record) in enumerate(zip(claimed.ids, claimed.records, strict=True)):
                topic = id.partition("/")[0] if "/" in id else ""  # without a call: this is done for each task
                if not alike:
                    failures, lapses = pasts.get(position, (0, 0))
                    attempt = failures + lapses + 1
                    fence = claimed.fence and claimed.fence + position
                    past = last_reason(record) or "" if failures else ""
                    token = tokens.get(position, self.token)
                    if position in claimed.foreign:
                        self.broken.append((shard, SettleBury(id, token, UNREADABLE)))
                        continue
                to_payload = plain.get(record[0])
                if to_payload is not None:
                    try:
                        payload, headers, tags = to_payload(record[1:]), {}, ()
                    except Exception as exc:  # decode, below, meets it again and says what is wrong
                        if raised_by_handler(exc):
                            raise
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
                url = None
                if headers:
                    headers, url = parted(headers)
                # By position, and not by a generator, as above.
                deliveries.append(
                    Delivery(
                        id, topic, payload, attempt, headers, token, shard, failures, lapses, tags, past, fence, url
                    )
                    if not keeps_ends
                    else Delivery(
                        *(id, topic, payload, attempt, headers, token, shard, failures, lapses, tags, past, fence, url),
                        pushed_s_of(record),
                    )
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


def ask_lengths(claims: Claims, shards: Sequence[int], wakeups: Wakeups) -> Operation[None]:
    """Tells the registry which lists are not empty, or can't be asked; a claim will tell more."""
    topics = claims.open_topics(claims.cache.topology)
    wakeups.waiters.not_empty((yield from _not_empty(claims, shards, topics)))


def _not_empty(claims: Claims, shards: Sequence[int], topics: Sequence[str]) -> Operation[list[ReadyList]]:
    """The lists of these shards and topics that have an entry, or can't be asked."""
    lists = [(keys, topic) for keys in map(claims.cache.keys, shards) for topic in topics]
    found = yield from not_empty(lists, retry_for_s=RETRY_FOR_S)
    return [(keys.shard, topic) for keys, topic in found]
