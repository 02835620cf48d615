"""A busy program whose main thread is interrupted again and again:
``python -m tests.support.signalled URL NAME KIND SIGNALS SECONDS``.

Pushes, claims, acks and a buffer, in the main thread and in others, while a timer's signals arrive at random instants.
KIND: the handler ``raises``, as a soft time limit does; or ``pushes``, as one does that hands work back. It says what
became of it in a line of JSON, at the latest after so many SECONDS. A thread that stands still for STILL_S ends the
process, with the stacks of all on stderr.
"""

from __future__ import annotations

import faulthandler
import gc
import json
import os
import random
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from types import FrameType
from typing import Any, NoReturn

from shardq import Consumer, Delivery, Engine, Task
from shardq.errors import LeaseLost, ShardqError
from tests.support.workers import say

TIMEOUT_S = 5.0
STILL_S = 20.0
THREADS = 2
SHORTEST_S, LONGEST_S = 0.00002, 0.01
"""The times between two signals, as many of each magnitude: some steps are struck at once, and some get to their end.
A push takes a tenth of a millisecond on an idle machine.
"""

MOST_SOUGHT = 2000
"""The pushes of each thread that are looked for in the end."""

PAUSE_S = 0.01
"""Between two steps of another thread: most of the time is for the thread that is struck."""

HUNG = 3
"""The exit code of a program in which a thread stands still."""


class Struck(Exception):
    """Raised by the handler. An Exception, as soft time limits are."""


class StruckHard(BaseException):
    """The same as KeyboardInterrupt is."""


class StruckLate(TimeoutError):
    """Of a type that sockets raise, too."""


KINDS = (Struck, StruckHard, StruckLate)


class Program:
    """One thread's work, its steps in turn."""

    def __init__(self, engine: Engine, buffer: Any, topic: str) -> None:
        self._engine = engine
        self._buffer = buffer
        self._topic = topic
        self._consumer = engine.consumer(topic, lease=30)
        self._ahead = engine.consumer(topic, lease=30, prefetch=True)
        self._held: list[Delivery] = []
        self.pushed: set[str] = set()
        """The ids of pushes that returned, and whose tasks this has not begun to ack."""
        self.moved_at = time.monotonic()
        self.steps = Counter[str]()
        self.errors = Counter[str]()
        self._turn = 0
        self._all: list[Callable[[], None]] = [
            self.push, self.push, self.push_many, self.claim, self.ack, self.wait, self.buffered, self.claim_ahead,
        ]  # fmt: skip

    def step(self) -> None:
        self._turn += 1
        self.moved_at = time.monotonic()
        work = self._all[self._turn % len(self._all)]
        try:
            work()
        except LeaseLost:
            return  # a claim that was interrupted has given them back, or they were acked by a settling that was
        except ShardqError as exc:
            self.errors[f"{work.__name__}: {type(exc).__name__}: {exc}"[:300]] += 1
        self.steps[work.__name__] += 1

    def close(self) -> None:
        self._consumer.close()
        self._ahead.close()

    def push(self) -> None:
        self.pushed.add(self._engine.push(self._turn, topic=self._topic))

    def push_many(self) -> None:
        self._engine.push_many([Task(n, topic=self._topic) for n in range(20)])

    def claim(self) -> None:
        self._held = self._consumer.claim(20)

    def claim_ahead(self) -> None:
        self._acked(self._ahead, self._ahead.claim(20))

    def ack(self) -> None:
        held, self._held = self._held, []
        self._acked(self._consumer, held)

    def wait(self) -> None:
        self._acked(self._consumer, self._consumer.claim(20, wait=0.002))

    def _acked(self, consumer: Consumer, deliveries: list[Delivery]) -> None:
        if deliveries:
            self.pushed.difference_update(delivery.id for delivery in deliveries)
            consumer.ack(deliveries)

    def buffered(self) -> None:
        pending = [self._buffer.push(n, topic=self._topic) for n in range(5)]
        pending[-1].result(timeout=TIMEOUT_S)


class Strikes:
    """The signals. Each arms the next."""

    def __init__(self, kind: str, most: int, engine: Engine, buffer: Any) -> None:
        self._raises = kind == "raises"
        self._most = most
        self._engine = engine
        self._buffer = buffer
        self.count = 0
        self.nested = 0
        self.errors = Counter[str]()
        self.is_open = False
        """True while the program catches what the handler raises."""
        self._random = random.Random(os.getpid())

    @property
    def is_over(self) -> bool:
        return self.count >= self._most

    def start(self) -> None:
        signal.signal(signal.SIGALRM, self._strike)
        self._arm()

    def stop(self) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, signal.SIG_IGN)

    def _arm(self) -> None:
        if not self.is_over:
            signal.setitimer(signal.ITIMER_REAL, SHORTEST_S * (LONGEST_S / SHORTEST_S) ** self._random.random())

    def _strike(self, number: int, frame: FrameType | None) -> None:
        if self._raises:
            self._arm()
            if self.is_open:
                self.is_open = False  # until the program is out of its last exception
                self.count += 1
                self._raise()
            return
        self.count += 1
        try:
            if self.count % 3 == 0:
                self._buffer.push("from a handler", topic="nested")
            elif self.count % 3 == 1:
                self._engine.push("from a handler", topic="nested")
            else:
                self._engine.push_many([Task(n, topic="nested") for n in range(3)])
            self.nested += 1
        except ShardqError as exc:
            self.errors[f"handler: {type(exc).__name__}: {exc}"[:300]] += 1
        finally:
            self._arm()

    def _raise(self) -> NoReturn:
        raise KINDS[self.count % len(KINDS)]


def watch(programs: list[Program], strikes: Strikes) -> None:
    while True:
        time.sleep(1.0)
        for place, program in enumerate(programs):
            if time.monotonic() - program.moved_at > STILL_S:
                say(f"thread {place} stands still after {strikes.count} signals, {program.steps}, {program.errors}")
                faulthandler.dump_traceback(file=sys.stderr)
                sys.stderr.flush()
                os._exit(HUNG)


def main(url: str, name: str, kind: str, signals: int, seconds: float) -> None:
    foreign = list[str]()

    def apart(program: Program, until: Callable[[], bool]) -> None:
        try:
            while not until():
                program.step()
                time.sleep(PAUSE_S)
        except BaseException as exc:
            foreign.append(f"in another thread: {exc!r}")
            raise

    sys.setswitchinterval(0.0002)  # the main thread gets its turn sooner, and more signals are handled in a second
    with Engine(url, name=name, timeout=TIMEOUT_S, shards=4) as engine:
        engine.start()
        buffer = engine.buffered()
        programs = [Program(engine, buffer, topic) for topic in ("here", "there", "elsewhere")[: THREADS + 1]]
        strikes = Strikes(kind, signals, engine, buffer)
        over = threading.Event()
        threads = [threading.Thread(target=apart, args=(program, over.is_set), daemon=True) for program in programs[1:]]
        for thread in threads:
            thread.start()
        threading.Thread(target=watch, args=(programs, strikes), daemon=True).start()
        until = time.monotonic() + seconds
        struck = 0
        strikes.start()
        while not strikes.is_over and time.monotonic() < until:
            try:
                strikes.is_open = True
                while not strikes.is_over and time.monotonic() < until:
                    programs[0].step()
                strikes.is_open = False
            except KINDS:
                struck += 1
            except BaseException as exc:  # noqa: BLE001  it is reported
                foreign.append(f"{exc!r} after {strikes.count}")
                if len(foreign) > 20:
                    break
        strikes.stop()
        # What is left behind must serve on: from here nothing strikes.
        programs[0].errors, mended = Counter(), programs[0].errors
        for _ in range(50):
            programs[0].step()
        after, programs[0].errors = programs[0].errors, mended
        over.set()
        for thread in threads:
            thread.join()
        for program in programs:
            program.close()
        buffer.close()
        del buffer
        gc.collect()
        driver = engine._redis.driver
        assert driver is not None
        (pool,) = driver._pools.values()
        for _ in range(100):  # threads of the engine use it, too, for a moment
            if pool.open == len(pool._idle):
                break
            time.sleep(0.1)
            gc.collect()
        idle, named = list(pool._idle), {thread.ident: thread.name for thread in threading.enumerate()}
        held = [
            (named.get(each.place.holder, each.place.holder), each.in_step, each.open)
            for each in driver._connections
            if not each.place.is_extra and each not in idle and each.open
        ]
        lost = [id for program in programs for id in sorted(program.pushed)[:MOST_SOUGHT] if engine.get(id) is None]
        say(
            json.dumps(
                {
                    "signals": strikes.count, "struck": struck, "nested": strikes.nested, "foreign": foreign,
                    "steps": programs[0].steps, "steps elsewhere": sum(sum(p.steps.values()) for p in programs[1:]),
                    "errors": [strikes.errors, after, *(program.errors for program in programs)],
                    "idle": len(pool._idle), "open": pool.open, "held": held, "lost": lost, "gc": gc.isenabled(),
                }
            )
        )  # fmt: skip


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), float(sys.argv[5]))
