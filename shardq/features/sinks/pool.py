"""The threads that all senders of a process share: as many as have something to do, however many routes there are.

A sender that waits, for tasks, for answers or for its sink to come back, has no thread: it has a turn when there is
something to do. A turn may stand still as long as its sink does, but for HTTP, whose requests have a loop of their own.
So three bounds keep one route from the time of the others. A route has one turn at a time. Turns that have become slow
make room for other threads, and routes that were slow before share some of the threads. And turns are taken in the
order in which they were asked for, so a route that has many tasks waits behind those that have one.

A thread is begun at once while there are few; then only for a turn that has waited for a moment: a burst of quick turns
needs no thread for each.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from shardq.core import forks
from shardq.core.threads import Loop

log: logging.Logger = logging.getLogger("shardq.sinks")

MOST_THREADS = 128
"""The threads at most, beside those whose turn is slow."""

MOST_SLOW = 128
"""The turns of routes that were slow before, at most."""

MOST = 1024
"""All threads, at most: some 60 MB. It takes that many turns that become slow in the same seconds."""

SLOW_S = 1.0
"""A turn that takes longer is slow, and so is the next one of its route."""

FEW = 16
"""So many threads are begun without a wait."""

PATIENCE_S = 0.05
"""Where turns wait, and none was begun for so long, all threads stand still: for each eight of them one is begun."""

GROWTH_S = 0.1
"""Where turns wait although others are begun, one more thread is begun after so long."""

IDLE_S = 2.0
"""A thread ends after so long without a turn."""

Turn = Callable[[], object]


class Pool:
    """Runs turns in threads, those that waited longest first. Thread-safe."""

    def __init__(self) -> None:
        self.loop: Loop = Loop(
            "shardq-sinks-turns", self._step, log, fails="turns of senders can't be begun", works="they can again"
        )
        """Begins turns when their time has come, and threads for those that wait."""
        self._reset()
        forks.watch(self, Pool._reset)

    def _reset(self) -> None:
        self._changed = threading.Condition()
        self._waiting: tuple[deque[tuple[float, Turn]], ...] = deque(), deque()
        """Turns, each with the time since which it waits: quick ones, and slow ones."""
        self._timers: list[tuple[float, int, PooledLoop]] = []
        self._numbers = itertools.count()
        self._threads = self._idle = self._slow = 0
        self._running: dict[int, float] = {}
        """Thread → since when it has its turn."""
        self._begun_at = self._grew_at = 0.0
        self._closed = False

    def submit(self, turn: Turn, *, slow: bool) -> None:
        """Has the turn taken by a thread. ``slow``: the last one of its route was."""
        with self._changed:
            self._submit(turn, slow=slow)

    def _submit(self, turn: Turn, *, slow: bool) -> None:
        self._waiting[slow].append((time.monotonic(), turn))
        if self._idle >= len(self._waiting[0]) + len(self._waiting[1]):
            self._changed.notify()
        elif self._threads < FEW:
            self._begin()
        else:
            self._changed.notify()
            self.loop.wake()

    def close(self) -> None:
        """Ends the threads, once the turns that wait are over: by its last one a sender disconnects."""
        self.loop.stop()
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    # ---- loops

    def asked(self, loop: PooledLoop, after_s: float = 0.0) -> None:
        """Has the loop's step taken once more, now or after that time."""
        at = time.monotonic() + after_s
        with self._changed:
            if loop.at is None or at < loop.at:
                loop.at = at
                if not loop.is_busy:
                    self._scheduled(loop)

    def took_from(self, loop: PooledLoop) -> bool:
        """Takes the place of the loop's next turn, until ``turned``. Returns False if it has one now."""
        with self._changed:
            free = not loop.is_busy
            loop.is_busy = True
            return free

    def turned(self, loop: PooledLoop, wait_s: float | None) -> None:
        """Notes that a turn is over, and when the next one is to come; None: when it is asked for."""
        with self._changed:
            loop.is_busy = False
            if wait_s is not None:
                at = time.monotonic() + wait_s
                loop.at = at if loop.at is None else min(loop.at, at)
            if loop.at is not None:
                self._scheduled(loop)

    def _scheduled(self, loop: PooledLoop) -> None:
        assert loop.at is not None, "it has a time"
        if loop.at <= time.monotonic():
            loop.is_busy, loop.at = True, None
            self._submit(loop.turn, slow=loop.is_slow)
            return
        heapq.heappush(self._timers, (loop.at, next(self._numbers), loop))
        if self._timers[0][2] is loop:
            self.loop.wake()

    # ---- threads

    def _step(self) -> float | None:
        """Begins turns whose time has come. Returns the seconds until the next one."""
        with self._changed:
            now = time.monotonic()
            while self._timers and self._timers[0][0] <= now:
                at, _, loop = heapq.heappop(self._timers)
                if loop.at == at and not loop.is_busy:  # else it had its turn sooner
                    self._scheduled(loop)
            wait_s = self._timers[0][0] - now if self._timers else None
            since = [turns[0][0] for slow, turns in enumerate(self._waiting) if turns and self._may(slow)]
            if not since or self._threads >= MOST:
                return wait_s
            stuck = now - max(self._begun_at, min(since)) >= PATIENCE_S
            if stuck or now - max(self._grew_at, min(since)) >= GROWTH_S:
                self._grew_at = now
                for _ in range(1 + stuck * sum(map(len, self._waiting)) // 8):
                    self._begin()
            return PATIENCE_S if wait_s is None else min(PATIENCE_S, wait_s)

    def _may(self, slow: int) -> bool:
        """True if a turn of that kind may be begun."""
        return not slow or self._slow < MOST_SLOW or self._closed

    def _begin(self) -> None:
        slow = sum(since < time.monotonic() - SLOW_S for since in self._running.values())
        if self._threads - slow >= MOST_THREADS or self._threads >= MOST:
            return
        self._threads += 1
        try:
            threading.Thread(target=self._work, name="shardq-sink", daemon=True).start()
        except RuntimeError as exc:  # no more threads in this system
            self._threads -= 1
            log.debug("no further thread could be begun: %s", exc)

    def _work(self) -> None:
        while (taken := self._next()) is not None:
            slow, turn = taken
            try:
                turn()
            except BaseException:
                log.exception("the turn of a sender has failed")
            with self._changed:
                self._slow -= slow
                del self._running[threading.get_ident()]

    def _next(self) -> tuple[int, Turn] | None:
        """The turn that waits longest; None: the thread is to end."""
        with self._changed:
            while True:
                heads = [(turns[0][0], slow) for slow, turns in enumerate(self._waiting) if turns and self._may(slow)]
                if heads:
                    _, slow = min(heads)
                    self._slow += slow
                    self._begun_at = self._running[threading.get_ident()] = time.monotonic()
                    return slow, self._waiting[slow].popleft()[1]
                told = False
                if not self._closed:
                    self._idle += 1
                    told = self._changed.wait(IDLE_S)
                    self._idle -= 1
                if not told and not any(self._waiting):
                    self._threads -= 1
                    return None


class PooledLoop(Loop):
    """A loop whose steps are turns of a pool. While it waits it has no thread."""

    def __init__(
        self,
        pool: Pool,
        name: str,
        step: Callable[[], float | None],
        log: logging.Logger,
        *,
        pause_s: Callable[[], float],
        **how: Any,
    ) -> None:
        """``pause_s``: the least time after a step that failed. ``how``: as of ``Loop``."""
        self._pool = pool
        self._least_pause_s = pause_s
        self.at: float | None = None
        """When its next turn is to be; of the pool, as the next one."""
        self.is_busy: bool = False
        """True while it has a turn, or waits for a thread to take it."""
        self.is_slow: bool = False
        """True if its last turn was slow."""
        self._over = threading.Event()
        super().__init__(name, step, log, **how)

    @property
    def is_alive(self) -> bool:
        return self.thread is not None and not self._over.is_set()

    def start(self) -> None:
        with self._lock:
            if self.thread is not None or self.stopping.is_set():
                return
            self.thread = threading.current_thread()  # until its first turn
        self.wake()

    def wake(self, after_s: float = 0.0) -> None:
        """Has a turn taken now, or after that time."""
        if self.thread is not None:
            self._pool.asked(self, after_s)

    def stop(self) -> None:
        self.stopping.set()
        self.wake()

    def join(self, within_s: float | None = None) -> None:
        if self.thread is not None:
            self._over.wait(within_s)

    def turn(self) -> None:
        """Takes a step, in a thread of the pool."""
        self.thread, began = threading.current_thread(), time.monotonic()
        wait_s = None if self.stopping.is_set() else self._guarded_step()
        if self.fault and wait_s is not None:
            wait_s = max(wait_s, self._least_pause_s())
        self.is_slow = time.monotonic() - began > SLOW_S
        if not self.stopping.is_set():
            self._pool.turned(self, wait_s)
        elif not self._over.is_set():
            try:
                self._ended()
            finally:
                self._over.set()

    def between_turns(self, work: Callable[[], object]) -> None:
        """Does the work, in the calling thread, unless it has a turn now."""
        if self._pool.took_from(self):
            try:
                work()
            finally:
                self._pool.turned(self, None)
