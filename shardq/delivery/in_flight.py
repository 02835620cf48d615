"""The jobs in flight: every job between its claim and its settling, under one lock. No I/O.

The threads of a loop meet here and nowhere else. A job is finished once: what comes second, a handler after its timeout
or after its lease was lost, is told so and ignored. A lot has one place, and its jobs are finished one by one, by the
handler or with the end of their call.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterable, Sequence

from shardq.core.consumer.prefetch import STALE_S
from shardq.core.consumer.settling import Settlement
from shardq.core.layout.lanes import lane_of
from shardq.core.model.task import Delivery
from shardq.delivery.job import Job, Lot, Unit
from shardq.delivery.prefetch import BatchRoom, Prefetch

GIVE_WAY_S = 0.00005
"""A pause of whoever has made room with many jobs left to begin. Quick handlers never wait for anything, so the
fetching thread, which is woken, would get Python's lock when all of them are done, and they would wait for its claim.
"""

GIVE_WAY_FROM = 64
"""So many jobs held are many: a pause is a small part of their time."""


class InFlight:
    def __init__(self, concurrency: int) -> None:
        self.prefetch: Prefetch = Prefetch(concurrency)
        self._concurrency = concurrency
        self._lock = threading.Lock()
        self._room = threading.Condition(self._lock)
        self._room_for_lots = threading.Condition(self._lock)
        self._work = threading.Condition(self._lock)
        self._judged = threading.Condition(self._lock)
        self._any = threading.Condition(self._lock)
        self._quiet = threading.Condition(self._lock)
        self._jobs: dict[Job, None] = {}
        """In the order of their claims, in which their leases are extended."""
        self._lots: dict[Lot, None] = {}
        """The lots that have not ended."""
        self._inbox: deque[Unit] = deque()
        self._settlements: list[tuple[Job, Settlement]] = []
        self._running = 0
        """Units that run. Those that wait are ``_held``, with the lots among them in the rooms, too."""
        self._held = 0
        self._resting = 0
        self._waking = False
        """True while a thread that was woken for a job has not come yet."""
        self._fetching = True
        self._full = False
        """True while the fetching thread waits for room."""
        self._lots_full = 0
        """Threads that wait for room for a lot."""
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

    def offer(self, units: Sequence[Unit]) -> int:
        """Offers units to the threads. Returns how many of them no idle thread can take."""
        with self._lock:
            self._inbox.extend(units)
            self._wake()
            return max(0, len(self._inbox) - self._resting)

    def stop_fetching(self) -> None:
        with self._lock:
            self._fetching = False
            self._room.notify_all()
            self._room_for_lots.notify_all()

    def wanted_lot(self, room: BatchRoom) -> bool:
        """Waits until there is room for a lot. Returns False when no more is to be claimed."""
        with self._lock:
            while self._fetching and not room.has_room(self._concurrency - self._running):
                self._lots_full += 1
                self._room_for_lots.wait()
                self._lots_full -= 1
            return self._fetching

    def put_lot(self, lot: Lot) -> bool:
        """Likewise, for the jobs of a lot."""
        with self._lock:
            if not self._jobs:
                self._any.notify_all()
            self._jobs.update(dict.fromkeys(lot.jobs))
            self._lots[lot] = None
            self._held += 1
            lot.room.held += 1
            lot.room.tasks += len(lot.jobs)
            return self._fetching

    # ---- work

    def next(self) -> Unit | None:
        """Waits for the next unit for one thread, and begins it. None: the worker has ended."""
        with self._lock:
            while True:
                while not self._inbox:
                    if self._ended:
                        return None
                    self._resting += 1
                    self._work.wait()
                    self._resting -= 1
                    self._waking = False
                unit = self._inbox.popleft()
                if unit.stage == "held":
                    break
            self._begin(unit)
            if self._inbox:
                self._wake()
        self._let_fetch()
        return unit

    def _wake(self) -> None:
        """Wakes an idle thread, which wakes the next if it leaves something. Nobody while one is on its way: it can't
        come before a handler leaves Python's lock, and all at once would only wait for that.
        """
        if not self._waking and self._resting:
            self._waking = True
            self._work.notify()

    def begin(self, unit: Unit) -> bool:
        """Marks a unit as running. Returns False if it was given back meanwhile."""
        with self._lock:
            if unit.stage != "held":
                return False
            self._begin(unit)
        self._let_fetch()
        return True

    def begin_call(self, lot: Lot, jobs: Sequence[Job]) -> list[Job]:
        """Begins a call with these jobs of a lot that runs. Returns those that have no settlement yet."""
        with self._lock:
            if lot.stage != "running":
                return []
            for job in lot.called:
                if job.stage == "running":
                    job.stage = "held"
            lot.began_at = now = time.monotonic()
            lot.called = called = [job for job in jobs if job.stage != "done"]
            for job in called:
                job.stage, job.began_at = "running", job.began_at or now
            return called

    def _begin(self, unit: Unit) -> None:
        unit.stage, unit.began_at = "running", time.monotonic()
        self._held -= 1
        self._running += 1
        if type(unit) is Lot:
            unit.room.held -= 1
            unit.room.running += 1
            self._room_for_lots.notify_all()
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

    def finish_all(self, settled: Iterable[tuple[Job, Settlement]]) -> list[tuple[Job, Settlement]]:
        """Finishes jobs of a lot with these settlements. Returns those that were not finished before."""
        with self._lock:
            return self._finish_all(settled)

    def end_lot(self, lot: Lot, settled: Iterable[tuple[Job, Settlement]] = ()) -> bool:
        """Ends a lot: it has its place no longer. What of it is neither finished nor ``settled`` is given back. Returns
        False if it was ended before.
        """
        with self._lock:
            if lot.stage == "done":
                return False
            self._finish_all(settled)
            self._end_lot(lot)
            return True

    def _end_lot(self, lot: Lot) -> None:
        self._finish_all([(job, job.back()) for job in lot.open()])
        room = lot.room
        if lot.stage == "running":
            room.running -= 1
            room.waits_for_place = False
            self._running -= 1
        else:
            room.held -= 1
            self._held -= 1
        lot.stage = "done"
        lot.jobs, lot.called = [], ()
        self._lots.pop(lot)
        if not self._running and not self._fetching:
            self._quiet.notify_all()
        if self._full:
            self._make_room()
        self._room_for_lots.notify_all()
        room.freed()

    def _finish_all(self, settled: Iterable[tuple[Job, Settlement]]) -> list[tuple[Job, Settlement]]:
        now, found = time.monotonic(), []
        for each in settled:
            job = each[0]
            if job.stage != "done":
                job.stage, job.ended_at = "done", now
                found.append(each)
        if found:
            lot = found[0][0].lot
            assert lot is not None, "they are of one lot"
            lot.room.tasks -= len(found)
            lot.room.freed()
            if not self._settlements:
                self._judged.notify()
            self._settlements += found
        return found

    def give_back(self, units: Iterable[Unit]) -> None:
        """Finishes, undone, those of these units that nobody has begun meanwhile."""
        with self._lock:
            for unit in units:
                if unit.stage == "held":
                    if isinstance(unit, Lot):
                        self._end_lot(unit)
                    else:
                        self._finish(unit, unit.back())

    def hold(self, held: Delivery) -> None:
        """Gives back what nobody has begun of a key that waits from now on, or of a topic: that of a task without."""
        lane = lane_of(held.id)
        with self._lock:
            for job in self._jobs:
                same = job.delivery.topic == held.topic if lane is None else job.delivery.id.startswith(lane)
                if same and job.stage == "held":
                    self._finish(job, job.back())

    def _finish(self, job: Job, settlement: Settlement | None) -> None:
        if job.lot is not None:  # which has the place
            job.ended_at = time.monotonic()
            job.lot.room.tasks -= 1
            job.lot.room.freed()
            if settlement is None:
                job.lot.lost.append(job.delivery)
        elif job.stage == "running":
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
        if self._lots_full:
            self._room_for_lots.notify_all()

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

    def lots(self) -> list[Lot]:
        """The lots that have not ended."""
        with self._lock:
            return list(self._lots)

    def watched(self, tick_s: float, *, awake: bool = False) -> list[Job] | None:
        """Returns all jobs after a tick. Sleeps while there is none, unless ``awake``. None: the worker has ended."""
        with self._any:
            while not self._jobs and not self._lots and not self._ended and not awake:
                self._any.wait()
            if not self._ended:
                self._any.wait(tick_s)
            return None if self._ended else list(self._jobs)

    def stale(self) -> list[Unit]:
        """Held units that have waited for so long that another worker should have them."""
        limit = time.monotonic() - STALE_S
        with self._lock:
            old = [unit for unit in self._units() if unit.stage == "held" and unit.claimed_at < limit]
            if old:
                self.prefetch.guessed_wrong()
                for unit in old:
                    if type(unit) is Lot:
                        unit.room.waits_for_place = True
                self._inbox = deque(unit for unit in self._inbox if unit.claimed_at >= limit)
            return old

    # ---- the end

    def emptied(self) -> list[Unit]:
        """Takes what nobody has begun, also of lots that run."""
        with self._lock:
            self._inbox.clear()
            held: list[Unit] = [job for job in self._jobs if job.stage == "held"]
            return held + [lot for lot in self._lots if lot.stage == "held"]

    def unfinished(self) -> list[Unit]:
        """The units whose handlers run now."""
        with self._lock:
            return [unit for unit in self._units() if unit.stage == "running"]

    def _units(self) -> list[Unit]:
        return [*(job for job in self._jobs if job.lot is None), *self._lots]

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
            for condition in (self._work, self._judged, self._any, self._room, self._room_for_lots):
                condition.notify_all()
