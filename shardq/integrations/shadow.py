"""Shadow mode, for a queue that delays its tasks itself: shardq delays a small copy of each beside it, and both are
compared. Nothing that happens here disturbs the queue: what fails is counted, and logged once.

A *run* is one delayed delivery of one task: the task's id and its due time. What becomes of it is kept as facts in a
stream on the engine's server, which are themselves tasks of shardq, of a topic that is forwarded to that stream:

    expected    it was delayed; pushed without a delay
    arrived     shardq has dispatched it; pushed with the run's due time
    ran         the queue's worker has begun it
    cancelled   it was cancelled, with all other runs of its task

The stream keeps the newest ``KEPT`` facts.
"""

from __future__ import annotations

import datetime as dt
import logging
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal

import msgspec

from shardq import Engine
from shardq.core.calls.request import Command
from shardq.core.layout.slots import slot_of
from shardq.engine.around import EngineAccess, connected
from shardq.errors import ShardqError
from shardq.features.sinks.base import Circuit
from shardq.integrations.delaying import as_payload

log: logging.Logger = logging.getLogger("shardq.integrations")

KEPT = 300_000
"""Facts of some 100,000 runs, in about 40 MB."""

TRIM_EACH = 1000
PAGE = 1000

GRACE_S = 10.0
"""A run that is not seen so long after it was due is missing."""

EARLY_S = 0.002
"""The clocks of a worker and of a server differ by as much."""


class Fact(msgspec.Struct, frozen=True, omit_defaults=True):
    """The facts known of a run."""

    kind: Literal["expected", "arrived", "ran", "cancelled"]
    task: str
    due: int
    at: float = 0.0
    """The instant of a run, in ms."""
    size: int = 0
    unseen: int = 0


class Side(msgspec.Struct, frozen=True, kw_only=True):
    """The counts of what one of the two has done with the runs that were due."""

    seen: int
    missing: int
    twice: int
    """Runs that were seen more than once."""
    early: int
    late: tuple[float, float, float] | None
    """Seconds: half of them, 99 of 100, and the latest; None if none was seen."""


_COUNTS = (("seen", "seen"), ("missing", "missing"), ("more than once", "twice"), ("early", "early"))
"""The rows of a printed report: title, and the field of a side."""


class ShadowReport(msgspec.Struct, frozen=True, kw_only=True):
    """The comparison so far. Printed, it is a table."""

    name: str
    delayed: int
    """The runs that are known."""
    due: int
    """The runs that were due, and not cancelled."""
    cancelled: int
    unseen: int
    """The runs that could not be noted, as the engine could not be reached."""
    bytes: float
    """The size of a message, on average."""
    queue: Side
    shardq: Side

    def __str__(self) -> str:
        sides = self.queue, self.shardq
        rows = [(title, *(f"{getattr(side, name):,}" for side in sides)) for title, name in _COUNTS]
        for n, title in enumerate(("late, half of them", "late, 99 of 100", "latest")):
            rows.append((title, *(f"{side.late[n]:.3f} s" if side.late else "-" for side in sides)))
        lines = [
            f"shadow of {self.name}: {self.delayed:,} delayed, {self.due:,} due by now, {self.cancelled:,} cancelled; "
            f"{self.bytes:,.0f} bytes a message",
            f"{'':22}{'as it is':>14}{'shardq':>14}",
            *(f"{title:22}{one:>14}{other:>14}" for title, one, other in rows),
            "as it is: a worker has begun it; shardq: it would be in the worker's queue",
        ]
        if self.unseen:
            lines.append(f"{self.unseen:,} were not noted, as the engine could not be reached")
        if self.due and not self.queue.seen:
            lines.append("no worker has told of a run: shadow mode is to be on in the workers, too")
        return "\n".join(lines)


class Shadow:
    """Notes what a queue delays and runs, and lets shardq delay it, too. None of the notes raises anything."""

    def __init__(self, engine: Engine, name: str) -> None:
        self.name = name
        self._engine = engine
        self._options = EngineAccess(engine).options
        self._topic = f"shadow.{re.sub('[^A-Za-z0-9_.-]+', '-', name)[:50]}"
        self._key = f"shadow:{engine.name}:{self._topic}"
        self._circuit = Circuit()
        self._unseen = 0
        self._noted = 0

    # ---- notes

    def expect(self, task: str, due: dt.datetime, *, size: int) -> None:
        """Notes that the queue delays a task. ``task``: an id that shardq takes; ``size``: the bytes of its message."""
        self._note(lambda: self._expect(task, due, size), unseen=1)

    def ran(self, task: str, due: dt.datetime) -> None:
        """Notes that a worker has begun a run."""
        self._note(lambda: self._tell(Fact("ran", task, _ms(due), at=time.time() * 1000)))

    def cancelled(self, task: str) -> None:
        """Notes that a task was cancelled, and cancels it here."""

        def note() -> None:
            self._tell(Fact("cancelled", task, 0))
            self._engine.cancel(f"{self._topic}/{task}")

        self._note(note)

    def _expect(self, task: str, due: dt.datetime, size: int) -> None:
        unseen, self._unseen = self._unseen, 0
        self._tell(Fact("expected", task, _ms(due), size=size, unseen=unseen))
        self._tell(Fact("arrived", task, _ms(due)), at=due, id=task, on_conflict="replace")
        self._noted += 1
        if self._noted % TRIM_EACH == 0:
            with connected(self._options) as driver:
                driver.call(Command(slot_of(self._key), ["XTRIM", self._key, "MAXLEN", "~", str(KEPT)], int))

    def _tell(self, fact: Fact, **options: Any) -> None:
        payload = as_payload(self._options, msgspec.json.encode(fact))
        self._engine.push(payload, topic=self._topic, **options)

    def _note(self, note: Callable[[], None], *, unseen: int = 0) -> None:
        if self._circuit.pause_s() > 0:
            self._unseen += unseen
            return
        try:
            if not self._noted:
                self._engine.forward(self._topic, to=f"stream:{self._key}")
                self._noted = 1
            note()
            self._circuit.worked()
        except ShardqError as exc:
            if not self._circuit.error:
                log.warning("shadow of %s: runs are not noted for now: %s", self.name, exc)
            self._circuit.failed(str(exc))
            self._unseen += unseen

    # ---- the comparison

    def report(self, *, forget: bool = False) -> ShadowReport:
        """Compares what is known. ``forget=True``: and begins anew."""
        with connected(self._options) as driver:

            def page(first: str) -> Any:
                words = ["XRANGE", self._key, first, "+", "COUNT", str(PAGE)]
                return driver.call(Command(slot_of(self._key), words, lambda answer: answer))

            report = compared(self.name, _facts(page), now_ms=time.time() * 1000)
            if forget:
                driver.call(Command(slot_of(self._key), ["DEL", self._key], int))
        return report


def _ms(due: dt.datetime) -> int:
    return round(due.timestamp() * 1000)


def _facts(page: Callable[[str], Any]) -> Iterator[tuple[Fact, float]]:
    """Every fact of the stream, with the server's time in ms when it came."""
    first = "-"
    while entries := page(first):
        for id, fields in entries:
            stamp = id.decode().partition("-")[0]
            yield msgspec.json.decode(fields[fields.index(b"payload") + 1], type=Fact), float(stamp)
        first = f"({entries[-1][0].decode()}"


def compared(name: str, facts: Iterable[tuple[Fact, float]], *, now_ms: float) -> ShadowReport:
    """Folds facts, in their order, into a report."""
    expected: dict[tuple[str, int], int] = {}
    ended: dict[str, float] = {}
    seen: dict[str, dict[tuple[str, int], list[float]]] = {"ran": {}, "arrived": {}}
    unseen = 0
    for fact, stamp in facts:
        run = fact.task, fact.due
        if fact.kind == "expected":
            expected[run] = fact.size
            unseen += fact.unseen
        elif fact.kind == "cancelled":
            ended[fact.task] = stamp
        else:
            seen[fact.kind].setdefault(run, []).append(fact.at or stamp)
    cancelled = {run for run in expected if ended.get(run[0], run[1]) < run[1]}
    due = [run for run in expected if run[1] <= now_ms and run not in cancelled]
    return ShadowReport(
        name=name,
        delayed=len(expected),
        due=len(due),
        cancelled=len(cancelled),
        unseen=unseen,
        bytes=sum(expected.values()) / max(1, len(expected)),
        queue=_side(due, seen["ran"], now_ms),
        shardq=_side(due, seen["arrived"], now_ms),
    )


def _side(due: list[tuple[str, int]], seen: dict[tuple[str, int], list[float]], now_ms: float) -> Side:
    times = Counter({run: len(seen.get(run, ())) for run in due})
    late = sorted((seen[run][0] - run[1]) / 1000 for run in due if run in seen)
    return Side(
        seen=len(late),
        missing=sum(not times[run] and run[1] < now_ms - GRACE_S * 1000 for run in due),
        twice=sum(count > 1 for count in times.values()),
        early=sum(each < -EARLY_S for each in late),
        late=(late[len(late) // 2], late[min(len(late) - 1, len(late) * 99 // 100)], late[-1]) if late else None,
    )
