"""The verdict on a run: every id judged by its history, every call by its time, and all that was left at the end."""

from __future__ import annotations

import datetime as dt
import math
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field

import mmh3

from shardq.core.layout.lanes import hashed_part
from shardq.core.layout.slots import BUCKETS, table
from shardq.core.model.ids import topic_of
from tests.judge.history import Call
from tests.judge.judge import Setback, Undecided, Violated, judged
from tests.judge.model import Op, Rules
from tests.judge.witness import NOTHING

LINGERS_US = 15e6
"""How long after a claim of which nothing was heard its request may still be carried out."""


LIVES_US = 30e6
"""The longest time for which a program that died may have gone on with its last call."""


@dataclass(frozen=True)
class Loss:
    """A time in which answers were lost, or a process stood still. ``who``: one process; empty: all."""

    from_us: float
    to_us: float
    who: str = ""


@dataclass(frozen=True)
class Split:
    """A time in which two servers of the same shards took calls. One of them has lost what it wrote since ``since_us``,
    and nobody knows which of the two answered a call.
    """

    from_us: float
    to_us: float
    since_us: float
    shards: frozenset[int] | None
    """Those whose writes may be lost; None: all."""


@dataclass
class Facts:
    """What was done to the servers and the programs, as far as it explains what was heard."""

    losses: list[Loss] = field(default_factory=list)
    setbacks: list[tuple[Setback, frozenset[int] | None]] = field(default_factory=list)
    """With the shards whose writes may be lost; None: all."""
    splits: list[Split] = field(default_factory=list)
    shard_counts: set[int] = field(default_factory=set)
    """The numbers of shards that there were."""
    rules: Rules = field(default_factory=Rules)
    frozen: list[Loss] = field(default_factory=list)
    """Times in which a process stood still: its calls may take so much longer."""
    unguarded: set[str] = field(default_factory=set)
    """Ids that were moved to or from a server in the time of which it has lost the writes: they may be gone, or there
    twice, as the guarantees say, and are not judged."""
    owing: bool = False
    """True: of unguarded ids, too, it is judged what is owed of them, as servers forget and moves wait for that."""
    unmoored: set[str] = field(default_factory=set)
    """Ids that were moved to a server in the time of which it has lost even what was on its disk: nothing is owed."""
    clock_us: float = 0.0
    """The instant, by the servers' clocks since 1970, at which the times of the history begin."""
    spool_drained_us: float = math.inf
    """When all that was spooled, or committed to an outbox, had been carried out. What was committed takes effect once,
    whatever answers are lost."""


@dataclass
class Verdict:
    violations: list[str] = field(default_factory=list)
    undecided: int = 0
    """Ids whose histories allow too many orders."""
    ids: int = 0
    calls: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)
    outcomes: Counter[str] = field(default_factory=Counter)
    """What was heard, by operation and outcome."""
    deliveries: int = 0
    doubled: Counter[str] = field(default_factory=Counter)
    """Deliveries beyond the first of a task, by what explains them."""
    setbacks: int = 0
    lost: Counter[str] = field(default_factory=Counter)
    """Ids that were accepted, and of which nothing ever came, by what explains it."""

    def __str__(self) -> str:
        told = [f"{len(self.violations)} violations in {self.ids:,} ids, {self.deliveries:,} deliveries"]
        return "\n\n".join([*told, *self.violations[:3]])


def verdict_on(calls: Iterable[Call], facts: Facts, final: Mapping[str, tuple[str, int]], at_us: float) -> Verdict:
    """``final``: id → its state at that instant and its payload, of all that are left. The rest are gone."""
    verdict = Verdict(setbacks=len(facts.setbacks))
    calls = list(calls)
    histories = _histories(calls, facts, verdict, final)
    rules = with_unanswered(facts.rules, calls, _Losses(facts.losses), facts.frozen)
    for id, history in histories.items():
        verdict.ids += 1
        ended, _ = final.get(id, ("gone", -1))
        _count(history, verdict)
        if id in facts.unguarded:
            if facts.owing and id not in facts.unmoored:
                setbacks = [each for each, shards in facts.setbacks if concerns(shards, id, facts.shard_counts)]
                for split in facts.splits:
                    if concerns(split.shards, id, facts.shard_counts):
                        setbacks += _within(split, history)
                wrong = _unpaid(history, rules.skew_us, setbacks, *final.get(id, ("gone", -1)))
                verdict.violations += [f"{id}: {wrong}"] if wrong else []
            verdict.lost[FORGOTTEN] += ended == "gone" and _is_lost(history)
            continue
        if ended == "gone" and is_plain([op for op in history if op.kind != "bulk"]):
            continue  # a setback makes more possible, and nothing impossible; so does a command on many tasks
        history = _without_idle(history, ended)
        setbacks = [setback for setback, shards in facts.setbacks if concerns(shards, id, facts.shard_counts)]
        for split in facts.splits:
            if concerns(split.shards, id, facts.shard_counts):
                setbacks += _within(split, history)
        first_us = min((op.begin_us for op in history), default=0.0)
        last_us = max((op.end_us for op in history if op.outcome), default=0.0)
        setbacks = [each for each in setbacks if each.at_us > first_us and each.since_us < last_us]
        if ended == "gone" and _is_taken_back(history, setbacks):
            verdict.lost[TAKEN_BACK] += _is_lost(history)
            continue
        history.append(Op("get", at_us, at_us + 1, ended))
        found = judged(history, rules, setbacks)
        if isinstance(found, Violated):
            verdict.violations.append(f"{id}: {found}")
        elif isinstance(found, Undecided):
            verdict.undecided += 1
        elif setbacks and ended == "gone" and _is_lost(history):
            verdict.lost[TAKEN_BACK] += 1
    return verdict


TAKEN_BACK = "a failover or a restart took it back"

FORGOTTEN = "a server forgot it, and it was not safe before"


def is_plain(history: Sequence[Op]) -> bool:
    """True for most tasks of a large run: one push, one claim in time and one ack, or one arrival. That all of them
    took effect, one after the other, explains whatever was heard of them, and that nothing is left.
    """
    if len(history) not in (2, 3):
        return False
    pushed, given, *rest = sorted(history, key=lambda op: (op.kind == "arrive", op.begin_us))
    if (
        pushed.kind != "push"
        or pushed.outcome not in ("pushed", "applied", "")
        or pushed.number != given.number
        or pushed.expires_us
        or given.end_us < pushed.begin_us + pushed.delay_us
    ):
        return False
    if given.kind == "arrive":
        return not rest
    return (
        given.kind == "claim"
        and not (given.failures or given.lapses)
        and [op.kind for op in rest] == ["ack"]
        and rest[0].outcome in ("done", "")
        and rest[0].token == given.token
        and rest[0].begin_us < given.begin_us + given.lease_us
    )


def _without_idle(history: Sequence[Op], ended: str) -> list[Op]:
    """Without the commands on many tasks, after all else, that explain nothing of the end. One that cancels explains
    that a task is gone; the last one does best.
    """
    last_us = max((op.end_us if op.outcome else op.begin_us for op in history if op.kind != "bulk"), default=0.0)
    idle = [op for op in history if op.kind == "bulk" and op.begin_us > last_us]
    if ended not in ("gone", "dead"):
        return list(history)
    kept = [op for op in idle if op.mode == "cancel" and ended == "gone"]
    kept = [op for op in kept if op.end_us == max(each.end_us for each in kept)][:1]
    return [op for op in history if op not in idle or op in kept]


def with_unanswered(rules: Rules, calls: Iterable[Call], losses: _Losses, frozen: Collection[Loss] = ()) -> Rules:
    """The rules, with the claims of which nothing was heard: a process died, an answer was lost, a worker made them,
    which tells nobody, or the process stood still, and did not hand out what came after its lease.
    """
    claims = sorted(
        (call.begin_us, (call.end_us if call.is_over else call.begin_us + LIVES_US) + LINGERS_US)
        for call in calls
        if call.what == "worker"
        or (
            call.what == "claim"
            and (
                not call.is_over
                or call.error
                or losses.meet(call.who, call.begin_us, call.end_us)
                or stood_still_us(frozen, call)
            )
        )
    )
    merged: list[tuple[float, float]] = []
    for since_us, until_us in claims:
        if merged and since_us <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(merged[-1][1], until_us)
        else:
            merged.append((since_us, until_us))
    return rules._replace(unanswered=(*rules.unanswered, *merged))


def _histories(
    calls: Iterable[Call], facts: Facts, verdict: Verdict, final: Mapping[str, tuple[str, int]]
) -> dict[str, list[Op]]:
    """The operations by id, without those of which an error says that nothing was done."""
    histories: defaultdict[str, list[Op]] = defaultdict(list)
    made: dict[int, Op] = {}
    bulk: list[Call] = []
    losses = _Losses(facts.losses)
    for call in calls:
        verdict.calls[call.what] += 1
        if call.error:
            verdict.errors[call.error] += 1
        took_us = call.end_us - call.begin_us - stood_still_us(facts.frozen, call)
        if call.is_over and took_us > call.within_us:
            took, within = took_us / 1e6, call.within_us / 1e6
            verdict.violations.append(f"{call.who}: {call.what} took {took:.3f} s, where {within:g} s are promised")
        if call.what == "bulk":
            bulk.append(call)
            continue
        later: dict[str, tuple[int, ...]] = {}
        for id, op in reversed(call.ops if call.what == "push" else ()):
            op.later = later.get(id, ()) if id else ()
            later[id] = (op.number, *op.later)
        for id, op in call.ops:
            if op.outcome == NOTHING:
                continue
            is_once = op.outcome == "committed"
            if op.outcome in ("spooled", "committed"):
                op.outcome, op.end_us = "applied", facts.spool_drained_us
            op.doubtful = not is_once and losses.meet(call.who, op.begin_us, op.end_us)
            if id:
                histories[id].append(op)
            else:
                made[op.number] = op
    _name(made, histories, {number: id for id, (_, number) in final.items()})
    for id in final:
        histories[id]  # also of what nobody was told of
    _add_occurrences(calls, histories, facts)
    for history in histories.values() if bulk else ():
        history.sort(key=lambda op: op.begin_us)
    for call in bulk:
        ((_, op),) = call.ops
        for id, history in histories.items():
            if history and op.end_us < history[0].begin_us:
                continue  # it was over before there was anything
            if not call.topics or topic_of(id) in call.topics or id.startswith("#"):
                history.append(copy(op))
    return histories


def _add_occurrences(calls: Iterable[Call], histories: Mapping[str, list[Op]], facts: Facts) -> None:
    """Adds what dispatchers do with the occurrences of schedules, and tell nobody: each is pushed once, and may be held
    back and cancelled, from the first declaration on.
    """
    changes: defaultdict[str, list[float]] = defaultdict(list)
    for call in calls:
        verb, _, name = call.what.partition(" ")
        if verb in ("every", "pause", "resume", "remove"):
            changes[name].append(call.begin_us)
    for id, history in histories.items():
        occurrence = _OCCURRENCE.search(id)
        if occurrence is None or not (begins := sorted(changes[occurrence[1]])):
            continue
        due_us = dt.datetime.fromisoformat(occurrence[2]).timestamp() * 1e6 - facts.clock_us
        delay_us = due_us - begins[0]
        push = Op("push", begins[0], number=OCCURRENCE, delay_us=delay_us, mode="keep", window_us=HOUR_US)
        history.append(push)
        if len(begins) > 1:  # what changed may have held it back
            held = copy(push)
            held.begin_us, held.delay_us = begins[1], FAR_US
            history += [held, Op("cancel", begins[1])]


OCCURRENCE = 999
"""The payload of all occurrences of schedules. Pushes have larger numbers."""

HOUR_US, FAR_US = 3600e6, 1e17

_OCCURRENCE = re.compile(r"(?:^|/)every-(\w+)@(.*Z)(?:~\d+)?$")


def stood_still_us(frozen: Iterable[Loss], call: Call) -> float:
    """How long the process of a call stood still during it."""
    overlaps = (
        min(each.to_us, call.end_us) - max(each.from_us, call.begin_us) for each in frozen if each.who == call.who
    )
    return sum(overlap for overlap in overlaps if overlap > 0)


def _name(made: dict[int, Op], histories: defaultdict[str, list[Op]], left: Mapping[int, str]) -> None:
    """Finds the ids of pushes that did not hear theirs, by what was given of them, or is ``left``."""
    ids = dict(left)
    for id, ops in histories.items() if made else ():
        ids |= {op.number: id for op in ops if op.kind in ("claim", "arrive")}
    for number, op in made.items():
        histories[ids.get(number, f"#{number}")].append(op)


class _Losses:
    """Times in which answers were lost, by process."""

    def __init__(self, losses: Iterable[Loss]) -> None:
        self._of: defaultdict[str, list[Loss]] = defaultdict(list)
        for loss in losses:
            self._of[loss.who].append(loss)

    def meet(self, who: str, from_us: float, to_us: float) -> bool:
        some = (*self._of.get("", ()), *self._of.get(who, ()))
        return any(loss.from_us <= to_us and from_us <= loss.to_us for loss in some)


def concerns(shards: Collection[int] | None, id: str, counts: Iterable[int]) -> bool:
    """True if an id may be in one of these shards, by one of these numbers of shards."""
    if shards is None:
        return True
    bucket = mmh3.hash(hashed_part(id), signed=False) % BUCKETS
    return any(table(count)[bucket] in shards for count in counts)


def _is_taken_back(history: Sequence[Op], setbacks: Iterable[Setback]) -> bool:
    """True if nothing but a push is known, which a setback explains: most of what is lost."""
    some = [op for op in history if op.kind != "bulk"]
    if len(some) != 1 or some[0].kind != "push" or some[0].outcome not in ("pushed", "applied", ""):
        return False
    (push,) = some
    return not push.durable and any(each.since_us <= push.end_us and each.at_us > push.begin_us for each in setbacks)


def _unpaid(
    history: Sequence[Op], skew_us: float, setbacks: Collection[Setback], ended: str, left: int
) -> Violated | None:
    """What of a task is owed that may be there twice, as a server that came back has it again. Where its only push was
    safe before every setback, or came after it, and nothing may have removed it: it is handled at least once, and never
    early; a cancel that was safe holds, and who was told that it is gone, before anybody had it, is not given it later.
    """
    some = [op for op in history if op.kind != "bulk"]
    pushes = [op for op in some if op.kind == "push"]
    if len(pushes) != 1 or pushes[0].outcome not in ("pushed", "applied") or not _is_safe(pushes[0], setbacks):
        return None
    (push,) = pushes
    given = [op for op in some if op.kind in ("claim", "arrive") and op.number == push.number]
    if not any(op.kind in ("reschedule", "requeue") for op in some):
        for op in given:
            if op.end_us + skew_us < push.begin_us + push.delay_us:
                return Violated(op, [], history)
    for op in some:
        is_told = op.kind in ("cancel", "get") and op.outcome == "gone" and op.begin_us > push.end_us
        is_told &= not any(each.begin_us < op.end_us for each in given) and not _may_end(history, push, op.end_us)
        holds = op.kind == "cancel" and op.outcome == "cancelled" and _is_safe(op, setbacks)
        if is_told or holds:
            for each in given:
                if each.begin_us > op.end_us:
                    return Violated(each, [], history)
    if given or (ended, left) == ("dead", push.number) or _may_end(history, push, math.inf):
        return None
    return Violated(Op("get", math.inf, math.inf, ended), [], history)


def _is_safe(op: Op, setbacks: Iterable[Setback]) -> bool:
    """True if no setback may have taken it back."""
    return all(
        op.begin_us > each.at_us or op.end_us <= each.since_us or (op.durable and each.is_failover) for each in setbacks
    )


def _may_end(history: Iterable[Op], push: Op, until_us: float) -> bool:
    """True if something may have removed its task until then that is not a delivery."""
    return push.expires_us > 0 or any(
        (op.kind == "cancel" and op.outcome in ("cancelled", "")) or (op.kind == "bulk" and op.mode == "cancel")
        for op in history
        if op.end_us > push.begin_us and op.begin_us < until_us
    )


def _is_lost(history: Sequence[Op]) -> bool:
    """True if it was surely pushed, and neither given to anybody nor removed by anything."""
    kinds = {op.kind for op in history if op.outcome != "gone"}
    return kinds <= {"push", "get"} and any(op.outcome in ("pushed", "applied") for op in history)


def _within(split: Split, history: Sequence[Op]) -> Iterator[Setback]:
    """Setbacks just before each return in the time of a split, and at its end."""
    ends = {op.end_us for op in history if split.from_us <= op.end_us <= split.to_us} | {split.to_us}
    return (Setback(at_us, split.since_us, is_split=True) for at_us in ends)


def _count(history: Sequence[Op], verdict: Verdict) -> None:
    given = sorted((op for op in history if op.kind in ("claim", "arrive")), key=lambda op: op.begin_us)
    verdict.deliveries += len(given)
    for op in history:
        verdict.outcomes[f"{op.kind} {op.outcome or '(not heard)'}"] += 1
    seen: set[int] = set()
    for op in given:
        if op.number in seen:
            verdict.doubled[
                "its lease ran out" if op.lapses else "it was retried" if op.failures else "given back"
            ] += 1
        seen.add(op.number)
