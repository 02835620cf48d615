"""The worker's table: every job between its claim and its settling, under one lock. No I/O.

Threads meet here and nowhere else. A verdict is given once: whoever comes second, a handler after its timeout or after
its lease was lost, is told so and ignored.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterable

from shardq.worker.job import Job, Verdict
from shardq.worker.prefetch import STALE_S, Prefetch

MOST_AT_ONCE = 32
"""Jobs a hand takes together when handlers are quick: fewer turns at the lock."""

QUICK_S = 0.001


class Table:
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
        self._verdicts: list[tuple[Job, Verdict]] = []
        self._running = 0
        self._held = 0
        self._resting = 0
        self._fetching = True
        self._full = False
        """Whether the fetching waits until there is room."""
        self._ended = False

    def __repr__(self) -> str:
        return f"<Table: {self._running} running, {self._held} held, {len(self._verdicts)} to settle>"

    # ---- fetch

    def wanted(self) -> int:
        """How many to claim; waits until it is more than none. 0: fetch no more."""
        with self._room:
            while self._fetching:
                if want := self.prefetch.want(self._held, self._running):
                    return want
                self._full = True
                self._room.wait()
            return 0

    def put(self, jobs: Iterable[Job]) -> bool:
        """Jobs just claimed: counted as held, and extended from now on. False: too late, they are to be given back."""
        with self._lock:
            before = len(self._jobs)
            self._jobs.update(jobs)
            self._held += len(self._jobs) - before
            self._any.notify_all()
            return self._fetching

    def offer(self, jobs: list[Job]) -> int:
        """Jobs for the hands; answers how many of them nobody is resting for."""
        with self._lock:
            self._inbox.extend(jobs)
            self._work.notify(len(jobs))
            return max(0, len(self._inbox) - self._resting)

    def stop_fetching(self) -> None:
        with self._lock:
            self._fetching = False
            self._room.notify_all()

    # ---- work

    def take(self) -> list[Job]:
        """The next jobs for one hand; waits for them. Empty: the worker has ended."""
        with self._work:
            while not self._inbox:
                if self._ended:
                    return []
                self._resting += 1
                self._work.wait()
                self._resting -= 1
            # more than one only of a backlog that leaves enough for every other hand
            share = len(self._inbox) // self.prefetch.concurrency if self.prefetch.mean_s < QUICK_S else 1
            return [self._inbox.popleft() for _ in range(max(1, min(MOST_AT_ONCE, share)))]

    def begin(self, job: Job) -> bool:
        """False: it was given back meanwhile."""
        with self._lock:
            if job.stage != "held":
                return False
            job.stage, job.began_at = "running", time.monotonic()
            self._held -= 1
            self._running += 1
            # what was held leaves room, too: nobody may end for hours
            self._make_room()
            return True

    def judge(self, job: Job, verdict: Verdict | None) -> bool:
        """Gives a job's verdict (None: nobody is to be told, its lease is lost). False: it had one already."""
        with self._lock:
            if job.stage == "done":
                return False
            if job.stage == "running":
                self._running -= 1
                now = time.monotonic()
                self.prefetch.finished(1, now - job.began_at, now)
            else:
                self._held -= 1
            job.stage = "done"
            if verdict is None:
                self._jobs.discard(job)
            else:
                self._verdicts.append((job, verdict))
                self._judged.notify()
            if not self._running:
                self._quiet.notify_all()
            self._make_room()
            return True

    def _make_room(self) -> None:
        if self._full and self.prefetch.want(self._held, self._running):
            self._full = False
            self._room.notify()

    # ---- settle

    def verdicts(self) -> list[tuple[Job, Verdict]]:
        """All that are given and not taken yet; waits for some. Empty: the worker has ended and none is left."""
        with self._judged:
            while not self._verdicts and not self._ended:
                self._judged.wait()
            taken, self._verdicts = self._verdicts, []
            return taken

    def settled(self, jobs: Iterable[Job]) -> None:
        with self._lock:
            self._jobs.difference_update(jobs)

    # ---- watch

    def watched(self, tick_s: float, *, awake: bool = False) -> list[Job] | None:
        """After a tick: all jobs. Sleeps while there is none, unless ``awake``. None: the worker has ended."""
        with self._any:
            while not self._jobs and not self._ended and not awake:
                self._any.wait()
            if not self._ended:
                self._any.wait(tick_s)
            return None if self._ended else list(self._jobs)

    def stale(self) -> list[Job]:
        """What has waited here for so long that another worker should have it: in the inbox, or behind another job."""
        limit = time.monotonic() - STALE_S
        with self._lock:
            old = [job for job in self._jobs if job.stage == "held" and job.claimed_at < limit]
            if old:
                self.prefetch.guessed_wrong()
                self._inbox = deque(job for job in self._inbox if job.claimed_at >= limit)
            return old

    # ---- the end

    def emptied(self) -> list[Job]:
        """What nobody has begun."""
        with self._lock:
            self._inbox.clear()
            return [job for job in self._jobs if job.stage == "held"]

    def unfinished(self) -> list[Job]:
        with self._lock:
            return [job for job in self._jobs if job.stage == "running"]

    def wait_quiet(self, until: float) -> bool:
        """Until nothing runs. False: it did not happen in time."""
        with self._quiet:
            while self._running:
                left = until - time.monotonic()
                if left <= 0:
                    return False
                # in slices: a signal handler runs between them
                self._quiet.wait(min(left, 0.1))
            return True

    def end(self) -> None:
        with self._lock:
            self._ended = True
            for condition in (self._work, self._judged, self._any, self._room):
                condition.notify_all()
