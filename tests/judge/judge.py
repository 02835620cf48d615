"""Judges the history of one id: whether some order of its operations explains all that was heard.

Operations are followed in the order in which they began and returned. An operation takes effect as late as it can: just
before the return that needs it. So what is known at any instant is a set of *guesses*, each a state of the id and the
operations that may still take effect; a return that fits no guess is a violation (linearizability per id, by
just-in-time linearization). A failover, or a restart, may bring back any state since the last that was surely kept.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import count
from typing import NamedTuple

from tests.judge.model import Op, Rules, State, applied, moved_by_time

MOST = 4000
"""Guesses of one id at a time. More would take for ever: then the id is given up as undecided."""

MOST_WORK = 10_000
"""Guesses of one id in all, likewise: a second."""


NO_RULES = Rules()

FAR_US = 1e6
"""Clocks that are apart by this let leases run out at any time."""


class Setback(NamedTuple):
    """A failover or a restart: writes since an instant may be lost."""

    at_us: float
    since_us: float
    is_failover: bool = True
    """True if a replica has taken over: what was pushed durably stays. False: a server has lost what it had not written
    to its disk."""
    is_split: bool = False
    """True if two servers took writes since then, of which one lost its own: each of them may be lost, or not."""


class Guess(NamedTuple):
    state: State
    open: frozenset[int]
    """The numbers of operations that have begun, and have not taken effect."""
    undone: frozenset[int] = frozenset()
    """Those of them that may have taken effect before a setback, which has undone it: they may return all the same."""


class Violated(NamedTuple):
    """No order explains this return."""

    op: Op
    states: list[State]
    """What the id may have been then."""
    history: Sequence[Op]

    def __str__(self) -> str:
        told = [f"nothing explains that {told_as(self.op)}", "the id could have been:"]
        told += [f"  {state}" for state in self.states[:5]]
        told += ["its history:", *(f"  {told_as(op)}" for op in self.history)]
        return "\n".join(told)


class Undecided(NamedTuple):
    """The history allows too many orders."""

    history: Sequence[Op]


class _TooManyError(Exception):
    pass


def judged(
    history: Sequence[Op], rules: Rules = NO_RULES, setbacks: Iterable[Setback] = ()
) -> Violated | Undecided | None:
    """``history``: all operations on one id. Returns what is wrong, if anything is."""
    ops = sorted(history, key=lambda op: op.begin_us)
    setbacks = list(setbacks)
    if rules.skew_us >= FAR_US:
        rules = rules._replace(lease_us=0.0)
    if rules.skew_us >= FAR_US or setbacks:
        rules = rules._replace(most_lapses=max((op.lapses for op in ops), default=0))
    try:
        return _judged(ops, rules, setbacks)
    except _TooManyError:
        return Undecided(ops)


def _judged(ops: Sequence[Op], rules: Rules, setbacks: Sequence[Setback]) -> Violated | None:
    guesses = {Guess(State(), frozenset())}
    past: list[tuple[float, Collection[Guess]]] = [(-math.inf, guesses)]
    """What was known from which instant on, for setbacks."""
    work = count(1)
    durable = 0
    """The place of the last durable return among those."""
    for at_us, order, number, setback in sorted(_events(ops, setbacks)):
        if setback is not None:
            back = _brought_back(past[durable if setback.is_failover else 0 :], setback, ops, rules)
            # the states of now are among those, and what may be undone explains all that it does not hinder
            undone = next(iter(back)).open
            guesses = _widest(back | {guess for guess in guesses if not guess.open <= undone})
        elif order == _BEGIN:
            guesses = {guess._replace(open=guess.open | {number}) for guess in guesses}
        else:
            fitting = {each for guess in guesses for each in _returned(guess, number, ops, rules, at_us, work)}
            if not fitting:
                return Violated(ops[number], _states(guesses, rules, at_us), ops)
            guesses = _widest(fitting)
        if len(guesses) > MOST:
            raise _TooManyError
        if setbacks:
            past.append((at_us, guesses))
            if order == _RETURN and ops[number].durable:
                durable = len(past) - 1
    return None


_BEGIN, _SETBACK, _RETURN = range(3)
"""The order of events of one instant: what begins in it need not have seen what returns in it."""


def _events(ops: Sequence[Op], setbacks: Iterable[Setback]) -> Iterator[tuple[float, int, int, Setback | None]]:
    for number, op in enumerate(ops):
        yield op.begin_us, _BEGIN, number, None
        if op.outcome and math.isfinite(op.end_us):
            yield op.end_us, _RETURN, number, None
    for setback in setbacks:
        yield setback.at_us, _SETBACK, -1, setback


def _returned(
    guess: Guess, number: int, ops: Sequence[Op], rules: Rules, now_us: float, work: Iterator[int]
) -> Iterator[Guess]:
    """The guesses after a return. Others that have begun may have taken effect before it."""
    if number not in guess.open:
        yield guess
        return
    if number in guess.undone:
        yield Guess(guess.state, guess.open - {number}, guess.undone - {number})
    seen, left = {_but_from(guess): _from_us(guess)}, [guess]

    def add(step: Guess) -> None:
        kind, from_us = _but_from(step), _from_us(step)
        if kind not in seen or from_us < seen[kind]:
            if len(seen) > MOST:
                raise _TooManyError
            seen[kind] = from_us
            left.append(step)

    while left:
        if next(work) > MOST_WORK:
            raise _TooManyError
        state, open, undone = left.pop()
        steps = [(each, list(_steps(ops[each], state, now_us, rules))) for each in open]
        open -= {each for each, some in steps if _is_only_heard(ops[each], some, state)}
        if number not in open:
            yield Guess(state, open, undone)
            continue
        for moved in moved_by_time(state, now_us, rules):
            add(Guess(moved, open, undone))
        for each, some in steps:
            for following, heard in some if each in open else ():
                if following is state and not ops[each].outcome:
                    continue  # what was not heard of, and changes nothing, explains nothing
                if each == number and heard:
                    yield Guess(following, open - {each}, undone)
                elif heard and (ops[each].kind == "bulk" or (each in undone and _is_again(ops[each]))):
                    continue  # it may be open still, which explains all that this does
                elif heard or following is not state:
                    add(Guess(following, open - {each} if heard else open, undone))


def _steps(op: Op, state: State, now_us: float, rules: Rules) -> Iterator[tuple[State, bool]]:
    """The states after an operation, each with True if it may return then: what was heard of it fits. One that was sent
    again after a lost answer may have taken effect before, and returns by what it meets then; a command on many tasks
    may meet an id more than once.
    """
    again = op.kind == "bulk" or _is_again(op)
    for following, answer in applied(op, state, now_us, rules):
        if op.outcome in ("", answer, "applied"):
            yield following, True
        if again and following is not state:
            yield following, False


def _is_again(op: Op) -> bool:
    return op.doubtful and op.kind in AGAIN


AGAIN = frozenset(("push", "cancel", "reschedule", "requeue"))
"""What takes effect again when it is sent again, where the state allows it; the end of a lease does not."""


def _is_only_heard(op: Op, steps: Sequence[tuple[State, bool]], state: State) -> bool:
    """True if an answer is one that changes nothing: it is best given as soon as it can be, as all else stays possible.
    Not that of an operation that was sent again: it may have taken effect all the same.
    """
    known = not op.doubtful and op.outcome not in ("", "applied")
    return known and bool(steps) and all(following is state and heard for following, heard in steps)


def _brought_back(
    past: Sequence[tuple[float, Collection[Guess]]], setback: Setback, ops: Sequence[Op], rules: Rules
) -> set[Guess]:
    """What may be there again after a setback. What has returned meanwhile can't take effect again; what was under way
    at the instant from which writes are lost may have taken effect before it.
    """
    at_us, since_us = setback.at_us, setback.since_us
    first = max((place for place, (known_us, _) in enumerate(past) if known_us <= since_us), default=0)
    over_us = since_us if setback.is_split else at_us
    returned = {number for number, op in enumerate(ops) if op.outcome and op.end_us <= over_us}
    begun = frozenset(number for number, op in enumerate(ops) if op.begin_us <= at_us)
    open = begun - returned
    states = {guess.state for _, guesses in past[first:] for guess in guesses}
    states |= {each for guess in past[first][1] for each in _under_way(guess, ops, since_us, rules)}
    return {Guess(state, open, open) for state in states}


def _under_way(guess: Guess, ops: Sequence[Op], now_us: float, rules: Rules) -> set[State]:
    """The states that some of the operations that are open may have led to by now."""
    reached, left = {guess.state}, [(guess.state, guess.open)]
    while left:
        state, open = left.pop()
        for each in open:
            for following, _ in _steps(ops[each], state, now_us, rules):
                if following not in reached:
                    reached.add(following)
                    left.append((following, open - {each}))
        if len(reached) > MOST:
            raise _TooManyError
    return reached


def _from_us(guess: Guess) -> float:
    return 0.0 if guess.state.task is None else guess.state.task.from_us


def _but_from(guess: Guess) -> object:
    """All of a guess but for the instant from which its task may be given to somebody."""
    state, open, undone = guess
    task = state.task
    return state[1:], open, undone, None if task is None else (*task[:2], *task[3:])


def _widest(guesses: Iterable[Guess]) -> set[Guess]:
    """Of guesses that differ in that instant alone, the earliest one: it explains all that the others do."""
    widest: dict[object, Guess] = {}
    for guess in guesses:
        kind = _but_from(guess)
        if kind not in widest or _from_us(guess) < _from_us(widest[kind]):
            widest[kind] = guess
    return set(widest.values())


def _states(guesses: Iterable[Guess], rules: Rules, now_us: float) -> list[State]:
    return list({each for guess in guesses for each in (guess.state, *moved_by_time(guess.state, now_us, rules))})


def told_as(op: Op) -> str:
    """An operation in a line."""
    words = [f"{op.begin_us / 1000:.3f}-{op.end_us / 1000:.3f} ms", op.who, op.kind]
    if op.kind == "push":
        words += [op.mode, f"#{op.number}", f"due in {op.delay_us / 1000:g} ms"]
        words += [f"window {op.window_us / 1000:g} ms"] if op.window_us else []
    elif op.kind in ("claim", "arrive"):
        words += [f"#{op.number}"]
    elif op.kind in ("reschedule", "requeue", "retry", "snooze"):
        words += [f"due in {op.delay_us / 1000:g} ms"]
    if op.kind == "claim":
        words += [f"failures {op.failures}, lapses {op.lapses}, lease {op.lease_us / 1000:g} ms"]
    words += [f"under {op.token}"] if op.token else []
    return " ".join([*filter(None, words), "→", op.outcome or "(nothing heard)"])
