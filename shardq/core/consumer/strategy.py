"""Decides what a waiting claim does next: claim, claim and register, ask for lengths, or sleep. No I/O: both consumers
carry it out.

A claim registers its process only after a first try found nothing: a process that is registered while it finds tasks
elsewhere is woken for tasks that it has no time for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from shardq.core.consumer.claims import Claims
from shardq.core.consumer.waiters import Waiter
from shardq.core.consumer.wakeups import Wakeups

UNSUBSCRIBED_S = 0.25
"""The sleep between two claims from shards whose wake channel is not subscribed."""


CONTENDED_S = 0.01
"""The sleep between two claims from lists that others are emptying."""


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
    """One waiting claim, from its beginning to its end."""

    claims: Claims
    wakeups: Wakeups
    waiter: Waiter
    until: float
    _claims_made: int = 0
    """Claims since the last sleep."""

    def step(self, now: float) -> ClaimFrom | AskLengths | Sleep | None:
        """The next step, after a claim that found nothing or a sleep. None: the time is over, or other topics are
        wanted now.
        """
        if self.waiter.topics != self.claims.wanted_topics():
            return None
        waiters = self.wakeups.waiters
        waiters.ask(self.waiter)
        self.waiter.denied = ()
        topics = self.claims.open_topics(self.claims.cache.topology)
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
        self._claims_made += 1
        if self._claims_made == 1 and shards:
            return ClaimFrom(shards, registering=False)
        reachable = [shard for shard in shards if self.wakeups.is_subscribed(self.claims.cache.keys(shard))]
        if self._claims_made <= 2 and reachable:
            self._claims_made = 2
            return ClaimFrom(reachable, registering=True)
        if now >= self.until:
            return None
        self._claims_made = 0
        denied = self.waiter.denied = {t: at for t, at in self.claims.limiter.denied().items() if at > now}
        # A list that was not empty and gave nothing is being emptied by others, if no limit stands in the way.
        contended_s = min(denied.values()) - now if denied else CONTENDED_S
        pause = contended_s if reachable else UNSUBSCRIBED_S if shards else waiters.sleep_s(topics, now)
        return Sleep(min(pause, self.until - now))
