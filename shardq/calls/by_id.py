"""cancel, reschedule, requeue and get: commands and questions about one id, on one shard."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from shardq.calls.answers import Moving, body
from shardq.calls.request import Call
from shardq.layout.keys import ShardKeys
from shardq.model.task import Outcome, State


def cancel(keys: ShardKeys, epoch: int, id: str, *, now_us: str = "") -> Call[Outcome]:
    call = Call.of("cancel", keys, [epoch, now_us, id], _outcome)
    return _resent_as(call, {Outcome.GONE: Outcome.UNKNOWN})


def reschedule(keys: ShardKeys, epoch: int, id: str, due: int, *, now_us: str = "") -> Call[Outcome]:
    call = Call.of("reschedule", keys, [epoch, now_us, keys.bell, id, due], _outcome)
    return _resent_as(call, dict.fromkeys((Outcome.RUNNING, Outcome.DEAD, Outcome.GONE), Outcome.UNKNOWN))


def requeue(keys: ShardKeys, epoch: int, id: str, due: int, *, now_us: str = "") -> Call[Outcome]:
    call = Call.of("requeue", keys, [epoch, now_us, keys.bell, id, due], _outcome)
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
    token: str
    """The holder's; empty while nobody holds it."""
    reason: str | None
    record: bytes


def get(keys: ShardKeys, epoch: int, id: str, *, now_us: str = "") -> Call[Found | None]:
    """Reads one task. Raises Moving."""

    def decode(answer: list[Any]) -> Found | None:
        [found] = _founds(answer)
        if isinstance(found, Moving):
            raise found
        return found

    return Call.of("get", keys, [epoch, now_us, id], decode)


def state(keys: ShardKeys, epoch: int, id: str, *, now_us: str = "") -> Call[Outcome]:
    """Tells what a task is: scheduled, ready, running, dead or gone. Raises Moving."""

    def decode(answer: list[Any]) -> Outcome:
        word = body(answer)[0][0]
        if word == b"moving":
            raise Moving()
        return Outcome.RUNNING if word == b"leased" else Outcome(word.decode())

    return Call.of("get", keys, [epoch, now_us, id], decode)


def get_many(keys: ShardKeys, epoch: int, ids: Sequence[str], *, now_us: str = "") -> Call[list[Found | Moving | None]]:
    """Reads tasks of one shard, up to 1,000; of the first of them only, where they have more than 1 MiB."""
    return Call.of("get", keys, [epoch, now_us, *ids], _founds)


def _founds(answer: list[Any]) -> list[Found | Moving | None]:
    return [_found(*each) for each in body(answer)]


def _found(state: bytes, *rest: bytes) -> Found | Moving | None:
    if state == b"gone":
        return None
    if state == b"moving":
        return Moving()
    instant, lease, reason, record = rest
    failures, lapses, _, token = lease.split(b":", 3) if lease else (b"0", b"0", b"", b"")
    return Found(
        state=state.decode(),  # type: ignore[arg-type]  # the contract of the script
        instant_ms=int(float(instant)) if instant else None,
        failures=int(failures),
        lapses=int(lapses),
        token=token.decode(),
        reason=reason.decode(errors="backslashreplace") if reason else None,
        record=record,
    )
