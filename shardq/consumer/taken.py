"""Notes what one claim was given so far, as the answers come, so that it can be given back when its caller is gone.

A caller goes by the cancellation of its asyncio task, by Ctrl-C, or with an error of a later trip.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from shardq.calls.consume import Ack, Back, Claim
from shardq.calls.limits import Permit
from shardq.calls.request import Call

T = TypeVar("T")

Settlement = dict[int, tuple[list[Ack], list[Back]]]


@dataclass(slots=True)
class Taken:
    """The notes of one claim. The operation writes them, and the end of its caller reads them."""

    caller_left: bool = False
    """Nothing more is to be asked for, and what comes goes back."""
    _leases: list[tuple[int, str, Claim]] = field(default_factory=list)
    _permits: dict[str, list[str]] = field(default_factory=dict)
    """Topic → names of permits that belong to no delivery yet."""

    def leased(self, shard: int, token: str, claim: Claim) -> Claim:
        """An answer of one shard."""
        if claim.tasks:
            self._leases.append((shard, token, claim))
        return claim

    def permitted(self, topic: str, prefix: str, permit: Permit) -> Permit:
        """An answer to the asking for permits, which have numbers from 1 behind their prefix."""
        if permit.granted:
            names = [f"{prefix}{number}" for number in range(1, permit.granted + 1)]
            self._permits.setdefault(topic, []).extend(names)
        return permit

    def names(self, topic: str, count: int) -> list[str]:
        """So many permits of a topic, which belong to deliveries from now on."""
        names = self._permits.get(topic, [])
        taken = names[:count]
        del names[:count]
        return taken

    def leases(self) -> Settlement:
        """All that was leased, to be given back unbegun; noted no longer."""
        leases, self._leases = self._leases, []
        by_shard: Settlement = {}
        for shard, token, claim in leases:
            by_shard.setdefault(shard, ([], []))[1].extend(Back(task.id, token) for task in claim.tasks)
        return by_shard

    def permits(self) -> dict[str, list[str]]:
        """All permits without a delivery, by topic; noted no longer."""
        permits, self._permits = self._permits, {}
        return {topic: names for topic, names in permits.items() if names}


def told(call: Call[T], note: Callable[[T], T]) -> Call[T]:
    """The call, whose answer goes to ``note`` as soon as it is there, also when the caller is not."""
    decode = call.decode

    def noted(answer: Any) -> T:
        return note(decode(answer))

    call.decode, call.hear_out = noted, True
    return call
