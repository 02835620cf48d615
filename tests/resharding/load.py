"""A process that uses an engine in every way at once: ``python -m tests.resharding.load URL NAME NUMBER FOLDER``.

It pushes, with ids of its own and without, cancels, reschedules and replaces what it pushed, and takes whatever is
ready; and writes down everything that it was answered. It pushes until there is a file ``enough`` in the folder, says
"pushed", and takes tasks until it is told to end. Also read by tests: ``Book``.
"""

from __future__ import annotations

import random
import sys
import threading
import time
from collections import Counter, defaultdict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

from shardq import Delivery, Engine, Task
from tests.support.workers import say, wait_for_the_end

LEASE_S = 600.0
"""None runs out: a task given out twice is a mistake, not a lease."""

WINDOW_S = 600.0

LEAST_ROUNDS = 25
"""Also when the machine was so slow that the test has seen enough before."""

BATCH = 40
FAR_S = 3600.0

PAUSE_S = 0.02
"""Between two rounds: four such processes leave a small machine time for what they are to disturb."""


class Pusher:
    """Its ids are ``NUMBER-…``; those of ``both-…`` all processes push."""

    def __init__(self, engine: Engine, number: int, out: TextIO) -> None:
        self._engine = engine
        self._number = number
        self._out = out
        self._random = random.Random(number)
        self._mine: list[str] = []
        """Pushed lately, and perhaps still scheduled."""

    def run(self, enough: Path) -> None:
        round = 0
        while round < LEAST_ROUNDS or not enough.exists():
            round += 1
            self._push(round)
            self._replace(round)
            self._cancel_and_reschedule()
            time.sleep(PAUSE_S)

    def _push(self, round: int) -> None:
        chance = self._random
        own = [
            Task(0, id=f"{self._number}-{round}-{n}", delay=chance.uniform(0, 5), dedup=WINDOW_S) for n in range(BATCH)
        ]
        fresh = [Task(0, delay=chance.uniform(0, 5), topic="fresh") for _ in range(BATCH)]
        both = [Task(0, id=f"both-{round}-{n}", delay=chance.uniform(0, 5), dedup=WINDOW_S) for n in range(3)]
        receipts = self._engine.push_many([*own, *fresh, *both])
        stored = [receipt for receipt in receipts if receipt.outcome == "pushed"]
        self._write("push", *stored)
        assert len(stored) >= len(own) + len(fresh), "an id that was never pushed before was taken"
        one = self._engine.push(0, id=f"{self._number}-{round}-alone", delay=1, dedup=WINDOW_S)
        self._write("push", one)
        self._mine = [*self._mine, *stored][-10 * BATCH :]

    def _replace(self, round: int) -> None:
        """Nothing of it comes before it is replaced by the last one: that one must come."""
        id = f"{self._number}-{round}-replaced"
        self._engine.push("first", id=id, delay=FAR_S, on_conflict="replace")
        second = self._engine.push("second", id=id, delay=FAR_S, on_conflict="replace")
        last = self._engine.push("last", id=id, delay=0.5, on_conflict="replace")
        assert (second.outcome, last.outcome) == ("replaced", "replaced"), (second.outcome, last.outcome)
        self._write("push", id)

    def _cancel_and_reschedule(self) -> None:
        chance = self._random
        for id in chance.sample(self._mine, 4):
            outcome = self._engine.cancel(id)
            if outcome:
                self._write("cancelled", id)
            elif outcome == "unknown":
                self._write("unknown", id)
        for id in chance.sample(self._mine, 4):
            at = time.time() + chance.uniform(0.5, 3)
            if self._engine.reschedule(id, at=at):
                self._write("moved", id, f"{time.time():.6f}", f"{at:.6f}")
                self._mine.remove(id)  # another time later would be hard to tell from a mistake
        for id in chance.sample(self._mine, 2):
            self._engine.get(id)

    def _write(self, verb: str, *words: str) -> None:
        self._out.write(f"{verb} {' '.join(words)}\n")


def consume(engine: Engine, number: int, out: TextIO, end: threading.Event) -> None:
    """Takes, and acknowledges most: some are retried once, some buried."""
    consumer = engine.consumer(["", "fresh"], lease=LEASE_S)
    chance = random.Random(-number)
    while not end.is_set():
        began = time.time()
        deliveries = consumer.claim(500)
        ended = time.time()
        done: list[Delivery] = []
        for delivery in deliveries:
            out.write(f"claim {delivery.id} {began:.6f} {ended:.6f}\n")
            assert delivery.payload in (0, "last"), f"{delivery.id} came as it was before it was replaced"
            if delivery.attempt == 1 and chance.random() < 0.05:
                consumer.retry(delivery, delay=0.3)
            elif chance.random() < 0.01:
                consumer.bury(delivery, "of no use")
                out.write(f"buried {delivery.id}\n")
            else:
                done.append(delivery)
        consumer.ack(done)
        out.write("".join(f"acked {delivery.id}\n" for delivery in done))
        end.wait(0.05)


@dataclass
class Book:
    """The answers that all processes got, by id."""

    pushed: Counter[str] = field(default_factory=Counter)
    ends: Counter[str] = field(default_factory=Counter)
    """How often a task ended: acked, buried or cancelled."""
    buried: set[str] = field(default_factory=set)
    cancelled: set[str] = field(default_factory=set)
    unknown: set[str] = field(default_factory=set)
    claims: defaultdict[str, list[tuple[float, float]]] = field(default_factory=lambda: defaultdict(list))
    """When the claim began and ended that gave it out."""
    moves: list[tuple[str, float, float]] = field(default_factory=list)
    """Id, when its new time was confirmed, and that time."""

    def read(self, folder: Path) -> Book:
        for file in folder.glob("*.book"):
            for line in file.read_text().splitlines():
                self._enter(*line.split(" "))
        # cancel takes a dead task, too: one that was buried first has ended once, as cancelled
        for id in self.buried & self.cancelled:
            self.ends[id] -= 1
        self.buried -= self.cancelled
        return self

    def _enter(self, verb: str, *words: str) -> None:
        match verb:
            case "push":
                self.pushed.update(words)
            case "claim":
                self.claims[words[0]].append((float(words[1]), float(words[2])))
            case "moved":
                self.moves.append((words[0], float(words[1]), float(words[2])))
            case "unknown":
                self.unknown.add(words[0])
            case "acked":
                self.ends[words[0]] += 1
            case "buried":
                self.buried.add(words[0])
                self.ends[words[0]] += 1
            case "cancelled":
                self.cancelled.add(words[0])
                self.ends[words[0]] += 1

    def story(self, id: str) -> str:
        """All that is known of an id, for a failure to show."""
        moves = [(confirmed, due) for moved, confirmed, due in self.moves if moved == id]
        return f"{id}: pushed {self.pushed[id]}, ended {self.ends[id]}, moved {moves}, claimed {self.claims.get(id)}"

    def early(self) -> list[str]:
        """Given out between the answer that it has a new time, and that time."""
        return [
            f"{id} was given out {due - ended:.3f} s before its new time"
            for id, confirmed, due in self.moves
            for began, ended in self.claims.get(id, ())
            if began > confirmed and ended < due
        ]


def main(url: str, name: str, number: int, folder: Path) -> None:
    end = threading.Event()
    with (
        Engine(url, name=name, timeout=60.0) as engine,  # slots that move hold calls up
        ThreadPoolExecutor(2) as threads,
        (folder / f"{number}.pushed.book").open("w") as pushes,
        (folder / f"{number}.taken.book").open("w") as takes,
    ):
        pushing = threads.submit(Pusher(engine, number, pushes).run, folder / "enough")
        taking = threads.submit(consume, engine, number, takes, end)
        try:
            say("under way")
            pushing.result()
            say("pushed")
            wait_for_the_end()
        finally:
            end.set()
        taking.result()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), Path(sys.argv[4]))
