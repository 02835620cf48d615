"""Claiming and settling, written once for both consumers."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from shardq.atlas import Atlas
from shardq.calls import consume
from shardq.calls.consume import Ack, Bury, Claimed, Other, Verdict
from shardq.calls.request import Call
from shardq.consumer.desk import List, Waiter
from shardq.consumer.hints import Ask, Hints, Stocks
from shardq.consumer.permits import Permits
from shardq.consumer.room import Room
from shardq.consumer.taken import Taken, told
from shardq.errors import (
    InvalidOption,
    LeaseLost,
    PayloadNotDecodable,
    SettleError,
    ShardqError,
    Unanswered,
    Unavailable,
)
from shardq.layout.keys import ShardKeys
from shardq.layout.topology import Route
from shardq.model.ids import topic_of
from shardq.model.record import Codec, decode_record
from shardq.model.task import Delivery
from shardq.operation import Many, Operation, Part, each, mended, refreshed

log = logging.getLogger("shardq.consumer")

T = TypeVar("T")

PATIENCE_S = 0.05
"""For a shard that can't be reached, while others can: its node is failing over, and they have work."""

TROUBLE_S = 0.25
"""Such a shard is asked again after that."""

ROUNDS = 3
"""Trips of one claim. Hints can be wrong when others claim too; a third trip finds them right nearly always, and what
is left the next claim gets."""


class Claims:
    """What the claims of one consumer share: who asks for what, and what it knows. Not for two threads at once."""

    def __init__(
        self,
        atlas: Atlas,
        topics: Sequence[str],
        *,
        name: str,
        lease_ms: int,
        codec: Codec,
        max_attempts: int,
        stocks: Stocks,
        away: dict[str, object] | None = None,
        weights: Mapping[str, int] | None = None,
        types: Mapping[str, Any] | None = None,
        topic_attempts: Mapping[str, int] | None = None,
    ) -> None:
        self.atlas = atlas
        self.topics = list(topics)
        self.name = name
        self.lease_ms = lease_ms
        self.codec = codec
        self.max_attempts = max_attempts
        self.topic_attempts = topic_attempts or {}
        """Attempts, failed or lapsed, that tasks of some topics are allowed; those of the others: the engine's."""
        self.types = types or {}
        """What the payloads of some topics are decoded into."""
        self.stocks = stocks
        self.away = {} if away is None else away
        """Forwarded topics of which the log says so; shared by the consumers of an engine."""
        self.hints = Hints(self.topics, weights, stocks)
        self.permits = Permits(atlas, lease_ms)
        self.trouble: dict[int, float] = {}
        """Shards that could not be reached, to the (monotonic) instant at which to ask them again."""
        self.left_out: frozenset[str] = frozenset()
        """Topics that this consumer can't handle now, as its worker says."""
        self.waiter: Waiter | None = None
        """Of the claim that waits, or did last."""
        self.mends = 0
        """Trips in a row in which a shard refused the topology: with each, mending takes more time, and more steps."""
        self._calls = 0

    def cut_off(self) -> bool:
        """Whether no shard could be reached."""
        return bool(self.trouble) and self.trouble.keys() >= set(self.atlas.topology.span())

    def reachable(self, shards: Sequence[int]) -> Sequence[int]:
        """Those to be asked now."""
        if not self.trouble:
            return shards
        now = time.monotonic()
        return [shard for shard in shards if self.trouble.get(shard, now) <= now]

    def troubled(self, shard: int, topics: Sequence[str], why: ShardqError) -> None:
        """It can't be reached; the others are to be asked meanwhile."""
        if not self.trouble:
            log.warning("some shards can't be reached, claiming from the others: %s", why)
        now = time.monotonic()
        self.trouble[shard] = now + TROUBLE_S
        self.stocks.learn(shard, dict.fromkeys(topics, 0), now)

    def recovered(self, shard: int) -> None:
        if self.trouble.pop(shard, None) is not None and not self.trouble:
            log.info("all shards can be reached again")

    def leave_out(self, topics: frozenset[str]) -> None:
        """Claims these topics no more, until told otherwise; a claim that waits ends. From any thread."""
        self.left_out = topics
        waiter = self.waiter
        if waiter is not None:
            waiter.wake()

    def wanted_topics(self) -> list[str]:
        """Those that are not left out now."""
        left_out = self.left_out
        return [topic for topic in self.topics if topic not in left_out] if left_out else self.topics

    def open_topics(self) -> list[str]:
        """The wanted ones that are neither paused nor forwarded now."""
        topology, wanted = self.atlas.topology, self.wanted_topics()
        if not topology.paused and not topology.routes and not self.away:
            return wanted
        self._tell_routes(topology.routes)
        return [topic for topic in wanted if topic not in topology.paused and topic not in topology.routes]

    def _tell_routes(self, routes: Mapping[str, Route]) -> None:
        """Says once of a topic that it is forwarded, and that it is no longer."""
        for topic in self.topics:
            route, said = routes.get(topic), object()
            if route is not None and self.away.setdefault(topic, said) is said:
                text = "the topic %r is forwarded to the list %r: consumers get nothing of it until that ends"
                log.warning(text, topic, route.to)
            elif route is None and self.away.pop(topic, None) is not None:
                log.warning("the topic %r is no longer forwarded: consumers get its tasks", topic)

    def tell_if_idle(self) -> None:
        """Says so at the beginning where all topics are forwarded: there is nothing to do then."""
        routes = self.atlas.topology.routes
        if all(topic in routes for topic in self.topics):
            lists = ", ".join(f"{topic!r} to the list {routes[topic].to!r}" for topic in self.topics)
            log.warning("every topic of this consumer is forwarded, so it gets nothing until that ends: %s", lists)
            self.away.update(dict.fromkeys(self.topics, object()))

    def token(self) -> str:
        """A lease's name, never used before: the consumer's and a number."""
        self._calls += 1
        return f"{self.name}:{self._calls}"


def claimed(
    claims: Claims, taken: Taken, max: int, shards: Sequence[int], room: Room | None = None
) -> Operation[list[Delivery]]:
    """Up to ``max`` deliveries of what is ready now in these shards. One trip to each node, or a few where hints
    were wrong. With a ``room`` the lists found empty keep its process's name.

    Shards that can't be reached are let be for a while, as long as others can; is it all of them, it waits. What comes
    for a caller who has left goes back.
    """
    try:
        if not claims.open_topics() and claims.wanted_topics():
            # nothing is asked for, so nobody would say that a topic is given out again
            yield from refreshed(claims.atlas)
        deliveries: list[Delivery] = []
        if not claims.cut_off():
            deliveries = yield from _claimed(claims, taken, max, claims.reachable(shards), room, PATIENCE_S)
        if not deliveries and claims.cut_off():
            deliveries = yield from _claimed(claims, taken, max, shards, room, None)
    except ShardqError:
        yield from given_back(claims, taken)
        raise
    if taken.caller_left:
        yield from given_back(claims, taken)
        return []
    return deliveries


def given_back(claims: Claims, taken: Taken) -> Operation[None]:
    """All that a claim was given, unbegun: no attempt is counted. What can't be told so now, its lease tells."""
    leases = taken.leases()
    try:
        if leases:
            yield from settled(claims, leases)
        yield from claims.permits.unused(taken)
    except ShardqError as exc:
        count = sum(len(backs) for _, backs in leases.values())
        log.warning("%d tasks could not be given back; they come back when their leases run out: %s", count, exc)


def _claimed(
    claims: Claims, taken: Taken, max: int, shards: Sequence[int], room: Room | None, patience_s: float | None
) -> Operation[list[Delivery]]:
    deliveries: list[Delivery] = []
    unasked = set(shards)
    round = 0
    while round < ROUNDS:
        wanted, topics = max - len(deliveries), claims.open_topics()
        try:
            caps: dict[str, int] = {}
            if limited := claims.permits.limited(topics):
                wants = {topic: min(wanted, claims.hints.known(topic, shards)) for topic in limited}
                caps = yield from claims.permits.granted(wants, claims.token(), taken)
            # after the first trip only where something is known to be, and where nobody has asked yet
            among = [shard for shard in shards if shard in unasked or claims.hints.left([shard])]
            few = round == 0 and room is None
            asks = claims.hints.split(wanted, among, topics, caps, time.monotonic(), few=few)
            unasked.difference_update(ask.shard for ask in asks)
            found, stale = yield from _asked(claims, taken, asks, room, patience_s=patience_s)
        except ShardqError as exc:
            if not deliveries:
                raise
            # what was claimed already is worth more than the error, which the next claim meets again
            log.warning("no more could be claimed: %s", exc)
            yield from claims.permits.unused(taken)
            break
        if limited:
            yield from claims.permits.used(found, taken)
        deliveries += found
        if len(claims.topics) > 1 and claims.hints.weights is None:
            deliveries.sort(key=lambda delivery: claims.topics.index(delivery.topic))
        if len(deliveries) >= max or taken.caller_left or not (unasked or claims.hints.left(shards)):
            break
        # a trip that met only stale entries does not count: the next one goes on behind them
        round += not stale
    return deliveries


def _asked(
    claims: Claims, taken: Taken, asks: Sequence[Ask], room: Room | None, *, patience_s: float | None
) -> Operation[tuple[list[Delivery], bool]]:
    """Asks these shards. Returns what they give, and True if one of them has met only entries that nobody can get."""
    atlas = claims.atlas
    epoch = atlas.topology.epoch
    before = room.desk.turns([ask.shard for ask in asks], claims.topics) if room else {}
    sent: dict[int, tuple[ShardKeys, str, Ask]] = {}
    requests = []
    for ask in asks:
        keys, token = atlas.keys(ask.shard), claims.token()
        call = consume.claim(
            keys,
            epoch,
            ask.shares,
            # one script gives at most 1,000; a larger claim takes another round
            max=min(ask.max, consume.MAX_CLAIM),
            lease_ms=claims.lease_ms,
            token=token,
            max_attempts=claims.topic_attempts,
            waiter=room.process if room and room.hears(keys) else "",
            patience_s=patience_s,
        )
        sent[id(call)] = keys, token, ask
        requests.append(told(call, partial(taken.leased, ask.shard, token)))
    deliveries: list[Delivery] = []
    stale = False
    broken: list[tuple[ShardKeys, Bury]] = []
    faults: list[tuple[ShardKeys, ShardqError]] = []
    named: list[List] = []
    crowd = 0
    for call, result in (yield Many(requests)):
        keys, token, ask = sent[id(call)]
        if isinstance(result, (Unavailable, Unanswered)) and patience_s is not None:
            claims.troubled(keys.shard, list(ask.shares), result)
            continue
        if isinstance(result, ShardqError):
            faults.append((keys, result))
            continue
        if claims.trouble:
            claims.recovered(keys.shard)
        claims.stocks.learn(keys.shard, dict(zip(ask.shares, result.left, strict=True)), time.monotonic())
        stale = stale or bool(result.dropped and not result.tasks)
        for topic, left, size in zip(ask.shares, result.left, result.crowds, strict=True):
            # a crowd is counted only where our name was left
            if size and not left:
                named.append((keys.shard, topic))
                crowd = max(crowd, size)
        for task in result.tasks:
            try:
                deliveries.append(_delivery(claims, keys, token, task))
            except PayloadNotDecodable as exc:
                log.error("task %s can't be decoded and is buried: %s", task.id, exc)
                broken.append((keys, Bury(task.id, token, f"can't be decoded: {exc}")))
    if room:
        room.desk.named(before, named, crowd)
    round, claims.mends = claims.mends, claims.mends + 1 if faults else 0
    chores = [settled(claims, {keys.shard: ([], [bury])}) for keys, bury in broken]
    for chore in (*chores, *(mended(atlas, keys, fault, round) for keys, fault in faults)):
        try:
            yield from chore
        except ShardqError as exc:
            if not deliveries:
                claims.mends = 0
                raise
            # what was claimed elsewhere is worth more than the error, which the next claim meets again
            log.warning("not all could be claimed: %s", exc)
    return deliveries, stale


def lengths_asked(claims: Claims, shards: Sequence[int], room: Room) -> Operation[None]:
    """Tells the desk which lists are not empty, or can't be asked: a claim will tell."""
    atlas, asked = claims.atlas, dict[int, List]()
    requests = []
    for shard in shards:
        for topic in claims.open_topics():
            request = consume.length(atlas.keys(shard), topic, patience_s=PATIENCE_S)
            asked[id(request)] = shard, topic
            requests.append(request)
    answers = yield Many(requests)
    room.desk.not_empty(
        [asked[id(request)] for request, length in answers if isinstance(length, ShardqError) or length > 0]
    )


def _delivery(claims: Claims, keys: ShardKeys, token: str, task: Claimed) -> Delivery:
    topic = topic_of(task.id)
    record = decode_record(task.record, own=claims.codec, type=claims.types.get(topic) if claims.types else None)
    return Delivery(
        id=task.id,
        topic=topic,
        payload=record.payload,
        attempt=task.failures + task.lapses + 1,
        headers=record.headers,
        token=token,
        shard=keys.shard,
        failures=task.failures,
        lapses=task.lapses,
    )


Verdicts = Mapping[str, Verdict]
Settlement = Mapping[int, tuple[Sequence[Ack], Sequence[Other]]]

OTHERS_PER_CALL = 200
"""A retry or a burial costs several commands where an ack shares three."""


def settled(claims: Claims, by_shard: Settlement) -> Operation[dict[str, Verdict]]:
    """Settles items of any number of shards; answers what was not simply done, by id.

    Where some shards fail, the rest is settled: raises SettleError, or the shards' own error where nothing is done.
    """

    def settle(acks: Sequence[Ack], others: Sequence[Other]) -> Callable[[ShardKeys, int], Call[Verdicts]]:
        return lambda keys, epoch: consume.settle(keys, epoch, acks, others)

    parts: list[tuple[Part[Verdicts], Sequence[Ack | Other]]] = []
    for shard, (acks, others) in by_shard.items():
        keys = claims.atlas.keys(shard)
        parts += [((keys, settle(some, ())), some) for some in _slices(acks, consume.MAX_CLAIM)]
        parts += [((keys, settle((), some)), some) for some in _slices(others, OTHERS_PER_CALL)]
    broken: list[tuple[Part[Verdicts], ShardqError]] = []
    answers = yield from each(claims.atlas, [part for part, _ in parts], broken=broken)
    verdicts = _verdicts(answers)
    errors = {id(part): error for part, error in broken}
    done = [item for part, some in parts if id(part) not in errors for item in some]
    yield from claims.permits.settled(done)
    if broken:
        first = broken[0][1]
        if not done:
            raise first
        reasons = {item.id: errors[id(part)] for part, some in parts if id(part) in errors for item in some}
        raise SettleError(
            settled=[item.id for item in done if verdicts.get(item.id, "dead") == "dead"],
            lost=[item.id for item in done if verdicts.get(item.id, "dead") != "dead"],
            failed={id: error for id, error in reasons.items() if not isinstance(error, Unanswered)},
            unknown=[id for id, error in reasons.items() if isinstance(error, Unanswered)],
            first=first,
        ) from first
    return verdicts


def extended(claims: Claims, by_shard: Mapping[int, Sequence[Ack]], lease_ms: int) -> Operation[dict[str, Verdict]]:
    """Moves the deadlines of leases; answers those no longer held, by id."""

    def extend(held: Sequence[Ack]) -> Callable[[ShardKeys, int], Call[Verdicts]]:
        return lambda keys, epoch: consume.extend(keys, epoch, held, lease_ms=lease_ms)

    parts: list[Part[Verdicts]] = [
        (claims.atlas.keys(shard), extend(some))
        for shard, held in by_shard.items()
        for some in _slices(held, consume.MAX_CLAIM)
    ]
    verdicts = _verdicts((yield from each(claims.atlas, parts)))
    if claims.permits.any_held:
        items = [item for held in by_shard.values() for item in held]
        yield from claims.permits.extended([item for item in items if item.id not in verdicts], lease_ms)
        # whoever has these now has permits of their own
        yield from claims.permits.settled([item for item in items if item.id in verdicts])
    return verdicts


def _verdicts(answers: Iterable[Verdicts]) -> dict[str, Verdict]:
    return {id: verdict for answer in answers for id, verdict in answer.items()}


def _slices(items: Sequence[T], most: int) -> list[Sequence[T]]:
    return [items[at : at + most] for at in range(0, len(items), most)]


def check_held(verdicts: Mapping[str, Verdict], *, replaced_is_fine: bool) -> None:
    """Raises LeaseLost for what is no longer held. An ack of a task that a push replaced is no one's mistake."""
    lost = [
        id for id, verdict in verdicts.items() if verdict == "lost" or (verdict == "replaced" and not replaced_is_fine)
    ]
    if lost:
        raise LeaseLost(lost)


def acks_by_shard(deliveries: Iterable[Delivery]) -> dict[int, list[Ack]]:
    by_shard: dict[int, list[Ack]] = {}
    for delivery in deliveries:
        by_shard.setdefault(delivery.shard, []).append(Ack(delivery.id, delivery.token))
    return by_shard


def one_or_many(deliveries: Delivery | Iterable[Delivery]) -> list[Delivery]:
    given: Any = deliveries  # whatever a caller gave: the ids of deliveries, for one
    held = list(given) if isinstance(given, Iterable) else [given]
    if wrong := set(map(type, held)) - {Delivery}:
        raise InvalidOption(f"a delivery can't be {wrong.pop().__name__}; give what claim() gave out, one or many")
    return held
