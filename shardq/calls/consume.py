"""claim, settle and extend. Used by the consumers, and by the relay."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from shardq.calls.answers import body, nothing
from shardq.calls.request import Call, Command, Word
from shardq.layout.keys import ShardKeys
from shardq.scripts import script

MAX_CLAIM = 1000
"""Ids of one script call."""

Verdict = Literal["lost", "replaced", "dead"]
"""What a settle has to say of an item that was not simply done."""


@dataclass(frozen=True, slots=True)
class Claimed:
    """One task out of a claim, its record still encoded."""

    id: str
    failures: int
    lapses: int
    record: bytes


@dataclass(frozen=True, slots=True)
class Claim:
    tasks: list[Claimed]
    left: list[int]
    """What is left in the ready list of each topic asked for."""
    crowds: list[int]
    """How many processes wait for each topic; 0 unless the caller does."""
    dropped: int
    """Entries that nobody can be given: stale ones, and those of tasks that have expired."""


def claim(
    keys: ShardKeys,
    epoch: int,
    shares: Mapping[str, int],
    *,
    max: int,
    lease_ms: int,
    token: str,
    max_attempts: Mapping[str, int] | None = None,
    waiter: str = "",
    patience_s: float | None = None,
    now_us: str = "",
) -> Call[Claim]:
    """At most ``max`` in all and ``shares`` of each topic, in their order; 0 only looks how much there is.

    ``max_attempts`` of a topic holds for tasks that bring no limit of their own, also should their lease run out; of
    the others the dispatcher's does. ``waiter`` is the process to be woken for each topic left empty. A lost answer
    costs a lease: the tasks come back at its deadline.
    """
    return Call(
        slot=keys.slot,
        words=[
            epoch,
            now_us,
            keys.bell,
            max,
            lease_ms,
            token,
            keys.wake(""),
            waiter,
            *_flat(shares, max_attempts or {}),
        ],
        decode=_claim,
        script=script("claim"),
        keys=(
            *(keys.meta, keys.task, keys.leased, keys.lease, keys.ghost, keys.dead, keys.why),
            *map(keys.ready, shares),
            *map(keys.waiting, shares),
        ),
        patience_s=patience_s,
    )


def _flat(shares: Mapping[str, int], limits: Mapping[str, int]) -> list[Word]:
    return [word for topic, share in shares.items() for word in (topic, share, limits.get(topic, ""))]


def _claim(answer: list[Any]) -> Claim:
    left, crowds, dropped, items = body(answer)
    fields = iter(items)
    tasks = [
        Claimed(id.decode(), failures, lapses, record)
        for id, failures, lapses, record in zip(fields, fields, fields, fields, strict=True)
    ]
    return Claim(tasks, left, crowds, dropped)


def length(keys: ShardKeys, topic: str, *, patience_s: float) -> Command[int]:
    """How much is ready."""
    return Command(slot=keys.slot, words=("LLEN", keys.ready(topic)), decode=int, patience_s=patience_s)


def wake(keys: ShardKeys, epoch: int, topic: str, *, now_us: str = "") -> Call[None]:
    """Passes a wake-up on. The same again wakes one more, who finds nothing: harmless."""
    return Call(
        slot=keys.slot,
        words=[epoch, now_us, keys.wake(""), topic],
        decode=nothing,
        script=script("wake"),
        keys=(keys.meta, keys.ready(topic), keys.waiting(topic)),
    )


@dataclass(frozen=True, slots=True)
class Ack:
    id: str
    token: str


@dataclass(frozen=True, slots=True)
class Retry:
    id: str
    token: str
    delay_ms: int
    reason: str
    max_attempts: int
    """For a task that brings no limit of its own."""


@dataclass(frozen=True, slots=True)
class Bury:
    id: str
    token: str
    reason: str


@dataclass(frozen=True, slots=True)
class Back:
    """Given back unbegun."""

    id: str
    token: str


Other = Retry | Bury | Back


def settle(
    keys: ShardKeys,
    epoch: int,
    acks: Sequence[Ack],
    others: Sequence[Other] = (),
    *,
    now_us: str = "",
) -> Call[Mapping[str, Verdict]]:
    """Answers by id; an id that is not in the answer was done as asked."""
    words: list[Word] = [epoch, now_us, keys.bell, len(acks)]
    for ack in acks:
        words += (ack.id, ack.token)
    for other in others:
        match other:
            case Retry():
                words += ("retry", other.id, other.token, other.delay_ms, other.reason, other.max_attempts)
            case Bury():
                words += ("bury", other.id, other.token, 0, other.reason, 0)
            case Back():
                words += ("back", other.id, other.token, 0, "", 0)
    ids = [*(ack.id for ack in acks), *(other.id for other in others)]

    def again() -> Call[Mapping[str, Verdict]]:
        # the lost answer may have done it: "not held under this token" then means done
        call = settle(keys, epoch, acks, others, now_us=now_us)
        call.decode = lambda answer: {id: v for id, v in _verdicts(ids, answer).items() if v != "lost"}
        call.resend = None
        return call

    return Call(
        slot=keys.slot,
        words=words,
        decode=lambda answer: _verdicts(ids, answer),
        script=script("settle"),
        keys=(keys.meta, keys.task, keys.leased, keys.lease, keys.due, keys.dead, keys.why),
        resend=again,
    )


def extend(
    keys: ShardKeys, epoch: int, held: Sequence[Ack], *, lease_ms: int, now_us: str = ""
) -> Call[Mapping[str, Verdict]]:
    """New deadlines, counted from now. The same again is harmless."""
    words: list[Word] = [epoch, now_us, keys.bell, lease_ms]
    for item in held:
        words += (item.id, item.token)
    ids = [item.id for item in held]
    return Call(
        slot=keys.slot,
        words=words,
        decode=lambda answer: _verdicts(ids, answer),
        script=script("extend"),
        keys=(keys.meta, keys.leased, keys.lease),
    )


def _verdicts(ids: Sequence[str], answer: list[Any]) -> dict[str, Verdict]:
    said = iter(body(answer))
    return {ids[position - 1]: word.decode() for position, word in zip(said, said, strict=True)}
