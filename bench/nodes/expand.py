"""The number of shards trebles while tasks flow over a backlog: lateness, the wait of a push, the end of the change."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bench.cores import Cores
from bench.loads import FAR_S, spread_tasks
from bench.nodes.flow import Flow, Pushes
from bench.nodes.timeline import Lateness, Step, lateness, series
from bench.stand import Scale, clustered
from shardq import Engine

MASTERS = 3
NAME = "bench-expand"

FROM = 16
TO = 48

PUSHING = 8
"""The number of pushing threads."""

MOVED_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class Expand:
    """Instants are in seconds after the call of ``expand``."""

    masters: int
    replicas: int
    from_shards: int
    to_shards: int
    pending: int
    """Tasks that are due much later. Two thirds of them move."""
    per_s: int
    """Tasks that fall due a second; those of the pushing threads come on top."""
    in_force_s: float
    """``expand`` returned: new tasks go by the new number."""
    done_s: float
    """Every task is where it belongs."""
    moved: int
    moved_per_s: float
    ready: dict[str, Lateness | None]
    """From due to ready, for tasks due ``before`` the call, ``during`` the change, and ``after`` it."""
    claimed: dict[str, Lateness | None]
    pushes: Pushes
    lost_of_those_before: int
    given_out_twice: int
    series: list[Step]
    """From due to ready."""


def expand(binary: Path, *, replicas: int, cores: Cores, scale: Scale, say: Callable[[str], None]) -> Expand:
    quick = scale == "quick"
    per_s, before_s, seconds = (200, 1.0, 5.0) if quick else (1000, 4.0, 14.0)
    pending = 3_000 if quick else 100_000
    say(f"starting {MASTERS} masters, {replicas} replicas each")
    with (
        clustered(binary, masters=MASTERS, replicas=replicas, cores=cores) as cluster,
        Engine(cluster.url, name=NAME, shards=FROM) as engine,
    ):
        engine.start()
        say(f"pushing {pending:,} tasks into {FROM} shards")
        engine.push_many(spread_tasks(pending, at_least_s=FAR_S))
        flow = Flow(engine, per_s=per_s, seconds=seconds)
        say(f"{per_s} tasks/s fall due; after {before_s:.0f} s it becomes {TO} shards")
        with flow.running(cluster.masters, plain=PUSHING):
            flow.sleep_until(before_s)
            called_s = time.time()
            growth = engine.resize(TO)
            in_force_s = time.time() - called_s
            if not growth.wait(MOVED_TIMEOUT_S):
                raise TimeoutError(f"the tasks were not moved within {MOVED_TIMEOUT_S:.0f} s: {growth.progress()}")
            done_s = time.time() - called_s
            say(f"moved after {done_s:.1f} s; the flow goes on")
        moved = growth.progress().moved
        ready, claimed = flow.ready(origin_s=called_s), flow.claimed(origin_s=called_s)
        phases = {"before": (-before_s, 0.0), "during": (0.0, done_s), "after": (done_s, seconds)}
        return Expand(
            masters=MASTERS,
            replicas=replicas,
            from_shards=FROM,
            to_shards=TO,
            pending=pending,
            per_s=per_s,
            in_force_s=in_force_s,
            done_s=done_s,
            moved=moved,
            moved_per_s=moved / done_s,
            ready={
                phase: lateness(one for one in ready if begin <= one.due_s < end)
                for phase, (begin, end) in phases.items()
            },
            claimed={
                phase: lateness(one for one in claimed if begin <= one.due_s < end)
                for phase, (begin, end) in phases.items()
            },
            pushes=flow.pushes(None),
            lost_of_those_before=flow.lost(flow.dues),
            given_out_twice=sum(count > 1 for count in flow.claims.values()),
            series=series(ready),
        )
