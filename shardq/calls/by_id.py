"""cancel, reschedule, requeue and get: commands and questions about one id, on one shard."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from shardq.calls.answers import Moving, body
from shardq.calls.request import Call
from shardq.layout.keys import ShardKeys
from shardq.model.task import Outcome, State
from shardq.scripts import script


def cancel(keys: ShardKeys, epoch: int, id: str, *, now_us: str = "") -> Call[Outcome]:
    call = Call(
        slot=keys.slot,
        words=[epoch, now_us, id],
        decode=_outcome,
        script=script("cancel"),
        keys=(keys.meta, keys.task, keys.due, keys.leased, keys.lease, keys.dead, keys.why, keys.ghost, keys.moved),
    )
    return _resent_as(call, {Outcome.GONE: Outcome.UNKNOWN})


def reschedule(keys: ShardKeys, epoch: int, id: str, due: int, *, now_us: str = "") -> Call[Outcome]:
    call = Call(
        slot=keys.slot,
        words=[epoch, now_us, keys.bell, id, due],
        decode=_outcome,
        script=script("reschedule"),
        keys=(keys.meta, keys.task, keys.due, keys.leased, keys.dead, keys.ghost, keys.moved),
    )
    return _resent_as(call, dict.fromkeys((Outcome.RUNNING, Outcome.DEAD, Outcome.GONE), Outcome.UNKNOWN))


def requeue(keys: ShardKeys, epoch: int, id: str, due: int, *, now_us: str = "") -> Call[Outcome]:
    call = Call(
        slot=keys.slot,
        words=[epoch, now_us, keys.bell, id, due],
        decode=_outcome,
        script=script("requeue"),
        keys=(keys.meta, keys.task, keys.due, keys.leased, keys.lease, keys.dead, keys.why, keys.moved),
    )
    unknown = dict.fromkeys((Outcome.READY, Outcome.RUNNING, Outcome.GONE), Outcome.UNKNOWN)
    return _resent_as(call, unknown | {Outcome.SCHEDULED: Outcome.REQUEUED})


def _resent_as(call: Call[Outcome], meanings: Mapping[Outcome, Outcome]) -> Call[Outcome]:
    """The same call, with the meanings of its outcomes after a lost answer: the first send may have been executed."""

    def decode(answer: list[Any]) -> Outcome:
        outcome = _outcome(answer)
        return meanings.get(outcome, outcome)

    call.resend = lambda: replace(call, decode=decode, resend=None)
    return call


def _outcome(answer: list[Any]) -> Outcome:
    word = body(answer)[0]
    if word == b"moving":
        raise Moving()
    return Outcome(word.decode())


@dataclass(frozen=True, slots=True)
class Found:
    """One task as stored; instant is its due time, deadline or death in ms."""

    state: State
    instant_ms: int | None
    failures: int
    lapses: int
    reason: str | None
    record: bytes


def get(keys: ShardKeys, epoch: int, id: str, *, now_us: str = "") -> Call[Found | None]:
    return Call(
        slot=keys.slot,
        words=[epoch, now_us, id],
        decode=_found,
        script=script("get"),
        keys=(keys.meta, keys.task, keys.due, keys.leased, keys.lease, keys.dead, keys.why, keys.moved),
    )


def _found(answer: list[Any]) -> Found | None:
    state, *rest = body(answer)
    if state == b"gone":
        return None
    if state == b"moving":
        raise Moving()
    instant, lease, reason, record = rest
    failures, lapses = (int(part) for part in lease.split(b":")[:2]) if lease else (0, 0)
    return Found(
        state=state.decode(),
        instant_ms=int(float(instant)) if instant else None,
        failures=failures,
        lapses=lapses,
        reason=reason.decode() if reason else None,
        record=record,
    )
