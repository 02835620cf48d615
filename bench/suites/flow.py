"""The lateness of tasks while very many others fall due: 50,000 a second, and half of what can be dispatched.

The flow is pushed before, and falls due evenly. The observed tasks fall due at random instants in between, in a topic
of their own, for which a consumer in another process waits: their lateness is from due to claimed. The pollers' own
count tells the lateness of all tasks, from due to ready.

Other tasks stay pending throughout, as in use. Where a flow takes the last of 2,000,000 away, the server shrinks the
tables of all shards meanwhile, and at half of the possible rate it falls behind by 0.1 to 0.3 s.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from bench.children import Child
from bench.figures import Figure, Spent, lateness
from bench.loads import FAR_S, burst, push_ahead, spread_tasks
from bench.probing import CLAIMS
from bench.stand import Stand, Suite
from shardq import Engine, Task
from shardq.core.fleet.lateness import Lateness

TOPIC = "probe"
PER_S = 50_000
SHARE = 0.5
STAY = 400_000

PUSHED_PER_S = 80_000
"""The rate of pushing before the flow."""

GRACE_S = 1.0
"""The wait after all is dispatched. Tasks that have not come by then are reported as missing."""


def _measure(stand: Stand) -> Iterator[Figure]:
    most = dispatched_per_s(stand)
    seconds = stand.pick(1.0, 4.0)
    for per_s, which in ((PER_S, ""), (round(most * SHARE, -3), f", {SHARE:.0%} of what can be dispatched")):
        stand.say(f"lateness while {per_s:,.0f} tasks/s fall due{which}")
        yield from _late(stand, int(per_s), seconds, which)


SUITE = Suite("flow", "lateness while 50,000 tasks/s, and half of what is possible, fall due", _measure)


def dispatched_per_s(stand: Stand) -> float:
    """Returns the rate at which tasks that are all due are made ready."""
    count = stand.pick(20_000, 200_000)
    stand.say(f"how many can be dispatched, {count:,} tasks")
    with stand.engine() as engine:
        engine.start()
        return count / burst(stand, engine, count).wall_s


@dataclass(frozen=True, slots=True)
class Flow:
    """The outcome of one flow."""

    probes: int
    rows: Sequence[tuple[float, float, str]]
    """The observed tasks: due, late by so many ms until it was claimed, id."""
    every: Lateness
    """All tasks of the flow, until ready."""
    spent: Spent

    @property
    def late_ms(self) -> list[float]:
        return [late for _, late, _ in self.rows]


def flowing(stand: Stand, per_s: int, seconds: float) -> Flow:
    probes, stay = stand.pick(50, 500), stand.pick(STAY // 10, STAY)
    with stand.engine() as engine, Child("bench.probing", CLAIMS, stand.url, engine.name, TOPIC) as child:
        child.await_ready()
        child.begin()
        engine.start()
        begin = _pushed(stand, engine, per_s, seconds, probes, stay)
        time.sleep(max(0.0, begin - time.time()))
        with stand.metering() as spent:
            time.sleep(max(0.0, begin + seconds - time.time()))
            stand.until(lambda: engine.stats().scheduled <= stay, "all of the flow is dispatched")
        time.sleep(GRACE_S)
        return Flow(probes, child.end(), engine.stats().lateness, spent)


def _late(stand: Stand, per_s: int, seconds: float, which: str) -> Iterator[Figure]:
    flow = flowing(stand, per_s, seconds)
    late_ms, every, spent = flow.late_ms, flow.every, flow.spent
    own = f"{len(late_ms)} at random instants; all {every.count:,}, due → ready: p50 {every.p50_ms}, p99 {every.p99_ms}"
    busy = f"server busy {spent.server_s / spent.wall_s:.0%}"
    at: dict[str, float | str] = {"curve": "flow", "per_s": per_s}
    name = f"due → claimed while {per_s:,} tasks/s fall due{which}"
    yield lateness(name, late_ms, expected=flow.probes, aim=f"{own}; {busy}; aim: p99 ≤ 15", at=at)


def _pushed(stand: Stand, engine: Engine, per_s: int, seconds: float, probes: int, stay: int) -> float:
    """Pushes everything, and returns the instant at which the flow begins."""
    count = int(per_s * seconds)

    def push(begin: float) -> None:
        engine.push_many(spread_tasks(stay, at_least_s=FAR_S))
        for _ in engine.push_iter(Task(0, at=begin + number / per_s) for number in range(count)):
            pass
        dues = [int((begin + random.uniform(0, seconds)) * 1000) for _ in range(probes)]
        engine.push_many([Task(due_ms, at=due_ms / 1000, topic=TOPIC) for due_ms in dues])

    return push_ahead(stand, engine, 1.5 + count / PUSHED_PER_S, push)
