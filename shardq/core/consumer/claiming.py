"""Claiming, written once for both consumers."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TypeVar

from shardq.core.calls import consume
from shardq.core.calls.consume import Claim, SettleRetry
from shardq.core.calls.request import Call, Command
from shardq.core.consumer import policy
from shardq.core.consumer.arguments import back_unbegun
from shardq.core.consumer.claim_notes import ClaimNotes, noting
from shardq.core.consumer.claim_planner import ShardClaim
from shardq.core.consumer.claims import Claims
from shardq.core.consumer.rate_limiter import LATE_S, permits_of
from shardq.core.consumer.settling import SettlementsByShard, settle
from shardq.core.consumer.waiting.registry import ReadyList
from shardq.core.consumer.waiting.wakeups import Wakeups
from shardq.core.drivers.pipelines import Spare
from shardq.core.layout.keys import ShardKeys
from shardq.core.model.ids import topic_of
from shardq.core.model.task import Delivery
from shardq.core.operation import Many, Operation, Pause
from shardq.core.recovery import REFUSALS, Refusal, refresh
from shardq.errors import (
    PayloadNotDecodable,
    ShardqError,
    Unanswered,
    Unavailable,
)

log = logging.getLogger("shardq.consumer")

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

GIVE_BACK_S = 1.0
"""The time to give back what an interrupted caller holds: whoever pressed Ctrl-C waits."""

LEASE_SHARE = 8
SILENCE_S = 2.0
"""A server that is silent while others have given tasks is waited for no longer than this, nor than one part in
``LEASE_SHARE`` of the lease: theirs run meanwhile. Busy disks and big MIGRATEs stop a server for a second.
"""


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
    try:
        if not claims.open_topics() and claims.wanted_topics():
            # nothing is asked for, so nobody would say that a topic is given out again
            yield from refresh(claims.cache)
        deliveries: list[Delivery] = []
        if not claims.cut_off():
            deliveries = yield from _claim(
                claims, notes, max, claims.unreachable.to_ask(shards), wakeups, filled, RETRY_FOR_S
            )
        if not deliveries and claims.cut_off():
            deliveries = yield from _claim(claims, notes, max, shards, wakeups, filled, None)
    except ShardqError:
        yield from give_back(claims, notes)
        raise
    if notes.caller_left:
        yield from give_back(claims, notes)
        return []
    return deliveries


def _has_tasks(claim: Claim) -> bool:
    return bool(claim.ids)


def give_back(claims: Claims, notes: ClaimNotes) -> Operation[None]:
    """Gives back all that a claim got, unbegun: no attempt is counted. Leases that can't be given back now run out."""
    yield from give_back_leases(claims, notes.leases())
    try:
        yield from claims.limiter.unused(notes)
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


def _claim(
    claims: Claims,
    notes: ClaimNotes,
    max: int,
    shards: Sequence[int],
    wakeups: Wakeups | None,
    filled: Filled | None,
    retry_for_s: float | None,
) -> Operation[list[Delivery]]:
    deliveries: list[Delivery] = []
    lease_s = claims.lease_ms / 1000
    asked = begun = time.monotonic()
    spare = Spare(begun + min(SILENCE_S, lease_s / LEASE_SHARE), _has_tasks)
    leased: list[tuple[float, Sequence[Delivery]]] = []
    """When deliveries were asked for: their leases began later."""
    unasked = set(shards)
    round = 0
    while round < ROUNDS and not (deliveries and asked >= spare.until):
        wanted, topics = max - len(deliveries), claims.open_topics()
        token = claims.token()
        try:
            caps: dict[str, int] = {}
            if limited := claims.limiter.limited(topics):
                wants = {topic: min(wanted, claims.planner.known(topic, shards)) for topic in limited}
                caps = yield from claims.limiter.granted(wants, token, notes, claims.waiter)
            # After the first trip: only shards known to have something, and shards nobody has asked yet.
            among = [shard for shard in shards if shard in unasked or claims.planner.left([shard])]
            few = round == 0 and wakeups is None
            shard_claims = claims.planner.split(wanted, among, topics, caps, asked, few=few)
            unasked.difference_update(ask.shard for ask in shard_claims)
            found, stale = yield from _ask(
                claims,
                notes,
                shard_claims,
                wakeups,
                token,
                wanted=wanted,
                filled=filled,
                retry_for_s=retry_for_s,
                asked=asked,
                spare=Spare(spare.until) if deliveries else spare,
            )
        except ShardqError as exc:
            if not deliveries:
                raise
            # What was claimed already is worth more than the error, which the next claim meets again.
            log.warning("no more could be claimed: %s", exc)
            yield from claims.limiter.unused(notes)
            break
        if limited:
            yield from claims.limiter.unused(notes)
            if time.monotonic() - asked > LATE_S:
                found = yield from _with_permits(claims, found)
        deliveries += found
        leased.append((asked, found))
        asked = time.monotonic()
        if len(claims.topics) > 1 and claims.planner.weights is None:
            deliveries.sort(key=lambda delivery: claims.topics.index(delivery.topic))
        if len(deliveries) >= max or notes.caller_left or not (unasked or claims.planner.left(shards)):
            break
        # A trip that met only stale entries does not count: the next one goes on behind them.
        round += not stale
    if deliveries and time.monotonic() >= begun + lease_s:
        return (yield from _still_leased(claims, deliveries, leased, lease_s))
    return deliveries


def _still_leased(
    claims: Claims,
    deliveries: Sequence[Delivery],
    leased: Sequence[tuple[float, Sequence[Delivery]]],
    lease_s: float,
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


def _ask(
    claims: Claims,
    notes: ClaimNotes,
    shard_claims: Sequence[ShardClaim],
    wakeups: Wakeups | None,
    token: str,
    *,
    wanted: int,
    filled: Filled | None,
    retry_for_s: float | None,
    asked: float,
    spare: Spare,
) -> Operation[tuple[list[Delivery], bool]]:
    """Claims from these shards. Returns what they give, and True if one of them met only entries that nobody can
    get.
    """
    cache = claims.cache
    epoch = cache.topology.epoch
    before = wakeups.waiters.wakeup_counts([ask.shard for ask in shard_claims], claims.topics) if wakeups else {}
    requests: list[tuple[tuple[ShardKeys, ShardClaim], Call[Claim]]] = []
    numbers = dict.fromkeys(notes.numbered, 1)
    for ask in shard_claims:
        keys = cache.keys(ask.shard)
        call = consume.claim(
            keys,
            epoch,
            ask.shares,
            # One script gives at most 1,000; a larger claim takes another trip.
            max=min(ask.max, consume.MAX_CLAIM),
            lease_ms=claims.lease_ms,
            token=token,
            max_attempts=claims.topic_attempts,
            permits=dict(numbers),
            waiter=wakeups.process if wakeups and wakeups.is_subscribed(keys) else "",
            retry_for_s=retry_for_s,
        )
        requests.append(((keys, ask), noting(call, partial(notes.leased, ask.shard, token))))
        for topic in numbers:
            numbers[topic] += ask.shares.get(topic, 0)
    given: list[tuple[ShardKeys, Claim]] = []
    stale = False
    broken: list[tuple[ShardKeys, SettleRetry]] = []
    refusals: list[tuple[ShardKeys, Refusal]] = []
    errors: list[ShardqError] = []
    named: list[ReadyList] = []
    crowd = 0
    for (keys, ask), result in (yield Many(requests, spare)):
        if isinstance(result, (Unavailable, Unanswered)) and retry_for_s is not None:
            claims.note_unreachable(keys.shard, list(ask.shares), result, time.monotonic() - asked)
            continue
        if isinstance(result, REFUSALS):
            refusals.append((keys, result))
            continue
        if isinstance(result, ShardqError):
            errors.append(result)
            continue
        if claims.unreachable:
            claims.unreachable.answered(keys.shard)
        claims.ready_counts.learn(keys.shard, dict(zip(ask.shares, result.left, strict=True)), time.monotonic())
        stale = stale or bool(result.dropped and not result.ids)
        for topic, left, size in zip(ask.shares, result.left, result.crowds, strict=True):
            # A crowd is counted only where the process was registered.
            if size and not left:
                named.append((keys.shard, topic))
                crowd = max(crowd, size)
        if result.ids:
            given.append((keys, result))
    if wakeups:
        wakeups.waiters.registered(before, named, crowd)
    got = sum(len(claimed.ids) for _, claimed in given)
    if filled is not None and not notes.caller_left and got >= wanted and filled():
        yield Pause(0)
    deliveries: list[Delivery] = []
    for keys, claimed in given:
        deliveries += _deliveries(claims, keys, token, claimed, broken)
    if refusals:
        errors += (yield from claims.recovery.recover_all(refusals)).values()
    else:
        claims.recovery.over()
    for keys, retry in broken:
        try:
            yield from settle(claims, {keys.shard: ([], [retry])})
        except ShardqError as exc:
            errors.append(exc)
    for error in errors:
        if not deliveries:
            claims.recovery.over()
            raise error
        # What was claimed elsewhere is worth more than the error, which the next claim meets again.
        log.warning("not all could be claimed: %s", error)
    return deliveries, stale


def _with_permits(claims: Claims, found: list[Delivery]) -> Operation[list[Delivery]]:
    """Renews the permits of a claim that took long: they may lapse before its leases. Gives back what has none."""
    permits = permits_of(found)
    taken, sure = yield from claims.limiter.renewed(permits, claims.lease_ms)
    if not sure:
        taken = {name for names in permits.values() for name in names}
    yield from give_back_leases(claims, back_unbegun(delivery for delivery in found if delivery.token in taken))
    return [delivery for delivery in found if delivery.token not in taken]


def ask_lengths(claims: Claims, shards: Sequence[int], wakeups: Wakeups) -> Operation[None]:
    """Tells the registry which shards have a list that is not empty, or can't be asked; a claim will tell more."""
    topics = claims.open_topics()
    requests: dict[int, Command[int]] = {
        shard: consume.ready_lists(claims.cache.keys(shard), topics, retry_for_s=RETRY_FOR_S)
        for shard in (shards if topics else ())
    }
    answers = yield Many(requests)
    found = [shard for shard, lists in answers if isinstance(lists, ShardqError) or lists > 0]
    wakeups.waiters.not_empty([(shard, topic) for shard in found for topic in topics])


def _deliveries(
    claims: Claims, keys: ShardKeys, claim_token: str, claimed: Claim, broken: list[tuple[ShardKeys, SettleRetry]]
) -> list[Delivery]:
    """Makes the deliveries of one shard. Those that can't be decoded go to ``broken``."""
    deliveries: list[Delivery] = []
    plain, shard, pasts = claims.plain, keys.shard, claimed.pasts
    headers: Mapping[str, str]
    tags: tuple[str, ...]
    token, tokens = claim_token, claimed.tokens
    failures = lapses = 0
    alike = not pasts and not tokens
    for position, (id, record) in enumerate(zip(claimed.ids, claimed.records, strict=True)):
        topic = topic_of(id)
        if not alike:
            failures, lapses = pasts.get(position, (0, 0))
            token = tokens.get(position, claim_token)
        to_payload = plain.get(record[0])
        if to_payload is not None:
            try:
                payload, headers, tags = to_payload(record[1:]), {}, ()
            except Exception:  # noqa: BLE001  decode, below, meets it again and says what is wrong
                to_payload = None
        if to_payload is None:
            try:
                payload, headers, tags = claims.decode(record, claims.codec)
            except PayloadNotDecodable as exc:
                fields = {"task_id": id, "topic": topic, "shard": shard, "error": type(exc).__name__}
                log.error("task %s can't be decoded, which is a failed attempt: %s", id, exc, extra=fields)
                delay_ms = policy.delay_ms(policy.DEFAULT, failures + lapses + 1)
                allowed = claims.topic_attempts.get(topic)
                broken.append((keys, SettleRetry(id, token, delay_ms, f"can't be decoded: {exc}", allowed)))
                continue
        # By position, and not by a generator: this is done for each task.
        deliveries.append(
            Delivery(id, topic, payload, failures + lapses + 1, headers, token, shard, failures, lapses, tags)
        )
    return deliveries
