"""The fleet-wide rate limiter (a token bucket) and concurrency limiter, as one consumer uses it: permits are asked for
before a claim, and given back when a lease ends. Topics without limits cost nothing.

A permit belongs to a lease, whose token is its name. The consumer remembers none: whoever settles or extends a delivery
tells by its token. A permit that nobody gives back lapses after its lease.
"""

from __future__ import annotations

import logging
import operator
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from shardq.core.calls import consume
from shardq.core.calls.consume import Claim, Leased, Permit
from shardq.core.calls.request import Call
from shardq.core.consumer.claim_planner import Denial, patience_s
from shardq.core.consumer.waiter_registry import Waiter
from shardq.core.consumer.wakeups import Wakeups
from shardq.core.layout.topology import Limit, Stamp, UnreadableTopology
from shardq.core.model.ids import topic_of
from shardq.core.operation import Many, Operation, bounded
from shardq.core.topology_cache import TopologyCache
from shardq.core.topology_recovery import REFUSALS
from shardq.core.topology_upkeep import refresh
from shardq.errors import ShardqError, Unanswered, Unavailable

log: logging.Logger = logging.getLogger("shardq.consumer")

T = TypeVar("T")

AWAY_S = 1.0  # after a control slot has not answered in time, it is asked for permits again after so long

LATE_S = consume.MARGIN_MS / 1000
"""A claim, or an extension, that takes longer has its permits renewed: leases may have begun too late for them."""

LONGEST_DENIAL_S = 5.0
LONGEST_UNHEARD_S = 1.0
"""A denial counts for so long at most, also of an hourly rate: where the process is woken when a permit goes back, and
where it is not, and may not have heard of a new limit.
"""

MOMENT_S = 0.02
"""A denial that is over so soon is not ended by a permit that goes back: most of those that go back under a rate come
too early.
"""

UNREADABLE_S = 1.0
"""After so long permits are asked for again when the newest topology, which may have other limits, can't be read."""

NamesByTopic = Mapping[str, Sequence[str]]

_token_of = operator.attrgetter("token")


def permits_of(items: Sequence[Leased]) -> dict[str, list[str]]:
    """Topic → the names of the permits that these leases have. Most have none."""
    by_topic: dict[str, list[str]] = {}
    # Those of one claim have one token, and every ack comes here.
    if consume.MARK in "".join(set(map(_token_of, items))):
        for item in items:
            if consume.MARK in item.token:
                by_topic.setdefault(topic_of(item.id), []).append(item.token)
    return by_topic


@dataclass(slots=True)
class Permits:
    """The permits that one claim got, as far as they belong to no lease."""

    numbered: set[str] = field(default_factory=set)
    """Topics whose permits go with leases: those with a concurrency."""
    names: dict[str, list[str]] = field(default_factory=dict)
    """Topic → names of permits."""

    def granted(self, topic: str, limit: Limit, token: str, permit: Permit) -> Permit:
        """Notes granted permits. ``token`` is that of the claim."""
        if permit.granted:
            if limit.concurrency is not None:
                self.numbered.add(topic)
            names = [consume.permit_name(token, number) for number in range(1, permit.granted + 1)]
            self.names.setdefault(topic, []).extend(names)
        return permit

    def used(self, claim: Claim) -> None:
        """Takes out the permits of what was given. Of a topic with a rate alone any will do."""
        for position, id in enumerate(claim.ids):
            if names := self.names.get(topic_of(id)):
                names.remove(claim.tokens.get(position, names[-1]))

    def take(self) -> dict[str, list[str]]:
        """Takes all that are left, by topic."""
        names, self.names = self.names, {}
        return {topic: left for topic, left in names.items() if left}


def noting(call: Call[T], note: Callable[[T], T]) -> Call[T]:
    """Makes the call give its answer to ``note`` as soon as it arrives, even if the caller has left."""
    decode = call.decode

    def noted(answer: Any) -> T:
        return note(decode(answer))

    call.decode, call.finish_on_interrupt = noted, True
    return call


@dataclass(slots=True)
class RateLimiter:
    """The permits of one consumer. Denials are those of its engine: what one was denied, none asks for."""

    cache: TopologyCache
    lease_ms: int
    denials: dict[tuple[str, bool], Denial]
    wakeups: Wakeups | None = None
    """None until the consumer waits for the first time."""
    _is_cut_off: bool = False
    """True while the control slot does not answer."""

    def granted(
        self,
        wants: Mapping[str, int],
        token: str,
        permits: Permits,
        waiter: Waiter | None = None,
        within_s: float | None = None,
    ) -> Operation[dict[str, int]]:
        """Asks for permits. Returns how many of each topic were granted. ``token`` is that of the claim. ``waiter``:
        the process is woken when a permit goes back, if none is granted now. ``within_s``: the seconds after which
        there are none, where the control slot does not answer; None: that is an error.
        """
        grants = dict.fromkeys(wants, 0)
        asked: dict[str, tuple[Limit, str, bool, int]] = {}
        calls: dict[str, Call[Permit]] = {}
        now = time.monotonic()
        topology = self.cache.topology
        for topic, want in wants.items():
            limit = topology.limits.get(topic)
            process, others_wait = "", False
            if limit is None or not want:
                continue
            if waiter is not None and self.wakeups is not None:
                process, others_wait = self.wakeups.waiting_for_permits(waiter, topic)
            if self._again_at(topic, bool(process)) > now:
                continue
            wakeups = self._wakeups_of(topic)
            call = consume.permit(
                self.cache.control,
                topology.stamp,
                topic,
                limit,
                want,
                lease_ms=self.lease_ms,
                token=token,
                waiter=process,
                others_wait=others_wait,
            )
            if within_s is not None:
                call.retry_for_s = call.within_s = within_s
            denial = self.denials.get((topic, bool(process)))
            if denial is not None and denial.limit == limit:
                # The process was woken for a permit that went back: one consumer asks for it.
                self.denials[topic, bool(process)] = denial._replace(wakeups=wakeups)
            asked[topic] = limit, process, others_wait, wakeups
            calls[topic] = noting(call, partial(permits.granted, topic, limit, token))
        if not calls:
            return grants
        try:
            answers = yield Many(calls)
        except BaseException:
            for topic in calls:
                self._forget(topic)
            raise
        refused, error = list[str](), None
        for topic, permit in answers:
            limit, process, others_wait, wakeups = asked[topic]
            if isinstance(permit, REFUSALS):
                self._forget(topic)
                refused.append(topic)
                continue
            if isinstance(permit, Unavailable | Unanswered) and within_s is not None:
                self._unheard(permit)
                permit = Permit(0, round((within_s + AWAY_S) * 1000))
            elif isinstance(permit, ShardqError):
                self._forget(topic)
                error = error or permit
                continue
            else:
                self._heard()
            grants[topic] = permit.granted
            if permit.granted:
                # The server wakes this process for what is left, if it knows that others wait.
                if not others_wait or limit.concurrency is None or limit.rate is not None:
                    self._forget(topic)
                if self.wakeups is not None:
                    self.wakeups.waiters.pass_alarm(topic, waiter, wake=limit.rate is not None)
            else:
                self._deny(topic, bool(process), Denial(limit, wakeups, now + permit.again_ms / 1000))
        if error is not None:
            raise error
        if refused and not (yield from self._learnt()):
            for topic in refused:
                limit, process, _, wakeups = asked[topic]
                self._deny(topic, bool(process), Denial(limit, wakeups, now + UNREADABLE_S))
        return grants

    def _learnt(self) -> Operation[bool]:
        """Refreshes the topology: the limits may have changed. There are no permits now, and the next claim knows the
        new limits. Returns False if these can't be read.
        """
        try:
            yield from refresh(self.cache)
        except UnreadableTopology:  # which the dispatcher tells: topics without limits go on
            return False
        return not self.cache.awaits_repair

    def _unheard(self, why: ShardqError) -> None:
        if not self._is_cut_off:
            self._is_cut_off = True
            log.warning("no permits of limited topics can be had, claiming the others: %s", why)

    def _heard(self) -> None:
        if self._is_cut_off:
            self._is_cut_off = False
            log.info("permits of limited topics can be had again")

    def _deny(self, topic: str, is_woken: bool, denial: Denial) -> None:
        longest_s = LONGEST_DENIAL_S if is_woken else LONGEST_UNHEARD_S
        again_at = min(denial.again_at, time.monotonic() + longest_s)
        self.denials[topic, is_woken] = denial._replace(again_at=again_at)

    def _forget(self, topic: str) -> None:
        for is_woken in (True, False):
            self.denials.pop((topic, is_woken), None)

    def denied(self, waiter: Waiter | None = None) -> dict[str, float]:
        """Returns the topics that had no permit left, as far as that still says anything → the (monotonic) time at
        which ``granted`` asks again for the same ``waiter``.
        """
        is_woken = waiter is not None and self.wakeups is not None and self.wakeups.hears_permits
        topics = [topic for topic, of_woken in list(self.denials) if of_woken == is_woken]
        return {topic: at for topic in topics if (at := self._again_at(topic, is_woken))}

    def forget_denials(self, topics: Iterable[str]) -> None:
        """Makes the next claim ask for the permits of these topics again."""
        for topic in topics:
            self._forget(topic)

    def _again_at(self, topic: str, is_woken: bool) -> float:
        denial = self.denials.get((topic, is_woken))
        if denial is None or denial.limit != self.cache.topology.limits.get(topic):
            return 0.0
        ended = denial.wakeups != self._wakeups_of(topic) and denial.again_at > time.monotonic() + MOMENT_S
        return 0.0 if ended else denial.again_at

    def _wakeups_of(self, topic: str) -> int:
        return 0 if self.wakeups is None else self.wakeups.waiters.permit_wakeups(topic)

    @property
    def _epoch(self) -> Stamp:
        return self.cache.topology.stamp

    def unused(self, permits: Permits) -> Operation[None]:
        """Gives back the permits that belong to no lease. They do not count for the rate."""
        yield from self._each(
            permits.take(),
            lambda topic, names: consume.release(self.cache.control, self._epoch, topic, names, unused=len(names)),
        )

    def released(self, permits: NamesByTopic) -> Operation[None]:
        """Gives back the permits of leases that were settled or lost. Errors are ignored: permits lapse."""
        yield from self._each(
            permits, lambda topic, names: consume.release(self.cache.control, self._epoch, topic, names, unused=0)
        )

    def renewed(self, permits: NamesByTopic, lease_ms: int) -> Operation[tuple[set[str], bool]]:
        """Lets permits lapse later. Returns the names of those whose places are taken, and False if some could not be
        renewed now.
        """
        known = self.cache.topology.limits
        results = yield from self._each(
            permits,
            lambda topic, names: consume.renew(
                self.cache.control, self._epoch, topic, known.get(topic, Limit()).concurrency, names, lease_ms=lease_ms
            ),
        )
        answered = [taken for taken in results if not isinstance(taken, ShardqError)]
        return {name for taken in answered for name in taken}, len(answered) == len(results)

    def _each(
        self, by_topic: NamesByTopic, make: Callable[[str, Sequence[str]], Call[T]]
    ) -> Operation[list[T | ShardqError]]:
        # Leases run meanwhile, and what is not given back lapses: a silent control slot holds nobody up.
        calls = [
            make(topic, names[at : at + consume.MAX_PERMITS])
            for topic, names in by_topic.items()
            for at in range(0, len(names), consume.MAX_PERMITS)
        ]
        return (yield from bounded(_results(calls), patience_s(self.lease_ms / 1000))) if calls else []


def _results(calls: Sequence[Call[T]]) -> Operation[list[T | ShardqError]]:
    return [result for _, result in (yield Many(dict(enumerate(calls))))]
