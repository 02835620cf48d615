"""The jobs in flight: every job between its claim and its settling, under one lock. No I/O.

The worker's threads meet here and nowhere else. A job is finished once: whoever comes second, a handler after its
timeout or after its lease was lost, is told so and ignored.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterable

from shardq.worker.job import Job, Settlement
from shardq.worker.prefetch import STALE_S, Prefetch

MOST_AT_ONCE = 32
"""Jobs that a thread takes together when handlers are quick: fewer turns at the lock."""

QUICK_S = 0.001


class InFlight:
    def __init__(self, concurrency: int) -> None:
        self.prefetch = Prefetch(concurrency)
        self._lock = threading.Lock()
        self._room = threading.Condition(self._lock)
        self._work = threading.Condition(self._lock)
        self._judged = threading.Condition(self._lock)
        self._any = threading.Condition(self._lock)
        self._quiet = threading.Condition(self._lock)
        self._jobs: set[Job] = set()
        self._inbox: deque[Job] = deque()
        self._behind: list[Job] = []
        """Jobs that threads have taken behind others, since the last tick; some may have begun or ended."""
        self._settlements: list[tuple[Job, Settlement]] = []
        self._running = 0
        self._held = 0
        self._resting = 0
        self._fetching = True
        self._full = False
        """True while the fetching thread waits for room."""
        self._ended = False

    def __repr__(self) -> str:
        return f"<InFlight: {self._running} running, {self._held} held, {len(self._settlements)} to settle>"

    @property
    def running(self) -> int:
        """The number of handlers that run now."""
        return self._running

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
            self._jobs.update(jobs)
            self._held += len(self._jobs) - before
            if not before:
                self._any.notify_all()
            return self._fetching

    def offer(self, jobs: list[Job]) -> int:
        """Offers jobs to the threads. Returns how many of them no idle thread can take.

        Wakes one idle thread. Each that takes some and leaves some wakes the next: all at once would only wait for each
        other at the lock.
        """
        with self._lock:
            self._inbox.extend(jobs)
            self._work.notify()
            return max(0, len(self._inbox) - self._resting)

    def stop_fetching(self) -> None:
        with self._lock:
            self._fetching = False
            self._room.notify_all()

    # ---- work

    def take(self) -> list[Job]:
        """Waits for the next jobs for one thread. Empty: the worker has ended."""
        with self._work:
            while not self._inbox:
                if self._ended:
                    return []
                self._resting += 1
                self._work.wait()
                self._resting -= 1
            # More than one only of a backlog that leaves enough for every other thread.
            share = len(self._inbox) // self.prefetch.concurrency if self.prefetch.mean_s < QUICK_S else 1
            jobs = [self._inbox.popleft() for _ in range(max(1, min(MOST_AT_ONCE, share)))]
            self._behind += jobs[1:]
            if self._inbox and self._resting:
                self._work.notify()
            return jobs

    def share_out(self) -> None:
        """Offers jobs that wait in a thread's hands, behind one that turned out to be slow, to idle threads.

        Their own thread may still come to them: whoever begins a job has it.
        """
        with self._lock:
            behind, self._behind = self._behind, []
            if self._resting and not self._inbox:
                self._inbox.extend(job for job in behind if job.stage == "held")
                if self._inbox:
                    self._work.notify()
            else:
                self._behind = [job for job in behind if job.stage == "held"]

    def begin(self, job: Job) -> bool:
        """Marks a job as running. Returns False if it was given back, or begun by another thread, meanwhile."""
        with self._lock:
            if job.stage != "held":
                return False
            job.stage, job.began_at = "running", time.monotonic()
            self._held -= 1
            self._running += 1
            # Held jobs leave room, too: no handler may end for hours.
            if self._full:
                self._make_room()
            return True

    def finish(self, job: Job, settlement: Settlement | None) -> bool:
        """Finishes a job with its settlement (None: its lease is lost, and nobody is to be told). Returns False if it
        was finished before.
        """
        with self._lock:
            if job.stage == "done":
                return False
            if job.stage == "running":
                self._running -= 1
                job.ended_at = now = time.monotonic()
                self.prefetch.finished(1, now - job.began_at, now)
            else:
                self._held -= 1
            job.stage = "done"
            if settlement is None:
                self._jobs.discard(job)
            else:
                if not self._settlements:
                    self._judged.notify()
                self._settlements.append((job, settlement))
            if not self._running and not self._fetching:
                self._quiet.notify_all()
            if self._full:
                self._make_room()
            return True

    def _make_room(self) -> None:
        if self.prefetch.want(self._held, self._running):
            self._full = False
            self._room.notify()

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
            self._jobs.difference_update(jobs)

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
