"""The jobs in flight: every job between its claim and its settling, under one lock, and the settlement that the end of
its handler means. No I/O.

The worker's threads meet here and nowhere else. A job is finished once: what comes second, a handler after its timeout
or after its lease was lost, is told so and ignored.

``Strays`` are handlers that run on although their task was ended over their heads, after a timeout, or when its lease
was lost. Nothing can end a thread, nor a coroutine that swallows its cancellation. Others get its place at once, so
there may be many strays. A topic with ``MOST`` of them, or with one for each place, is claimed no more until some end.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Iterable, Mapping
from typing import Literal

import msgspec

from shardq.core.calls.consume import OtherSettlement, SettleBury, SettleGiveBack, SettleHold, SettleRetry, SettleSnooze
from shardq.core.consumer.ahead import STALE_S, Prefetch
from shardq.core.consumer.policy import Bury, Hold, Retry, Snooze, alone, reason_of
from shardq.core.consumer.settling import Settlement, noted, settlement_after
from shardq.core.layout.lanes import lane_of
from shardq.core.model.checks import reason_text
from shardq.core.model.task import Delivery
from shardq.worker.handlers import Handler, Hooks, UnknownTask
from shardq.worker.logs import Once, tell

GIVE_WAY_S = 0.00005
"""A pause of whoever has made room with many jobs left to begin. Quick handlers never wait for anything, so the
fetching thread, which is woken, would get Python's lock when all of them are done, and they would wait for its claim.
"""

GIVE_WAY_FROM = 64
"""So many jobs held are many: a pause is a small part of their time."""

MOST = 16
"""The strays that any topic may have. A thread costs some megabytes at worst, and with one place a single stray must
not end the work.
"""

Stage = Literal["held", "running", "done"]
"""held: claimed and not begun. done: finished, by its handler or over its head; that happens once."""


class Job(msgspec.Struct, eq=False):
    """A Struct, as there is one for each task. The garbage collector must know it: a payload that keeps an exception of
    its handler refers, by the exception's frames, to the job.
    """

    delivery: Delivery
    handler: Handler
    claimed_at: float = msgspec.field(default_factory=time.monotonic)
    stage: Stage = "held"
    began_at: float = 0.0
    ended_at: float = 0.0
    unknown: str | None = None
    """The name of the function, if it is given back because this worker has none of that name."""

    @property
    def waited_s(self) -> float:
        """How long it waited for its handler, once that began."""
        return self.began_at - self.claimed_at

    @property
    def name(self) -> str:
        """The name of its handler, in logs and errors."""
        return self.handler.name(self.delivery)

    @property
    def is_coroutine(self) -> bool:
        return self.handler.is_coroutine(self.delivery)

    def back(self) -> SettleGiveBack:
        return SettleGiveBack(self.delivery.id, self.delivery.token)

    def retry(self, reason: str) -> SettleRetry:
        """Retries by the handler's backoff. Never raises, whatever that does."""
        delivery, handler = self.delivery, self.handler
        delay_ms = handler.delay_ms(delivery.attempt)
        return SettleRetry(delivery.id, delivery.token, delay_ms, reason_text(reason), handler.max_attempts)

    def noted(self, settlement: OtherSettlement) -> OtherSettlement:
        """The settlement as it is sent: with this attempt, if it failed."""
        return noted(settlement, self.delivery.past, self.ended_at - self.began_at if self.began_at else None)


Outcome = Literal["done", "retried", "buried", "snoozed"]
"""How a call of a handler ended."""

_OUTCOMES: Mapping[type[Settlement], Outcome] = {
    Delivery: "done",
    SettleRetry: "retried",
    SettleBury: "buried",
    SettleSnooze: "snoozed",
    SettleHold: "snoozed",
}


def outcome_of(settlement: Settlement) -> Outcome | None:
    """How the call ended; None for a task that is given back undone."""
    return _OUTCOMES.get(type(settlement))


def call_hooks(hooks: Hooks, job: Job, settlement: Settlement, failure: BaseException | None) -> None:
    """Calls the hooks after a job's handler. One that has snoozed its task has not failed."""
    if failure is None or isinstance(settlement, SettleSnooze):
        hooks.after(job.delivery)
    else:
        hooks.error(job.delivery, failure)


def settlement_of(job: Job, exc: BaseException) -> Settlement:
    """The settlement after a handler that has raised. Never raises: exceptions and policies are the user's code, and a
    task without a settlement would be held, and its lease extended, for ever.
    """
    task, handler = job.delivery, job.handler
    # Neither the payload nor the text of the exception.
    fields = {"task_id": task.id, "topic": task.topic, "attempt": task.attempt, "error": type(exc).__name__}
    try:
        decided = alone(exc)
        settlement = settlement_after(task, decided, None, handler.delay_ms, handler.max_attempts)
        match decided:
            case Retry():
                tell(logging.INFO, "task %s is tried again: %s", task.id, decided.reason, extra=fields)
            case Bury():
                tell(logging.WARNING, "task %s is buried: %s", task.id, decided.reason, extra=fields)
            case UnknownTask():
                job.unknown = decided.task
                if handler.once.new(str(decided)):
                    what = "task %s has to wait: %s (said once for a name)"
                    tell(logging.ERROR, what, task.id, decided, extra=fields)
            case Hold():
                what, held = "task %s holds its %s for %s", "topic" if task.key is None else "key"
                tell(logging.INFO, what, task.id, held, decided.delay, extra=fields)
            case Snooze():
                tell(logging.DEBUG, "task %s is snoozed: %s", task.id, decided.delay, extra=fields)
            case _:
                tell(logging.ERROR, "task %s failed in attempt %d", task.id, task.attempt, exc=exc, extra=fields)
        return settlement
    except BaseException as fault:  # noqa: BLE001  attributes of the user's own exception, SystemExit too
        tell(logging.ERROR, "task %s failed with an exception that can't be read", task.id, exc=fault, extra=fields)
        return job.retry(reason_of(exc))


class InFlight:
    def __init__(self, concurrency: int) -> None:
        self.prefetch: Prefetch = Prefetch(concurrency)
        self._lock = threading.Lock()
        self._room = threading.Condition(self._lock)
        self._work = threading.Condition(self._lock)
        self._judged = threading.Condition(self._lock)
        self._any = threading.Condition(self._lock)
        self._quiet = threading.Condition(self._lock)
        self._jobs: dict[Job, None] = {}
        """In the order of their claims, in which their leases are extended."""
        self._inbox: deque[Job] = deque()
        self._settlements: list[tuple[Job, Settlement]] = []
        self._running = 0
        self._held = 0
        self._resting = 0
        self._waking = False
        """True while a thread that was woken for a job has not come yet."""
        self._fetching = True
        self._full = False
        """True while the fetching thread waits for room."""
        self._give_way = False
        """True if it was woken, and whoever begins the next job lets it come first."""
        self._ended = False

    def __repr__(self) -> str:
        return f"<InFlight: {self._running} running, {self._held} held, {len(self._settlements)} to settle>"

    # ---- fetch

    def wanted(self) -> int:
        """Waits until more is wanted, and returns how many to claim. 0: claim no more."""
        with self._room:
            while self._fetching:
                if want := self.prefetch.want(self._held, self._running):
                    return want
                self._full = True
                self._room.wait()
            return 0

    def put(self, jobs: Iterable[Job]) -> bool:
        """Adds jobs just claimed: they count as held, and are extended. Returns False if it is too late, and they are
        to be given back.
        """
        with self._lock:
            before = len(self._jobs)
            self._jobs.update(dict.fromkeys(jobs))
            self._held += len(self._jobs) - before
            if not before:
                self._any.notify_all()
            return self._fetching

    def offer(self, jobs: list[Job]) -> int:
        """Offers jobs to the threads. Returns how many of them no idle thread can take."""
        with self._lock:
            self._inbox.extend(jobs)
            self._wake()
            return max(0, len(self._inbox) - self._resting)

    def stop_fetching(self) -> None:
        with self._lock:
            self._fetching = False
            self._room.notify_all()

    # ---- work

    def next(self) -> Job | None:
        """Waits for the next job for one thread, and begins it. None: the worker has ended."""
        with self._lock:
            while True:
                while not self._inbox:
                    if self._ended:
                        return None
                    self._resting += 1
                    self._work.wait()
                    self._resting -= 1
                    self._waking = False
                job = self._inbox.popleft()
                if job.stage == "held":
                    break
            self._begin(job)
            if self._inbox:
                self._wake()
        self._let_fetch()
        return job

    def _wake(self) -> None:
        """Wakes an idle thread, which wakes the next if it leaves something. Nobody while one is on its way: it can't
        come before a handler leaves Python's lock, and all at once would only wait for that.
        """
        if not self._waking and self._resting:
            self._waking = True
            self._work.notify()

    def begin(self, job: Job) -> bool:
        """Marks a job as running. Returns False if it was given back meanwhile."""
        with self._lock:
            if job.stage != "held":
                return False
            self._begin(job)
        self._let_fetch()
        return True

    def _begin(self, job: Job) -> None:
        job.stage, job.began_at = "running", time.monotonic()
        self._held -= 1
        self._running += 1
        # Held jobs leave room, too: no handler may end for hours.
        if self._full:
            self._make_room()

    def _let_fetch(self) -> None:
        """Lets the fetching thread come first, if it was woken. Called without the lock, which it needs."""
        if self._give_way:
            self._give_way = False
            time.sleep(GIVE_WAY_S)

    def finish(self, job: Job, settlement: Settlement | None) -> bool:
        """Finishes a job with its settlement (None: its lease is lost, and nobody is to be told). Returns False if it
        was finished before.
        """
        with self._lock:
            if job.stage == "done":
                return False
            self._finish(job, settlement)
            return True

    def give_back(self, jobs: Iterable[Job]) -> None:
        """Finishes, undone, those of these jobs that nobody has begun meanwhile."""
        with self._lock:
            for job in jobs:
                if job.stage == "held":
                    self._finish(job, job.back())

    def hold(self, held: Delivery) -> None:
        """Gives back what nobody has begun of a key that waits from now on, or of a topic: that of a task without."""
        lane = lane_of(held.id)
        with self._lock:
            for job in self._jobs:
                same = job.delivery.topic == held.topic if lane is None else job.delivery.id.startswith(lane)
                if same and job.stage == "held":
                    self._finish(job, job.back())

    def _finish(self, job: Job, settlement: Settlement | None) -> None:
        if job.stage == "running":
            self._running -= 1
            job.ended_at = now = time.monotonic()
            self.prefetch.finished(1, now - job.began_at, now)
        else:
            self._held -= 1
        job.stage = "done"
        if settlement is None:
            self._jobs.pop(job, None)
        else:
            if not self._settlements:
                self._judged.notify()
            self._settlements.append((job, settlement))
        if not self._running and not self._fetching:
            self._quiet.notify_all()
        if self._full:
            self._make_room()

    def _make_room(self) -> None:
        if self.prefetch.want(self._held, self._running):
            self._full = False
            self._room.notify()
            self._give_way = self._held >= GIVE_WAY_FROM

    # ---- settle

    def settlements(self) -> list[tuple[Job, Settlement]]:
        """Waits for settlements, and takes all of them. Empty: the worker has ended and none is left."""
        with self._judged:
            while not self._settlements and not self._ended:
                self._judged.wait()
            taken, self._settlements = self._settlements, []
            return taken

    def settled(self, jobs: Iterable[Job]) -> None:
        with self._lock:
            for job in jobs:
                self._jobs.pop(job, None)

    # ---- watch

    def watched(self, tick_s: float, *, awake: bool = False) -> list[Job] | None:
        """Returns all jobs after a tick. Sleeps while there is none, unless ``awake``. None: the worker has ended."""
        with self._any:
            while not self._jobs and not self._ended and not awake:
                self._any.wait()
            if not self._ended:
                self._any.wait(tick_s)
            return None if self._ended else list(self._jobs)

    def stale(self) -> list[Job]:
        """Held jobs that have waited for so long that another worker should have them."""
        limit = time.monotonic() - STALE_S
        with self._lock:
            old = [job for job in self._jobs if job.stage == "held" and job.claimed_at < limit]
            if old:
                self.prefetch.guessed_wrong()
                self._inbox = deque(job for job in self._inbox if job.claimed_at >= limit)
            return old

    # ---- the end

    def emptied(self) -> list[Job]:
        """Takes the jobs that nobody has begun."""
        with self._lock:
            self._inbox.clear()
            return [job for job in self._jobs if job.stage == "held"]

    def unfinished(self) -> list[Job]:
        """The jobs whose handlers run now."""
        with self._lock:
            return [job for job in self._jobs if job.stage == "running"]

    def wait_quiet(self, until: float) -> bool:
        """Waits until nothing runs. Returns False if that does not happen in time."""
        with self._quiet:
            while self._running:
                left = until - time.monotonic()
                if left <= 0:
                    return False
                # In slices: signal handlers run between them.
                self._quiet.wait(min(left, 0.1))
            return True

    def end(self) -> None:
        with self._lock:
            self._ended = True
            for condition in (self._work, self._judged, self._any, self._room):
                condition.notify_all()


class Strays:
    """The strays of one worker. Thread-safe."""

    def __init__(self, concurrency: int) -> None:
        self._most = max(MOST, concurrency)
        self._lock = threading.Lock()
        self._once = Once()
        self.jobs: set[Job] = set()
        """Not to be changed by others."""

    def __str__(self) -> str:
        return ", ".join(f"{name}: {count}" for name, count in self.names.items())

    def add(self, job: Job) -> None:
        with self._lock:
            self.jobs.add(job)

    def discard(self, job: Job) -> None:
        """Removes a stray that has ended."""
        with self._lock:
            self.jobs.discard(job)

    def say(self, job: Job) -> None:
        if self._once.new(name := job.name):
            what = "handler %s runs on after its task was ended; others have its place, it is counted (said once)"
            tell(logging.WARNING, what, name)

    @property
    def functions(self) -> int:
        """The number of strays that keep a thread."""
        with self._lock:
            return sum(not job.is_coroutine for job in self.jobs)

    @property
    def names(self) -> Mapping[str, int]:
        """Handler's name → its strays."""
        with self._lock:
            return dict(Counter(job.name for job in self.jobs))

    @property
    def full(self) -> frozenset[str]:
        """The topics that have too many strays."""
        if len(self.jobs) < self._most:
            return frozenset()
        with self._lock:
            counts = Counter(job.delivery.topic for job in self.jobs)
        return frozenset(topic for topic, count in counts.items() if count >= self._most)
