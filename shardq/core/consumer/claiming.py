"""Claiming, written once for both consumers."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import TypeVar

from shardq.core.consumer.claim_planner import ShardClaim
from shardq.core.consumer.claims import ClaimNotes, Claims
from shardq.core.consumer.rate_limiter import LATE_S, permits_of
from shardq.core.consumer.ready_lists import not_empty
from shardq.core.consumer.settling import SettlementsByShard, back_unbegun, settle
from shardq.core.consumer.trips import RETRY_FOR_S, Filled, Got, Request, Trip
from shardq.core.consumer.waiters import ReadyList
from shardq.core.consumer.wakeups import Wakeups
from shardq.core.drivers.retry import Spare
from shardq.core.model.task import Delivery
from shardq.core.operation import Many, Operation, Pause
from shardq.core.upkeep import refresh
from shardq.errors import ShardqError

log: logging.Logger = logging.getLogger("shardq.consumer")

T = TypeVar("T")

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
    request = Request(claims, notes, max, shards, wakeups, filled)
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
    request = Request(claims, ClaimNotes(), 0, shards, wakeups, None)
    got = Got(request, now, now, Spare(now + claims.patience_s, lambda _: True))
    trip = Trip(request, got, f"{claims.name}:{next(claims.numbers)}", 0, topics)
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
        log.warning("%d tasks could not be given back; they come back when their leases run out: %s", count, exc)


def _claim_in_parts(request: Request) -> Operation[list[Delivery]]:
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


def _known(request: Request, topics: Sequence[str]) -> frozenset[str]:
    """The first of these topics that are known to have something."""
    known = [topic for topic in topics if request.claims.planner.known(topic, request.shards)]
    return frozenset(known[:MOST_TOPICS])


def _claim(request: Request, only: Collection[str] | None = None) -> Operation[list[Delivery]]:
    """Makes trips until nothing more is known to be there, or all that was asked for is claimed.

    A trip goes by one topology: its topics, its limits and its epoch. A newer one may be learnt meanwhile, by another
    thread; shards refuse the older epoch, so that nothing is claimed past a limit or a pause that a trip did not know.
    ``only``: of these topics; None: of all.
    """
    claims, notes = request.claims, request.notes
    topology = claims.cache.topology
    topics = claims.open_topics(topology, only)
    if not topics and claims.wanted_topics():
        # Nothing is asked for, so no shard would say that a topic is given out again.
        yield from refresh(claims.cache)
        topology = claims.cache.topology
        topics = claims.open_topics(topology, only)
    now = time.monotonic()
    got = Got(request, now, now, Spare(now + claims.patience_s, lambda claim: bool(claim.ids)))
    while True:
        token = f"{claims.name}:{next(claims.numbers)}"
        trip = Trip(request, got, token, request.max - len(got.deliveries), topics)
        limited = [topic for topic in topics if topic in topology.limits] if topology.limits else ()
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


def ask_lengths(claims: Claims, shards: Sequence[int], wakeups: Wakeups) -> Operation[None]:
    """Tells the registry which lists are not empty, or can't be asked; a claim will tell more."""
    topics = claims.open_topics(claims.cache.topology)
    wakeups.waiters.not_empty((yield from _not_empty(claims, shards, topics)))


def _not_empty(claims: Claims, shards: Sequence[int], topics: Sequence[str]) -> Operation[list[ReadyList]]:
    """The lists of these shards and topics that have an entry, or can't be asked."""
    lists = [(keys, topic) for keys in map(claims.cache.keys, shards) for topic in topics]
    found = yield from not_empty(lists, retry_for_s=RETRY_FOR_S)
    return [(keys.shard, topic) for keys, topic in found]
