"""Virtual time, and threads that are greenlets: the scheduler of a simulated run.

All that happens is an event at an instant. The hub takes one after the other; nothing runs between two events, and time
stands still while one does, but for a microsecond at each look at a clock. So a run is a function of its seed.

A thread gives way only where it waits: for a lock, an event, a socket, or a time. ``patches`` puts these threads and
locks in place of the standard library's while a run goes on, so the product's own threads are simulated unchanged.
"""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from greenlet import greenlet

YIELDS = 0.02
"""How often a thread that takes a free lock lets others go first."""


class Stuck(Exception):
    """A run that goes on for longer than it may, or in which nothing can happen any more."""


@dataclass(eq=False)
class Process:
    """A process: its threads live, stand still and die together."""

    name: str
    skew_us: int = 0
    """How far its clock is before the true time."""
    is_dead: bool = False
    frozen_until_us: int = 0
    threads: list[Thread] = field(default_factory=list)
    ended: list[Callable[[], object]] = field(default_factory=list)
    """What is done when it dies: its connections end."""

    def __repr__(self) -> str:
        return f"<{self.name}>"


class Thread:
    """One thread of a process. Has the names of ``threading.Thread``."""

    def __init__(
        self,
        group: None = None,
        target: Callable[..., object] | None = None,
        name: str = "",
        args: Any = (),
        kwargs: Any = None,
        *,
        daemon: bool | None = None,
        process: Process | None = None,
    ) -> None:
        self.hub = hub()
        self.process: Process = process or self.hub.current.process
        self.name = name or "thread"
        self.daemon = bool(daemon)
        self.ident: int | None = None
        self.failure: BaseException | None = None
        """What it ended with, if it was no return."""
        self._call = target, args, kwargs or {}
        self._greenlet: greenlet | None = None
        self._parked = 0
        """The number of its present wait, 0 while it runs."""
        self._over: list[Callable[[], object]] = []

    def __repr__(self) -> str:
        return f"<{self.process.name}/{self.name}>"

    def start(self) -> None:
        self.ident = next(self.hub.numbers)
        self._greenlet = greenlet(self._run, parent=self.hub.main)
        self.process.threads.append(self)
        self.hub.after(self.hub.jitter_us(), self._go_on)

    def _go_on(self, value: Any = None) -> None:
        """Runs it until it waits again. In the hub."""
        process, hub = self.process, self.hub
        if process.is_dead or self._greenlet is None:
            return
        if process.frozen_until_us > hub.now_us:
            hub.at(process.frozen_until_us, lambda: self._go_on(value))
            return
        before, hub.current = hub.current, self
        try:
            self._greenlet.switch(value)
        finally:
            hub.current = before

    def run(self) -> None:
        target, args, kwargs = self._call
        if target is not None:
            target(*args, **kwargs)

    def _run(self, _: Any) -> None:
        try:
            self.run()
        except BaseException as exc:  # noqa: BLE001  a thread that ends so ends nothing else
            self.failure = exc
        self._greenlet = None
        over, self._over = self._over, []
        for call in over:
            call()

    def is_alive(self) -> bool:
        return self._greenlet is not None and not self.process.is_dead

    def join(self, timeout: float | None = None) -> None:
        if self.is_alive():
            woken = self.hub.waiting()
            self._over.append(woken)
            self.hub.park(timeout)

    @property
    def native_id(self) -> int | None:
        return self.ident

    def isDaemon(self) -> bool:
        return self.daemon


class Hub:
    """The scheduler of one run."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(f"{seed}/hub")
        self.now_us = 0
        self.main = greenlet.getcurrent()
        self.outside = _Outside(self)
        self.current: Thread = self.outside
        self.numbers = count(1)
        self._waits = count(1)
        self._events: list[tuple[int, int, Callable[[], object]]] = []
        self._order = count()
        self.events = 0

    # ---- events

    def at(self, when_us: float, call: Callable[[], object]) -> None:
        heapq.heappush(self._events, (math.ceil(max(self.now_us, when_us)), next(self._order), call))

    def after(self, delay_us: float, call: Callable[[], object]) -> None:
        self.at(self.now_us + delay_us, call)

    def jitter_us(self) -> int:
        """A moment, so that what happens at one time comes in any order."""
        return self.draw.choice((0, 0, 1, 3, 10, 40))

    def run(self, until: Callable[[], bool], *, most_us: float, most_events: int = 3_000_000) -> None:
        """Lets events happen until that is so. Raises Stuck when it never is."""
        end_us = self.now_us + most_us
        while not until():
            if not self._events:
                raise Stuck("nothing can happen any more: all threads wait for each other")
            when_us, _, call = heapq.heappop(self._events)
            if when_us > end_us:
                raise Stuck(f"it is not over after {most_us / 1e6:g} s")
            self.now_us = max(self.now_us, when_us)
            self.events += 1
            if self.events > most_events:
                raise Stuck(f"it is not over after {most_events:,} events")
            call()

    # ---- waiting, in a thread

    def waiting(self) -> Callable[[], None]:
        """Begins a wait of the present thread. Returns what ends it, from wherever; ``park`` waits."""
        thread = self.current
        thread._parked = number = next(self._waits)

        def wake() -> None:
            if thread._parked == number:
                thread._parked = 0
                self.after(self.jitter_us(), lambda: thread._go_on(True))

        return wake

    def park(self, timeout: float | None = None) -> bool:
        """Waits for the end of the wait that was begun, or for so many seconds. Returns False if the time was over."""
        thread = self.current
        number = thread._parked
        if thread is self.outside:
            raise Stuck("what is called outside of all threads would wait for ever")
        if timeout is not None:

            def over() -> None:
                if thread._parked == number:
                    thread._parked = 0
                    thread._go_on(False)

            self.after(math.ceil(max(0.0, timeout) * 1e6), over)
        return bool(self.main.switch())

    def sleep(self, seconds: float) -> None:
        self.waiting()
        self.park(seconds)

    def monotonic(self) -> float:
        """The clock of a process that nobody sets. It is another one in each."""
        self.now_us += 1
        return self.now_us / 1e6 + 1000.0

    def time(self) -> float:
        self.now_us += 1
        return (START_US + self.now_us + self.current.process.skew_us) / 1e6

    # ---- processes

    def spawn(self, process: Process, target: Callable[[], object], name: str = "main") -> Thread:
        thread = Thread(target=target, name=name, process=process)
        thread.start()
        return thread

    def kill(self, process: Process) -> None:
        """Ends a process between two instructions: nothing of it runs any more, no ``finally`` either."""
        process.is_dead = True
        for call in list(process.ended):  # each leaves that list
            call()
        process.ended.clear()

    def freeze(self, process: Process, seconds: float) -> None:
        process.frozen_until_us = max(process.frozen_until_us, int(self.now_us + seconds * 1e6))


START_US = 1_700_000_000_000_000
"""The true time at the beginning of a run, since 1970."""


class _Outside(Thread):
    """What runs in no thread of the simulation: the run itself, which looks on."""

    def __init__(self, its: Hub) -> None:
        self.hub = its
        self.process = Process("outside")
        self.name, self.ident, self.daemon = "outside", 0, False
        self._parked = 0
        self._greenlet = None


_hub: Hub | None = None


def hub() -> Hub:
    """The hub of the run that goes on."""
    assert _hub is not None, "no simulated run goes on"
    return _hub


def set_hub(its: Hub | None) -> None:
    global _hub
    _hub = its


class Lock:
    """Has the names of ``threading.Lock``."""

    def __init__(self) -> None:
        self._held = False
        self._waiters: list[Callable[[], None]] = []

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        its = hub()
        if blocking and its.current is not its.outside and its.draw.random() < YIELDS:
            its.sleep(0)
        deadline_us = None if timeout < 0 else its.now_us + timeout * 1e6
        while self._held:
            if not blocking:
                return False
            left = None if deadline_us is None else (deadline_us - its.now_us) / 1e6
            if left is not None and left <= 0:
                return False
            self._waiters.append(its.waiting())
            its.park(left)
        self._held = True
        return True

    def release(self) -> None:
        if not self._held:
            raise RuntimeError("release unlocked lock")
        self._held = False
        waiters, self._waiters = self._waiters, []
        for wake in waiters:
            wake()

    def locked(self) -> bool:
        return self._held

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *exc: object) -> None:
        self.release()

    def _at_fork_reinit(self) -> None:
        self._held = False


class RLock:
    """Has the names of ``threading.RLock``, those too by which a ``Condition`` uses it."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._owner: Thread | None = None
        self._count = 0

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        me = hub().current
        if self._owner is me:
            self._count += 1
            return True
        if not self._lock.acquire(blocking, timeout):
            return False
        self._owner, self._count = me, 1
        return True

    def release(self) -> None:
        if self._owner is not hub().current:
            raise RuntimeError("cannot release un-acquired lock")
        self._count -= 1
        if not self._count:
            self._owner = None
            self._lock.release()

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *exc: object) -> None:
        self.release()

    def _is_owned(self) -> bool:
        return self._owner is hub().current

    def _release_save(self) -> int:
        count, self._count, self._owner = self._count, 0, None
        self._lock.release()
        return count

    def _acquire_restore(self, count: int) -> None:
        self._lock.acquire()
        self._owner, self._count = hub().current, count

    def _at_fork_reinit(self) -> None:
        self.__init__()  # type: ignore[misc]


class Guard(RLock):
    """Has the names of ``locks.Guard``, and those that a future asks of its lock."""

    @property
    def held_here(self) -> bool:
        return self._is_owned()

    def notify_all(self) -> None:
        pass

    def wait(self, _: float | None = None) -> bool:
        return False
