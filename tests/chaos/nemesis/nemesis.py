"""Carries out the faults of a plan.

Each fault has a thread of its own, so that several go on at a time; what one of them works on is locked for the others.
What can't be done at its time, as everything of its kind is busy, is left out, and told; so is what was done without
effect.
"""

from __future__ import annotations

import math
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import psutil
import redis

from cluster.server import Server, ServerFailed
from tests.chaos.forgotten import Forgotten
from tests.chaos.grounds.ground import Ground
from tests.chaos.plan import Fault, FaultKind, Plan
from tests.chaos.processes import Process, Processes
from tests.chaos.sinks import Sinks
from tests.judge.verdict import Facts, Loss, Split
from tests.judge.witness import monotonic_us

LINGERS_US = 1e6
"""How long after a fault answers may still be lost: connections are found broken at their next use."""

BEHIND_US = 2e6
"""By how much a replica in step may be behind, on a machine that stands still now and then."""

CHANGED_S = 60.0
"""For servers to do what they were told, or what the lack of another one makes them do."""

ROLES_S = 0.3

STALLED_US = 8e6
"""For so long a promotion that nobody asked for may have gone on before it is seen."""


class LeftOut(Exception):
    """A fault could not be done, or had no effect."""


@dataclass(frozen=True)
class Happened:
    fault: Fault
    target: str
    from_us: float
    to_us: float


@dataclass
class Nemesis:
    plan: Plan
    ground: Ground
    processes: Processes
    sinks: Sinks | None
    facts: Facts
    ways: Mapping[FaultKind, Way]
    """How each kind is done: see ``tests.chaos.nemesis.ways``."""
    happened: list[Happened] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)
    """Faults that could not be done, by kind and reason."""
    failed: list[str] = field(default_factory=list)
    """Servers that did not do as they should: the round says less then."""
    wrong: list[str] = field(default_factory=list)
    """What the product did, and must not."""
    forgotten: list[Forgotten] = field(default_factory=list)
    """What servers have forgotten."""
    undo: list[Callable[[], None]] = field(default_factory=list)
    """What ends faults that last until the end."""

    def __post_init__(self) -> None:
        self._threads: list[threading.Thread] = []
        self._locks: dict[object, threading.Lock] = {}
        self._locks_lock = threading.Lock()
        self._roles = threading.Lock()
        """Held while roles change."""
        self._known_roles: object = None
        self._over = threading.Event()

    # ---- from the beginning to the end

    def begin(self) -> None:
        """Has ``run`` go on in the background; ``heal`` ends it."""
        self._begin(self.run)

    def run(self) -> None:
        """Does all faults of the plan, each at its time. Returns when their time is over."""
        if self.ground.has_replicas:
            self._known_roles = self._seen_roles()
            self._begin(self._watch_roles)
        began_s = time.monotonic()
        for fault in self.plan.faults:
            if self._over.wait(max(0.0, began_s + fault.at_s - time.monotonic())):
                return
            self._begin(self._carry_out, fault)
        self._over.wait(max(0.0, began_s + self.plan.seconds - time.monotonic()))

    def heal(self) -> None:
        """Waits until all that lasts is over, and all servers agree."""
        self._over.set()
        for thread in self._threads:  # the first ones may begin others
            thread.join()
        for undo in self.undo:
            undo()
        for server in [*self.ground.servers, *self.ground.sentinels]:
            if server.pid and not server.running:
                self.failed.append(f"{server!r} does not run after all faults:\n{server.log_tail()}")
        try:
            self.ground.settle()
        except ServerFailed as exc:
            self.failed.append(str(exc))

    def stop(self) -> None:
        """Ends what goes on, as well as it can: the servers are stopped next."""
        self._over.set()
        for thread in self._threads:
            thread.join(20)

    def _begin(self, work: Callable[..., None], *words: Any) -> None:
        thread = threading.Thread(target=work, args=words, name="fault", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _carry_out(self, fault: Fault) -> None:
        from_us = monotonic_us()
        try:
            target = self.ways[fault.kind](self, fault)
        except LeftOut as exc:
            self.left_out[f"{fault.kind}: {exc}"] += 1
        except Exception as exc:  # noqa: BLE001  whatever it is, the servers are not as they should be
            self.left_out[f"{fault.kind}: {type(exc).__name__}"] += 1
            tails = "\n".join(f"{each!r}\n{each.log_tail()}" for each in self.ground.sentinels)
            self.failed.append(f"{fault.kind}: {''.join(traceback.format_exception(exc))}{tails}")
        else:
            self.happened.append(Happened(fault, target, from_us, monotonic_us()))

    # ---- for those that do faults

    def lasts(self, seconds: float) -> None:
        """Waits; no longer than the time of all faults."""
        self._over.wait(seconds)

    @contextmanager
    def one(self, some: Iterable[Any], fault: Fault) -> Iterator[Any]:
        """One of these that nobody works on, for a block."""
        some = list(some)
        if not some:
            raise LeftOut("there is none")
        start = fault.target % len(some)
        for each in [*some[start:], *some[:start]]:
            lock = self._lock_of(each)
            if lock.acquire(blocking=False):
                try:
                    yield each
                    return
                finally:
                    lock.release()
        raise LeftOut("all are busy")

    @contextmanager
    def each(self, some: Iterable[object], patience_s: float = 0.0) -> Iterator[None]:
        """Nobody else works on any of these, for a block: servers, or names of programs."""
        with ExitStack() as stack:
            for one in some:
                lock = self._lock_of(one)
                if not (lock.acquire(timeout=patience_s) if patience_s else lock.acquire(blocking=False)):
                    raise LeftOut("all are busy")
                stack.callback(lock.release)
            yield

    def _lock_of(self, it: object) -> threading.Lock:
        key = it.program.name if isinstance(it, Process) else it
        with self._locks_lock:
            return self._locks.setdefault(key, threading.Lock())

    def program(self, fault: Fault, kinds: Iterable[str] = ()) -> AbstractContextManager[Process]:
        """A process that nobody works on, of one of these kinds if there are any."""
        some, wanted = list(self.processes.current.values()), set(kinds)
        return self.one([each for each in some if not wanted or each.program.kind in wanted], fault)

    def master(self, fault: Fault) -> AbstractContextManager[Server]:
        """A master that nobody works on, and whose role nobody changes."""
        return self.one(self.masters(), fault)

    def masters(self) -> list[Server]:
        try:
            return self.ground.masters()
        except (redis.RedisError, ServerFailed, StopIteration):
            return []

    @contextmanager
    def roles(self) -> Iterator[None]:
        """No role changes during a block, but by it."""
        if not self._roles.acquire(blocking=False):
            raise LeftOut("another role changes")
        try:
            yield
        finally:
            self._roles.release()

    @contextmanager
    def with_replica(self, fault: Fault) -> Iterator[tuple[Server, Server]]:
        """A master and its replica, in step, while no other role changes."""
        with self.roles(), self.master(fault) as master:
            replica = self.ground.replica_of(master)
            if replica is None:
                raise LeftOut("no replica is in step")
            with self.one([replica], fault), self.losing():
                yield master, replica
                self.ground.settle()
                self._known_roles = self._seen_roles()

    def _seen_roles(self) -> object:
        return sorted(server.address for server in self.masters())

    def _watch_roles(self) -> None:
        """A machine that stands still fails over by itself: the judge is told that it did."""
        while not self._over.wait(ROLES_S):
            with suppress(LeftOut), self.roles():
                seen = self._seen_roles()
                if seen and seen != self._known_roles:
                    self.left_out["a promotion that nobody asked for"] += 1
                    from_us = monotonic_us() - STALLED_US
                    with self.losing():
                        with suppress(ServerFailed):
                            self.ground.settle()
                        self.split(from_us, None)
                        self._known_roles = self._seen_roles()

    # ---- what the judge is told

    @contextmanager
    def losing(self, who: str = "") -> Iterator[None]:
        """Answers may be lost during a block: of one process; of all if it is not named."""
        loss = Loss(monotonic_us(), float("inf"), who)
        self.facts.losses.append(loss)
        try:
            yield
        finally:
            self.facts.losses.remove(loss)
            self.facts.losses.append(Loss(loss.from_us, monotonic_us() + LINGERS_US, who))

    def split(
        self, from_us: float, shards: frozenset[int] | None, *, promoted_us: float = 0.0, left_us: float = math.inf
    ) -> None:
        """Two servers took calls from then on, or from the promotion, until now, or until all programs must have left
        one of them.
        """
        to_us = min(monotonic_us(), left_us) + LINGERS_US
        self.facts.splits.append(Split(max(from_us, promoted_us), to_us, from_us - BEHIND_US, shards))


Way = Callable[[Nemesis, Fault], str]
"""Does a fault, and returns what it was done to."""


def until(done: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + CHANGED_S
    while not done():
        if time.monotonic() > deadline:
            raise ServerFailed(f"waited {CHANGED_S:.0f} s until {what}, in vain")
        time.sleep(0.02)


def effective(is_seen: bool) -> None:
    """A fault whose effect was not seen does not count as done."""
    if not is_seen:
        raise LeftOut("it had no effect")


def stood_still(server: Server, seconds: float) -> bool:
    """Stops a server for so long by SIGSTOP. Returns True if it really stood still."""
    server.pause()
    time.sleep(seconds)
    is_still = psutil.Process(server.pid).status() == psutil.STATUS_STOPPED
    server.resume()
    return bool(is_still)
