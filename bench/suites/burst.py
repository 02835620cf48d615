"""Very many tasks are due at one instant, and a process that pushes and PINGs all the while shows what others feel.

The server itself counts how long a script holds it.
"""

from __future__ import annotations

from collections.abc import Iterator

from bench.children import Child
from bench.figures import Figure, percentiles
from bench.loads import burst
from bench.probing import PUSHES
from bench.stand import SHARDS, Stand, Suite

PER_S = 100
"""Pushes a second, and as many PINGs: enough to see a pause of 20 ms, and too few to be the load."""

LOOK_S = 0.02
"""The time between two looks. A look asks all shards, with some fifty small commands."""


def _measure(stand: Stand) -> Iterator[Figure]:
    count = stand.pick(20_000, 1_000_000)
    stand.say(f"{count:,} tasks due at one instant")
    with stand.engine() as engine:
        engine.start()
        with Child("bench.probing", PUSHES, stand.url, engine.name, "", str(PER_S), "3600") as probe:
            probe.await_ready()
            probe.begin()
            ends: list[float] = []

            def over() -> float:
                # the probe's own tasks stay scheduled
                ended = stand.until(lambda: engine.stats().ready >= count, f"{count:,} tasks are ready", look_s=LOOK_S)
                ends.append(ended)
                return ended

            spent = burst(stand, engine, count, over=over)
            held = stand.script_us()
            (end_s,) = ends
            rows = [row for row in probe.end() if end_s - spent.wall_s <= row[0] <= end_s]
        lateness = engine.stats().lateness
    name = f"{count:,} due at once, {SHARDS} shards"
    own = f"by the pollers' own count: p50 {lateness.p50_ms} ms, max {lateness.max_ms} ms; aim: ≤ 5"
    yield Figure(f"{name}: until the last is ready", spent.wall_s, "s", reference=own)
    yield Figure("meanwhile: dispatched", count / spent.wall_s, "tasks/s")
    if held:
        yield Figure("meanwhile: a script holds the server", held["p50"], "µs", held, "aim: p99.9 ≤ 3,000")
    for column, what in ((1, "a push of another process"), (2, "a PING of another process")):
        took = percentiles([row[column] for row in rows])
        yield Figure(f"meanwhile: {what}", took["p50"], "ms", took, f"{len(rows)} of them; aim: p99 ≤ 20")


SUITE = Suite("burst", "a million tasks due at one instant, and what others feel of it", _measure)
