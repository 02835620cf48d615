"""push, push_unique, cancel, reschedule, requeue and get: what is said to one shard about tasks by their ids."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

from shardq.core.calls.request import NOW, Call, Epoch, Moving, Word, body, with_ends
from shardq.core.layout.keys import ShardKeys
from shardq.core.layout.lanes import have_keys
from shardq.core.layout.words import id_of, number_of, text_of
from shardq.core.model.attempts import parted
from shardq.core.model.ids import topics_of
from shardq.core.model.record import last_reason
from shardq.core.model.task import Attempt, Outcome, State
from shardq.core.scripts import script
from shardq.errors import Conflict

Answer = str
"""The outcome of one task: pushed, replaced, seen, refused:seen, kept:STATE, refused:STATE, moving or elsewhere."""

Resent = Literal["0", "1"]

Earlier = Literal["0", "1", "2"]
"""0: the shard where the id belongs. 1: a shard that may have the id from an earlier number of shards. 2: the same,
after what was moving out of it was put where it goes.
"""


def push(keys: ShardKeys, epoch: Epoch, tasks: list[Word]) -> Call[list[str]]:
    """Stores tasks given as id, due, record, id, due, record, … Returns the ids that were already taken."""
    ids: list[str] = tasks[::3]  # type: ignore[assignment]  # the first word of each task is its id
    topics = topics_of(ids)
    # By hand, as every push goes through here.
    chosen = script("push", keys.keyed and have_keys(ids))
    return Call(
        keys.slot,
        [epoch, NOW, keys.bell, len(topics), *topics, *tasks],
        _collided,
        script=chosen,
        keys=chosen.named(keys),
        resend=lambda: _push_again(keys, epoch, tasks),
    )


def unique(tasks: Sequence[Word]) -> list[Word]:
    """Makes words of push_unique from words of push."""
    words: list[Word] = []
    for at in range(0, len(tasks), 3):
        words += (*tasks[at : at + 3], "keep", 0)
    return words


def push_unique(
    keys: ShardKeys,
    epoch: Epoch,
    tasks: Sequence[Word],
    *,
    resent: Resent = "0",
    earlier: Earlier = "0",
) -> Call[list[Answer]]:
    """Stores tasks given as id, due, record, conflict rule, dedup window in ms, … Returns one answer for each.

    To a dedup window ``-MS`` may be added, as in ``0-600000``: for so long after the last send resends know of this
    push, and no other pushes do. To that ``-AT`` may be added, an instant in ms after which it is refused.
    ``elsewhere`` is the answer of a shard that may have the id from ``earlier`` and has not.
    """
    return Call.of(
        "push_unique",
        keys,
        [epoch, NOW, keys.bell, resent, earlier, *tasks],
        answers,
        ids=tasks[::5],  # type: ignore[arg-type]  # the first word of each task is its id
        resend=lambda: push_unique(keys, epoch, tasks, resent="1", earlier=earlier),
    )


def _push_again(keys: ShardKeys, epoch: Epoch, tasks: list[Word]) -> Call[list[str]]:
    # After a lost answer the ids may be ours already: whatever is stored under them is what we sent.
    return Call.of(
        "push_unique",
        keys,
        [epoch, NOW, keys.bell, "1", "0", *unique(tasks)],
        lambda answer: answers(answer) and [],
        ids=tasks[::3],  # type: ignore[arg-type]  # as in push
    )


def _collided(answer: list[Any]) -> list[str]:
    if answer[0] == b"collided":
        return list(map(id_of, answer[1:]))
    return [] if answer[0] == b"ok" else body(answer)


def answers(answer: list[Any]) -> list[Answer]:
    """The answers of push_unique and adopt."""
    return [word.decode() for word in body(answer)]


def cancel(
    keys: ShardKeys, epoch: Epoch, id: str, *, once: str = "", earlier: Earlier = "0", ends_rule: str = ""
) -> Call[Outcome]:
    """``once``: NONCE-MS, to which -AT may be added: it is carried out at most once, as a push of ``push_unique`` with
    such a window. What was carried out before counts as carried out; after AT, Conflict is raised. ``earlier``: of a
    shard that may have the id from an earlier number of shards, with ``once``. ``ends_rule``: that by which its end is
    kept.
    """
    words = [epoch, NOW, keys.bell, id, once, f"{earlier}:{ends_rule}" if ends_rule else earlier]
    call = Call.of("cancel", keys, words, partial(_once, id, Outcome.CANCELLED) if once else _outcome)
    if ends_rule:
        call = with_ends(call, keys)
    return call if once else _resent_as(call, {Outcome.GONE: Outcome.UNKNOWN})


def reschedule(
    keys: ShardKeys, epoch: Epoch, id: str, due: int, *, once: str = "", earlier: Earlier = "0"
) -> Call[Outcome]:
    """``once`` and ``earlier``: as for a cancel."""
    words = [epoch, NOW, keys.bell, id, due, once, earlier]
    if once:
        return Call.of("reschedule", keys, words, partial(_once, id, Outcome.MOVED))
    call = Call.of("reschedule", keys, words, _outcome)
    return _resent_as(call, dict.fromkeys((Outcome.RUNNING, Outcome.DEAD, Outcome.GONE), Outcome.UNKNOWN))


def _once(id: str, done: Outcome, answer: list[Any]) -> Outcome:
    """The outcome of a command that is carried out at most once. Its resends need no other meaning."""
    word = body(answer)[0]
    if word == b"late":
        raise Conflict(id, "late")
    return done if word == b"known" else _outcome(answer)


def requeue(keys: ShardKeys, epoch: Epoch, id: str, due: int) -> Call[Outcome]:
    call = Call.of("requeue", keys, [epoch, NOW, keys.bell, id, due], _outcome)
    others = (Outcome.SCHEDULED, Outcome.READY, Outcome.RUNNING, Outcome.GONE)
    return _resent_as(call, dict.fromkeys(others, Outcome.UNKNOWN))


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


EXPIRED = "expired"
"""The reason of the death of a task that was worth nothing any more when it fell due."""

_LEASE = re.compile(rb"(\d+):(\d+):\d*:(.*)", re.DOTALL)
"""A lease entry, as the scripts read it; one of another form says nothing."""


@dataclass(frozen=True, slots=True)
class Found:
    """One task as stored; instant is its due time, deadline or death in ms."""

    state: State
    instant_ms: int | None
    failures: int
    lapses: int
    token: str  # the holder's; empty unless it is leased
    reason: str | None  # of its death; of another task why its last attempt failed
    record: bytes
    attempts: tuple[Attempt, ...] = ()


def get(keys: ShardKeys, epoch: Epoch, id: str) -> Call[Found | None]:
    """Reads one task. Raises Moving."""

    def decode(answer: list[Any]) -> Found | None:
        [found] = _founds(answer)
        if isinstance(found, Moving):
            raise found
        return found

    return Call.of("get", keys, [epoch, NOW, id], decode)


def state(keys: ShardKeys, epoch: Epoch, id: str) -> Call[Outcome]:
    """Tells what a task is: scheduled (or held), ready, running, dead or gone. Raises Moving."""

    def decode(answer: list[Any]) -> Outcome:
        word = body(answer)[0][0]
        if word == b"moving":
            raise Moving()
        return Outcome({b"leased": "running", b"held": "scheduled"}.get(word) or word.decode())

    return Call.of("get", keys, [epoch, NOW, id], decode)


def get_many(keys: ShardKeys, epoch: Epoch, ids: Sequence[str]) -> Call[list[Found | Moving | None]]:
    """Reads tasks of one shard, up to 1,000; of the first of them only, where they have more than 1 MiB."""
    return Call.of("get", keys, [epoch, NOW, *ids], _founds)


def _founds(answer: list[Any]) -> list[Found | Moving | None]:
    return [_found(*each) for each in body(answer)]


def _found(state: bytes, *rest: bytes) -> Found | Moving | None:
    if state == b"gone":
        return None
    if state == b"moving":
        return Moving()
    instant, lease, why, record = rest
    entry = _LEASE.fullmatch(lease)
    failures, lapses, token = entry.groups() if entry else (b"0", b"0", b"")
    reason, attempts = parted(text_of(why)) if why else (None, ())
    # a record keeps the reason when the failures are forgotten, as by a requeue
    if number_of(failures) and not attempts and (noted := last_reason(record)):
        last, attempts = parted(noted)
        if reason in (None, EXPIRED):
            reason = last if reason is None else f"{EXPIRED}; its last attempt failed:\n{last}"
    return Found(
        state=state.decode(),  # type: ignore[arg-type]  # the contract of the script
        instant_ms=number_of(instant) if instant else None,
        failures=number_of(failures),
        lapses=number_of(lapses),
        token=text_of(token),
        reason=reason,
        record=record,
        attempts=attempts,
    )
