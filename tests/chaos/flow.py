"""The bulk of the tasks: pushed by the thousand, claimed by the thousand, acknowledged, and all of it written down in a
few bytes a task. ``account.py`` reads that.
"""

from __future__ import annotations

import random
import time
from array import array
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import msgspec

from shardq import Engine, PushError, ShardqError, Task
from shardq.core.model.task import Receipt
from tests.judge.history import append, opened, records
from tests.judge.witness import NOTHING, UNDONE, monotonic_us, number_of, settled

TOPIC = "flow"

LEASE_S = 8.0

DELAYS = (0.0, 0.0, 0.05, 0.5, 2.0, 4.0)

BATCHES = (200, 1000, 2000)

BACKLOG = 30_000
"""Tasks that wait, before the producers wait, too."""

LOOK_S = 1.0

UNKNOWN = "-"
"""In the place of an id, or a fate, that is not known."""


class Pushes(msgspec.Struct, tag="p", array_like=True, gc=False):
    """A push begins. Its payloads are ``first`` and the numbers that follow."""

    call: int
    at_us: float
    first: int
    count: int
    delay_us: float


class Pushed(msgspec.Struct, tag="q", array_like=True, gc=False):
    call: int
    at_us: float
    ids: str
    """With blanks between; empty if none is known."""
    fates: list[str]
    """Empty if all are pushed."""
    error: str = ""


class Claims(msgspec.Struct, tag="c", array_like=True, gc=False):
    call: int
    at_us: float
    ahead_us: float
    """By how much earlier its request may have been sent: a consumer may claim ahead."""


class Claimed(msgspec.Struct, tag="d", array_like=True, gc=False):
    call: int
    at_us: float
    ids: str
    numbers: bytes
    """Those of the payloads, as signed 64-bit words."""
    tokens: list[str]
    """One, if all are the same."""
    odd: list[tuple[int, int, int]]
    """Place, failures and lapses of each that has any."""
    error: str = ""


class Settles(msgspec.Struct, tag="s", array_like=True, gc=False):
    """``claim``: the call that gave them; ``places``: those of its deliveries, or all if there are none."""

    call: int
    at_us: float
    claim: int
    kind: str
    places: list[int]
    delay_us: float


class Settled(msgspec.Struct, tag="t", array_like=True, gc=False):
    call: int
    at_us: float
    fates: list[str]
    """Empty if all are done."""
    error: str = ""


Record = Pushes | Pushed | Claims | Claimed | Settles | Settled

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Record).decode


class FlowBook:
    """A file that has each record as soon as it is written."""

    def __init__(self, path: Path) -> None:
        self._file = opened(path)

    def write(self, record: Record) -> None:
        append(self._file, _encode(record))


def read(path: Path) -> Iterator[Record]:
    return map(_decode, records(path))


class Flow:
    """A producer, or a consumer, of one process."""

    def __init__(self, engine: Engine, book: FlowBook, first: int, seed: random.Random) -> None:
        self._engine = engine
        self._book = book
        self._calls = count()
        self._next = first
        self._draw = seed
        self._looked_s = 0.0
        self._ahead_us = 0.0
        self._is_full = False

    # ---- pushing

    def produce(self, per_s: float, is_over: Callable[[], bool], pause: Callable[[float], object]) -> None:
        began_s, pushed = time.monotonic(), 0
        while not is_over():
            if pushed > per_s * (time.monotonic() - began_s) or self._is_backlogged():
                pause(0.05)
                if self._is_full:  # what was not pushed meanwhile is not made up for
                    began_s, pushed = time.monotonic(), 0
                continue
            size = self._draw.choice(BATCHES)
            self._push(size, self._draw.choice(DELAYS))
            pushed += size

    def _is_backlogged(self) -> bool:
        if time.monotonic() - self._looked_s > LOOK_S:
            self._looked_s = time.monotonic()
            try:
                stats = self._engine.stats(shards=False)
            except ShardqError:
                return self._is_full
            self._is_full = stats.scheduled + stats.ready > BACKLOG
        return self._is_full

    def _push(self, size: int, delay: float) -> None:
        call, first = next(self._calls), self._next
        self._next += size
        tasks = [Task(number, delay=delay, topic=TOPIC) for number in range(first, first + size)]
        self._book.write(Pushes(call, monotonic_us(), first, size, delay * 1e6))
        try:
            receipts: Sequence[str] = self._engine.push_many(tasks)
            fates, error = [_fate(each, None) for each in receipts], ""
        except PushError as exc:
            receipts, error = exc.ids, type(exc).__name__
            fates = [_fate(each, exc) for each in receipts]
        except ShardqError as exc:
            receipts, error = [], type(exc).__name__
            fates = [NOTHING if isinstance(exc, UNDONE) else UNKNOWN] * size
        ids = " ".join(each or UNKNOWN for each in receipts)
        self._book.write(Pushed(call, monotonic_us(), ids, [] if set(fates) == {"pushed"} else fates, error))

    # ---- consuming

    def drain(self, is_over: Callable[[], bool], pause: Callable[[float], object]) -> None:
        is_ahead = self._draw.random() < 0.3
        self._ahead_us = LEASE_S * 1e6 if is_ahead else 0.0
        consumer = self._engine.consumer(TOPIC, lease=LEASE_S, prefetch=is_ahead)
        while not is_over():
            if self.drain_some(consumer, pause) == 0:
                pause(0.02)

    def drain_some(self, consumer: Any, pause: Callable[[float], object], *, calmly: bool = False) -> int:
        """Claims once, and settles. Returns how many it was given. ``calmly``: it acknowledges all of them."""
        draw, claim = self._draw, next(self._calls)
        self._book.write(Claims(claim, monotonic_us(), self._ahead_us))
        try:
            deliveries = consumer.claim(draw.choice((100, 500, 1000)), wait=draw.choice((0.2, 1.0)))
        except ShardqError as exc:
            self._book.write(Claimed(claim, monotonic_us(), "", b"", [], [], type(exc).__name__))
            return 0
        at_us = monotonic_us()
        tokens = [each.token for each in deliveries]
        self._book.write(
            Claimed(
                claim,
                at_us,
                " ".join([each.id for each in deliveries]),
                array("q", [number_of(each.payload) for each in deliveries]).tobytes(),
                tokens[:1] if len(set(tokens)) < 2 else tokens,
                [
                    (place, each.failures, each.lapses)
                    for place, each in enumerate(deliveries)
                    if each.failures or each.lapses
                ],
            )
        )
        if deliveries:
            self._end(consumer, claim, deliveries, pause, chance=1.0 if calmly else draw.random())
        return len(deliveries)

    def _end(
        self, consumer: Any, claim: int, deliveries: list[Any], pause: Callable[[float], object], chance: float
    ) -> None:
        draw = self._draw
        if chance < 0.002:
            return  # it forgets them: their leases run out
        if chance < 0.01:
            self._settle(consumer, "extend", claim, deliveries, delay=LEASE_S)
            pause(draw.choice((0.1, 1.0)))
        if chance < 0.02:
            some = sorted(draw.sample(range(len(deliveries)), min(len(deliveries), 20)))
            kind = draw.choice(("retry", "snooze", "bury"))
            self._settle(consumer, kind, claim, deliveries, some, delay=draw.choice((0.0, 0.2, 1.0)))
            rest = sorted(set(range(len(deliveries))) - set(some))
            if rest:
                self._settle(consumer, "ack", claim, deliveries, rest)
            return
        self._settle(consumer, "ack", claim, deliveries)

    def _settle(
        self,
        consumer: Any,
        kind: str,
        claim: int,
        deliveries: list[Any],
        places: Sequence[int] = (),
        *,
        delay: float = 0.0,
    ) -> None:
        call = next(self._calls)
        some = [deliveries[place] for place in places] if places else deliveries
        self._book.write(Settles(call, monotonic_us(), claim, kind, list(places), delay * 1e6))
        fates, exc = settled(consumer, kind, some, delay)
        told = [] if exc is None else [fate or UNKNOWN for fate in fates]
        self._book.write(Settled(call, monotonic_us(), told, "" if exc is None else type(exc).__name__))


def _fate(receipt: str, exc: PushError | None) -> str:
    if isinstance(receipt, Receipt):
        return str(receipt.outcome)
    failure = None if exc is None else exc.failed.get(receipt)
    return NOTHING if isinstance(failure, UNDONE) else UNKNOWN
