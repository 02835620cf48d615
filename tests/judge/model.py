"""The sequential model of one id: what each operation may do with it, and may be answered, in which state.

It knows nothing of shards, scripts and trips. An operation takes effect at one instant between its call and its return;
only bounds of that instant are known, so a due time, a lease and a window have bounds, too: a model that is judged by
them never blames an engine wrongly.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Literal, NamedTuple

import msgspec

Kind = Literal[
    "push", "cancel", "reschedule", "requeue", "get", "bulk", "claim", "ack", "retry", "bury", "snooze", "extend",
    "arrive",
]  # fmt: skip
"""``bulk``: a command on many tasks, which may meet the id, or a purge. ``arrive``: a forwarded payload is in its
list."""

MADE = "made"
"""The mode of a push whose id the engine makes."""


class Op(msgspec.Struct, gc=False):
    """One operation on one id. ``end_us`` is infinite, and ``outcome`` empty, where nothing was heard of it: it may
    take effect at any time from its begin on, or never.
    """

    kind: Kind
    begin_us: float
    end_us: float = math.inf
    outcome: str = ""
    """The answer; ``applied`` where it was surely carried out, whatever was answered."""
    number: int = -1
    """The payload of a push, or of what was given."""
    delay_us: float = 0
    mode: str = MADE
    """Of a push: made, keep, reject or replace. Of a bulk command: cancel, reschedule or requeue."""
    window_us: float = 0
    """Of a push: its dedup window."""
    limit: int = 0
    """Of a push: the attempts that it allows; 0: the engine's."""
    expires_us: float = 0
    """Of a push: after which its task is worth nothing; 0: never."""
    token: str = ""
    lease_us: float = 0
    failures: int = 0
    lapses: int = 0
    who: str = ""
    durable: bool = False
    """True if it returned only when replicas, or the disk, had it."""
    relayed: bool = False
    """Of an arrival: by claim, send and ack, so that it may come again."""
    doubtful: bool = False
    """True if one of its answers may have been lost, and it was sent again."""
    later: tuple[int, ...] = ()
    """Of a push: the payloads of later tasks of the same call that have its id."""


class Task(NamedTuple):
    place: Literal["waiting", "leased", "dead"]
    """``waiting``: scheduled, held or ready."""
    number: int
    from_us: float = 0.0
    """waiting: it is surely not due before this; leased: the lease surely lasts until then."""
    failures: int = 0
    lapses: int = 0
    limit: int = 0
    token: str = ""
    worthless_us: float = math.inf
    """From then on it may be dead, as it has expired."""
    surely_worthless_us: float = math.inf
    """From then on nobody may be given it."""


class State(NamedTuple):
    task: Task | None = None
    open_us: float = -math.inf
    """Until then its dedup window is surely open."""
    closed_us: float = -math.inf
    """From then on it is surely closed."""
    revoked: str = ""
    """The token of a lease that a replacing push has ended."""


MS = 1000
"""Servers count leases in whole milliseconds, from the last one that has begun."""

UNKNOWN = "?"
"""The token of a lease whose claim was not answered."""

ATTEMPTS = 25
"""Those of an engine that is not told otherwise."""

_WORDS = {"waiting": ("scheduled", "held", "ready"), "leased": ("leased",), "dead": ("dead",)}

Step = tuple[State, str]
"""A state after an operation, and its answer."""


class Rules(NamedTuple):
    """What holds beside the operations of an id."""

    skew_us: float = 0.0
    """How far the clocks of servers are apart, or jump."""
    attempts: int = ATTEMPTS
    unanswered: tuple[tuple[float, float], ...] = ()
    """The times, from when to when, at which a claim of which nothing was heard may have leased a task."""
    lease_us: float = 0.0
    """The shortest lease."""
    most_lapses: int = 1_000_000
    """Of a task that has more lapses than this nobody asks how many. Where clocks jump, any number of leases may have
    run out by any time: then it is one more, and may have been the last attempt.
    """


def moved_by_time(state: State, now_us: float, rules: Rules) -> Iterator[State]:
    """The states that this one may become by itself: a lease runs out, a task expires, or is leased to somebody of whom
    nothing was heard.
    """
    task = state.task
    if task is None:
        return
    if task.token == UNKNOWN:
        begun_us = task.from_us - rules.lease_us  # who has it may give it back unbegun, and at once
        yield state._replace(task=task._replace(place="waiting", token="", from_us=begun_us))
    if now_us + rules.skew_us < task.from_us:
        return
    if task.place == "leased":
        spent = task.failures + task.lapses + 1 >= (task.limit or rules.attempts)
        lapsed = task._replace(place="dead" if spent else "waiting", lapses=task.lapses + 1, token="")
        if task.lapses >= rules.most_lapses:
            lapsed = lapsed._replace(lapses=rules.most_lapses + 1)
            yield state._replace(task=lapsed._replace(place="dead"))
        yield state._replace(task=lapsed)
    elif task.place == "waiting":
        if now_us + rules.skew_us >= task.worthless_us:
            yield state._replace(task=task._replace(place="dead"))
        for since_us, until_us in rules.unanswered:
            if since_us <= now_us and until_us + rules.skew_us >= task.from_us:
                lasts_us = max(task.from_us, since_us) + rules.lease_us
                yield state._replace(task=task._replace(place="leased", from_us=lasts_us, token=UNKNOWN))
                break


def applied(op: Op, state: State, now_us: float, rules: Rules) -> Iterator[Step]:
    """What the operation may do, and be answered, if it takes effect until now."""
    task = state.task
    match op.kind:
        case "push":
            yield from _pushed(op, state, now_us, rules)
        case "cancel":
            if task is None:
                yield state, "gone"
            elif task.place == "leased":
                yield state, "running"
            else:
                yield state._replace(task=None), "cancelled"
        case "reschedule":
            if task is None:
                yield state, "gone"
            elif task.place == "waiting":
                yield state._replace(task=task._replace(from_us=op.begin_us + op.delay_us)), "moved"
            else:
                yield state, "running" if task.place == "leased" else "dead"
        case "requeue":
            if task is None:
                yield state, "gone"
            elif task.place == "dead":
                anew = task._replace(place="waiting", from_us=op.begin_us + op.delay_us, failures=0, lapses=0, token="")
                yield state._replace(task=anew), "requeued"
            elif task.place == "leased":
                yield state, "running"
            else:
                yield from ((state, word) for word in _seen_as(task, now_us, rules))
        case "get":
            if task is None:
                yield state, "gone"
            else:
                yield from ((state, word) for word in _seen_as(task, now_us, rules))
        case "bulk":
            yield state, "applied"
            one = msgspec.structs.replace(op, kind=op.mode)
            yield from ((following, "applied") for following, _ in applied(one, state, now_us, rules))
        case "claim":
            if task is not None and _may_be_given(op, task, now_us, rules):
                lease = task._replace(place="leased", from_us=op.begin_us + op.lease_us - MS, token=op.token)
                yield state._replace(task=lease), "given"
        case "arrive":
            if task is not None and task.number == op.number:
                if task.place == "waiting" and now_us + rules.skew_us >= task.from_us:
                    yield state._replace(task=None), "arrived"
                if op.relayed and task.place != "dead":
                    yield state, "arrived"
        case "extend":
            if task is not None and task.place == "leased" and task.token == op.token:
                yield state._replace(task=task._replace(from_us=op.begin_us + op.lease_us - MS)), "done"
            else:
                yield state, "lost"
        case _:
            yield from _settled(op, state, rules)


def _pushed(op: Op, state: State, now_us: float, rules: Rules) -> Iterator[Step]:
    task = state.task
    stored = Task(
        "waiting",
        op.number,
        op.begin_us + op.delay_us,
        limit=op.limit,
        worthless_us=op.begin_us + op.expires_us if op.expires_us else math.inf,
        surely_worthless_us=now_us + op.expires_us + 1000 if op.expires_us else math.inf,  # from the next whole ms on
    )
    opened = state
    if op.window_us:
        opened = state._replace(open_us=op.begin_us + op.window_us, closed_us=now_us + op.window_us)
    if task is not None:
        if task.number == op.number:
            yield state, "pushed"  # sent again after a lost answer, it knows its own
        elif op.doubtful and task.number in op.later:
            yield state, "pushed"  # the call that was sent again stored what is there: not said which task of it
        elif op.mode == "replace":
            revoked = task.token if task.place == "leased" else state.revoked
            yield opened._replace(task=stored, revoked=revoked), "replaced"
        elif op.mode != MADE:
            verb = "refused" if op.mode == "reject" else "kept"
            yield from ((state, f"{verb}:{word}") for word in _seen_as(task, now_us, rules))
        return
    if op.mode in ("keep", "reject") and op.begin_us < state.closed_us + rules.skew_us:
        yield state, "seen" if op.mode == "keep" else "refused:seen"
        if now_us < state.open_us - rules.skew_us:
            return
    yield opened._replace(task=stored), "pushed"


def _seen_as(task: Task, now_us: float, rules: Rules) -> Iterator[str]:
    for word in _WORDS[task.place]:
        if word not in ("held", "ready") or now_us + rules.skew_us >= task.from_us:
            yield word


def _may_be_given(op: Op, task: Task, now_us: float, rules: Rules) -> bool:
    return (
        task.place == "waiting"
        and task.number == op.number
        and now_us + rules.skew_us >= task.from_us
        and op.begin_us < task.surely_worthless_us + rules.skew_us
        and (op.failures, op.lapses) == (task.failures, task.lapses)
    )


def _settled(op: Op, state: State, rules: Rules) -> Iterator[Step]:
    task = state.task
    if task is None or task.place != "leased" or task.token != op.token:
        yield state, "lost"
        # Of a task that was replaced there is nothing left to be done. After a lost answer, a lease that is over counts
        # as ended by the first send.
        if (op.kind == "ack" and op.token == state.revoked) or op.doubtful:
            yield state, "done"
        return
    if op.kind == "ack":
        yield state._replace(task=None), "done"
        return
    failures = task.failures + (op.kind != "snooze")
    spent = op.kind == "retry" and failures + task.lapses >= (task.limit or rules.attempts)
    if op.kind == "bury" or spent:
        ended = task._replace(place="dead", from_us=0.0, failures=failures, token="")
    else:
        ended = task._replace(place="waiting", from_us=op.begin_us + op.delay_us, failures=failures, token="")
    yield state._replace(task=ended), "done"
