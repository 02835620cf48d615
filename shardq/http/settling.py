"""Settling by receipts: what a request may ask for, and the trips that do it. Called by ``work``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Literal, TypeVar

import msgspec
from msgspec import Meta

from shardq.core.calls.by_id import Found, get_many
from shardq.core.calls.consume import MAX_CLAIM, SettleGiveBack
from shardq.core.consumer.claim_state import Claims
from shardq.core.consumer.policy import Bury, Hold, Retry, Snooze
from shardq.core.consumer.settling import Settlement, by_shard, noted, settle_each, settlement_after
from shardq.core.layout.topology import Topology
from shardq.core.model.record import last_reason
from shardq.core.model.task import Delivery
from shardq.core.operation import Operation
from shardq.core.topology_cache import TopologyCache
from shardq.core.topology_recovery import call_shards
from shardq.core.topology_upkeep import refresh
from shardq.errors import InvalidOption, ShardqError, Unanswered

T = TypeVar("T")

MOST_RECEIPTS = 1000
"""In one request: what one script settles."""

Do = Literal["ack", "retry", "bury", "snooze", "hold", "back"]

_TAKES: Mapping[Do, tuple[str, ...]] = {
    "ack": (),
    "retry": ("delay", "reason"),
    "bury": ("reason",),
    "snooze": ("delay",),
    "hold": ("delay",),
    "back": (),
}
_NEEDS: Mapping[Do, str] = {"bury": "reason", "snooze": "delay", "hold": "delay"}


class SettleItem(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What becomes of one claimed task. ``ack``: it is done. ``retry``: it has failed, and comes again after ``delay``
    seconds, or after a pause that grows with each attempt; without attempts left it is dead. ``bury``: it is dead.
    ``snooze``: it comes again after ``delay``, and no attempt counts. ``hold``: likewise, and its key waits, or its
    topic if it has none. ``back``: it was not begun.
    """

    receipt: str
    do: Do
    delay: float | None = None
    reason: str | None = None


SettleBody = Annotated[list[SettleItem], Meta(min_length=1, max_length=MOST_RECEIPTS)]


class Settled(msgspec.Struct, frozen=True):
    """What became of the receipts."""

    done: int
    """Receipts that were settled as asked, with those in ``dead``."""
    lost: list[str]
    """Receipts whose leases are no longer held: the task was settled before, or came back when its lease ran out."""
    dead: list[str]
    """Receipts of tasks that were to be tried again, and had no attempt left."""
    failed: list[str]
    """Receipts that a server did not take, and of which nothing was written: send them again."""
    unknown: list[str]
    """Receipts that were sent to a server, and not answered: send them again, ``lost`` then means that it was done."""
    error: str = ""
    """Why some have failed, or are unknown."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """One lease of a request, and what becomes of it."""

    receipt: str
    lease: Delivery
    item: SettleItem
    decision: Retry | Bury | Snooze | None
    """None: it is acked, or given back."""


@dataclass(slots=True)
class Verdicts:
    """What became of the leases of a request, by receipt."""

    lost: list[str] = field(default_factory=list)
    dead: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    done: list[Wanted] = field(default_factory=list)
    error: ShardqError | None = None

    def answer(self) -> Settled:
        """The answer to the client. Raises the error if nothing was settled by any server: Unanswered, if the effect on
        any receipt is unknown.
        """
        if self.error is not None and not self.done and not self.lost:
            raise self.error
        said = "" if self.error is None else str(self.error)
        return Settled(len(self.done), self.lost, self.dead, self.failed, self.unknown, said)

    def note_error(self, receipt: str, error: ShardqError) -> None:
        is_unknown = isinstance(error, Unanswered)
        (self.unknown if is_unknown else self.failed).append(receipt)
        if self.error is None or (is_unknown and not isinstance(self.error, Unanswered)):
            self.error = error


def decision_of(item: SettleItem, place: int) -> Retry | Bury | Snooze | None:
    """Checks an item. ``place``: its number in the request, for errors."""
    takes = _TAKES[item.do]
    for name in ("delay", "reason"):
        given = getattr(item, name) is not None
        if given and name not in takes:
            only = f"give {' and '.join(takes)} at most" if takes else "leave it out"
            raise InvalidOption(f"[{place}]: {item.do!r} takes no {name}; {only}")
        if not given and _NEEDS.get(item.do) == name:
            raise InvalidOption(f"[{place}]: {item.do!r} needs a {name}; give it")
    match item.do:
        case "retry":
            return Retry(item.delay) if item.reason is None else Retry(item.delay, item.reason)
        case "bury":
            return Bury(item.reason or "")
        case "snooze":
            return Snooze(item.delay or 0.0)
        case "hold":
            return Hold(item.delay or 0.0)
    return None


def settle_wanted(claims: Claims, wanted: Sequence[Wanted]) -> Operation[Verdicts]:
    """Settles leases. One that names a task which is here twice, as it was claimed again, waits for the first."""
    verdicts = Verdicts()
    for some in rounds(wanted, lambda each: each.lease.id):
        known = yield from _in_span(claims.cache, [each.lease for each in some])
        verdicts.lost += (each.receipt for each in some if each.lease.shard not in known)
        yield from _settle(claims, [each for each in some if each.lease.shard in known], verdicts)
    return verdicts


def rounds(items: Iterable[T], id_of: Callable[[T], str]) -> list[list[T]]:
    """Divides items so that no two of a part are of one task: servers' answers come by ids."""
    seen, parts = Counter[str](), list[list[T]]()
    for each in items:
        number = seen[id_of(each)]
        seen[id_of(each)] += 1
        if number == len(parts):
            parts.append([])
        parts[number].append(each)
    return parts


def _in_span(cache: TopologyCache, leases: Iterable[Delivery]) -> Operation[range]:
    """The shards that there are. Asks for the topology if these leases name others: another gateway may know more."""
    if max(lease.shard for lease in leases) >= len(cache.topology.span()):
        yield from refresh(cache)
    return cache.topology.span()


def _settle(claims: Claims, wanted: Sequence[Wanted], verdicts: Verdicts) -> Operation[None]:
    if not wanted:
        return
    topology = claims.cache.topology
    pasts, errors = yield from _pasts(
        claims.cache, [each.lease for each in wanted if each.lease.failures and _tells_past(each, topology)]
    )
    settlements = by_shard(
        (each.lease, _settlement(each, pasts.get(each.lease.id, ""))) for each in wanted if each.lease.id not in errors
    )
    statuses, _, refused = yield from settle_each(claims, settlements)
    errors |= refused
    for each in wanted:
        id = each.lease.id
        if (error := errors.get(id)) is not None:
            verdicts.note_error(each.receipt, error)
            continue
        status = statuses.get(id)
        if status == "lost" or (status == "replaced" and each.item.do != "ack"):
            verdicts.lost.append(each.receipt)
            continue
        verdicts.done.append(each)
        if status == "dead":
            verdicts.dead.append(each.receipt)


def _tells_past(wanted: Wanted, topology: Topology) -> bool:
    """True if the earlier failures of the task are written again: with the next one, or with its end."""
    if wanted.item.do == "ack":
        return bool(topology.ends_rule and topology.ends_age_ms(wanted.lease.topic))
    return wanted.item.do in ("retry", "bury")


def _settlement(wanted: Wanted, past: str) -> Settlement:
    lease = msgspec.structs.replace(wanted.lease, past=past) if past else wanted.lease
    if wanted.item.do == "back":
        return SettleGiveBack(lease.id, lease.token)
    if wanted.decision is None:
        return lease
    return noted(settlement_after(lease, wanted.decision), past)


def _pasts(
    cache: TopologyCache, leases: Sequence[Delivery]
) -> Operation[tuple[dict[str, str], dict[str, ShardqError]]]:
    """Reads why the last attempts of these failed, with those before: a consumer has that in its delivery. Returns it
    by id, and by id the errors of shards that did not answer.
    """
    pasts, errors = dict[str, str](), dict[str, ShardqError]()
    left: dict[int, list[str]] = {}
    for lease in leases:
        left.setdefault(lease.shard, []).append(lease.id)
    while left:
        requests = {shard: (cache.keys(shard), partial(get_many, ids=ids[:MAX_CLAIM])) for shard, ids in left.items()}
        for shard, found in (yield from call_shards(cache, requests)).items():
            ids = left.pop(shard)
            if isinstance(found, ShardqError):
                errors |= dict.fromkeys(ids, found)
                continue
            for id, each in zip(ids, found, strict=False):
                if isinstance(each, Found):
                    pasts[id] = last_reason(each.record) or ""
            if found and (rest := ids[len(found) :]):
                left[shard] = rest
    return pasts, errors
