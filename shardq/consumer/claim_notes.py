"""Notes what one claim got so far, answer by answer, so that it can be given back when the caller has left.

A caller leaves when its asyncio task is cancelled, by Ctrl-C, or with an error of a later trip.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from shardq.calls.consume import Claim, Leased, SettleGiveBack
from shardq.calls.limits import Permit
from shardq.calls.request import Call

T = TypeVar("T")

GiveBacksByShard = dict[int, tuple[list[Leased], list[SettleGiveBack]]]


@dataclass(slots=True)
class ClaimNotes:
    """The notes of one claim. The operation writes them; whoever ends the claim reads them."""

    caller_left: bool = False
    """True once nothing more is to be claimed, and what still comes is to be given back."""
    _leases: list[tuple[int, str, Claim]] = field(default_factory=list)
    _permits: dict[str, list[str]] = field(default_factory=dict)
    """Topic → names of permits that belong to no delivery yet."""

    def leased(self, shard: int, token: str, claim: Claim) -> Claim:
        """Notes the answer of one shard."""
        if claim.ids:
            self._leases.append((shard, token, claim))
        return claim

    def permitted(self, topic: str, prefix: str, permit: Permit) -> Permit:
        """Notes granted permits. Their names are the prefix and numbers from 1."""
        if permit.granted:
            names = [f"{prefix}{number}" for number in range(1, permit.granted + 1)]
            self._permits.setdefault(topic, []).extend(names)
        return permit

    def names(self, topic: str, count: int) -> list[str]:
        """Takes the names of ``count`` permits, which belong to deliveries from now on."""
        names = self._permits.get(topic, [])
        notes = names[:count]
        del names[:count]
        return notes

    def leases(self) -> GiveBacksByShard:
        """Takes all that was leased, to be given back unbegun."""
        leases, self._leases = self._leases, []
        by_shard: GiveBacksByShard = {}
        for shard, token, claim in leases:
            by_shard.setdefault(shard, ([], []))[1].extend(SettleGiveBack(id, token) for id in claim.ids)
        return by_shard

    def permits(self) -> dict[str, list[str]]:
        """Takes all permits that belong to no delivery, by topic."""
        permits, self._permits = self._permits, {}
        return {topic: names for topic, names in permits.items() if names}


def noting(call: Call[T], note: Callable[[T], T]) -> Call[T]:
    """Makes the call give its answer to ``note`` as soon as it arrives, even if the caller has left."""
    decode = call.decode

    def noted(answer: Any) -> T:
        return note(decode(answer))

    call.decode, call.finish_on_interrupt = noted, True
    return call
