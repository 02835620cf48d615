"""The state of a consumer's claims: what all of them share (who claims, with which lease, and what it knows of shards),
the notes of what one of them got, and the next step of one that waits. No I/O.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any, NamedTuple

from shardq.core.calls.consume import Claim, KeyWaits, Leased, SettleGiveBack
from shardq.core.calls.request import Call
from shardq.core.consumer.claim_planner import ClaimPlanner, ReadyCounts, UnreachableShards, patience_s
from shardq.core.consumer.rate_limiter import Permits, RateLimiter
from shardq.core.consumer.waiter_registry import Waiter
from shardq.core.consumer.wakeups import Wakeups
from shardq.core.fleet.missing import DispatcherLook
from shardq.core.layout.topology import Route, Topology
from shardq.core.model.ids import quoted_topic
from shardq.core.model.record import PLAIN, Codec, clear_of, decode_payload
from shardq.core.topology_cache import TopologyCache
from shardq.core.topology_recovery import Recovery
from shardq.errors import ShardqError

log: logging.Logger = logging.getLogger("shardq.consumer")

UNSUBSCRIBED_S = 0.25
"""The sleep between two claims from shards whose wake channel is not subscribed."""

BEHIND_S = 0.5
"""One waiter of a process asks for permits again when a denial is over. If it can't now, the others do so later."""

CONTENDED_S = 0.01
"""The sleep between two claims from lists that others are emptying."""

Decode = Callable[[bytes, Codec | None, str], tuple[Any, Mapping[str, str], tuple[str, ...]]]
"""Makes payload, headers and tags of a record, by the codec of the engine, if it reads the payload, and the id of the
task.
"""


class Claims:
    """One consumer's identity, options and knowledge. Not for two threads at once."""

    def __init__(
        self,
        cache: TopologyCache,
        topics: Sequence[str],
        *,
        name: str,
        lease_ms: int,
        codec: Codec | None = None,
        ready_counts: ReadyCounts,
        forwarded: dict[str, object] | None = None,
        weights: Mapping[str, int] | None = None,
        topic_attempts: Mapping[str, int] | None = None,
        routes: Mapping[str, Route] | None = None,
        decode: Decode = decode_payload,
    ) -> None:
        self.cache = cache
        self.topics: list[str] = list(topics)
        self.ranks: Mapping[str, int] = {topic: rank for rank, topic in enumerate(self.topics)}
        self.name = name
        self.lease_ms = lease_ms
        self.patience_s: float = patience_s(lease_ms / 1000)
        self.codec = codec
        self.topic_attempts: Mapping[str, int] = topic_attempts or {}
        """Topic → the attempts, failed or lapsed, that its handler allows. Other topics: the engine's number."""
        self.routes = routes
        """Topic → the route, of the topics of whoever serves routes: it gets what others do not, as long as the topic
        has that route.
        """
        self.decode = decode
        self.plain: Mapping[int, Callable[[bytes], Any]] = (
            PLAIN if decode is decode_payload and clear_of(codec) != "refuse" else {}
        )
        """The decoders of records that need no ``decode``."""
        self.ready_counts = ready_counts
        self.forwarded: dict[str, object] = {} if forwarded is None else forwarded
        """Forwarded topics that the log has named; shared by the consumers of an engine."""
        self.planner: ClaimPlanner = ClaimPlanner(self.topics, weights, ready_counts)
        self.limiter: RateLimiter = RateLimiter(cache, lease_ms, ready_counts.denials)
        self.unreachable: UnreachableShards = ready_counts.unreachable
        self.note_waits: Callable[[KeyWaits], object] = ready_counts.key_waits.add
        """Told how long the tasks had waited to which its settlements have handed a key."""
        self._left_out: frozenset[str] = frozenset()
        """Topics that the worker of this consumer can't handle now."""
        self._on_hold: dict[str, float] = {}
        """Topic of which this consumer alone takes nothing → the monotonic time until which it does not."""
        self.said_holds: set[str] = set()
        """Those of these topics that the log has named."""
        self.waiter: Waiter | None = None
        """The waiter of the present claim; None unless it waits."""
        self.recovery: Recovery = Recovery(cache)
        """The recovery from refusals of claims, as long as each claim meets some."""
        self.look: DispatcherLook | None = None
        """None for consumers of workers, which look by themselves, and of tests with a clock of their own."""
        self.numbers: Iterator[int] = count(1)
        """The numbers of its trips: the token of a lease, never used before, is the consumer's name and one of them."""
        self._turn = 0
        self._parts: list[Claims] = []
        """The claims of some of these topics, which are made beside each other."""

    def of(self, topics: Sequence[str]) -> Claims:
        """The claims of some of these topics, for another thread: under the same name, and with the same permits. What
        is left out or on hold here is so there. All of the topics: these claims themselves.
        """
        if len(topics) == len(self.topics):
            return self
        weights = self.planner.weights
        part = Claims(
            self.cache,
            topics,
            name=self.name,
            lease_ms=self.lease_ms,
            codec=self.codec,
            ready_counts=self.ready_counts,
            forwarded=self.forwarded,
            weights=None if weights is None else {topic: weights[topic] for topic in topics},
            topic_attempts=self.topic_attempts,
            routes=self.routes,
            decode=self.decode,
        )
        part.limiter, part.numbers, part.said_holds = self.limiter, self.numbers, self.said_holds
        part.note_waits = self.note_waits
        part._left_out, part._on_hold = self._left_out, self._on_hold
        self._parts.append(part)
        return part

    def cut_off(self) -> bool:
        """True if no shard could be reached."""
        return self.unreachable.all_of(self.cache.topology.span())

    def note_unreachable(self, shard: int, topics: Sequence[str], why: ShardqError, took_s: float) -> None:
        """Notes a shard that can't be reached, and expects nothing of it."""
        self.unreachable.note(shard, why, took_s)
        self.ready_counts.learn(shard, dict.fromkeys(topics, 0), time.monotonic())

    @property
    def left_out(self) -> frozenset[str]:
        """The topics that are not claimed now."""
        return self._left_out | self.on_hold if self._on_hold else self._left_out

    @property
    def on_hold(self) -> frozenset[str]:
        """The topics of which this consumer alone takes nothing now."""
        now = time.monotonic()
        return frozenset(topic for topic, until in self._on_hold.copy().items() if until > now)

    def leave_out(self, topics: frozenset[str]) -> None:
        """Leaves these topics out of claims from now on, and ends a claim that waits. May be called from any thread."""
        if topics != self._left_out:
            for part in (self, *self._parts):
                part._left_out = topics
            self._wake()

    def hold(self, delays: Mapping[str, int]) -> None:
        """Takes nothing of topics for so many ms, and ends a claim that waits. May be called from any thread."""
        now = time.monotonic()
        self._on_hold.update({topic: now + delay_ms / 1000 for topic, delay_ms in delays.items()})
        self._wake()

    def hold_ends_in(self, now: float) -> float:
        """The seconds until the next topic is taken again, of those that this consumer alone does not take."""
        return min((until - now for until in self._on_hold.copy().values() if until > now), default=math.inf)

    def _wake(self) -> None:
        for part in (self, *self._parts):
            waiter = part.waiter
            if waiter is not None:
                waiter.wake()

    def wanted_topics(self) -> list[str]:
        """The topics that are not left out."""
        left_out = self.left_out
        return [topic for topic in self.topics if topic not in left_out] if left_out else self.topics

    def others_in_turn(self, topics: Sequence[str], count: int) -> list[str]:
        """So many of the topics, each time the next ones."""
        begin = self._turn % len(topics)
        self._turn = begin + count
        return [*topics[begin:], *topics[:begin]][:count]

    def open_topics(self, topology: Topology, only: Collection[str] | None = None) -> list[str]:
        """The wanted topics that are neither paused nor forwarded; of one that serves routes, those that have them.
        ``only``: among these, which one that serves routes names each time.
        """
        left_out = self.left_out if self._left_out or self._on_hold else frozenset()
        wanted = self.wanted_topics() if left_out else self.topics
        if only is not None:
            wanted = [topic for topic in only if topic not in left_out]
            if self.ranks:
                wanted.sort(key=self.ranks.__getitem__)
        if self.routes is not None:
            has, serves = topology.routes.get, self.routes.get
            return [t for t in wanted if t not in topology.paused and (route := serves(t)) and route == has(t)]
        if not topology.paused and not topology.routes and not self.forwarded:
            return wanted
        self._log_routes(topology.routes)
        return [topic for topic in wanted if topic not in topology.paused and topic not in topology.routes]

    def _log_routes(self, routes: Mapping[str, Route]) -> None:
        """Logs once of a topic that it is forwarded, and that it no longer is."""
        for topic in self.topics:
            route, mark = routes.get(topic), object()
            if route is not None and self.forwarded.setdefault(topic, mark) is mark:
                text = "the topic %s is forwarded to %s: consumers get nothing of it until that ends"
                log.warning(text, quoted_topic(topic), route.named)
            elif route is None and self.forwarded.pop(topic, None) is not None:
                log.warning("the topic %s is no longer forwarded: consumers get its tasks", quoted_topic(topic))

    def log_if_all_forwarded(self) -> None:
        """Logs, when a consumer is made, that all of its topics are forwarded: it will get nothing."""
        routes = self.cache.topology.routes
        if all(topic in routes for topic in self.topics):
            where = ", ".join(f"{quoted_topic(topic)} to {routes[topic].named}" for topic in self.topics)
            log.warning("every topic of this consumer is forwarded, so it gets nothing until that ends: %s", where)
            self.forwarded.update(dict.fromkeys(self.topics, object()))


@dataclass(slots=True)
class ClaimNotes:
    """The notes of what one claim got so far, answer by answer, so that it can be given back when the caller has left:
    when its asyncio task is cancelled, by Ctrl-C, or with an error of a later trip. The operation writes them.
    """

    caller_left: bool = False
    """True once nothing more is to be claimed, and what still comes is to be given back."""
    permits: Permits = field(default_factory=Permits)
    _leases: list[tuple[int, str, Claim]] = field(default_factory=list)

    def of(self, shard: int, token: str, call: Call[Claim]) -> Call[Claim]:
        """Notes the answer of a shard as soon as it arrives, even if the caller has left."""
        decode = call.decode

        def noted(answer: Any) -> Claim:
            claim = decode(answer)
            if claim.ids:
                self._leases.append((shard, token, claim))
                if self.permits.names:
                    self.permits.used(claim)
            return claim

        call.decode, call.finish_on_interrupt = noted, True
        return call

    def leases(self) -> dict[int, tuple[list[Leased], list[SettleGiveBack]]]:
        """Takes all that was leased, by shard, to be given back unbegun."""
        leases, self._leases = self._leases, []
        by_shard: dict[int, tuple[list[Leased], list[SettleGiveBack]]] = {}
        for shard, token, claim in leases:
            by_shard.setdefault(shard, ([], []))[1].extend(
                SettleGiveBack(id, claim.tokens.get(position, token)) for position, id in enumerate(claim.ids)
            )
        return by_shard


class ClaimFrom(NamedTuple):
    """Claim from these shards, and register the process in the lists found empty, if ``registering``."""

    shards: Sequence[int]
    registering: bool


class AskLengths(NamedTuple):
    """Ask if the lists of these shards are empty; the next step claims from those that are not."""

    shards: Sequence[int]


class Sleep(NamedTuple):
    seconds: float


@dataclass(slots=True)
class WaitStrategy:
    """Decides what a waiting claim does next, from its beginning to its end.

    A claim registers its process only after a first try found nothing: a process that is registered while it finds
    tasks elsewhere is woken for tasks that it has no time for. Where an earlier claim found nothing more a moment ago,
    that was the first try. Where others of the process wait, they have the time, and sleep on when this one leaves with
    a task: the first try registers for them.
    """

    claims: Claims
    wakeups: Wakeups
    waiter: Waiter
    until: float
    _is_new: bool = True
    _claims_made: int = 0
    """Claims since the last sleep."""

    def step(self, now: float) -> ClaimFrom | AskLengths | Sleep | None:
        """The next step, after a claim that found nothing or a sleep. None: the time is over, or other topics are
        wanted now.
        """
        if self.waiter.topics != self.claims.wanted_topics():
            return None
        waiters = self.wakeups.waiters
        self.claims.ready_counts.expect(waiters.ask(self.waiter))
        self.waiter.denied = ()
        open_topics = self.claims.open_topics(self.claims.cache.topology)
        denied = {t: at for t, at in self.claims.limiter.denied(self.waiter).items() if at > now and t in open_topics}
        # While there is no permit, there is nothing to ask a shard.
        topics = [topic for topic in open_topics if topic not in denied] if denied else open_topics
        span = self.claims.cache.topology.span()
        recheck = None if self._claims_made else waiters.recheck_due(topics, now)
        if recheck == "lengths":
            return AskLengths(span)
        if recheck == "whole":
            # The process was idle already: one claim is enough to register again.
            self._claims_made = 1
            shards: Sequence[int] = span
        else:
            shards = waiters.unregistered(span, topics) if topics else []
            if self._is_new and self.claims.planner.just_emptied(shards, topics, now):
                self._claims_made = 1
        self._is_new = False
        self._claims_made += 1
        reachable = [shard for shard in shards if self.wakeups.is_subscribed(self.claims.cache.keys(shard))]
        if self._claims_made == 1 and shards:
            alone = len(reachable) < len(shards) or not waiters.others_wait(self.waiter, topics)
            return ClaimFrom(shards, registering=not alone)
        if self._claims_made <= 2 and reachable:
            self._claims_made = 2
            return ClaimFrom(reachable, registering=True)
        if now >= self.until:
            return None
        self._claims_made = 0
        # A list that was not empty and gave nothing is being emptied by others.
        pause = CONTENDED_S if reachable else UNSUBSCRIBED_S if shards else waiters.sleep_s(topics, now)
        alarms = waiters.sleeps_denied(self.waiter, denied)
        for topic, at in denied.items():
            pause = min(pause, at - now + (0.0 if topic in alarms else BEHIND_S))
        return Sleep(min(pause, self.until - now, self.claims.hold_ends_in(now)))
