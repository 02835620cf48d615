"""Accounts for the bulk of the tasks. One that was pushed once, claimed once after its due time and acknowledged within
its lease is counted, by the million; of each other one a history is made for the judge.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tests.chaos.flow import LEASE_S, UNKNOWN, Claimed, Claims, Pushed, Pushes, Settled, Settles, read
from tests.judge.history import Call
from tests.judge.model import Op
from tests.judge.witness import NOTHING

Floats = npt.NDArray[np.float64]
Words = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


@dataclass
class _Push:
    began: Pushes
    ended: Pushed | None = None


@dataclass
class _Claim:
    began: Claims
    ended: Claimed | None = None
    settled: list[tuple[Settles, Settled | None]] = field(default_factory=list)

    @property
    def is_simple(self) -> bool:
        """True if all that was claimed was acknowledged, and nothing else was done with it."""
        if self.ended is None or self.ended.odd or len(self.settled) != 1:
            return False
        ((begun, ended),) = self.settled
        is_done = ended is not None and not ended.fates
        return begun.kind == "ack" and not begun.places and is_done and begun.at_us < self.began.at_us + LEASE_S * 1e6


@dataclass
class _Book:
    who: str
    pushes: dict[int, _Push] = field(default_factory=dict)
    claims: dict[int, _Claim] = field(default_factory=dict)


@dataclass
class Accounted:
    """What became of the bulk of the tasks."""

    plain: int = 0
    """Tasks of which there is nothing to be explained."""
    pushed: int = 0
    """Tasks that were pushed, but for those of which an error says that nothing was done."""
    calls: list[Call] = field(default_factory=list)
    """All calls, with the operations of the other tasks."""
    late_s: Floats = field(default_factory=lambda: np.zeros(0))
    """How much later than their due times plain tasks were claimed."""
    outcomes: Counter[str] = field(default_factory=Counter)
    """Of plain tasks."""


def accounted(books: Mapping[str, Path], left: Iterable[int], timeout: float, late_s: float) -> Accounted:
    """``books``: by process. ``left``: payloads that are still there at the end, so that they are not plain."""
    read_books = [_read(who, path) for who, path in books.items()]
    pushes = [each for book in read_books for each in book.pushes.values()]
    pushes.sort(key=lambda push: push.began.first)
    known = _Known(pushes, left)
    for book in read_books:
        for claim in book.claims.values():
            known.note(claim)
    plain = known.plain()
    refused = sum(push.ended.fates.count(NOTHING) for push in pushes if push.ended is not None)
    told = Accounted(plain=int(plain.sum()), pushed=known.size - refused, late_s=known.late_s[plain])
    told.outcomes.update({"push pushed": told.plain, "claim given": told.plain, "ack done": told.plain})
    within_us = (timeout + late_s) * 1e6
    for book in read_books:
        for push in book.pushes.values():
            told.calls.append(_push_call(book.who, push, known, plain, within_us))
        for claim in book.claims.values():
            told.calls += _claim_calls(book.who, claim, known, plain, within_us)
    return told


class _Known:
    """What is known of each task, by its place among all that were pushed."""

    def __init__(self, pushes: list[_Push], left: Iterable[int]) -> None:
        firsts, counts = [push.began.first for push in pushes], [push.began.count for push in pushes]
        self._firsts = np.array(firsts, dtype=np.int64)
        self._counts = np.array(counts, dtype=np.int64)
        self._starts = np.concatenate(([0], np.cumsum(self._counts)))[:-1].astype(np.int64)
        self.size = int(self._counts.sum()) if counts else 0
        self.due_us: Floats = np.zeros(self.size)
        self.hashes: Words = np.zeros(self.size, dtype=np.int64)
        self.claims: Words = np.zeros(self.size, dtype=np.int64)
        """How often each was claimed."""
        self.is_good: Flags = np.zeros(self.size, dtype=bool)
        self.is_simple: Flags = np.ones(self.size, dtype=bool)
        self.late_s: Floats = np.zeros(self.size)
        for push, start in zip(pushes, self._starts, strict=True):
            begun, ended = push.began, push.ended
            some = slice(start, start + begun.count)
            self.due_us[some] = begun.at_us + begun.delay_us
            if ended is not None and not ended.fates:
                self.hashes[some] = [hash(id) for id in ended.ids.split(" ")]
                self.is_good[some] = True
        self.is_good[self.places(np.array(sorted(left), dtype=np.int64))[0]] = False

    def places(self, numbers: Words) -> tuple[Words, Flags]:
        """The places of payloads, and which of them are ours."""
        if not len(self._firsts) or not len(numbers):
            return np.zeros(0, dtype=np.int64), np.zeros(len(numbers), dtype=bool)
        at = np.searchsorted(self._firsts, numbers, side="right") - 1
        offset = numbers - self._firsts[np.maximum(at, 0)]
        ours = (at >= 0) & (offset < self._counts[np.maximum(at, 0)])
        return (self._starts[np.maximum(at, 0)] + offset)[ours], ours

    def note(self, claim: _Claim) -> None:
        if claim.ended is None or not claim.ended.numbers:
            return
        numbers = np.frombuffer(claim.ended.numbers, dtype=np.int64)
        places, ours = self.places(numbers)
        np.add.at(self.claims, places, 1)
        if not claim.is_simple:
            self.is_simple[places] = False
            return
        late_us = claim.ended.at_us - self.due_us[places]
        hashes = np.array([hash(id) for id in claim.ended.ids.split(" ")], dtype=np.int64)[ours]
        self.is_simple[places[(late_us < 0) | (hashes != self.hashes[places])]] = False
        self.late_s[places] = late_us / 1e6

    def plain(self) -> Flags:
        plain: Flags = self.is_good & self.is_simple & (self.claims == 1)
        return plain


def _read(who: str, path: Path) -> _Book:
    book = _Book(who)
    settles: dict[int, tuple[_Claim, int]] = {}
    for record in read(path):
        if isinstance(record, Pushes):
            book.pushes[record.call] = _Push(record)
        elif isinstance(record, Pushed):
            book.pushes[record.call].ended = record
        elif isinstance(record, Claims):
            book.claims[record.call] = _Claim(record)
        elif isinstance(record, Claimed):
            book.claims[record.call].ended = record
        elif isinstance(record, Settles):
            claim = book.claims[record.claim]
            settles[record.call] = claim, len(claim.settled)
            claim.settled.append((record, None))
        else:
            claim, place = settles[record.call]
            claim.settled[place] = claim.settled[place][0], record
    return book


def _push_call(who: str, push: _Push, known: _Known, plain: Flags, within_us: float) -> Call:
    begun, ended = push.began, push.ended
    call = Call(who, "push", begun.at_us, within_us=within_us)
    numbers = np.arange(begun.first, begun.first + begun.count, dtype=np.int64)
    places, _ = known.places(numbers)
    ids: list[str] = []
    if ended is not None:
        call.end_us, call.error = ended.at_us, ended.error
        ids = ended.ids.split(" ") if ended.ids else []
    for place in np.flatnonzero(~plain[places]):
        op = Op("push", begun.at_us, number=int(numbers[place]), delay_us=begun.delay_us, who=who)
        if ended is not None:
            fate = ended.fates[place] if ended.fates else "pushed"
            if fate != UNKNOWN:
                op.end_us, op.outcome = ended.at_us, fate
        id = ids[place] if ids else UNKNOWN
        call.ops.append(("" if id == UNKNOWN else id, op))
    return call


def _claim_calls(who: str, claim: _Claim, known: _Known, plain: Flags, within_us: float) -> Iterable[Call]:
    begun, ended = claim.began, claim.ended
    call = Call(who, "claim", begun.at_us, within_us=within_us + 1e6)
    yield call
    if ended is None:
        return
    call.end_us, call.error = ended.at_us, ended.error
    numbers = np.frombuffer(ended.numbers, dtype=np.int64)
    if not len(numbers):
        return
    odd = np.ones(len(numbers), dtype=bool)
    places, ours = known.places(numbers)
    odd[np.flatnonzero(ours)[plain[places]]] = False
    if odd.any():
        ids, tokens = ended.ids.split(" "), ended.tokens
        counts = {place: (failures, lapses) for place, failures, lapses in ended.odd}

        def token(place: int) -> str:
            return tokens[place] if len(tokens) > 1 else tokens[0]

        for place in map(int, np.flatnonzero(odd)):
            failures, lapses = counts.get(place, (0, 0))
            op = Op(
                "claim",
                begun.at_us - begun.ahead_us,
                ended.at_us,
                "given",
                int(numbers[place]),
                token=token(place),
                who=who,
            )
            op.lease_us, op.failures, op.lapses = LEASE_S * 1e6, failures, lapses
            call.ops.append((ids[place], op))
    for settles, settled in claim.settled:
        ending = Call(who, settles.kind, settles.at_us, within_us=within_us)
        if settled is not None:
            ending.end_us, ending.error = settled.at_us, settled.error
        for position, place in enumerate(settles.places or range(len(numbers))):
            if not odd[place]:
                continue
            op = Op(settles.kind, settles.at_us, token=token(place), who=who)  # type: ignore[arg-type]
            op.delay_us = op.lease_us = settles.delay_us
            if settled is not None:
                fate = settled.fates[position] if settled.fates else "done"
                if fate != UNKNOWN:
                    op.end_us, op.outcome = settled.at_us, fate
            ending.ops.append((ids[place], op))
        yield ending


def percentiles(late_s: Floats) -> dict[str, float]:
    """p50, p99 and the longest, in seconds."""
    if not len(late_s):
        return {}
    p50, p99 = np.percentile(late_s, (50, 99))
    return {"p50": float(p50), "p99": float(p99), "max": float(late_s.max())}
