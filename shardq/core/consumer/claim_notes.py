"""Notes what one claim got so far, answer by answer, so that it can be given back when the caller has left.

A caller leaves when its asyncio task is cancelled, by Ctrl-C, or with an error of a later trip.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from shardq.core.calls.consume import Claim, Leased, Permit, SettleGiveBack, permit_name
from shardq.core.calls.request import Call
from shardq.core.layout.topology import Limit
from shardq.core.model.ids import topic_of

T = TypeVar("T")

GiveBacksByShard = dict[int, tuple[list[Leased], list[SettleGiveBack]]]


@dataclass(slots=True)
class ClaimNotes:
    """The notes of one claim. The operation writes them; whoever ends the claim reads them."""

    caller_left: bool = False
    """True once nothing more is to be claimed, and what still comes is to be given back."""
    _leases: list[tuple[int, str, Claim]] = field(default_factory=list)
    _permits: dict[str, list[str]] = field(default_factory=dict)
    """Topic → names of permits that belong to no lease."""
    numbered: set[str] = field(default_factory=set)
    """Topics whose permits go with leases: those with a concurrency."""

    def leased(self, shard: int, token: str, claim: Claim) -> Claim:
        """Notes the answer of one shard."""
        if claim.ids:
            self._leases.append((shard, token, claim))
            if self._permits:
                self._use_permits(claim)
        return claim

    def permitted(self, topic: str, limit: Limit, token: str, permit: Permit) -> Permit:
        """Notes granted permits. ``token`` is that of the claim."""
        if permit.granted:
            if limit.concurrency is not None:
                self.numbered.add(topic)
            names = [permit_name(token, number) for number in range(1, permit.granted + 1)]
            self._permits.setdefault(topic, []).extend(names)
        return permit

    def _use_permits(self, claim: Claim) -> None:
        """Takes out the permits of what was given. Of a topic with a rate alone any will do."""
        for position, id in enumerate(claim.ids):
            if names := self._permits.get(topic_of(id)):
                names.remove(claim.tokens.get(position, names[-1]))

    def leases(self) -> GiveBacksByShard:
        """Takes all that was leased, to be given back unbegun."""
        leases, self._leases = self._leases, []
        by_shard: GiveBacksByShard = {}
        for shard, token, claim in leases:
            by_shard.setdefault(shard, ([], []))[1].extend(
                SettleGiveBack(id, claim.tokens.get(position, token)) for position, id in enumerate(claim.ids)
            )
        return by_shard

    def permits(self) -> dict[str, list[str]]:
        """Takes all permits that belong to no lease, by topic."""
        permits, self._permits = self._permits, {}
        return {topic: names for topic, names in permits.items() if names}


def noting(call: Call[T], note: Callable[[T], T]) -> Call[T]:
    """Makes the call give its answer to ``note`` as soon as it arrives, even if the caller has left."""
    decode = call.decode

    def noted(answer: Any) -> T:
        return note(decode(answer))

    call.decode, call.finish_on_interrupt = noted, True
    return call
