"""Round after round, until there were enough. While one goes on, those before it are judged in another process."""

from __future__ import annotations

import multiprocessing
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import redis

from bench.chaos import Chaos, write
from cluster.server import ServerFailed
from shardq.errors import ShardqError
from tests.chaos.plan import GroundKind, Plan
from tests.chaos.record import add, begun, leave_out
from tests.chaos.rounds import Told, done, judged, put_away

MOST_WAITING = 3
"""Rounds that wait for their verdict, before the next one waits, too."""


@dataclass
class Run:
    """``drawn``: the plan of a seed; ``is_enough``: of the record so far, rounds that were done, and seconds."""

    drawn: Callable[[int, GroundKind], Plan]
    grounds: Sequence[GroundKind]
    is_enough: Callable[[Chaos, int, float], bool]
    file: Path | None = None
    go_on: bool = False
    """True: also after a round that went wrong."""
    show: Callable[[Told], None] = lambda told: None

    def __post_init__(self) -> None:
        self.record = begun()
        self._since_s = time.monotonic()
        self._waiting: deque[Future[Told]] = deque()

    def carry_out(self, seed: int) -> Chaos:
        spawned = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(1, mp_context=spawned) as judge:
            rounds = 0
            while not self._is_over(rounds):
                plan = self.drawn(seed + rounds, self.grounds[rounds % len(self.grounds)])
                print(
                    f"round {plan.seed} on {plan.ground}: {len(plan.faults)} faults in {plan.seconds:g} s", flush=True
                )
                rounds += 1
                try:
                    told = done(plan)
                except (ServerFailed, ShardqError, redis.RedisError) as exc:
                    print(f"  round {plan.seed} did not come to its end: {type(exc).__name__}: {exc}", flush=True)
                    leave_out(self.record, f"a round: {type(exc).__name__}")
                    continue
                self._waiting.append(judge.submit(judged, told))
                self._take(MOST_WAITING)
            self._take(0)
        return self.record

    def _is_over(self, rounds: int) -> bool:
        if self.is_enough(self.record, rounds, time.monotonic() - self._since_s):
            self._take(0)
            return self.is_enough(self.record, rounds, time.monotonic() - self._since_s)
        return bool(self.record.violations) and not self.go_on

    def _take(self, most: int) -> None:
        """Takes the verdicts that are there, and waits until so many are not, at most."""
        while self._waiting and (self._waiting[0].done() or len(self._waiting) > most):
            told = self._waiting.popleft().result()
            add(self.record, told)
            self.record.took_s = round(time.monotonic() - self._since_s, 1)
            if self.file is not None:
                write(self.record, self.file)
            put_away(told, keep=bool(told.wrong))
            self.show(told)
