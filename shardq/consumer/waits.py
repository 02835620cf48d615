"""What a waiting claim does next, as a value: look, look and leave the name, or sleep. Pure; the twins obey.

Going idle takes two looks: the first without a name, because a name left while tasks are found elsewhere would draw
wake-ups that nobody has time for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from shardq.consumer.desk import Waiter
from shardq.consumer.operations import Claims
from shardq.consumer.room import Room

DEAF_S = 0.25
"""Between two looks at shards whose wake channel is not confirmed."""


CONTENDED_S = 0.01
"""Between two looks at lists that others are emptying."""


class Look(NamedTuple):
    shards: Sequence[int]
    naming: bool


class Lengths(NamedTuple):
    """To be asked of the lists of these shards: those that are not empty are looked at next."""

    shards: Sequence[int]


class Sleep(NamedTuple):
    seconds: float


@dataclass(slots=True)
class Waits:
    """One waiting claim, from its entry to its end."""

    claims: Claims
    room: Room
    waiter: Waiter
    until: float
    _looks: int = 0
    """Since the last sleep."""

    def step(self, now: float) -> Look | Lengths | Sleep | None:
        """After a look that found nothing, or a sleep. None: the time is over, or other topics are wanted."""
        if self.waiter.topics != self.claims.wanted_topics():
            return None
        desk = self.room.desk
        desk.ask(self.waiter)
        topics = self.claims.open_topics()
        span = self.claims.atlas.topology.span()
        doubt = None if self._looks else desk.doubt(topics, now)
        if doubt == "lengths":
            return Lengths(span)
        if doubt == "whole":
            # we were idle already: one look, which leaves the names again
            self._looks = 1
            shards: Sequence[int] = span
        else:
            shards = desk.unnamed(span, topics) if topics else []
        hears = [shard for shard in shards if self.room.hears(self.claims.atlas.keys(shard))]
        self._looks += 1
        if self._looks == 1 and shards:
            return Look(shards, naming=False)
        if self._looks <= 2 and hears:
            self._looks = 2
            return Look(hears, naming=True)
        if now >= self.until:
            return None
        self._looks = 0
        # a list that was not empty and gave nothing is being emptied by others
        pause = self._contended_s(now) if hears else DEAF_S if shards else desk.trusted_s(topics, now)
        return Sleep(min(pause, self.until - now))

    def _contended_s(self, now: float) -> float:
        """Until a limited topic may be had again, where that is what stands in the way."""
        again = [at - now for at in self.claims.permits.denied.values() if at > now]
        return min(again) if again else CONTENDED_S
